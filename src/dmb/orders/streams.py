"""An order for each number of calls: several streams side by side, so that one call writes positions far apart."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.orders.base import WriteOrder, given_first
from dmb.orders.random import draw_turns, narrow
from dmb.orders.smooth import SLOPE

BUDGETS = (4, 8, 16, 32, 64)
"""Numbers of calls that have an order of their own."""


class Streams(WriteOrder):
    r"""Streams of `K` positions each, written side by side: of `K` calls, each writes the same place of every stream.

    Position `i` of a text stands at place `i mod K`; with as many calls as positions, the text is written from left to
    right. On a grid, streams are tiles of `K` positions. So neighbours are written one after the other, and positions
    of one call are far apart. (Streams of a text from left to right are those of ARMD, arXiv 2601.16971.)

    Args:
        shape: the lengths of the axes along which positions lie: `(64,)` for a text, `(8, 8)` for an image.
        budgets: the numbers of calls that have an order of their own; see `for_calls`.
        learned: learn the direction and the slope of the order along each axis, which all budgets share. Default: from
            left to right, and rows of a tile from top to bottom.

    >>> Streams((6,), budgets=(2, 3)).for_calls(3).turns(1)
    tensor([[0, 2, 4, 1, 3, 5]])
    >>> Streams((4, 4), budgets=(4,)).for_calls(4).turns(1).view(4, 4) // 4  # the call of each pixel
    tensor([[0, 1, 0, 1],
            [2, 3, 2, 3],
            [0, 1, 0, 1],
            [2, 3, 2, 3]])
    """

    _places: Int[Tensor, "k a d"]

    def __init__(self, shape: Sequence[int], budgets: Sequence[int] = BUDGETS, learned: bool = False):
        for name, values in {"shape": shape, "budgets": budgets}.items():
            if not values or min(values) < 1:
                raise ValueError(f"{name} must hold numbers of at least 1, got {list(values)}")
        super().__init__(math.prod(shape))
        self.shape, self.budgets = tuple(shape), tuple(sorted({min(budget, self.num_positions) for budget in budgets}))
        axes = torch.unravel_index(torch.arange(self.num_positions), self.shape)
        places = [torch.stack([a % p for a, p in zip(axes, self._tile(k), strict=True)]) for k in self.budgets]
        self.register_buffer("_places", torch.stack(places), persistent=False)
        self.weights = nn.Parameter(torch.zeros(len(shape))) if learned else None

    def config(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "budgets": list(self.budgets), "learned": self.weights is not None}

    def _tile(self, budget: int) -> tuple[int, ...]:
        """The axes of a tile of at most `budget` positions, the longest halved until it fits."""
        tile = list(self.shape)
        while math.prod(tile) > budget:
            axis = max(range(len(tile)), key=tile.__getitem__)
            tile[axis] = budget if len(tile) == 1 else -(-tile[axis] // 2)
        return tuple(tile)

    def for_calls(self, calls: int) -> "_Side":
        """The order of the budget that `budget_for` gives."""
        budget = self.budget_for(calls)
        assert budget is not None
        return _Side(self._tile(budget), self._places[self.budgets.index(budget)], self.weights)

    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return self.for_calls(self.num_positions).turns(batch, given=given, generator=generator)

    @property
    def log_speeds(self) -> Float[Tensor, " d"] | None:
        return self.for_calls(self.num_positions).log_speeds

    @torch.no_grad()
    def normalise(self) -> None:
        if self.weights is not None and self.log_speeds is not None:
            narrow(self.weights, self.log_speeds)


class _Side(WriteOrder):
    """Streams side by side, for one budget: by a ramp of speeds along each axis of a tile, or place by place."""

    def __init__(self, tile: tuple[int, ...], places: Int[Tensor, "a d"], weights: Float[Tensor, " a"] | None):
        super().__init__(places.shape[1])
        self._length = math.prod(tile)
        ramps = SLOPE * (places - places.double().mean(-1, keepdim=True))
        self._speeds = None if weights is None else weights @ ramps.to(weights.dtype)
        place = torch.zeros_like(places[0])
        for length, axis in zip(tile, places, strict=True):
            place = place * length + axis
        if self._speeds is not None:  # the same places, the slowest to be masked first
            slope = self._speeds.new_zeros(self._length).scatter(0, place, self._speeds.detach())
            place = slope.argsort(stable=True).argsort()[place]
        self._place = place

    @property
    def log_speeds(self) -> Float[Tensor, " d"] | None:
        return self._speeds

    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        if self._speeds is not None:
            return draw_turns(self._speeds, batch, given=given, generator=generator)
        return given_first(self._place.argsort(stable=True).expand(batch, -1), given)

    def divide(
        self, turn: Int[Tensor, "b d"], calls: int, given: Bool[Tensor, "b d"] | None = None
    ) -> Int[Tensor, "b d"]:
        """As many positions per call as there are blanks at one place, so that neighbours are not written together."""
        blank = torch.ones_like(turn) if given is None else (~given).long()
        blanks, left = blank.sum(-1, keepdim=True), turn - (1 - blank).sum(-1, keepdim=True)
        calls_used = min(calls, self._length)
        place = (self._place * calls_used // self._length).expand_as(turn)
        ends = turn.new_zeros(len(turn), calls_used).scatter_add(1, place, blank).cumsum(-1)
        call = torch.searchsorted(ends, left, right=True)
        empty = (ends.diff(dim=-1, prepend=ends.new_zeros(len(turn), 1)) == 0).long()
        call = call - F.pad(empty.cumsum(-1), (0, 1)).gather(1, call)
        return torch.where(left < 0, -1, torch.where(blanks <= calls, left, call))

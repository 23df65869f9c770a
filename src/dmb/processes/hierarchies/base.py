"""The base class of hierarchies: which states lie below which."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import numerics
from dmb._core.configuration import Configurable


class Hierarchy(nn.Module, Configurable, ABC):
    """A partial order of the states, one row per position or one row for all.

    Args:
        num_states: `n`, the number of nodes.
        num_clocks: `m`, the largest number of clocks of a position.
        names: number of names, the last states, which data never visit.
    """

    def __init__(self, num_states: int, num_clocks: int, names: int):
        super().__init__()
        if not 0 <= names < num_states:
            raise ValueError(
                f"names must be fewer than the states, so that the data have one, got {names} of {num_states}"
            )
        self.num_states, self.num_clocks, self.names = num_states, num_clocks, names

    @property
    @abstractmethod
    def clock_into(self) -> Int[Tensor, "h n"]:
        """Which clock leads into each token, counted from 1; 0 if none does. The clock of the top node comes last."""

    def spread(self, rates: Float[Tensor, "c g m"]) -> tuple[Float[Tensor, "c f n"], Float[Tensor, "c f n"]]:
        """For every token, the rate of its own clock and the total rate of all clocks strictly above it."""
        own = numerics.permute(F.pad(rates, (1, 0)), self.clock_into)
        return own, self.sum_above(own)

    def rates_at(
        self, rates: Float[Tensor, "c g m"], x: Int[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`spread` at one token each."""
        own, above = self.spread(rates)
        return numerics.pick(own, x), numerics.pick(above, x)

    @abstractmethod
    def sum_above(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        """For every token, the sum of `values` over the nodes strictly above it."""

    @abstractmethod
    def sum_below(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        """For every token, the sum of `values` over the nodes strictly below it; by additions only."""

    @abstractmethod
    def from_cumulative(self, totals: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        """The values whose sums at or below every token are `totals`."""

    @abstractmethod
    def is_below(self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        """Whether `x` lies strictly below `y`."""

    @abstractmethod
    def mask_below(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        """Which states lie strictly below `x`."""

    @abstractmethod
    def mask_above(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        """Which states lie strictly above `x`."""

    @abstractmethod
    def gather_path(self, values: Shaped[Tensor, "c g n"], x: Int[Tensor, "b d"]) -> Shaped[Tensor, "e f k"]:
        """`values` at the nodes on the path from `x` to the top; `path_mask` says which of the `k` are on it."""

    @abstractmethod
    def path_mask(
        self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]
    ) -> tuple[Bool[Tensor, "b d k"], Bool[Tensor, "*e k"]]:
        """Which entries of `gather_path` are on the path from `x` up to `y`, without `y`; and which entry is `x`."""

    @abstractmethod
    def climb(
        self, x: Int[Tensor, "b d"], rates: Float[Tensor, "c g m"], level: Float[Tensor, "b d"]
    ) -> Int[Tensor, "b d"]:
        """The lowest node at or above `x` such that the total rate of all clocks above it is at most `level`."""

    def draw(self, weights: Float[Tensor, "b d n"], generator: torch.Generator | None = None) -> Int[Tensor, "b d"]:
        """A state for each position in proportion to `weights`, by inverse CDF."""
        return numerics.categorical(weights, generator=generator)

"""Orders that are drawn by the speeds of positions (Plackett-Luce)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb._core import numerics
from dmb.orders.base import WriteOrder, given_first

_WIDEST = 300.0
"""The largest absolute logarithm of a speed: larger differences have no effect, and would leave the range of floats."""


class Random(WriteOrder):
    r"""All orders, equally likely. Subclasses prefer some, by a speed `v_i > 0` for each position.

    Position `i` is masked at a time `τ_i ~ Exp(v_i)`: among those that still stand, the next to be masked is `i` with
    probability `v_i / Σ_j v_j`. Writing goes the other way.

    >>> Random(3).turns(2, generator=torch.Generator().manual_seed(0)).sort(-1).values
    tensor([[0, 1, 2],
            [0, 1, 2]])
    """

    _equal: Float[Tensor, " d"]

    def __init__(self, num_positions: int):
        super().__init__(num_positions)
        self.register_buffer("_equal", torch.zeros(num_positions), persistent=False)

    @property
    def log_speeds(self) -> Float[Tensor, " d"]:
        return self._equal

    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return draw_turns(self.log_speeds, batch, given=given, generator=generator)


class Free(Random):
    """A speed for each position, learned on its own: for the columns of a table. All are equal at first."""

    def __init__(self, num_positions: int):
        super().__init__(num_positions)
        self.weights = nn.Parameter(torch.zeros(num_positions))

    @property
    def log_speeds(self) -> Float[Tensor, " d"]:
        return self.weights

    @torch.no_grad()
    def normalise(self) -> None:
        self.weights.sub_(self.weights.mean())
        narrow(self.weights, self.log_speeds)


def narrow(weights: Float[Tensor, " k"], log_speeds: Float[Tensor, " d"]) -> None:
    """Scale the weights so that no logarithm of a speed leaves a range within which all orders can be told apart."""
    weights.mul_((_WIDEST / log_speeds.abs().max()).clamp(max=1.0))


def draw_turns(
    log_speeds: Float[Tensor, " d"],
    batch: int,
    *,
    given: Bool[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b d"]:
    """The turn of each position: turn 0 is written first, and was masked last. Given positions come before all others.

    >>> draw_turns(torch.tensor([400.0, 0.0, -400.0]), 2)  # the slowest to be masked is the first to be written
    tensor([[2, 1, 0],
            [2, 1, 0]])
    """
    device = log_speeds.device if generator is None else generator.device
    waiting = numerics.exponential((batch, len(log_speeds)), generator=generator, device=device).to(log_speeds.device)
    log_time = waiting.log() - log_speeds.detach()  # in logarithms, which may span hundreds of units
    return given_first(log_time.argsort(dim=-1, descending=True), given)

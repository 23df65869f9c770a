"""What the clocks of a hierarchy have gained in a span of time, and what follows from that."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.hierarchies import Hierarchy


class Span(NamedTuple):
    """Cumulative intensities of all clocks, `scale · rates`, one span of time per row.

    `A` is that of the clock that leads into a token, `S` the total of all clocks strictly above it. Steady clocks share
    one set of rates, and `scale` is the clock time that has passed: to look one up, nothing of size `[b, d, n]` is
    needed.

    >>> from dmb import Line
    >>> span = Span(Line(torch.tensor([[0, 1, 2]])), torch.tensor([[2.0]]), torch.tensor([[[0.5, 1.0]]]))
    >>> span.at(torch.tensor([[1]]))  # A and S
    (tensor([[1.]]), tensor([[2.]]))
    """

    hierarchy: Hierarchy
    scale: Float[Tensor, "b e"]
    rates: Float[Tensor, "c g m"]

    def at(self, x: Int[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`A` and `S` at one token each; `exp(-S)` is the chance that no clock above it has rung."""
        own, above = self.hierarchy.rates_at(self.rates, x)
        return self.scale * own, self.scale * above

    def log_tables(self) -> tuple[Float[Tensor, "b g n"], Float[Tensor, "b g n"]]:
        """`log c` and `log D` of every state: that no clock above rang, and that its own was the topmost to ring."""
        own, above = self.hierarchy.spread(self.rates)
        return log_chances(self.scale[..., None] * own, self.scale[..., None] * above)

    def log_tables_at(self, x: Int[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`log_tables` at one token each, O(1) per token."""
        return log_chances(*self.at(x))

    def climb(self, x: Int[Tensor, "b d"], level: Float[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """The lowest node at or above `x` with `S ≤ level`: if that is drawn from Exp(1), the topmost node to ring."""
        return self.hierarchy.climb(x, self.rates, level / self.scale)

    def climb_below(
        self,
        at: tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]],
        source: Int[Tensor, "b d"],
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b d"]:
        """Draw the topmost of the nodes between `source` and `x_t` to ring, `source` itself if none does.

        As an exponential has no memory, asking that nothing from `x_t` on rings only shifts it by `A + S` of `x_t`,
        which `at` holds.
        """
        own, above = at
        level = numerics.exponential(tuple(source.shape), generator=generator, device=source.device)
        return self.climb(source, level + above + own)


def log_chances(
    own: Float[Tensor, "*s"], above: Float[Tensor, "*s"]
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """`log c = -S` and `log D = log c + log(1 - exp(-A))`: a product, so that it is exact however small `A` is."""
    return -above, numerics.log1mexp(own) - above

"""How likely each clock of a bridge has rung in a span of time, and what follows from that."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb import numerics


class Intensity(NamedTuple):
    """Cumulative intensities `A_k = scale · rates_k` of the clocks of every rank, a span of time a row.

    Steady clocks share one set of `rates`, and `scale` is the clock time that has passed: to look one up, nothing of
    size `[b, d, n]` is needed. Clocks that vary in time have `rates` a row, and a `scale` of 1.

    >>> span = Intensity(torch.tensor([[2.0]]), torch.tensor([[[0.0, 0.5, 1.0]]]))
    >>> span.at(torch.tensor([[1]])), span.higher(torch.tensor([[1]])), span.lowest(torch.tensor([[2.5]]))
    (tensor([[1.]]), tensor([[2.]]), tensor([[1]]))
    """

    scale: Float[Tensor, "b e"]
    rates: Float[Tensor, "c g n"]

    def double(self) -> "Intensity":
        """In float64, and without a gradient: for draws."""
        return Intensity(self.scale.double(), self.rates.detach().double())

    def at(self, rank: Int[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """`A_k` at one rank a token."""
        return self.scale * numerics.pick(self.rates, rank)

    def higher(self, rank: Int[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """`S_k = Σ_{l>k} A_l` at one rank a token: `exp(-S_k)` is the chance that no higher clock rang."""
        return self.scale * numerics.pick(numerics.suffix_sum(self.rates), rank)

    def log_tables(self) -> tuple[Float[Tensor, "b g n"], Float[Tensor, "b g n"]]:
        """`log c` and `log D` of every rank: that no higher clock rang, and that this one was the highest to ring."""
        scale = self.scale[..., None]
        log_c = -scale * numerics.suffix_sum(self.rates)
        return log_c, log_c + numerics.log1mexp(scale * self.rates)

    def log_tables_at(self, rank: Int[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`log_tables` looked up at one rank a token, O(1) each."""
        log_c = -self.higher(rank)
        return log_c, log_c + numerics.log1mexp(self.at(rank))

    def lowest(self, threshold: Float[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """The lowest rank with `S_k ≤ threshold`: if that is drawn from Exp(1), the highest clock that rang."""
        threshold = threshold / self.scale.double()
        ascending = numerics.suffix_sum(self.rates.detach().double()).flip(-1)  # searchsorted wants it rising
        rows, positions, num_states = ascending.shape
        if rows == positions == 1:
            found = torch.searchsorted(ascending[0, 0], threshold, right=True)
        elif rows == 1:
            found = torch.searchsorted(ascending[0], threshold.T.contiguous(), right=True).T
        elif positions == 1:
            found = torch.searchsorted(ascending[:, 0].contiguous(), threshold, right=True)
        else:
            found = torch.searchsorted(ascending, threshold[..., None], right=True).squeeze(-1)
        return num_states - found

    def highest_ringing(
        self, shape: tuple[int, ...], generator: torch.Generator | None, below: Int[Tensor, "b d"] | None = None
    ) -> Int[Tensor, "b d"]:
        """Draw the highest clock that rang; if `below` is given, of those of lower rank.

        `P(Z ≤ y) = exp(-S_y)`, so `Z` is the lowest rank with `S_y ≤ E`, `E ~ Exp(1)`; and as `E` has no memory,
        asking that `Z < k` only shifts it by `S_{k-1}`.
        """
        threshold = numerics.exponential(shape, generator=generator, device=self.rates.device)
        if below is not None:
            threshold = threshold + self.double().higher((below - 1).clamp(min=0))
        return self.lowest(threshold)

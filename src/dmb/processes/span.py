"""Intensities over a time interval, their probabilities, and the integrand of `J_score` that follows from these."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.hierarchies import Hierarchy


class Span(NamedTuple):
    """Cumulative intensities of all clocks over an interval of time, `scale · rates`, one interval per row.

    `A` is that of the clock that leads into a token, `S` the total of all clocks strictly above it. With these,
    `c = exp(-S)` is the chance that no clock above it has rung, `D = c (1 - exp(-A))` that its own was the topmost to
    ring. Steady clocks share one set of rates, and `scale` is the clock time that has passed: to look one up, nothing
    of size `[b, d, n]` is needed.

    >>> from dmb import Line
    >>> span = Span(Line(torch.tensor([[0, 1, 2]])), torch.tensor([[2.0]]), torch.tensor([[[0.5, 1.0]]]))
    >>> span.at(torch.tensor([[1]]))  # A and S
    (tensor([[1.]]), tensor([[2.]]))
    """

    hierarchy: Hierarchy
    scale: Float[Tensor, "b e"]
    rates: Float[Tensor, "c g m"]

    def at(self, x: Int[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`A` and `S` at one token each."""
        own, above = self.hierarchy.rates_at(self.rates, x)
        return self.scale * own, self.scale * above

    def log_tables(self) -> tuple[Float[Tensor, "b g n"], Float[Tensor, "b g n"]]:
        """`log c` and `log D` of every state."""
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

    def log_score(self, log_pi: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"]) -> Float[Tensor, "b d n"]:
        """`log (f_y / D_v)` at `v = x_t`, where its clock runs; `f_y` is the chance to be at `y`, see `log_reach`."""
        log_f = log_reach(log_pi, self.log_mass_below(log_pi), *self.log_tables())
        log_d = self.log_tables_at(x_t)[1]
        runs = log_d > -torch.inf
        return torch.where(runs[..., None], log_f - torch.where(runs, log_d, 0.0)[..., None], -torch.inf)

    def integrand_from_score(
        self,
        log_score: Float[Tensor, "b d n"],
        below: Bool[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
    ) -> Float[Tensor, "b d"]:
        r"""`Σ_y s_y - Σ_z r_z (1 - log r_z + log s_z)`, `y` over all states `below` `v`, `z` over the path up to `v`.

        To be multiplied by the rate into `v = x_t`, the same for all of them. `r_z = q_z / D_v`, see `_log_mass`.
        """
        log_ratio = self._log_mass(self.log_tables(), x_t, x_0) - self.log_tables_at(x_t)[1][..., None]
        reached = log_ratio.exp() > 0  # a ratio that underflows weighs nothing, whatever the score
        # -inf replaced before any arithmetic, so that no nan reaches the gradient
        log_ratio = torch.where(reached, log_ratio, 0.0)
        log_s = torch.where(below, log_score, 0.0)
        cross = log_ratio.exp() * (1 - log_ratio + self.hierarchy.gather_path(log_s, x_0))
        return torch.where(below, log_s.exp(), 0.0).sum(-1) - torch.where(reached, cross, 0.0).sum(-1)

    def integrand_from_posterior(
        self,
        log_hazard: Float[Tensor, "b d"],
        log_rest: Float[Tensor, "b d"],
        log_pi: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
    ) -> Float[Tensor, "b d"]:
        r"""The integrand, of the score that the posterior `π` implies, with the score's sum telescoped away.

        `h c' π(strictly below v)` where nothing moved; where it did, `h [-c' π_v + Σ_y q_y log(q_y / f_y)]` over the
        path up to `v = x_t`. `log_hazard` is `log h`; `log_rest` is `log c'`, that of the chance that neither `v` nor
        anything above it has rung. For `q` and `f` see `_log_mass` and `log_reach`.
        """
        tables, log_below, stayed = self.log_tables(), self.log_mass_below(log_pi), x_t == x_0
        at_or_below = torch.where(stayed, numerics.pick(log_below, x_t), numerics.pick(log_pi, x_t))
        lost = torch.exp(log_hazard + log_rest + at_or_below)

        log_q = self._log_mass(tables, x_t, x_0)
        log_weight = log_q + log_hazard[..., None]
        reached = log_weight.exp() > 0
        log_weight, log_q = torch.where(reached, log_weight, 0.0), torch.where(reached, log_q, 0.0)
        log_f = log_reach(*(self.hierarchy.gather_path(values, x_0) for values in (log_pi, log_below, *tables)))
        divergence = torch.where(reached, log_weight.exp() * (log_q - torch.where(reached, log_f, 0.0)), 0.0).sum(-1)
        return torch.where(stayed, lost, divergence - lost)

    def integrand_from_weights(
        self,
        log_hazard: Float[Tensor, "b d"],
        weights: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
    ) -> Float[Tensor, "b d"]:
        r"""The same for `π_y ∝ e_y p_{t|0}(x_t|y)`, from the weights `e` and without logarithms of what can vanish.

        With `W` the sums of `e` strictly below, `g_y = c_y e_y + D_y W_y` and `Z = D_v W_v + c_v e_v`, the reach is
        `f_y = g_y D_v / Z`, and the `q_y` add up to `c' = c_v exp(-A_v)`. So it is `h c' D_v W_v / Z` where nothing
        moved, else `h [Σ_y q_y log(q_y / g_y) - c' (log(D_v / Z) + c_v e_v / Z)]`. Not finite where floats end.
        """
        own, above = (self.scale[..., None] * rates for rates in self.hierarchy.spread(self.rates))
        c, below, stayed = torch.exp(-above), self.hierarchy.sum_below(weights), x_t == x_0
        d = c * -torch.expm1(-own)
        own_x, c_x, d_x, at_x, below_x = (numerics.pick(values, x_t) for values in (own, c, d, weights, below))
        z, rest = d_x * below_x + c_x * at_x, c_x * torch.exp(-own_x)
        # sums and products with masks as numbers, which are several times as fast as torch.where
        on_path, here = (mask.to(weights.dtype) for mask in self.hierarchy.path_mask(x_0, x_t))
        c, d, weights, below = (self.hierarchy.gather_path(values, x_0) for values in (c, d, weights, below))
        q = (d * (1 - here) + c * here) * on_path
        off = (q == 0).to(q.dtype)
        # a difference of logarithms: the gradient of that of a ratio leaves the range of floats
        divergence = (q * (torch.log(q + off) - torch.log((c * weights + d * below) * (1 - off) + off))).sum(-1)
        lost = torch.where(stayed, 1.0, d_x).log() - z.log() + c_x * at_x / z
        return log_hazard.exp() * torch.where(stayed, rest * d_x * below_x / z, divergence - rest * lost)

    def log_mass_below(self, log_pi: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        """`log π(strictly below y)`: non-negative terms are summed, so no digits are lost; far faster than in logs."""
        total = self.hierarchy.sum_below(numerics.exp_or_zero(log_pi))
        # asked in this way so that nan stays nan
        return torch.where(total == 0, -torch.inf, total.clamp(min=torch.finfo(total.dtype).tiny).log())

    def _log_mass(
        self, tables: tuple[Tensor, Tensor], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"]
    ) -> Float[Tensor, "b d k"]:
        """`log q_y` on the path from `x_0` up to `x_t`, which leaves `x_t` out; `-inf` elsewhere.

        `q_{x_0} = c_{x_0}`, and above that `q_y = D_y`.
        """
        on_path, here = self.hierarchy.path_mask(x_0, x_t)
        log_c, log_d = tables
        log_q = torch.where(here, numerics.pick(log_c, x_0)[..., None], self.hierarchy.gather_path(log_d, x_0))
        return torch.where(on_path, log_q, -torch.inf)


def log_reach(
    log_pi: Float[Tensor, "..."],
    log_below: Float[Tensor, "..."],
    log_c: Float[Tensor, "..."],
    log_d: Float[Tensor, "..."],
) -> Float[Tensor, "..."]:
    """`log f_y`, `f_y = c_y π_y + D_y π(strictly below y)`: the chance to be at `y` if the source is drawn from `π`."""
    return numerics.logaddexp(log_c + log_pi, log_d + log_below)


def log_chances(
    own: Float[Tensor, "*s"], above: Float[Tensor, "*s"]
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """`log c = -S` and `log D = log c + log(1 - exp(-A))`: a product, so that it is exact however small `A` is."""
    return -above, numerics.log1mexp(own) - above

"""The integrand of `J_score` on a hierarchy: pure functions of tokens, tables and what a network says.

Here `v = x_t`, and the way from `x_0` up to `v` leaves `v` out. On it `q_{x_0} = c_{x_0}`, and above that `q_y = D_y`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.hierarchies import Hierarchy

Tables = tuple[Float[Tensor, "b g n"], Float[Tensor, "b g n"]]
"""`log c` and `log D` of every state."""


def integrand_from_score(
    hierarchy: Hierarchy,
    tables: Tables,
    below: Bool[Tensor, "b d n"],
    log_d: Float[Tensor, "b d"],
    log_score: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    x_0: Int[Tensor, "b d"],
) -> Float[Tensor, "b d"]:
    r"""`Σ_y s_y - Σ_z r_z (1 - log r_z + log s_z)`, `y` over all states below `v` and `z` over the way up to `v`.

    To be multiplied by the rate into `v`, the same for all of them. `r_z = q_z / D_v`, and `log_d` is `log D_v`.
    """
    log_ratio = _log_mass(hierarchy, tables, x_t, x_0) - log_d[..., None]
    reached = log_ratio.exp() > 0  # a ratio that underflows weighs nothing, whatever the score
    # -inf replaced before any arithmetic, so that no nan reaches the gradient
    log_ratio = torch.where(reached, log_ratio, 0.0)
    log_s = torch.where(below, log_score, 0.0)
    cross = log_ratio.exp() * (1 - log_ratio + hierarchy.along(log_s, x_0))
    return torch.where(below, log_s.exp(), 0.0).sum(-1) - torch.where(reached, cross, 0.0).sum(-1)


def integrand_from_posterior(
    hierarchy: Hierarchy,
    tables: Tables,
    log_hazard: Float[Tensor, "b d"],
    log_rest: Float[Tensor, "b d"],
    log_pi: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    x_0: Int[Tensor, "b d"],
) -> Float[Tensor, "b d"]:
    r"""The same integrand, of the score that the posterior `π` implies, with the score's sum telescoped away.

    `h c' π(strictly below v)` where nothing moved; where it did, `h [-c' π_v + Σ_y q_y log(q_y / f_y)]` over the way up
    to `v`, with `f_y = c_y π_y + D_y π(strictly below y)`. `log_hazard` is `log h`; `log_rest` is `log c'`, that of the
    chance that neither `v` nor anything above it has rung.
    """
    log_below, stayed = log_mass_below(hierarchy, log_pi), x_t == x_0
    at_or_below = torch.where(stayed, numerics.pick(log_below, x_t), numerics.pick(log_pi, x_t))
    lost = torch.exp(log_hazard + log_rest + at_or_below)

    log_q = _log_mass(hierarchy, tables, x_t, x_0)
    log_weight = log_q + log_hazard[..., None]
    reached = log_weight.exp() > 0
    log_weight, log_q = torch.where(reached, log_weight, 0.0), torch.where(reached, log_q, 0.0)
    log_f = log_reach(*(hierarchy.along(values, x_0) for values in (log_pi, log_below, *tables)))
    divergence = torch.where(reached, log_weight.exp() * (log_q - torch.where(reached, log_f, 0.0)), 0.0).sum(-1)
    return torch.where(stayed, lost, divergence - lost)


def log_reach(
    log_pi: Float[Tensor, "b d k"],
    log_below: Float[Tensor, "b d k"],
    log_c: Float[Tensor, "b g k"],
    log_d: Float[Tensor, "b g k"],
) -> Float[Tensor, "b d k"]:
    """`log f_y`, `f_y = c_y π_y + D_y π(strictly below y)`: the chance to be at `y` if the source is drawn from `π`."""
    return numerics.logaddexp(log_c + log_pi, log_d + log_below)


def log_mass_below(hierarchy: Hierarchy, log_pi: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
    """`log π(strictly below y)`: non-negative terms are summed, so no digits are lost, and far faster than in logs."""
    total = hierarchy.below(log_pi.exp())
    # asked in this way so that nan stays nan
    return torch.where(total == 0, -torch.inf, total.clamp(min=torch.finfo(total.dtype).tiny).log())


def _log_mass(
    hierarchy: Hierarchy, tables: Tables, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"]
) -> Float[Tensor, "b d k"]:
    """`log q_y` on the way from `x_0` up to `x_t`; `-inf` elsewhere."""
    log_c, log_d = tables
    on_the_way, here = hierarchy.way(x_0, x_t)
    log_q = torch.where(here, numerics.pick(log_c, x_0)[..., None], hierarchy.along(log_d, x_0))
    return torch.where(on_the_way, log_q, -torch.inf)

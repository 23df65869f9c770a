"""Estimating the data's marginals by sampling (Eq. 10)."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dmb.sampling.base import Denoiser, draw_prior, time_grid
from dmb.sampling.step_by_step import ancestral, log_tweedie, tweedie

if TYPE_CHECKING:  # which imports this module
    import dmb.bridges

_AT_ONCE = 1 << 22  # probabilities that are held


@torch.no_grad()
def estimate_marginals(
    model: "dmb.bridges.Bridge", *, chains: int = 256, calls: int = 32, generator: torch.Generator | None = None
) -> Float[Tensor, "d n"]:
    """`μ_i(x_0) ≈ E[p_{0|1}(x_0 | x_{t_1})]`: run chains to the last but one time, then average where they would go.

    Every row is a distribution. It feeds the next Matrix-learning phase.

    Args:
        model: the model to sample from.
        chains: how many chains to average over.
        calls: steps of each chain; with 1 the average is over draws of the prior alone.
        generator: source of all randomness.
    """
    at_once = max(1, _AT_ONCE // (model.num_positions * model.num_states))
    sizes = [min(at_once, chains - first) for first in range(0, chains, at_once)]
    parts = (model.arrivals(size, calls=calls, generator=generator) for size in sizes)
    total, dtype = torch.zeros((), dtype=torch.float64, device=model.device), torch.float64
    for part in parts:
        total, dtype = total + part.double().sum(0), part.dtype
    return (total / total.sum(-1, keepdim=True)).to(dtype)


def arrivals(
    model: "dmb.bridges.MarkovBridge", chains: int, calls: int, generator: torch.Generator | None
) -> Float[Tensor, "b d n"]:
    """Where each of a few chains would go in the last of its steps."""
    process, denoiser, times = model.process, Denoiser(model), time_grid(model.process, calls)
    state = draw_prior(process, chains, generator=generator)
    if len(times) > 2:  # the last time given to the sampler is t_1, not 0
        *_, (_, state) = (ancestral if model.has_posterior else tweedie)(denoiser, state, times[:-1], generator)
    t_1, end = (process.solve(t, chains) for t in times[-2:].tolist())
    if model.has_posterior:
        return denoiser.log_posterior(state, t_1).exp()
    return log_tweedie(process, denoiser.log_score(state, t_1), state, t_1, end, to_data=True).exp()

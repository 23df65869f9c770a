"""Estimating the data's marginals by sampling (Eq. 10)."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from dmb.heads import MeanHead
from dmb.samplers.ancestral import ancestral
from dmb.samplers.base import Denoiser, draw_prior, time_grid
from dmb.samplers.tweedie import tweedie, tweedie_probabilities

if TYPE_CHECKING:  # which imports this module
    import dmb.bridge

_AT_ONCE = 1 << 22  # probabilities that are held


@torch.no_grad()
def estimate_marginals(
    model: "dmb.bridge.Bridge", *, chains: int = 256, steps: int = 32, generator: torch.Generator | None = None
) -> Float[Tensor, "d n"]:
    """`μ_i(x_0) ≈ E[p_{0|1}(x_0 | x_{t_1})]`: run chains to the last but one time, then average where they would go.

    Every row is a distribution. It feeds the next Matrix-learning phase.

    Args:
        model: the model to sample from.
        chains: how many chains to average over.
        steps: steps of each chain; with 1 the average is over draws of the prior alone.
        generator: source of all randomness.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.process.device)
    times = time_grid(model.process, steps)
    at_once = max(1, _AT_ONCE // (model.num_positions * model.process.num_states))
    for first in range(0, chains, at_once):
        total = total + _arrivals(model, min(at_once, chains - first), times, generator).double().sum(0)
    return (total / total.sum(-1, keepdim=True)).to(model.process.dtype)


def _arrivals(
    model: "dmb.bridge.Bridge", chains: int, times: Float[Tensor, " k"], generator: torch.Generator | None
) -> Float[Tensor, "b d n"]:
    """Where each of a few chains would go at the last of the times; by whole paths, where it has gone."""
    process, denoiser = model.process, Denoiser(model)
    if model.ordered is not None:
        x = model.sample(chains, steps=len(times) - 1, generator=generator)
        return F.one_hot(x, process.num_states).to(process.dtype)
    has_mean = isinstance(model.head, MeanHead)
    state = draw_prior(process, chains, generator=generator)
    if len(times) > 2:  # the last time given to the sampler is t_1, not 0
        *_, (_, state) = (ancestral if has_mean else tweedie)(denoiser, state, times[:-1], generator)
    t_1, end = (process.clock(t, chains) for t in times[-2:].tolist())
    if has_mean:
        return denoiser.log_posterior(state, t_1).exp()
    last = tweedie_probabilities(process, denoiser.log_score(state, t_1), state, t_1, end, to_data=True)
    return last / last.sum(-1, keepdim=True)

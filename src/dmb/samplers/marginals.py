"""Estimating the data's marginals by sampling (Eq. 10)."""

import torch
from jaxtyping import Float
from torch import Tensor

from dmb.heads import MeanHead
from dmb.reverse import ReverseModel
from dmb.samplers.ancestral import ancestral
from dmb.samplers.base import Denoiser, draw_prior, time_grid
from dmb.samplers.tweedie import tweedie, tweedie_probabilities


@torch.no_grad()
def estimate_marginals(
    model: ReverseModel, *, chains: int = 256, steps: int = 32, generator: torch.Generator | None = None
) -> Float[Tensor, "d n"]:
    """`μ_i(x_0) ≈ E[p_{0|1}(x_0 | x_{t_1})]`: run chains to the last but one time, then average where they would go.

    Every row is a distribution. It feeds the next Matrix-learning phase.

    Args:
        model: the model to sample from.
        chains: how many chains to average over.
        steps: steps of each chain; with 1 the average is over draws of the prior alone.
        generator: source of all randomness.
    """
    process = model.process
    denoiser = Denoiser(model)
    times = time_grid(process, steps)
    has_mean = isinstance(model.head, MeanHead)
    sampler = ancestral if has_mean else tweedie
    state = draw_prior(process, chains, generator=generator)
    if steps > 1:  # the last time given to the sampler is t_1, not 0
        *_, (_, state) = sampler(denoiser, state, times[:-1], generator)
    t_1 = times[-2].item()
    if has_mean:
        last = denoiser.log_mean(state, t_1).exp()
    else:
        last = tweedie_probabilities(process, denoiser.log_score(state, t_1), state, t_1, 0.0)
        last = last / last.sum(-1, keepdim=True)
    mean = last.double().mean(0)
    return (mean / mean.sum(-1, keepdim=True)).to(process.dtype)

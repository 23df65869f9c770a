"""The analytic (Tweedie) sampler of SEDD, in closed form for every process."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, State, step_by_step


@torch.no_grad()
def tweedie(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """`p(x_s = y | x_t) ∝ (s exp(-ΔQ))_y exp(ΔQ)[y, x_t]`: exact for a position when its score is."""
    yield from step_by_step(denoiser, x_T, times, generator, tweedie_probabilities)


def tweedie_probabilities(
    process: ForwardProcess,
    log_score: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    now: SolvedTime,
    earlier: SolvedTime,
    *,
    to_data: bool,
) -> Float[Tensor, "b d n"]:
    """Unnormalised `p(x_s | x_t)`; `to_data` says that `s = 0`.

    A score that no distribution has makes entries negative: those are set to 0.
    """
    step = now.since(earlier)
    ratios = log_score.double().exp().scatter(-1, x_t[..., None], 1.0)
    ratios = torch.where(process._log_likelihood(x_t, now) > -torch.inf, ratios, 0.0)
    weights = (process._unevolve(ratios, step) * process._log_likelihood(x_t, step).exp()).clamp(min=0)
    if to_data:
        weights = torch.where(process.data_states, weights, 0.0)
    # where nothing is left the score contradicts itself: stay
    nothing = weights.sum(-1, keepdim=True) == 0
    return torch.where(nothing, torch.zeros_like(weights).scatter(-1, x_t[..., None], 1.0), weights)

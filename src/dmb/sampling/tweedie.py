"""The analytic (Tweedie) sampler of SEDD, in closed form for every process."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, StepSampler


class Tweedie(StepSampler):
    """`p(x_s = y | x_t) ∝ (s exp(-ΔQ))_y exp(ΔQ)[y, x_t]`: exact for a position when its score is."""

    def log_step(
        self, denoiser: Denoiser, x_t: Int[Tensor, "b d"], now: SolvedTime, earlier: SolvedTime, *, to_data: bool
    ) -> Float[Tensor, "b d n"]:
        return log_tweedie(denoiser.process, denoiser.log_score(x_t, now), x_t, now, earlier, to_data=to_data)


def log_tweedie(
    process: ForwardProcess,
    log_score: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    now: SolvedTime,
    earlier: SolvedTime,
    *,
    to_data: bool,
) -> Float[Tensor, "b d n"]:
    """`log p(x_s | x_t)` by a score. One that no distribution has makes entries negative: those are set to 0."""
    step = now.since(earlier)
    ratios = log_score.double().exp().scatter(-1, x_t[..., None], 1.0)
    ratios = torch.where(process._log_likelihood(x_t, now) > -torch.inf, ratios, 0.0)
    weights = (process._unevolve(ratios, step) * process._log_likelihood(x_t, step).exp()).clamp(min=0)
    if to_data:
        weights = torch.where(process.data_states, weights, 0.0)
    # where nothing is left the score contradicts itself: stay
    nothing = weights.sum(-1, keepdim=True) == 0
    weights = torch.where(nothing, torch.zeros_like(weights).scatter(-1, x_t[..., None], 1.0), weights)
    return numerics.log_normalise(weights.log())


tweedie = Tweedie()

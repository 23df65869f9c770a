"""Exact ancestral sampling from the posterior mean."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, StepSampler


class Ancestral(StepSampler):
    """At every step draw a clean token and then the noisy one on the way to it, position by position.

    `x_0 ~ π(·|x_t),  x_s ~ p(·|x_0, x_t)`

    Each step is exact for a position whatever its size; positions are drawn independently given `x_t`, and that is the
    only error: it vanishes as steps grow, and with one position there is none. Needs the mean head.
    """

    def log_step(
        self, denoiser: Denoiser, x_t: Int[Tensor, "b d"], now: SolvedTime, earlier: SolvedTime, *, to_data: bool
    ) -> Float[Tensor, "b d n"]:
        r"""`log Σ_x π(x|x_t) p_{s|0}(y|x) p_{t|s}(x_t|y) / p_{t|0}(x_t|x)` for every `y`.

        The middle sum is a score at time `s`, of the posterior `π(x|x_t) p_{s|0}(x_t|x) / p_{t|0}(x_t|x)`.
        """
        log_posterior = denoiser.log_posterior(x_t, now)
        if to_data:
            return log_posterior
        process = denoiser.process
        longer = process._log_likelihood(x_t, now)
        log_p = log_posterior + process._log_likelihood(x_t, earlier) - longer
        log_p = torch.where(longer > -torch.inf, log_p, -torch.inf)
        stays = log_p.logsumexp(-1, keepdim=True)
        moves = torch.where(stays > -torch.inf, process._log_score(log_p, x_t, earlier), -torch.inf)
        moves = moves.scatter(-1, x_t[..., None], stays)
        return numerics.log_normalise(moves + process._log_likelihood(x_t, now.since(earlier)))

    def draw(
        self,
        denoiser: Denoiser,
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        earlier: SolvedTime,
        *,
        to_data: bool,
        generator: torch.Generator | None,
    ) -> Int[Tensor, "b d"]:
        """Without a row of all states for each position."""
        return denoiser.process._step_back(denoiser.log_posterior(x_t, now), x_t, now, earlier, generator=generator)


ancestral = Ancestral()

"""Exact ancestral sampling from the posterior mean."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.sampling.base import Denoiser, State, solved_times


@torch.no_grad()
def ancestral(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """At every step draw a clean token and then the noisy one on the way to it, position by position.

    `x_0 ~ π(·|x_t),  x_s ~ p(·|x_0, x_t)`

    Each step is exact for a position whatever its size; positions are drawn independently given `x_t`, and that is the
    only error: it vanishes as steps grow, and with one position there is none. Needs the mean head.
    """
    x = x_T
    yield State(1.0, x)
    for (_, now), (s, earlier) in pairwise(solved_times(denoiser.process, times, len(x_T))):
        log_posterior = denoiser.log_posterior(x, now)
        x = denoiser.keep_given(denoiser.process._step_back(log_posterior, x, now, earlier, generator=generator), x_T)
        yield State(s, x)

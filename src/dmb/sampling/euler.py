"""The sampler as published: Euler steps of the reverse chain."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, State, step_by_step
from dmb.sampling.tweedie import tweedie_probabilities


@torch.no_grad()
def euler(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """`δ + (t - s) Q̂`, with the reverse rates `Q̂[x_t, y] = Q_t[y, x_t] s_y` (Theorem 3.1).

    At coarse grids the chance to stay would be negative: it is set to 0 and the rest renormalised. The last step, where
    rates grow without limit, is analytic, as in SEDD. The error falls in proportion to the step.
    """
    yield from step_by_step(denoiser, x_T, times, generator, euler_probabilities)


def euler_probabilities(
    process: ForwardProcess,
    log_score: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    now: SolvedTime,
    earlier: SolvedTime,
    *,
    to_data: bool,
) -> Float[Tensor, "b d n"]:
    """Unnormalised `p(x_s | x_t)` of one step; `to_data` says that it is the last."""
    if to_data:
        return tweedie_probabilities(process, log_score, x_t, now, earlier, to_data=True)
    width = (now.t - earlier.t)[:, None, None]
    jumps = width * process._rates_into(x_t, now).double() * log_score.double().exp()
    stays = (1 - jumps.sum(-1, keepdim=True)).clamp(min=0)
    return jumps.scatter(-1, x_t[..., None], stays)

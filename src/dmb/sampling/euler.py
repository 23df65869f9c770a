"""The sampler as published: Euler steps of the reverse chain."""

from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, StepSampler
from dmb.sampling.tweedie import log_tweedie


class Euler(StepSampler):
    """`δ + (t - s) Q̂`, with the reverse rates `Q̂[x_t, y] = Q_t[y, x_t] s_y` (Theorem 3.1).

    At coarse grids the chance to stay would be negative: it is set to 0 and the rest renormalised. Then the bound of
    these samples is infinite wherever a token could have stayed. The last step, where rates grow without limit, is
    analytic, as in SEDD. The error falls in proportion to the step.
    """

    def log_step(
        self, denoiser: Denoiser, x_t: Int[Tensor, "b d"], now: SolvedTime, earlier: SolvedTime, *, to_data: bool
    ) -> Float[Tensor, "b d n"]:
        return log_euler(denoiser.process, denoiser.log_score(x_t, now), x_t, now, earlier, to_data=to_data)


def log_euler(
    process: ForwardProcess,
    log_score: Float[Tensor, "b d n"],
    x_t: Int[Tensor, "b d"],
    now: SolvedTime,
    earlier: SolvedTime,
    *,
    to_data: bool,
) -> Float[Tensor, "b d n"]:
    """`log p(x_s | x_t)` of one step by a score."""
    if to_data:
        return log_tweedie(process, log_score, x_t, now, earlier, to_data=True)
    width = (now.t - earlier.t)[:, None, None]
    jumps = width * process._rates_into(x_t, now).double() * log_score.double().exp()
    stays = (1 - jumps.sum(-1, keepdim=True)).clamp(min=0)
    return numerics.log_normalise(jumps.scatter(-1, x_t[..., None], stays).log())


euler = Euler()

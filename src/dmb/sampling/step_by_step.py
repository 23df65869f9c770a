"""Samplers that go down a grid of times step by step: exact ancestral steps, Tweedie's, and those as published."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, State

Draw = Callable[[Tensor, SolvedTime, SolvedTime, bool], Tensor]
"""Draws `x_s` from `x_t`, the solved times `t` and `s`, and whether `s = 0`."""


@torch.no_grad()
def ancestral(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """At every step draw a clean token and then the noisy one on the way to it, position by position.

    `x_0 ~ π(·|x_t),  x_s ~ p(·|x_0, x_t)`

    Each step is exact for a position whatever its size; positions are drawn independently given `x_t`, and that is the
    only error: it vanishes as steps grow, and with one position there is none. Needs the mean head.
    """

    def draw(x_t: Tensor, now: SolvedTime, earlier: SolvedTime, _: bool) -> Tensor:
        log_posterior = denoiser.log_posterior(x_t, now)
        return denoiser.process._step_back(log_posterior, x_t, now, earlier, generator=generator)

    yield from _steps(denoiser, x_T, times, draw)


@torch.no_grad()
def tweedie(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """The analytic (Tweedie) sampler of SEDD, in closed form for every process.

    `p(x_s = y | x_t) ∝ (s exp(-ΔQ))_y exp(ΔQ)[y, x_t]`: exact for a position when its score is.
    """
    yield from _steps(denoiser, x_T, times, _by_score(denoiser, tweedie_probabilities, generator))


@torch.no_grad()
def euler(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """`δ + (t - s) Q̂`, with the reverse rates `Q̂[x_t, y] = Q_t[y, x_t] s_y` (Theorem 3.1).

    At coarse grids the chance to stay would be negative: it is set to 0 and the rest renormalised. The last step, where
    rates grow without limit, is analytic, as in SEDD. The error falls in proportion to the step.
    """
    yield from _steps(denoiser, x_T, times, _by_score(denoiser, euler_probabilities, generator))


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


def _steps(denoiser: Denoiser, x_T: Tensor, times: Tensor, draw: Draw) -> Iterator[State]:
    x = x_T
    yield State(1.0, x)
    solved = ((t, denoiser.process.solve(t, len(x_T))) for t in times.tolist())
    for (_, now), (s, earlier) in pairwise(solved):
        x = denoiser.keep_given(draw(x, now, earlier, s == 0), x_T)
        yield State(s, x)


def _by_score(denoiser: Denoiser, probabilities: Callable[..., Tensor], generator: torch.Generator | None) -> Draw:
    """A step by unnormalised `p(x_s | x_t)` at each position, which follow from a score."""

    def draw(x_t: Tensor, now: SolvedTime, earlier: SolvedTime, to_data: bool) -> Tensor:
        weights = probabilities(denoiser.process, denoiser.log_score(x_t, now), x_t, now, earlier, to_data=to_data)
        return numerics.categorical(weights, generator=generator)

    return draw

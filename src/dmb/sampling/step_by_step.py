"""Samplers that go down a grid of times step by step: exact ancestral steps, Tweedie's, and those as published."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime
from dmb.sampling.base import Denoiser, State


class StepSampler(ABC):
    """A sampler that knows the law of its step, `p(x_s | x_t)`, by which positions are drawn independently.

    So its samples have a law of their own for any number of calls, and that law a bound: `objectives.calls`.
    """

    @abstractmethod
    def log_step(
        self, denoiser: Denoiser, x_t: Int[Tensor, "b d"], now: SolvedTime, earlier: SolvedTime, *, to_data: bool
    ) -> Float[Tensor, "b d n"]:
        """`log p(x_s | x_t)` at each position, for every state; `to_data` says that `s = 0`."""

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
        """`x_s ~ p(x_s | x_t)`."""
        step = self.log_step(denoiser, x_t, now, earlier, to_data=to_data)
        return numerics.categorical(numerics.exp_or_zero(step), generator=generator)

    @torch.no_grad()
    def __call__(
        self,
        denoiser: Denoiser,
        x_T: Int[Tensor, "b d"],
        times: Float[Tensor, " k"],
        generator: torch.Generator | None = None,
    ) -> Iterator[State]:
        x = x_T
        yield State(1.0, x)
        solved = ((t, denoiser.process.solve(t, len(x_T))) for t in times.tolist())
        for (_, now), (s, earlier) in pairwise(solved):
            drawn = self.draw(denoiser, x, now, earlier, to_data=s == 0, generator=generator)
            x = denoiser.keep_given(drawn, x_T)
            yield State(s, x)


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
    ratios = numerics.exp_or_zero(log_score.double()).scatter(-1, x_t[..., None], 1.0)
    ratios = torch.where(process._log_likelihood(x_t, now) > -torch.inf, ratios, 0.0)
    weights = (process._unevolve(ratios, step) * numerics.exp_or_zero(process._log_likelihood(x_t, step))).clamp(min=0)
    if to_data:
        weights = torch.where(process.data_states, weights, 0.0)
    # where nothing is left the score contradicts itself: stay
    nothing = weights.sum(-1, keepdim=True) == 0
    weights = torch.where(nothing, torch.zeros_like(weights).scatter(-1, x_t[..., None], 1.0), weights)
    return numerics.log_normalise(weights.log())


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
    jumps = width * process._rates_into(x_t, now).double() * numerics.exp_or_zero(log_score.double())
    stays = (1 - jumps.sum(-1, keepdim=True)).clamp(min=0)
    return numerics.log_normalise(jumps.scatter(-1, x_t[..., None], stays).log())


ancestral, tweedie, euler = Ancestral(), Tweedie(), Euler()

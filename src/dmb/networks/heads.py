"""Heads: the meaning of a network's output."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dmb._core import numerics
from dmb._core.configuration import Configurable
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime


class Head(nn.Module, Configurable, ABC):
    """Turns a network's outputs into a score, and the score into the integrand of the bound."""

    @abstractmethod
    def log_score(
        self, output: Float[Tensor, "b d n"], process: ForwardProcess, x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)_y`, the estimated ratio `p_t(y) / p_t(x_t)` at each position."""

    def integrand(
        self,
        output: Float[Tensor, "b d n"],
        process: ForwardProcess,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        now: SolvedTime,
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` at each position."""
        return process._integrand_from_score(self.log_score(output, process, x_t, now), x_t, x_0, now)


class MeanHead(Head):
    r"""Outputs are logits of the clean token: `π(x_0 | x_t)`, which the process turns into a consistent score.

    The name is MD4's (arXiv 2406.04329): `π` is the mean of the clean token as a one-hot vector. The score is

    `s_y = Σ_x π(x|x_t) p_{t|0}(y|x) / p_{t|0}(x_t|x).`

    Args:
        leave_one_out: outputs model `ρ(x_0^i | x_t^{-i})`, the evidence of the *other* positions; that of `x_t^i`
            itself is added by Bayes' rule, `π_x ∝ ρ_x p_{t|0}(x_t^i | x)`, exactly. So the network need not learn how
            far to trust a token at each noise level. (arXiv 2605.22765 does the same for uniform noise.) If False,
            outputs are logits of the posterior itself, over the states from which `x_t` can be reached.
    """

    def __init__(self, leave_one_out: bool = True):
        super().__init__()
        self.leave_one_out = leave_one_out

    def log_posterior(
        self, output: Float[Tensor, "b d n"], process: ForwardProcess, x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)`, in the process's own precision."""
        if self.leave_one_out:
            return process._log_posterior(output, x_t, now)
        possible = process._log_posterior(torch.zeros_like(output), x_t, now) > -torch.inf
        return numerics.log_normalise(torch.where(possible, output.to(process.dtype), -torch.inf))

    def log_score(
        self, output: Float[Tensor, "b d n"], process: ForwardProcess, x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        return process._log_score(self.log_posterior(output, process, x_t, now), x_t, now)

    def integrand(
        self,
        output: Float[Tensor, "b d n"],
        process: ForwardProcess,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        now: SolvedTime,
    ) -> Float[Tensor, "b d"]:
        if self.leave_one_out:
            return process._integrand_from_logits(output, x_t, x_0, now)
        return process._integrand_from_posterior(self.log_posterior(output, process, x_t, now), x_t, x_0, now)


class ScoreHead(Head):
    """Outputs are log scores `log s_y` (Eq. 8), estimates of `p_t(y) / p_t(x_t)`.

    Args:
        scaled: outputs are relative to the score known without data, that of a posterior whose logits are all 0. So
            outputs stay of order one while the score itself grows like `1/t`, and an untrained model costs about
            `log m` nats per token with `m` states of data, whatever the process. On a mask this subtracts
            `log(exp(σ̄) - 1) + log m`, for uniform noise nothing, both as in SEDD (arXiv 2310.16834). If False,
            outputs are the log scores themselves, as in the paper and its authors' code.
    """

    def __init__(self, scaled: bool = True):
        super().__init__()
        self.scaled = scaled

    def log_score(
        self, output: Float[Tensor, "b d n"], process: ForwardProcess, x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        log_score = output.to(process.dtype)
        if not self.scaled:
            return log_score
        return log_score + process._log_score_without_data(x_t, now)

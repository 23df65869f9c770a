"""Uniform noise (SEDD-uniform, multinomial diffusion), for comparison."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.states import legal_states
from dmb.processes.time import Exits, Schedule, SolvedTime, steady_exits


class UniformProcess(ForwardProcess):
    r"""Every state jumps to a uniformly drawn state: `Q = 1 1ᵀ / m - I` on the `m` states of a position.

    With `e = exp(-σ̄(t))` and `u = (1 - e) / m`: `p_{t|0}(y|x) = u + e [y = x]`.

    Args:
        num_positions: `d`.
        num_states: `n`, the largest number of states of a position.
        schedule: default: `LogLinear()`.
        state_counts: the number of states of each position. Default: all of them.
        marginals: see `ForwardProcess`.

    >>> UniformProcess(1, 2).to_dense(1.0)
    tensor([[[0.5005, 0.4995],
             [0.4995, 0.5005]]])
    """

    rate: Float[Tensor, ""]

    def __init__(
        self,
        num_positions: int,
        num_states: int,
        *,
        schedule: Schedule | None = None,
        state_counts: Int[Tensor, " d"] | None = None,
        marginals: Float[Tensor, "h n"] | None = None,
    ):
        legal = None if state_counts is None else legal_states(state_counts, num_positions, num_states)
        super().__init__(num_positions, num_states, schedule, legal, marginals)
        self.register_buffer("rate", torch.ones(()))  # of drawing anew; its dtype is the dtype of everything computed

    @property
    def stationary(self) -> Float[Tensor, "g n"]:
        """The uniform distribution, which the process converges to."""
        return self.rate * self.legal / self.legal.sum(-1, keepdim=True)

    @property
    def dtype(self) -> torch.dtype:
        return self.rate.dtype

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        return steady_exits(torch.where(self.legal, 1 - self.stationary, 0.0), elapsed)

    def describe(self) -> str:
        return "Uniform noise: a token is replaced by any state, all equally likely."

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "UniformProcess":
        counts = tensors["legal"].sum(-1) if len(tensors["legal"]) > 1 else None
        return super().build(tensors, state_counts=counts, **config)

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _sample(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        changes = -torch.expm1(-now.elapsed.to(self.dtype).double())
        uniform = torch.rand((2, *x_0.shape), generator=generator, device=x_0.device, dtype=torch.float64)
        fresh = (uniform[0] * self.legal.sum(-1)).long()
        return torch.where(uniform[1] < changes[:, None], fresh, x_0)

    def _sample_moved(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        states = self.legal.sum(-1)
        uniform = torch.rand(x_0.shape, generator=generator, device=x_0.device, dtype=torch.float64)
        return (x_0 + (states > 1) * (1 + (uniform * (states - 1)).long())) % states

    def _log_transition(self, x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        other, same = (entry[..., None] for entry in self._log_entries(now.elapsed))
        return torch.where(self._is(x_0), same, torch.where(self.legal, other, -torch.inf))

    def _log_likelihood(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return self._log_transition(x_t, now)  # Q is symmetric

    def _log_prob(self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        other, same = self._log_entries(now.elapsed)
        return torch.where(x_t == x_0, same, other)

    def _evolve(self, p_0: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        elapsed = now.elapsed.to(self.dtype)
        return torch.exp(-elapsed) * p_0 - torch.expm1(-elapsed) * self.stationary * p_0.sum(-1, keepdim=True)

    def _unevolve(self, p_t: Float[Tensor, "b d n"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        elapsed = now.elapsed.to(self.dtype)[:, None, None]
        mixed_in = -torch.expm1(-elapsed) * self.stationary * p_t.sum(-1, keepdim=True)
        return torch.where(self.legal, (p_t - mixed_in) * torch.exp(elapsed), 0.0)

    def _rates_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return (now.sigma.to(self.dtype)[:, None, None] * self.stationary).masked_fill(self._is(x_t), 0.0)

    def _log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """`s_y = (1 - π_x) + π_x u / (u + e) + π_y e / u` for `y ≠ x = x_t`."""
        log_other, log_same = (entry[..., None] for entry in self._log_entries(now.elapsed))
        here = self._is(x_t)
        log_stayed = log_posterior.gather(-1, x_t[..., None])
        log_moved = log_posterior.masked_fill(here, -torch.inf).logsumexp(-1, keepdim=True)
        # from any other source y and x_t are equally likely; from x_t itself, y is the rarer
        common = torch.logaddexp(log_moved, log_stayed + log_other - log_same)
        log_score = torch.logaddexp(common, log_posterior - now.elapsed.to(self.dtype)[:, None, None] - log_other)
        return torch.where(self.legal, log_score.masked_fill(here, -torch.inf), -torch.inf)

    def _log_posterior(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """All sources are equally likely but `x_t` itself."""
        log_other, log_same = self._log_entries(now.elapsed)
        log_rho = log_rho.to(self.dtype) + torch.where(self.legal, 0.0, -torch.inf)
        here = (log_same - log_other).expand(x_t.shape)[..., None]
        return numerics.log_normalise(log_rho.scatter_add(-1, x_t[..., None], here))

    def _integrand_from_posterior(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        """With `k = u / (u + e)`, ratios are `1 / k` at `x_0` and 1 elsewhere where something moved, else `k`.

        What is left are sums of `s_y` and of `log s_y` over `y ≠ x = x_t`; the score is that of `_log_score`.
        """
        log_other, log_same = self._log_entries(now.elapsed)
        log_k, here, states = log_other - log_same, x_t[..., None], self.legal.sum(-1)
        pi = log_posterior.exp()
        stayed, pi = pi.gather(-1, here).squeeze(-1), pi.scatter(-1, here, 0.0)
        moved, gain = pi.sum(-1), torch.exp(-now.elapsed.to(self.dtype)[:, None] - log_other)
        common = moved + stayed * log_k.exp()
        log_s = torch.addcmul(common[..., None], pi, gain[..., None]).scatter(-1, here, 1.0).log()
        log_source = log_s.gather(-1, x_0[..., None]).squeeze(-1)
        total = (log_s if len(self.legal) == 1 else torch.where(self.legal, log_s, 0.0)).sum(-1)
        where_moved = torch.exp(-log_k) * (1 + log_k + log_source) + (states - 2) + total - log_source
        where_not = log_k.exp() * ((states - 1) * (1 - log_k) + total)
        score = (states - 1) * common + moved * gain
        return now.sigma.to(self.dtype)[:, None] / states * (score - torch.where(x_t == x_0, where_not, where_moved))

    def _log_score_without_data(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "#b #d #n"]:
        """All states are equally likely at all times."""
        return torch.zeros(1, 1, 1, dtype=self.dtype, device=x_t.device)

    def _prior_kl_table(self, p_T: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        """All states pay `Σ_y u log(u / p_T(y))` but for their own entry, which is `u + e`."""
        log_p = torch.where(self.legal, p_T, 1.0).log()
        log_other, log_same = (entry.mT for entry in self._log_entries(now.elapsed))
        other = torch.where(self.legal, log_other.exp() * (log_other - log_p), 0.0)
        same = log_same.exp() * (log_same - log_p)
        return torch.where(self.legal, numerics.prefix_sum(other) + numerics.suffix_sum(other) + same, 0.0)

    def _is(self, x: Int[Tensor, "b d"]) -> Tensor:
        return torch.arange(self.num_states, device=x.device) == x[..., None]

    def _log_entries(self, elapsed: Float[Tensor, " b"]) -> tuple[Float[Tensor, "b g"], Float[Tensor, "b g"]]:
        """`log u` and `log(u + e)`, exact to the last digits however late it is and however many states there are."""
        elapsed = elapsed.to(self.dtype)[:, None]
        log_other = (-torch.expm1(-elapsed) * self.stationary.amax(-1)).log()
        return log_other, torch.logaddexp(-elapsed, log_other)

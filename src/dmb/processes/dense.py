"""Any rate matrix, by matrix exponential: for tests and small studies."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb._core import numerics
from dmb._core.configuration import Configurable, under
from dmb.processes.base import ForwardProcess, Time, When
from dmb.processes.time import Clock, Exits, LogLinear, Schedule, steady_exits


class DenseProcess(ForwardProcess):
    r"""`p_{t|0} = exp(σ̄(t) Q)` for an arbitrary `Q`, in O(n³) time and O(n²) memory per row of the batch.

    Args:
        Q: rate matrices `[d, n, n]`, or `[1, n, n]` if all positions share one. Rows sum to 0.
        num_positions: `d`; needed only if `Q` has one matrix.
        schedule: default: `LogLinear()`.
        legal: see `ForwardProcess`.
        marginals: see `ForwardProcess`.

    >>> from dmb.processes.time import Linear
    >>> Q = torch.tensor([[[-1.0, 1.0], [2.0, -2.0]]])
    >>> DenseProcess(Q, schedule=Linear(1.0, 1.0)).to_dense(1.0).detach()
    tensor([[[0.6833, 0.3167],
             [0.6335, 0.3665]]])
    """

    def __init__(
        self,
        Q: Float[Tensor, "g n n"],
        *,
        num_positions: int | None = None,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "g n"] | None = None,
        marginals: Float[Tensor, "h n"] | None = None,
    ):
        if Q.ndim != 3 or Q.shape[1] != Q.shape[2] or not Q.is_floating_point():
            raise ValueError(f"Q must be a floating-point tensor [d, n, n], got {Q.dtype} {list(Q.shape)}")
        off_diagonal = Q - torch.diag_embed(Q.diagonal(dim1=1, dim2=2))
        if not (off_diagonal >= 0).all() or not Q.isfinite().all():
            raise ValueError(f"Q must have finite rates ≥ 0 off its diagonal, got {off_diagonal.min().item()}")
        excess = Q.sum(-1).abs() / (Q.abs().amax(-1) + 1)
        if excess.max() > 1e3 * torch.finfo(Q.dtype).eps:
            raise ValueError(f"Q must have rows that sum to 0, got a sum of {Q.sum(-1).abs().max().item()}")
        if num_positions is None:
            num_positions = len(Q)
        if len(Q) not in (1, num_positions):
            raise ValueError(f"Q must hold {num_positions} matrices or 1, got {len(Q)}")
        super().__init__(num_positions, Q.shape[-1], schedule or LogLinear(), legal, marginals)
        self.Q = nn.Parameter(Q.clone())

    @property
    def dtype(self) -> torch.dtype:
        return self.Q.dtype

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        return steady_exits(-self.Q.diagonal(dim1=1, dim2=2), elapsed)

    def sample(
        self, x_0: Int[Tensor, "b d"], t: When, *, start: Time | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return numerics.categorical(self.log_transition(x_0, t, start=start).detach().exp(), generator=generator)

    def log_transition(self, x_0: Int[Tensor, "b d"], t: When, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        clock, x_0 = self.enter(t, start, x_0=x_0)
        return numerics.log_or_off(self._transition(clock)[self._rows(x_0), self._positions, x_0])

    def log_likelihood(self, x_t: Int[Tensor, "b d"], t: When, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        clock, x_t = self.enter(t, start, x_t=x_t)
        column = self._transition(clock).mT[self._rows(x_t), self._positions, x_t]
        return torch.where(self.legal, numerics.log_or_off(column), -torch.inf)

    def log_prob(
        self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: When, *, start: Time | None = None
    ) -> Float[Tensor, "b d"]:
        clock, x_t, x_0 = self.enter(t, start, x_t=x_t, x_0=x_0)
        return numerics.log_or_off(self._transition(clock)[self._rows(x_0), self._positions, x_0, x_t])

    def evolve(self, p_0: Float[Tensor, "h n"], t: When) -> Float[Tensor, "g n"]:
        p_0 = self.marginals("p_0", p_0, t)
        return (p_0[:, None] @ self._transition(self.clock(t, 1))[0]).squeeze(1)

    def rates_into(self, x_t: Int[Tensor, "b d"], t: When) -> Float[Tensor, "b d n"]:
        clock, x_t = self.enter(t, x_t=x_t)
        sigma = clock.sigma.to(self.dtype)
        columns = self.Q.mT.expand(self.num_positions, -1, -1)[self._positions, x_t]
        here = torch.arange(self.num_states, device=x_t.device) == x_t[..., None]
        return sigma[:, None, None] * columns.masked_fill(here, 0.0)

    def log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: When
    ) -> Float[Tensor, "b d n"]:
        clock, x_t = self.enter(t, x_t=x_t)
        log_weight = log_posterior - self.log_likelihood(x_t, clock)
        # a source that cannot lead to x_t has no weight, whatever the posterior says
        log_weight = torch.where(log_weight.isnan() | (log_weight == torch.inf), -torch.inf, log_weight)
        log_kernel = numerics.log_or_off(self._transition(clock))
        log_score = (log_weight[..., None] + log_kernel).logsumexp(-2)
        return torch.where(self.rates_into(x_t, clock) > 0, log_score, -torch.inf)

    def unevolve(self, p_t: Float[Tensor, "b d n"], t: When, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        elapsed, row = self.clock(t, len(p_t), start).elapsed.to(self.dtype).unique(return_inverse=True)
        inverse = torch.linalg.matrix_exp(-elapsed[:, None, None, None] * self.Q)[row]
        return (p_t[..., None, :] @ inverse).squeeze(-2)

    def prior_kl_table(self, p_T: Float[Tensor, "h n"], t: When = 1.0) -> Float[Tensor, "g n"]:
        p_T = torch.where(self.legal, self.marginals("p_T", p_T, t), 1.0)
        log_kernel = numerics.log_or_off(self._transition(self.clock(t, 1))[0])
        return torch.where(self.legal, numerics.times_log_ratio(log_kernel, p_T.log()[:, None]).sum(-1), 0.0)

    def config(self) -> dict[str, Any]:
        return {"num_positions": self.num_positions, "schedule": self.schedule.to_config()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], schedule: Any, **config: Any) -> "DenseProcess":
        schedule = Configurable.from_config(schedule, under(tensors, "schedule"))
        return cls(tensors["Q"], schedule=schedule, legal=tensors["legal"], marginals=tensors["p_0"], **config)

    @property
    def _positions(self) -> Int[Tensor, " d"]:
        return torch.arange(self.num_positions, device=self.device)

    def _rows(self, x: Int[Tensor, "b d"]) -> Int[Tensor, "b 1"]:
        return torch.arange(len(x), device=x.device)[:, None]

    def _transition(self, clock: Clock) -> Float[Tensor, "b d n n"]:
        elapsed, row = clock.elapsed.to(self.dtype).unique(return_inverse=True)  # one exponential per time, not per row
        kernel = rate_exponential(elapsed[:, None, None, None] * self.Q)
        return kernel.expand(-1, self.num_positions, -1, -1)[row]


def rate_exponential(Q: Float[Tensor, "*s n n"]) -> Float[Tensor, "*s n n"]:
    r"""`exp(Q)` of a rate matrix without a single subtraction, so that tiny entries are as exact as large ones.

    `exp(Q) = (exp(-λ) exp(Q/2^k + λ I))^(2^k)` with `λ` large enough that `Q/2^k + λ I ≥ 0`: a Taylor series of
    non-negative terms, then squarings of non-negative matrices.

    >>> rate_exponential(torch.tensor([[-1e-9, 1e-9], [0.0, 0.0]], dtype=torch.float64))[0, 1]
    tensor(1.0000e-09, dtype=torch.float64)
    """
    fastest = float(-Q.detach().diagonal(dim1=-2, dim2=-1).min()) if Q.numel() else 0.0
    squarings = max(0, math.ceil(math.log2(fastest))) if fastest > 0 else 0
    identity = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    scaled = Q / 2**squarings
    shift = -scaled.detach().diagonal(dim1=-2, dim2=-1).amin(-1)[..., None, None]
    positive = scaled + shift * identity
    term = total = identity.expand_as(Q)
    for order in range(1, 25):  # entries of `positive` sum to at most 1 per row: 1/25! is below rounding
        term = term @ positive / order
        total = total + term
    total = total * torch.exp(-shift)
    for _ in range(squarings):
        total = total @ total
    return total

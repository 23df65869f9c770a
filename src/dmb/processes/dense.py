"""Any rate matrix, by matrix exponential: for tests and small studies."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.states import count_positions
from dmb.processes.time import Exits, Schedule, SolvedTime, steady_exits


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
        num_positions = count_positions(num_positions, Q=len(Q))
        super().__init__(num_positions, Q.shape[-1], schedule, legal, marginals)
        self.Q = nn.Parameter(Q.clone())

    @property
    def dtype(self) -> torch.dtype:
        return self.Q.dtype

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        return steady_exits(-self.Q.diagonal(dim1=1, dim2=2), elapsed)

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _log_transition(self, x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return numerics.log_or_off(numerics.pick(self._transition(now), x_0))

    def _log_likelihood(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return torch.where(self.legal, numerics.log_or_off(numerics.pick(self._transition(now).mT, x_t)), -torch.inf)

    def _evolve(self, p_0: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        return (p_0[:, None] @ self._transition(now)[0]).squeeze(1)

    def _unevolve(self, p_t: Float[Tensor, "b d n"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        elapsed, row = now.elapsed.to(self.dtype).unique(return_inverse=True)
        inverse = torch.linalg.matrix_exp(-elapsed[:, None, None, None] * self.Q)[row]
        return (p_t[..., None, :] @ inverse).squeeze(-2)

    def _rates_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        columns = numerics.pick(self.Q.mT[None], x_t)
        here = torch.arange(self.num_states, device=x_t.device) == x_t[..., None]
        return now.sigma.to(self.dtype)[:, None, None] * columns.masked_fill(here, 0.0)

    def _log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        log_weight = log_posterior - self._log_likelihood(x_t, now)
        # a source that cannot lead to x_t has no weight, whatever the posterior says
        log_weight = torch.where(log_weight.isnan() | (log_weight == torch.inf), -torch.inf, log_weight)
        log_kernel = numerics.log_or_off(self._transition(now))
        log_score = (log_weight[..., None] + log_kernel).logsumexp(-2)
        return torch.where(self._rates_into(x_t, now) > 0, log_score, -torch.inf)

    def _prior_kl_table(self, p_T: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        p_T = torch.where(self.legal, p_T, 1.0)
        log_kernel = numerics.log_or_off(self._transition(now)[0])
        return torch.where(self.legal, numerics.times_log_ratio(log_kernel, p_T.log()[:, None]).sum(-1), 0.0)

    def _transition(self, now: SolvedTime) -> Float[Tensor, "b d n n"]:
        elapsed, row = now.elapsed.to(self.dtype).unique(return_inverse=True)  # one exponential per time, not per row
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

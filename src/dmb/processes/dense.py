"""Any rate matrix, by matrix exponential: for tests and small studies."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dmb.processes.base import ForwardProcess
from dmb.processes.states import count_positions
from dmb.processes.time import Schedule


class DenseProcess(ForwardProcess):
    r"""`p_{t|0} = exp(σ̄(t) Q)` for an arbitrary `Q`, in O(n³) time and O(n²) memory per row of the batch.

    Args:
        Q: rate matrices `[d, n, n]`, or `[1, n, n]` or `[n, n]` if all positions share one. Rows sum to 0.
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
        Q: Float[Tensor, "g n n"] | Float[Tensor, "n n"],
        *,
        num_positions: int | None = None,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "g n"] | None = None,
        marginals: Float[Tensor, "h n"] | None = None,
    ):
        if Q.ndim not in (2, 3) or Q.shape[-2] != Q.shape[-1] or not Q.is_floating_point():
            raise ValueError(f"Q must be a floating-point tensor [d, n, n] or [n, n], got {Q.dtype} {list(Q.shape)}")
        Q = Q if Q.ndim == 3 else Q[None]
        off_diagonal = Q - torch.diag_embed(Q.diagonal(dim1=1, dim2=2))
        if not (off_diagonal >= 0).all() or not Q.isfinite().all():
            raise ValueError(f"Q must have finite rates ≥ 0 off its diagonal, got {off_diagonal.min().item()}")
        excess = Q.sum(-1).abs() / (Q.abs().amax(-1) + 1)
        if excess.max() > 1e3 * torch.finfo(Q.dtype).eps:
            raise ValueError(f"Q must have rows that sum to 0, got a sum of {Q.sum(-1).abs().max().item()}")
        num_positions = count_positions(num_positions, Q=len(Q))
        super().__init__(num_positions, Q.shape[-1], schedule, legal, marginals)
        self.Q = nn.Parameter(Q.clone())

    def rate_matrix(self) -> Float[Tensor, "g n n"]:
        return self.Q

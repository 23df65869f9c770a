"""Rates to start from: the paper's, and Theorem 4.2's closed form that carries one distribution to another."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb import checks
from dmb.processes.ordering import invert


def accessibility(p: Float[Tensor, " n"], q: Float[Tensor, " n"]) -> tuple[Float[Tensor, " k"], Int[Tensor, " n"]]:
    r"""Rates and ranks with `q exp(A H(α) A⁻¹) = p` (Theorem 4.2).

    Sort by `p/q`, ascending. On cumulative sums `P`, `Q` in that order `a_k = log(P_k / Q_k) - log(P_{k-1} / Q_{k-1})`,
    which is never negative because cumulative ratios rise too.

    A state with `q = 0 < p` goes on top and is filled from below. One with `p = q = 0` gets a bottom rank and no clock.
    One with `p = 0 < q` would have to empty in finite time, which no finite rate does: that is refused.

    Args:
        p: where to go.
        q: where to start.

    Returns:
        `alpha [n-1]` in rank order and `rank [n]` (token -> rank), as `BridgeProcess` takes them.

    >>> alpha, rank = accessibility(torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5]))
    >>> alpha, rank
    (tensor([0.9163]), tensor([0, 1]))
    """
    if p.ndim != 1 or p.shape != q.shape or len(p) < 2:
        raise ValueError(f"p and q must be vectors of one length ≥ 2, got {list(p.shape)} and {list(q.shape)}")
    checks.distribution("p", p, tuple(p.shape))
    checks.distribution("q", q, tuple(q.shape))
    emptied = (p == 0) & (q > 0)
    if emptied.any():
        state = int(emptied.nonzero()[0])
        raise ValueError(
            f"p must be positive wherever q is, got p = 0 and q = {q[state].item():.3g} at state {state}: "
            "no finite rate empties a state in finite time"
        )
    dtype = torch.promote_types(p.dtype, q.dtype)
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    order = torch.where(q > 0, p / q, torch.where(p > 0, torch.inf, -torch.inf)).argsort(stable=True)
    p, q = p[order], q[order]
    below_p, below_q = p.cumsum(0)[:-1], q.cumsum(0)[:-1]
    # log1p keeps the digits that the difference of two logarithms of cumulative sums would lose
    alpha = torch.log1p(p[1:] / below_p) - torch.log1p(q[1:] / below_q)
    # nothing lies below a state with an empty prefix; and where p/q ties, only rounding makes a rate negative
    alpha = torch.where(below_q > 0, alpha, 0.0).clamp(min=0)
    return alpha.to(dtype), invert(order[None])[0]


def initial_rates(init: str, floor: float, legal: Bool[Tensor, "g n"]) -> Float[Tensor, "g k"]:
    """Rates in rank order; no clock runs into the ranks of states that a position lacks, nor into its lowest."""
    if not 0 <= floor < float("inf"):
        raise ValueError(f"floor must be a finite rate ≥ 0, got {floor}")
    groups, num_states = legal.shape
    has_clock = torch.arange(1, num_states, device=legal.device) > num_states - legal.sum(-1, keepdim=True)
    if init == "uniform":
        return has_clock / has_clock.sum(-1, keepdim=True).clamp(min=1)
    rates = torch.full((groups, num_states - 1), floor, device=legal.device)
    rates[:, -1] = 1.0
    return torch.where(has_clock, rates, 0.0)


def matching_rates(
    marginals: Float[Tensor, "g n"], legal: Bool[Tensor, "g n"], target: Float[Tensor, "d n"] | None
) -> tuple[Float[Tensor, "g k"], Int[Tensor, "g n"]]:
    """Theorem 4.2 row by row: rates and ranks that carry `marginals` to `target` in one unit of clock time."""
    if target is None:
        target = legal.to(marginals.dtype) / legal.sum(-1, keepdim=True)
    checks.distribution("target", target, (target.shape[0], marginals.shape[1]))
    if len(target) not in (1, len(marginals)):
        raise ValueError(f"target must have {len(marginals)} rows or 1, got {len(target)}")
    rows = [accessibility(p, q) for p, q in zip(target.expand_as(marginals), marginals, strict=True)]
    return torch.stack([alpha for alpha, _ in rows]), torch.stack([rank for _, rank in rows])

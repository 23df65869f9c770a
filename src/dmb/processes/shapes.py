"""Which positions and states a process has, and which of them data visit."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb import checks


def legal_states(state_counts: Int[Tensor, " d"], num_states: int) -> Bool[Tensor, "d n"]:
    """Which of `num_states` states each position has, when position `i` has the first `state_counts[i]` of them.

    >>> legal_states(torch.tensor([1, 3]), 3)
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    if state_counts.ndim != 1 or state_counts.is_floating_point():
        raise ValueError(f"state_counts must be integers [d], got {state_counts.dtype} {list(state_counts.shape)}")
    if state_counts.min() < 1 or state_counts.max() > num_states:
        raise ValueError(f"state_counts must lie in [1, {num_states}], got {state_counts.tolist()}")
    return torch.arange(num_states, device=state_counts.device) < state_counts[:, None]


def support(
    marginals: Float[Tensor, "d m"], state_counts: Int[Tensor, " d"] | None, *, tied: bool, mask: bool
) -> tuple[Float[Tensor, "g n"], Bool[Tensor, "g n"]]:
    """Marginals and legal states of each position, or of all together if `tied`; with a last state `mask` or without.

    >>> marginals, legal = support(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), None, tied=True, mask=True)
    >>> marginals, legal
    (tensor([[0.4000, 0.6000, 0.0000]]), tensor([[True, True, True]]))
    """
    if marginals.ndim != 2:
        raise ValueError(f"marginals must have shape [positions, states], got {list(marginals.shape)}")
    checks.distribution("marginals", marginals, tuple(marginals.shape))
    legal = torch.ones_like(marginals, dtype=torch.bool)
    if state_counts is not None:
        legal = legal_states(state_counts, marginals.shape[1])
        if len(legal) != len(marginals):
            raise ValueError(f"state_counts must have shape [{len(marginals)}], got {list(state_counts.shape)}")
        if marginals[~legal].any():
            raise ValueError("marginals must be 0 on states beyond state_counts")
        if tied and not legal.eq(legal[0]).all():
            raise ValueError("tied positions must have equally many states, got " + str(state_counts.tolist()))
    if tied:
        marginals, legal = marginals.mean(0, keepdim=True), legal[:1]
    return (F.pad(marginals, (0, 1)), F.pad(legal, (0, 1), value=True)) if mask else (marginals, legal)


def uniform_but_for(mask_token: int, legal: Bool[Tensor, "g n"]) -> Float[Tensor, "g n"]:
    """The uniform distribution over legal states other than the mask, which data never visit.

    >>> uniform_but_for(2, torch.tensor([[True, True, True]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    data = legal.float().index_fill(1, torch.tensor(mask_token, device=legal.device), 0.0)
    return data / data.sum(-1, keepdim=True)


def positions(num_positions: int | None, **tables: Tensor | None) -> int:
    """How many positions there are, if these tables have one row each, or one for all; at least 1.

    >>> positions(None, rank=torch.zeros(1, 4), alpha=torch.zeros(5, 3))
    5
    """
    rows = {len(table) for table in tables.values() if table is not None} - {1}
    if num_positions is None:
        num_positions = max(rows, default=1)
    if rows - {num_positions}:
        *others, last = tables
        raise ValueError(f"{', '.join(others)} and {last} must have {num_positions} rows or 1, got {sorted(rows)}")
    return num_positions

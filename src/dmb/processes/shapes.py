"""Which positions and states a process has, and which of them data visit."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb._core import checks


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
    marginals: Float[Tensor, "d m"], state_counts: Int[Tensor, " d"] | None, *, tied: bool, names: int = 0
) -> tuple[Float[Tensor, "g n"], Bool[Tensor, "g n"]]:
    """Marginals and legal states of each position, or of all together if `tied`; then `names` that data never visit.

    >>> marginals, legal = support(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), None, tied=True, names=1)
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
            raise ValueError("tied positions must have the same number of states, got " + str(state_counts.tolist()))
    if tied:
        marginals, legal = marginals.mean(0, keepdim=True), legal[:1]
    return F.pad(marginals, (0, names)), F.pad(legal, (0, names), value=True)


def positions(num_positions: int | None, **rows: int) -> int:
    """How many positions there are, if tables have one row for each, or one for all; at least 1.

    >>> positions(None, hierarchy=1, rates=5)
    5
    """
    several = set(rows.values()) - {1}
    if num_positions is None:
        num_positions = max(several, default=1)
    if several - {num_positions}:
        *others, last = rows
        raise ValueError(f"{', '.join(others)} and {last} must have {num_positions} rows or 1, got {sorted(several)}")
    return num_positions

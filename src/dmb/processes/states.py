"""What stands at each position: how many states there are, which of them data take, and the checks of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import checks
from dmb._core.configuration import Configurable


class States(nn.Module, Configurable):
    """The states of `num_positions` positions. A forward process has them too, and is asked the same questions.

    Args:
        num_positions: `d`, the number of tokens of an example.
        num_states: `n`, the largest number of states of a position, names included.
        names: number of names, the last states, which data never visit (such as a mask). Default: 0.
        state_counts: how many states data have at each position, if some have fewer, such as the columns of a table.
        legal: in place of `state_counts`, the states of each position, `[d, n]` or `[1, n]`, names included.

    >>> States(num_positions=2, num_states=4, names=1, state_counts=[3, 2]).data_states
    tensor([[ True,  True,  True, False],
            [ True,  True, False, False]])
    """

    legal: Bool[Tensor, "g n"]

    def __init__(
        self,
        num_positions: int,
        num_states: int,
        *,
        names: int = 0,
        state_counts: Sequence[int] | Int[Tensor, " d"] | None = None,
        legal: Bool[Tensor, "g n"] | None = None,
    ):
        super().__init__()
        if num_positions < 1 or num_states < 2:
            raise ValueError(f"there must be at least 1 position and 2 states, got {num_positions} and {num_states}")
        if state_counts is not None:
            if legal is not None:
                raise ValueError("give state_counts or legal, not both")
            legal = F.pad(legal_states(state_counts, num_positions, num_states - names), (0, names), value=True)
        legal = torch.ones(1, num_states, dtype=torch.bool) if legal is None else legal
        if legal.dtype != torch.bool or legal.shape not in ((1, num_states), (num_positions, num_states)):
            rule = f"boolean, [{num_positions}, {num_states}]"
            raise ValueError(f"legal must be {rule}, got {legal.dtype} {list(legal.shape)}")
        self.num_positions, self.num_states, self.names = num_positions, num_states, names
        self.register_buffer("legal", legal.clone())
        self._note_legal()
        self.register_load_state_dict_post_hook(States._note_legal)

    @classmethod
    def with_mask(
        cls, num_positions: int, num_values: int, state_counts: Sequence[int] | Int[Tensor, " d"] | None = None
    ) -> "States":
        """The states of data, which have `num_values` at most at a position, and a mask after them.

        >>> States.with_mask(num_positions=64, num_values=27).num_states
        28
        """
        return cls(num_positions, num_values + 1, names=1, state_counts=state_counts)

    def config(self) -> dict[str, Any]:
        counts = None if len(self.legal) == 1 else self.data_states.sum(-1).tolist()
        sizes = {"num_positions": self.num_positions, "num_states": self.num_states, "names": self.names}
        return {**sizes, "state_counts": counts}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> Any:
        return super().build({} if "state_counts" in config else tensors, **config)

    def _note_legal(self, _: object = None) -> None:
        """Keep a copy of `legal` on the host, unless all states are legal: checks must not wait for a device."""
        self._ragged = None if self.legal.all() else self.legal.cpu()

    @property
    def device(self) -> torch.device:
        return self.legal.device

    @property
    def data_states(self) -> Bool[Tensor, "g n"]:
        """The states that data can take at each position: legal, and not a name."""
        return self.legal & (torch.arange(self.num_states, device=self.legal.device) < self.num_states - self.names)

    def tokens(self, name: str, x: Tensor) -> Int[Tensor, "b d"]:
        """Return `x` as int64 if it holds states of its positions, or say what is wrong with it."""
        legal = None if self._ragged is None else self._ragged.to(x.device)
        return checks.tokens(name, x, (self.num_positions, self.num_states), legal)

    def data(self, name: str, x_0: Tensor) -> Int[Tensor, "b d"]:
        """Return `x_0` as int64 if it holds data: legal tokens, none of them a name."""
        x_0 = self.tokens(name, x_0)
        first = self.num_states - self.names
        if self.names and (x_0 >= first).any():
            row, position = (x_0 >= first).nonzero()[0].tolist()
            raise ValueError(
                f"{name} must hold data, and states from {first} on are names that data never visit (such as a mask), "
                f"got {int(x_0[row, position])} at row {row}, position {position}"
            )
        return x_0


def legal_states(
    state_counts: Sequence[int] | Int[Tensor, " d"], num_positions: int, num_states: int
) -> Bool[Tensor, "d n"]:
    """Which of `num_states` states each position has, when position `i` has the first `state_counts[i]` of them.

    >>> legal_states(torch.tensor([1, 3]), 2, 3)
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    counts = torch.as_tensor(state_counts)
    whole = not counts.is_floating_point() and counts.shape == (num_positions,)
    if not whole or counts.min() < 1 or counts.max() > num_states:
        raise ValueError(
            f"state_counts must be {num_positions} whole numbers in [1, {num_states}], got {counts.tolist()}"
        )
    return torch.arange(num_states, device=counts.device) < counts[:, None]


def count_positions(num_positions: int | None, **rows: int) -> int:
    """How many positions there are, if tables have one row for each, or one for all; at least 1.

    >>> count_positions(None, hierarchy=1, rates=5)
    5
    """
    several = set(rows.values()) - {1}
    if num_positions is None:
        num_positions = max(several, default=1)
    if several - {num_positions}:
        raise ValueError(f"{', '.join(rows)} must have {num_positions} rows or 1, got {sorted(several)}")
    return num_positions

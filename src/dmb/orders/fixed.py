"""One order for all rows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dmb.orders.base import WriteOrder, given_first


class Fixed(WriteOrder):
    """Positions in one order, such as columns in turn, or text from left to right.

    Args:
        order: all positions, from the first to be written to the last.

    >>> Fixed([2, 0, 1]).turns(1)
    tensor([[1, 2, 0]])
    """

    order: Int[Tensor, " d"]

    def __init__(self, order: Sequence[int] | Int[Tensor, " d"]):
        order = torch.as_tensor(order, dtype=torch.long)
        super().__init__(len(order))
        self.register_buffer("order", order.clone())
        self.register_load_state_dict_post_hook(Fixed._check)
        self._check()

    def _check(self, _: object = None) -> None:
        if self.order.sort().values.tolist() != [*range(self.num_positions)]:
            rule = f"each of 0 to {self.num_positions - 1} once"
            raise ValueError(f"order must hold {rule}, got {self.order.tolist()[:40]}")

    @classmethod
    def left_to_right(cls, num_positions: int) -> "Fixed":
        """The order of a language model."""
        return cls(range(num_positions))

    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return given_first(self.order.expand(batch, -1), given)

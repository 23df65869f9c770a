"""Blocks from left to right, and any order within each."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb.orders.base import WriteOrder, given_first


class Blocks(WriteOrder):
    """Blocks of neighbours, from left to right; positions of a block in any order (BD3-LM, arXiv 2503.09573).

    Args:
        num_positions: `d`.
        size: positions per block; the last block may have fewer.

    >>> Blocks(4, size=2).turns(1, generator=torch.Generator().manual_seed(0)).view(2, 2).sort(-1).values
    tensor([[0, 1],
            [2, 3]])
    """

    _block: Int[Tensor, " d"]

    def __init__(self, num_positions: int, size: int):
        super().__init__(num_positions)
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self.register_buffer("_block", torch.arange(num_positions) // size, persistent=False)

    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        shape, device = (batch, self.num_positions), None if generator is None else generator.device
        noise = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        return given_first((self._block + noise.to(self._block.device)).argsort(dim=-1), given)

    def log_choices(self, turn: Int[Tensor, "b d"], given: Bool[Tensor, "b d"] | None = None) -> Float[Tensor, "b d"]:
        """The position written last was masked first, among all of its block; the one before it among all others."""
        order, place = turn.argsort(dim=-1), torch.arange(self.num_positions, device=turn.device).expand_as(turn)
        known = torch.zeros_like(turn[:, :1]) if given is None else given.sum(-1, keepdim=True)
        begins = F.pad(self._block[order].diff(dim=-1) != 0, (1, 0), value=True) | (place == known)
        first = torch.where(begins, place, 0).cummax(dim=-1).values
        return torch.where(place < known, 0.0, -(place - first + 1.0).log())

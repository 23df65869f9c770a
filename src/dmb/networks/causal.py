"""The transformer that reads from left to right: what language models do, as a yardstick."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb.networks.ordered import OrderedAttentive
from dmb.networks.transformer import Block, rotate


class CausalBlock(Block):
    """A block in which every position attends to itself and those to its left."""

    def attend(self, x: Float[Tensor, "b d w"], rotary: Float[Tensor, "2 d h"]) -> Float[Tensor, "b d w"]:
        query, key, value = map(self.by_head, self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(rotate(query, rotary), rotate(key, rotary), value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))


class CausalTransformer(OrderedAttentive):
    """One stream, one order: every position is predicted from those to its left.

    With it a bridge is an autoregressive model. Its bound is the likelihood itself, since there is one order only. What
    is given must be a beginning. Sampling keeps nothing, and takes one pass over everything for each position.
    Arguments are those of `Attentive`.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.full((64, 27), 1 / 27), tied=True, mask=True, floor=0.0)
    >>> CausalTransformer.for_process(process, width=32)(torch.zeros(2, 64, dtype=torch.long)).shape
    torch.Size([2, 64, 28])
    """

    block = CausalBlock

    @property
    def order(self) -> Int[Tensor, " d"]:
        return torch.arange(self.num_positions, device=self.rotary.device)

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"] | None = None,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        turn: Int[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        turn = self.standing_first(x_t) if turn is None else turn
        step, stands = turn.diff(dim=-1), x_t[:, :-1] != self.num_states - 1
        if not torch.compiler.is_compiling() and ((step < 0) | ((step == 0) & stands)).any():
            raise ValueError(
                "a CausalTransformer reads from left to right: unmasked tokens must come before all masked ones"
            )
        condition = self.condition(label, len(x_t))
        # every position is predicted from the token before it, the first one from a mask
        x = self.tokens(F.pad(x_t[:, :-1], (1, 0), value=self.num_states - 1))
        if self.places is not None:
            x = x + self.places
        for block in self.blocks:
            x = block(x, condition, self.rotary)
        return self.last(x, condition)

"""The diffusion transformer of SEDD: rotary attention, adaptive layer norms that start at zero."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import Conditioning, Network, check_num_blocks, zeroed
from dmb.processes.states import States


class Block(nn.Module):
    """Attention and an MLP, each modulated by the conditioning vector, and each doing nothing at first.

    Here every position attends to every other; a subclass may `attend` in another way.
    """

    def __init__(self, width: int, heads: int, conditioning: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm_2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = zeroed(nn.Linear(conditioning, 6 * width))

    def forward(
        self, x: Float[Tensor, "b d w"], condition: Float[Tensor, "#b c"], *context: Any
    ) -> Float[Tensor, "b a w"]:
        """`context` is what `attend` needs besides `x`."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        attended = self.attend(torch.addcmul(shift_1, self.norm_1(x), 1 + scale_1), *context)
        x = x[:, x.shape[1] - attended.shape[1] :]
        x = torch.addcmul(x, gate_1, F.dropout(attended, self.dropout, self.training))
        lifted = self.mlp(torch.addcmul(shift_2, self.norm_2(x), 1 + scale_2))
        return torch.addcmul(x, gate_2, F.dropout(lifted, self.dropout, self.training))

    def attend(self, x: Float[Tensor, "b d w"], *context: Any, **_: Any) -> Float[Tensor, "b a w"]:
        """What each position takes from the others; `context` are the angles of `rotary_angles`.

        It may return the last positions only.
        """
        [rotary] = context
        return self.mixed(*self.turned(x, rotary[:, :, None]))

    def turned(self, x: Float[Tensor, "b d w"], rotary: Float[Tensor, "2 *c d 1 h"]) -> list[Float[Tensor, "b d k h"]]:
        """Queries, keys and values, the first two turned by the angles of their position."""
        each = self.in_heads(self.qkv(x))
        return [*rotate(each[:, :, : 2 * self.heads], rotary).chunk(2, dim=2), each[:, :, 2 * self.heads :]]

    def in_heads(self, x: Float[Tensor, "b d w"]) -> Float[Tensor, "b d k h"]:
        """Features divided among the heads; if they are queries, keys and values, among those of each."""
        return x.unflatten(-1, (-1, self.project.in_features // self.heads))

    def mixed(
        self,
        query: Float[Tensor, "b a k h"],
        key: Float[Tensor, "b s k h"],
        value: Float[Tensor, "b s k h"],
        **options: Any,
    ) -> Float[Tensor, "b a w"]:
        """What each query takes from the values."""
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        return self.project(F.scaled_dot_product_attention(query, key, value, **options).transpose(1, 2).flatten(2))


class TransformerBase(Network):
    """What all transformers share: tokens and positions as vectors, a stack of blocks, and a last layer.

    The last layer starts at zero: an untrained model gives the same number to every state.

    Args:
        num_states: `n`; or a process or `States`, in place of both sizes.
        num_positions: `d`.
        blocks: number of attention blocks.
        width: size of a position's vector; a multiple of `2 · heads`.
        heads: attention heads.
        conditioning: size of the vector that embeds time and label.
        dropout: on attention and MLP outputs.
        num_classes: number of class labels; 0 for a model without classes.
        label_dropout: share of labels that training hides, so that guidance can be used in sampling.
        placed: give every position its own vector, learned from zero. Rotary attention knows the distance between
            positions, but not where they are: if all tokens are equal, such as masks, its outputs are equal at all
            positions. That is right for windows of text, but wrong for images, whose top differs from their bottom.
    """

    block: ClassVar[type["Block"]]
    rotary: Float[Tensor, "2 d h"]

    def __init__(
        self,
        num_states: int | States,
        num_positions: int | None = None,
        *,
        blocks: int = 4,
        width: int = 96,
        heads: int = 4,
        conditioning: int = 64,
        dropout: float = 0.1,
        num_classes: int = 0,
        label_dropout: float = 0.1,
        placed: bool = False,
    ):
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width must be a multiple of 2 · heads, got {width} with {heads} heads")
        self._set_sizes(num_states, num_positions)
        self.num_classes, self.heads = num_classes, heads
        self._options = {
            "blocks": blocks, "width": width, "heads": heads, "conditioning": conditioning, "dropout": dropout,
            "num_classes": num_classes, "label_dropout": label_dropout, "placed": placed,
        }  # fmt: skip
        self.tokens = nn.Embedding(self.num_states, width)
        self.add_conditioning(width, conditioning, label_dropout)
        self.places = nn.Parameter(torch.zeros(self.num_positions, width)) if placed else None
        check_num_blocks(blocks)
        self.blocks = nn.ModuleList([self.block(width, heads, conditioning, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(conditioning, 2 * width))
        self.output = zeroed(nn.Linear(width, self.num_states))
        self.register_buffer("rotary", rotary_angles(self.num_positions, width // heads), persistent=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    @abstractmethod
    def add_conditioning(self, width: int, conditioning: int, label_dropout: float) -> None:
        """Make the layers that tell all others about time, label and given positions."""

    def last(self, x: Float[Tensor, "b m w"], condition: Float[Tensor, "#b c"]) -> Float[Tensor, "b m n"]:
        """What comes out of the last block as one number per state."""
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        return self.output(self.norm(x) * (1 + scale) + shift)


class Transformer(TransformerBase):
    """A bidirectional transformer over positions, conditioned on time (and a class) by adaLN-zero.

    Arguments are those of `TransformerBase`.

    >>> network = Transformer(num_states=27, num_positions=64)
    >>> sum(p.numel() for p in network.parameters())
    622651
    """

    block = Block

    def add_conditioning(self, width: int, conditioning: int, label_dropout: float) -> None:
        self.given = nn.Parameter(torch.zeros(self.num_states, width))
        self.conditioning = Conditioning(conditioning, self.num_classes, label_dropout)

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        condition = self.conditioning(t, label)
        x = self.tokens(x_t)
        if self.places is not None:
            x = x + self.places
        if given is not None:
            x = x + given[..., None] * F.embedding(x_t, self.given)
        for block in self.blocks:
            x = block(x, condition, self.rotary)
        return self.last(x, condition)


def rotary_angles(num_positions: int, head_width: int) -> Float[Tensor, "2 d w"]:
    """Cosines and sines of position × frequency, frequencies falling geometrically from 1 to 1e-4.

    Of each feature, and of the one half-way along that it is turned with: the sine of the first is negative.
    """
    frequencies = 1e4 ** -(torch.arange(0, head_width, 2) / head_width)
    angles = torch.arange(num_positions)[:, None] * frequencies.repeat(2)
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(len(frequencies))
    return torch.stack([angles.cos(), sign * angles.sin()])


def rotate(x: Float[Tensor, "*b w"], rotary: Float[Tensor, "2 *r w"]) -> Float[Tensor, "*b w"]:
    """Turn pairs of features by the angles of their position."""
    cos, sin = rotary.to(x.dtype)
    return torch.addcmul(x * cos, torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1), sin)

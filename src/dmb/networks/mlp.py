"""A residual MLP over all positions at once, for short data of fixed length: tables, small images."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import Conditioning, Network, refuse_many


class MLP(Network):
    """Sums one learned vector per (position, token), then residual blocks conditioned on time by adaptive layer norm.

    A token that is given has a second vector, added to the first; see `Network.forward`.

    Where positions are few and their places matter (8×8 images, the columns of a table) it learns far faster on a CPU
    than attention does. First and last layer have `d · n · width` weights each.

    Args:
        num_states: `n`, of the process.
        num_positions: `d`.
        width: size of the hidden vector.
        blocks: how many residual blocks.
        conditioning: size of the vector that time and label are embedded into.
        dropout: on every block's output.
        num_classes: how many class labels there are; 0 for a model without.
        label_dropout: share of training labels that are hidden, so that guidance can be used in sampling.

    >>> network = MLP(num_states=17, num_positions=64, width=128)
    >>> network(torch.zeros(2, 64, dtype=torch.long), torch.rand(2)).shape
    torch.Size([2, 64, 17])
    """

    offsets: Int[Tensor, " d"]

    def __init__(
        self,
        num_states: int,
        num_positions: int,
        *,
        width: int = 384,
        blocks: int = 3,
        conditioning: int = 64,
        dropout: float = 0.1,
        num_classes: int = 0,
        label_dropout: float = 0.1,
    ):
        super().__init__()
        self.num_states, self.num_positions, self.num_classes = num_states, num_positions, num_classes
        self._options = {
            "width": width, "blocks": blocks, "conditioning": conditioning, "dropout": dropout,
            "num_classes": num_classes, "label_dropout": label_dropout,
        }  # fmt: skip
        self.tokens = nn.EmbeddingBag(num_positions * num_states, width, mode="sum")
        self.given = nn.Parameter(torch.zeros(num_positions * num_states, width))
        self.conditioning = Conditioning(conditioning, num_classes, label_dropout)
        refuse_many(blocks)
        self.blocks = nn.ModuleList([_Block(width, conditioning, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, num_positions * num_states)
        self.register_buffer("offsets", torch.arange(num_positions) * num_states, persistent=False)
        nn.init.normal_(self.tokens.weight, std=num_positions**-0.5)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def config(self) -> dict[str, Any]:
        return {"num_states": self.num_states, "num_positions": self.num_positions, **self._options}

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        condition = self.conditioning(t, label)
        index = x_t + self.offsets
        x = self.tokens(index)
        if given is not None:
            x = x + F.embedding_bag(index, self.given, mode="sum", per_sample_weights=given.to(self.given.dtype))
        for block in self.blocks:
            x = block(x, condition)
        return self.output(self.norm(x)).view(len(x_t), self.num_positions, self.num_states)


class _Block(nn.Module):
    def __init__(self, width: int, conditioning: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(conditioning, 3 * width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Float[Tensor, "b w"], condition: Float[Tensor, "b c"]) -> Float[Tensor, "b w"]:
        shift, scale, gate = self.modulation(condition).chunk(3, dim=-1)
        return x + (1 + gate) * self.dropout(self.layers(self.norm(x) * (1 + scale) + shift))

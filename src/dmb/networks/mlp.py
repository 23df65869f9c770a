"""A residual MLP over all positions at once, for short data of fixed length: tables, small images."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import Conditioning, Network, check_num_blocks, zeroed
from dmb.processes.states import States

FEWEST_WAVED = 24  # states: the shortest wave has sixteen


class MLP(Network):
    """Sums one learned vector per (position, token), then residual blocks conditioned on time by adaptive layer norm.

    A token that is given has a second vector, added to the first; see `Network`.

    Where positions are few and their places matter (8×8 images, the columns of a table) it learns far faster on a CPU
    than attention does. First and last layer have `width` weights for each state of each position.

    Args:
        num_states: `n`; or a process or `States`, in place of both sizes.
        num_positions: `d`.
        width: size of the hidden vector.
        blocks: how many residual blocks.
        conditioning: size of the vector that time and label are embedded into.
        dropout: on every block's output.
        num_classes: how many class labels there are; 0 for a model without.
        label_dropout: share of training labels that are hidden, so that guidance can be used in sampling.
        state_counts: how many states the data have at each position, if some have fewer; a process and `States` know
            it. States that no position has are names, such as a mask. Those that a position lacks cost nothing; their
            output is 0.

    >>> network = MLP(num_states=17, num_positions=64, width=128)
    >>> network(torch.zeros(2, 64, dtype=torch.long), torch.rand(2)).shape
    torch.Size([2, 64, 17])
    """

    own: Bool[Tensor, "d n"]
    """Which states each position has, names included."""
    rows: Int[Tensor, "d n"]
    """The row of the tables of weights that each of them has; 0 for those that a position lacks."""

    def __init__(
        self,
        num_states: int | States,
        num_positions: int | None = None,
        *,
        width: int = 384,
        blocks: int = 3,
        conditioning: int = 64,
        dropout: float = 0.1,
        num_classes: int = 0,
        label_dropout: float = 0.1,
        state_counts: Sequence[int] | None = None,
    ):
        super().__init__()
        if state_counts is None and isinstance(num_states, States):
            state_counts = _uneven_counts(num_states)
        self._set_sizes(num_states, num_positions)
        self.num_classes = num_classes
        self._options = {
            "width": width, "blocks": blocks, "conditioning": conditioning, "dropout": dropout,
            "num_classes": num_classes, "label_dropout": label_dropout,
        }  # fmt: skip
        if state_counts is not None:
            self._options["state_counts"] = list(state_counts)
        counts = [self.num_states] * self.num_positions if state_counts is None else list(state_counts)
        if len(counts) != self.num_positions or not 1 <= min(counts) <= max(counts) <= self.num_states:
            rule = f"{self.num_positions} numbers in [1, {self.num_states}]"
            raise ValueError(f"state_counts must be {rule}, got {counts}")
        state = torch.arange(self.num_states)
        own = (state < torch.tensor(counts)[:, None]) | (state >= max(counts))
        self.register_buffer("own", own, persistent=False)
        self.register_buffer("rows", torch.where(own, own.flatten().cumsum(0).view_as(own) - 1, 0), persistent=False)
        total = int(own.sum())
        self._even = bool(own.all())
        self.tokens = nn.EmbeddingBag(total, width, mode="sum")
        self.given = nn.Parameter(torch.zeros(total, width))
        self.conditioning = Conditioning(conditioning, num_classes, label_dropout)
        check_num_blocks(blocks)
        self.blocks = nn.ModuleList([_Block(width, conditioning, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.output = zeroed(nn.Linear(width, total))
        nn.init.normal_(self.tokens.weight, std=self.num_positions**-0.5)

    @torch.no_grad()
    def init_ordinal_embeddings(self, ordered: Bool[Tensor, "d k"]) -> None:
        r"""Begin with vectors that change little from one state to the next, where states lie in an order.

        Weight `j` of the state at place `u \in [0, 1]` is a wave, `cos(2π (f_j u + φ_j))`, with frequencies `f_j` from
        one half to one wave in sixteen states. Otherwise neighbours share nothing, and what holds for numbers of about
        the same size must be learned for each of them. Positions with fewer than 24 such states stay as they are: few
        states are learned as well without.

        Args:
            ordered: the states of each position that have an order, that of their indices; names may be left out.
        """
        width = self.output.in_features
        for rows, chosen in zip(self.rows, ordered, strict=True):
            own = rows[chosen.nonzero().squeeze(-1)]
            if len(own) >= FEWEST_WAVED:
                place = torch.linspace(0, 1, len(own), device=own.device)[:, None]
                drawn = [waves(place, len(own), width) for _ in range(2)]
                std = self.num_positions**-0.5
                # some noise, which keeps neighbours apart
                self.tokens.weight[own] = std * 0.8**0.5 * drawn[0] + 0.2**0.5 * self.tokens.weight[own]
                self.output.weight[own] = 0.5 * width**-0.5 * drawn[1]

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        condition = self.conditioning(t, label)
        index = self.rows.gather(1, x_t.T).T
        x = self.tokens(index)
        if given is not None:
            x = x + F.embedding_bag(index, self.given, mode="sum", per_sample_weights=given.to(self.given.dtype))
        for block in self.blocks:
            x = block(x, condition)
        output = self.output(self.norm(x))
        if not self._even:
            output = torch.where(self.own.flatten(), output[:, self.rows.flatten()], 0.0)
        return output.view(len(x_t), self.num_positions, self.num_states)


def _uneven_counts(states: States) -> list[int] | None:
    """How many states the data have at each position, if that differs and they are the first ones."""
    own = states.data_states
    counts = own.sum(-1)
    first = torch.arange(states.num_states, device=counts.device) < counts[:, None]
    differ = len(counts) == states.num_positions and len(counts.unique()) > 1
    return counts.tolist() if differ and bool((own == first).all()) else None


def waves(place: Float[Tensor, "k 1"], count: int, width: int) -> Float[Tensor, "k w"]:
    """Waves of variance 1, with random frequencies and phases."""
    frequency, phase = torch.rand(2, width).to(place)
    frequency = 0.5 * max(2.0, count / 8) ** frequency
    return 2**0.5 * torch.cos(2 * math.pi * (frequency * place + phase))


class _Block(nn.Module):
    def __init__(self, width: int, conditioning: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(conditioning, 3 * width))
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b w"], condition: Float[Tensor, "b c"]) -> Float[Tensor, "b w"]:
        shift, scale, gate = self.modulation(condition).chunk(3, dim=-1)
        return x + (1 + gate) * self.dropout(self.layers(self.norm(x) * (1 + scale) + shift))

"""A small MLP for each position, for short data of fixed length that is written in any order: tables."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import check_num_blocks, check_unlabelled, zeroed
from dmb.networks.mlp import FEWEST_WAVED, waves
from dmb.networks.ordered import OrderedNetwork
from dmb.processes.states import States

_SHORTEST = 4  # states of the shortest wave of a feature
_NOISE = 0.05  # share of the variance of features that keeps neighbouring states apart
_GAIN = 10.0  # of the way from places to the middle of a peak: its weights go far, and an optimiser's steps are small


class OrderedMLP(OrderedNetwork):
    r"""One residual MLP per position, which reads the features of the tokens of earlier turns, side by side.

    All conditionals `p(x_i | x_j of earlier turns)` of a row come out of one pass, whatever its order, as for an
    `OrderedTransformer`; nothing is shared between positions except the features of their tokens. Where positions are
    few and each means something else, as in a table, this learns far faster on a CPU than attention, or than an `MLP`
    that must answer for all positions at once. Weights grow with the square of the number of positions.

    Where the states of a position lie in an order, at even places `u \in [-2, 2]`, their features begin as waves of
    `u`, and their logits have a peak besides, whose middle `m`, width `s` and steepness `ν` are outputs of the network.
    The places of earlier tokens lead straight to the middle, too:

    `logit_k = w_k · h + b_k - ν log(1 + ((u_k - m) / s)^2), m = a · h + a_0 + Σ_j B_j u_{x_j}.`

    A number that others almost decide is then found within its step, without leaving some probability at each of
    hundreds of states far away. Positions with fewer than 24 such states need none of this.

    Args:
        num_states: `n`, of which the last is the mask; or `States`, in place of both sizes.
        num_positions: `d`.
        width: size of the hidden vector of each position.
        blocks: number of residual blocks per position.
        features: number of features of a token.
        dropout: on every block's output.
        state_counts: number of states that the data have at each position; default: all except the mask, or those
            of the `States`.
        ordered_from: at each position, the first of the states that lie in an order, that of their indices; those
            before it have none, such as a missing value. Default: none have.

    >>> network = OrderedMLP(num_states=4, num_positions=3, width=16)
    >>> network(torch.tensor([[0, 2, 3]])).shape  # given the first two tokens
    torch.Size([1, 3, 4])
    """

    starts: Int[Tensor, " d"]
    ends: Int[Tensor, " d"]
    places: Float[Tensor, " s"]

    def __init__(
        self,
        num_states: int | States,
        num_positions: int | None = None,
        *,
        width: int = 128,
        blocks: int = 2,
        features: int = 32,
        dropout: float = 0.0,
        state_counts: Sequence[int] | None = None,
        ordered_from: Sequence[int] | None = None,
    ):
        super().__init__()
        if state_counts is None and isinstance(num_states, States):
            state_counts = num_states.data_states.expand(num_states.num_positions, -1).sum(-1).tolist()
        self._set_sizes(num_states, num_positions)
        positions = self.num_positions
        self._counts = [self.num_states - 1] * positions if state_counts is None else list(state_counts)
        if len(self._counts) != positions or not 1 <= min(self._counts) <= max(self._counts) < self.num_states:
            rule = f"{positions} numbers in [1, {self.num_states})"
            raise ValueError(f"state_counts must be {rule}, got {self._counts}")
        first = self._counts if ordered_from is None else list(ordered_from)
        if len(first) != positions or min(first) < 0:
            raise ValueError(f"ordered_from must be {positions} numbers of at least 0, got {first}")
        check_num_blocks(blocks)
        self._options = {
            "width": width, "blocks": blocks, "features": features, "dropout": dropout,
            "state_counts": self._counts, "ordered_from": first,
        }  # fmt: skip
        counted = list(enumerate(zip(first, self._counts, strict=True)))
        self._peaked = {i: first for i, (first, count) in counted if count - first >= FEWEST_WAVED}
        total, seen = sum(self._counts), positions * features
        self.tokens = nn.Embedding(total, features)
        self.first = nn.Parameter(torch.randn(positions, seen, width) * seen**-0.5)
        self.first_bias = nn.Parameter(torch.zeros(positions, 1, width))
        self.blocks = nn.ModuleList([_Block(positions, width, dropout) for _ in range(blocks)])
        self.scale = nn.Parameter(torch.ones(positions, 1, width))
        self.output = zeroed(nn.Linear(width, total))
        self.peaks = nn.ModuleDict({str(position): _Peak(width) for position in self._peaked})
        self.straight = nn.Parameter(torch.zeros(positions, positions, 1))
        self.register_buffer("ends", torch.tensor(self._counts).cumsum(0), persistent=False)
        self.register_buffer("starts", self.ends - torch.tensor(self._counts), persistent=False)
        self.register_buffer("places", torch.zeros(total), persistent=False)
        self._init_ordinal_states()

    def forward(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"] | None = None, label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d n"]:
        check_unlabelled(label)
        hidden, middles = self._hidden(x_t, self.default_turns(x_t) if turn is None else turn, slice(None))
        parts = [self._logits(*each) for each in zip(self._parts(), hidden, middles, strict=True)]
        return torch.stack(parts, dim=1)

    def outputs_at(
        self,
        x_t: Int[Tensor, "b d"],
        query_positions: Int[Tensor, "b m"],
        turn: Int[Tensor, "b d"] | None = None,
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """Without the networks of other positions."""
        if hasattr(self.scale, "full_tensor"):  # sharded, and put together for `forward` only
            return super().outputs_at(x_t, query_positions, turn, label)
        check_unlabelled(label)
        turn, parts = self.default_turns(x_t) if turn is None else turn, self._parts()
        outputs = self.scale.new_empty(*query_positions.shape, self.num_states)
        for own in query_positions.unique().tolist():
            rows, column = (query_positions == own).nonzero(as_tuple=True)
            hidden, middles = self._hidden(x_t[rows], turn[rows], slice(own, own + 1))
            outputs[rows, column] = self._logits(parts[own], hidden[0], middles[0])
        return outputs

    def _hidden(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"], own: slice
    ) -> tuple[Float[Tensor, "c b w"], Float[Tensor, "c b 1"]]:
        """The last hidden vectors of some positions, and the middles of their peaks that earlier tokens lead to."""
        row = x_t + self.starts
        written = row < self.ends
        row = torch.where(written, row, 0)
        earlier = ((turn[:, None, :] < turn[:, own, None]) & written[:, None, :]).transpose(0, 1)
        seen = (earlier[..., None] * self.tokens(row)).flatten(2)
        x = torch.baddbmm(self.first_bias[own], seen, self.first[own])
        for block in self.blocks:
            x = block(x, own)
        places = self.places.to(x)  # a file has the weights only, which may be of another precision
        middles = _GAIN * (earlier * places[row]) @ self.straight[own]
        return F.layer_norm(x, x.shape[-1:]) * self.scale[own], middles

    def _parts(self) -> list[tuple[int, Tensor, Tensor, Tensor]]:
        """Every position, its weights and biases of the output, and the places of its states."""
        tensors = (self.output.weight, self.output.bias, self.places.to(self.output.bias))
        return list(zip(range(self.num_positions), *(each.split(self._counts) for each in tensors), strict=True))

    def _logits(
        self, part: tuple[int, Tensor, Tensor, Tensor], x: Float[Tensor, "b w"], middle: Float[Tensor, "b 1"]
    ) -> Float[Tensor, "b n"]:
        """The output at one position."""
        position, weight, bias, places = part
        logits = F.linear(x, weight, bias)
        if position in self._peaked:
            before = self._peaked[position]
            logits = logits + F.pad(self.peaks[str(position)](x, middle, places[before:]), (before, 0))
        return F.pad(logits, (0, self.num_states - len(weight)))

    @torch.no_grad()
    def add_to_biases(self, shift: Float[Tensor, "d n"]) -> None:
        """Add a number to the logits of each state of each position, whatever the tokens."""
        for bias, more in zip(self.output.bias.split(self._counts), shift, strict=True):
            bias += more[: len(bias)].to(bias)

    @torch.no_grad()
    def _init_ordinal_states(self) -> None:
        """Places of states that lie in an order, and features and weights that change little from one to the next.

        Others have place 0.
        """
        features, width = self.tokens.embedding_dim, self.output.in_features
        for position, before in self._peaked.items():
            own = slice(int(self.starts[position]) + before, int(self.ends[position]))
            count = own.stop - own.start
            self.places[own] = torch.linspace(-2, 2, count)
            place = torch.linspace(0, 1, count)[:, None]
            frequency = 0.5 * (2 * count / _SHORTEST) ** torch.linspace(0, 1, -(-features // 2))
            angle = 2 * torch.pi * frequency * place
            wave = 2**0.5 * torch.cat([angle.cos(), angle.sin()], dim=-1)[:, :features]
            self.tokens.weight[own] = (1 - _NOISE) ** 0.5 * wave + _NOISE**0.5 * self.tokens.weight[own]
            self.output.weight[own] = 0.5 * width**-0.5 * waves(place, count, width)


class _Block(nn.Module):
    """A residual block for each position; called for those of a slice."""

    def __init__(self, positions: int, width: int, dropout: float):
        super().__init__()
        self.up = nn.Parameter(_uniform(positions, width, 2 * width))
        self.bias = nn.Parameter(torch.zeros(positions, 1, 2 * width))
        self.down = nn.Parameter(_uniform(positions, 2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "c b w"], own: slice) -> Float[Tensor, "c b w"]:
        inner = F.silu(torch.baddbmm(self.bias[own], F.layer_norm(x, x.shape[-1:]), self.up[own]))
        return x + self.dropout(inner @ self.down[own])


class _Peak(nn.Module):
    """A bump over states in an order. Its tails fall slowly, so that a rare value costs little."""

    def __init__(self, width: int):
        super().__init__()
        self.shape = zeroed(nn.Linear(width, 3))
        self.shape.bias.data = torch.tensor([0.0, 0.0, 0.5])

    def forward(
        self, x: Float[Tensor, "b w"], middle: Float[Tensor, "b 1"], places: Float[Tensor, " k"]
    ) -> Float[Tensor, "b k"]:
        shift, log_width, steepness = self.shape(x).unsqueeze(-1).unbind(1)
        return -F.softplus(steepness) * (((places - middle - shift) * (-log_width).exp()) ** 2).log1p()


def _uniform(positions: int, inputs: int, outputs: int) -> Float[Tensor, "d i o"]:
    return inputs**-0.5 * (2 * torch.rand(positions, inputs, outputs) - 1)

"""Networks that follow an order: outputs at a position depend only on tokens of earlier turns (math §9)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import LabelEmbedding, Network, refuse_label
from dmb.networks.transformer import Attentive, Block, rotate


@dataclass
class Memory:
    """The tokens written so far, in the order of writing: one slot per token; some slots are empty."""

    tokens: Int[Tensor, "b s"]
    at: Int[Tensor, "b s"]
    """The position of each token."""
    filled: Bool[Tensor, "b s"]
    label: Int[Tensor, " b"] | None
    length: int = 0
    """Number of slots used, empty ones included."""
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Keys and values of every block, if the network caches them."""

    def write(self, tokens: Int[Tensor, "b k"], at: Int[Tensor, "b k"], filled: Bool[Tensor, "b k"]) -> slice:
        """Fill the next slots, and return them as a slice."""
        slots = slice(self.length, self.length + tokens.shape[1])
        self.tokens[:, slots], self.at[:, slots], self.filled[:, slots] = tokens, at, filled
        self.length = slots.stop
        return slots

    def spread(self, values: Int[Tensor, "b s"], positions: int, blank: int) -> Int[Tensor, "b d"]:
        """The values of all slots at the positions of their tokens, and `blank` where nothing is written."""
        # empty slots go to an extra position, which is cut off again
        places = torch.where(self.filled, self.at, positions)
        return values.new_full((len(values), positions + 1), blank).scatter(1, places, values)[:, :-1]


class OrderedNetwork(Network):
    """A network that reads a sequence in any order, and predicts the token at any position.

    The last state is the mask. Subclasses implement `forward`; to cache computations on written tokens, also `begin`
    and `extend`.
    """

    @property
    def order(self) -> Int[Tensor, " d"] | None:
        """The only order that it can follow: positions from first to last; None if it can follow any order."""
        return None

    @abstractmethod
    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"] | None = None,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        turn: Int[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """Outputs at every position, from the tokens of earlier turns; tokens of the same turn do not see each other.

        Args:
            x_t: tokens.
            t: ignored; the written tokens show how far the path has come.
            label: class of each row, or -1 for none; only for a network made with `num_classes`.
            given: ignored; given positions have early turns.
            turn: the turn of each position. Default: unmasked tokens were written from left to right, and masked ones
                come after them (`standing_first`).
        """

    def outputs_at(
        self,
        x_t: Int[Tensor, "b d"],
        position: Int[Tensor, "b m"],
        label: Int[Tensor, " b"] | None = None,
        turn: Int[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """`forward` at some positions of each row."""
        return self(x_t, label=label, turn=turn).take_along_dim(position[..., None], 1)

    def standing_first(self, x_t: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """Turns for which unmasked tokens were written from left to right, and masked ones come after them."""
        stands = x_t != self.num_states - 1
        return torch.where(stands, stands.cumsum(-1) - 1, self.num_positions)

    def begin(
        self, batch: int, slots: int, label: Int[Tensor, " b"] | None = None, device: torch.device | None = None
    ) -> Memory:
        """An empty memory for `batch` sequences of at most `slots` tokens."""
        empty = torch.zeros(batch, slots, dtype=torch.long, device=device)
        return Memory(empty, empty.clone(), empty.bool(), label)

    def extend(
        self,
        memory: Memory,
        tokens: Int[Tensor, "b k"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        ask: Int[Tensor, "b m"],
    ) -> Float[Tensor, "b m n"]:
        """Write tokens, one after the other, and return the outputs at the positions `ask`.

        This implementation caches nothing, and processes all tokens each time.

        Args:
            memory: the tokens written so far; the new ones are added.
            tokens: new tokens.
            at: their positions.
            filled: which of them exist; rows with fewer tokens leave slots empty.
            ask: positions that are not written yet.
        """
        memory.write(tokens, at, filled)
        x = memory.spread(memory.tokens, self.num_positions, self.num_states - 1)
        slot = torch.arange(memory.tokens.shape[1], device=x.device).expand_as(memory.tokens)
        turn = memory.spread(slot, self.num_positions, memory.length)
        return self.outputs_at(x, ask, memory.label, turn)


class OrderedBlock(Block):
    """A block whose keys and values come from the contents alone, plus one learned value that every position sees.

    The key of that value is 0, so that its weight does not depend on the position.
    """

    def __init__(self, width: int, heads: int, conditioning: int, dropout: float):
        super().__init__(width, heads, conditioning, dropout)
        self.always = nn.Parameter(torch.zeros(width))

    def attend(
        self,
        x: Float[Tensor, "b q w"],
        rotary: Float[Tensor, "2 c 1 q h"],
        bias: Float[Tensor, "b 1 q s"],
        contents: int,
        asking: int,
        kept: tuple[Tensor, Tensor, slice] | None,
    ) -> Float[Tensor, "b a w"]:
        """From the last `asking` vectors to the first `contents` of them, and to those whose keys were kept."""
        batch, total, width = x.shape
        weight, first = self.qkv.weight, total - asking
        query = rotate(self.by_head(F.linear(x[:, first:], weight[:width])), rotary[..., first:, :])
        key, value = map(self.by_head, F.linear(x[:, :contents], weight[width:]).chunk(2, dim=-1))
        key = rotate(key, rotary[..., :contents, :])
        if kept is not None:
            keys, values, slots = kept
            keys[:, :, slots], values[:, :, slots] = key, value
            key, value = keys[:, :, : slots.stop], values[:, :, : slots.stop]
        always = self.by_head(self.always.expand(batch, 1, -1))
        key, value = F.pad(key, (0, 0, 1, 0)), torch.cat([always, value], dim=2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias[:, :, first:])
        return self.project(mixed.transpose(1, 2).flatten(2))


class OrderedAttentive(Attentive, OrderedNetwork):
    """What transformers that follow an order share: they are told a label, but no time. Arguments as of `Attentive`."""

    def add_conditioning(self, width: int, conditioning: int, label_dropout: float) -> None:
        self.label = LabelEmbedding(self.num_classes, conditioning, label_dropout if self.num_classes else 0.0)

    def condition(self, label: Int[Tensor, " b"] | None, batch: int) -> Float[Tensor, "b c"]:
        """What all layers are told: the class, or that there is none."""
        if not self.num_classes:
            refuse_label(label)
        return F.silu(self.label(label, batch))


class OrderedTransformer(OrderedAttentive):
    """Two streams through one set of weights, so that one pass answers for every position of a path.

    Position `i` has a content, which sees the contents of turns up to its own, and a query, whose token is hidden and
    which sees the contents of earlier turns. The queries are what the outputs are made of. (XLNet, arXiv 1906.08237,
    has such streams.) A content never changes once it is written, so that sampling can keep its keys and values. In
    every block there is also one learned value that everyone sees: the first query has nothing else to look at.

    A query starts from the tokens beside it, with masks for those that are not written yet: for every distance `k` in
    `beside`, `W_k [e(x_{i-k}), e(x_{i+k})]` is added to it. Without them it needs its first block to find them; a
    network that reads from left to right has the last token as its input.

    Args:
        num_states: `n`, of the process; the last state is the mask.
        num_positions: `d`.
        beside: distances of the tokens that a query starts from, on both sides: `(1,)` for a sequence, `(1, 8)` for an
            image with rows of 8 pixels, `()` for the columns of a table.
        options: the others are those of `Attentive`.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.full((64, 27), 1 / 27), tied=True, mask=True, floor=0.0)
    >>> network = OrderedTransformer.for_process(process, width=32)
    >>> x_0, turn = torch.zeros(2, 64, dtype=torch.long), torch.rand(2, 64).argsort(-1)
    >>> network(x_0, turn=turn).shape
    torch.Size([2, 64, 28])
    """

    block: ClassVar[type[Block]] = OrderedBlock
    offsets: Int[Tensor, " o"]

    def __init__(self, num_states: int, num_positions: int, *, beside: Sequence[int] = (1,), **options: Any):
        super().__init__(num_states, num_positions, **options)
        if min(beside, default=1) < 1:
            raise ValueError(f"beside must be distances of at least 1, got {list(beside)}")
        self._options["beside"] = list(beside)
        offsets = torch.tensor([sign * distance for distance in beside for sign in (-1, 1)], dtype=torch.long)
        self.register_buffer("offsets", offsets, persistent=False)
        width = self.tokens.embedding_dim
        self.neighbours = nn.Linear(len(offsets) * width, width, bias=False) if beside else None

    @classmethod
    def build(cls, tensors: Any, **config: Any) -> "OrderedTransformer":
        """As described; models that were saved before queries had neighbours have none."""
        return cls(**{"beside": (), **config})

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"] | None = None,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        turn: Int[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        turn = self.standing_first(x_t) if turn is None else turn
        later, earlier = turn[:, :, None], turn[:, None]
        seen = torch.cat([earlier <= later, earlier < later], dim=1)
        at = torch.arange(self.num_positions, device=x_t.device)[None]
        written = self._around(turn, at) < later
        beside = torch.where(written, self._around(x_t, at), self.num_states - 1)
        return self._streams(x_t, at, at, beside, label, seen, [None] * len(self.blocks))

    def begin(
        self, batch: int, slots: int, label: Int[Tensor, " b"] | None = None, device: torch.device | None = None
    ) -> Memory:
        memory = super().begin(batch, slots, label, device)
        weight, heads = self.tokens.weight, int(self._options["heads"])
        shape = (batch, heads, slots, weight.shape[1] // heads)
        if hasattr(weight, "full_tensor"):  # sharded, and put together for `forward` only: nothing can be kept
            return memory
        memory.kept = [(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.blocks]
        return memory

    def extend(
        self,
        memory: Memory,
        tokens: Int[Tensor, "b k"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        ask: Int[Tensor, "b m"],
    ) -> Float[Tensor, "b m n"]:
        """With the keys and values of what stands kept in `memory`, so that a step costs the new tokens only."""
        if not memory.kept:
            return super().extend(memory, tokens, at, filled, ask)
        slots = memory.write(tokens, at, filled)
        slot = torch.arange(memory.length, device=tokens.device)
        before = slot <= slot[slots, None]  # new tokens see what was there, and each other in turn
        seen = torch.cat([before, before.new_ones(ask.shape[1], memory.length)]) & memory.filled[:, None, : slots.stop]
        beside = self._around(memory.spread(memory.tokens, self.num_positions, self.num_states - 1), ask)
        return self._streams(tokens, at, ask, beside, memory.label, seen, [(*each, slots) for each in memory.kept])

    def _around(self, values: Int[Tensor, "b d"], at: Int[Tensor, "c m"]) -> Int[Tensor, "b m o"]:
        """The values beside each position of `at`; beyond both ends, the number of the mask."""
        places = at[..., None] + self.offsets
        inside = (places >= 0) & (places < self.num_positions)
        rows = torch.arange(len(values), device=values.device)[:, None, None]
        return torch.where(inside, values[rows, places.clamp(0, self.num_positions - 1)], self.num_states - 1)

    def _streams(
        self,
        x: Int[Tensor, "b k"],
        at: Int[Tensor, "c k"],
        ask: Int[Tensor, "c m"],
        beside: Int[Tensor, "b m o"],
        label: Int[Tensor, " b"] | None,
        seen: Bool[Tensor, "b q s"],
        kept: list[Any],
    ) -> Float[Tensor, "b m n"]:
        """Contents of the tokens `x` and queries at `ask` through all blocks; `seen` is what each of them sees."""
        condition = self.condition(label, len(x))
        contents, queries = self.tokens(x), self.tokens.weight[-1].expand(len(x), ask.shape[1], -1)
        if self.neighbours is not None:
            queries = queries + self.neighbours(self.tokens(beside).flatten(2))
        if self.places is not None:
            contents, queries = contents + self.places[at], queries + self.places[ask]
        both = torch.cat([contents, queries], dim=1)
        angles = self.rotary[:, torch.cat([at, ask], dim=1)][:, :, None]
        bias = torch.where(F.pad(seen, (1, 0), value=True), both.new_zeros(()), -torch.inf)[:, None]
        for block, slots in zip(self.blocks, kept, strict=True):
            # no block comes after the last, and so no one asks for the contents that it would make
            asking = ask.shape[1] if block is self.blocks[-1] else both.shape[1]
            both = block(both, condition, angles, bias, x.shape[1], asking, slots)
        return self.last(both[:, both.shape[1] - ask.shape[1] :], condition)

"""Networks that follow an order: outputs at a position depend only on tokens of earlier turns (math §9)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.networks.base import LabelEmbedding, Network, check_unlabelled
from dmb.networks.transformer import Block, TransformerBase, rotate
from dmb.processes.states import States


class OrderedNetwork(Network):
    """A network that reads a sequence in any order, and predicts the token at any position.

    The last state is the mask. Subclasses implement `forward`; to cache computations on written tokens, also `cache`.
    """

    @property
    def order(self) -> Int[Tensor, " d"] | None:
        """The only order that it can follow: positions from first to last; None if it can follow any order."""
        return None

    @abstractmethod
    def forward(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"] | None = None, label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d n"]:
        """Outputs at every position, from the tokens of earlier turns; tokens of the same turn do not see each other.

        Args:
            x_t: tokens.
            turn: the turn of each position. Default: `default_turns`.
            label: class of each row, or -1 for none; only for a network made with `num_classes`.
        """

    def outputs_at(
        self,
        x_t: Int[Tensor, "b d"],
        query_positions: Int[Tensor, "b m"],
        turn: Int[Tensor, "b d"] | None = None,
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """`forward` at some positions of each row."""
        return self(x_t, turn=turn, label=label).take_along_dim(query_positions[..., None], 1)

    def default_turns(self, x_t: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """Turns for which unmasked tokens were written from left to right, and masked ones come after them."""
        stands = x_t != self.num_states - 1
        return torch.where(stands, stands.cumsum(-1) - 1, self.num_positions)

    def cache(self, batch: int, slots: int) -> "KVCache | None":
        """An empty cache for `batch` rows of at most `slots` tokens; None if all is computed anew in each call."""
        return None


Kept = tuple[Tensor, Tensor, Tensor, int]
"""Keys and values of a block in a cache, where in all its rows new ones go, and the number of slots in use."""


def _with_kept(
    key: Float[Tensor, "b q k h"], value: Float[Tensor, "b q k h"], kept: Kept
) -> tuple[Float[Tensor, "b s k h"], Float[Tensor, "b s k h"]]:
    """New keys and values after those of earlier tokens, beside which they are kept."""
    keys, values, slots, reach = kept
    keys.flatten(0, 2).index_copy_(0, slots, key.flatten(0, 2).to(keys))
    values.flatten(0, 2).index_copy_(0, slots, value.flatten(0, 2).to(values))
    return keys[:, :, :reach].transpose(1, 2), values[:, :, :reach].transpose(1, 2)


class OrderedBlock(Block):
    """A block whose keys and values come from the contents alone, plus one learned value that every position sees.

    The key of that value is 0, so that its weight does not depend on the position. A cache has both in its first slot.
    """

    def __init__(self, width: int, heads: int, conditioning: int, dropout: float):
        super().__init__(width, heads, conditioning, dropout)
        self.always = nn.Parameter(torch.zeros(width))

    def attend(
        self,
        x: Float[Tensor, "b q w"],
        rotary: Float[Tensor, "2 c q 1 h"],
        bias: Float[Tensor, "b 1 q s"],
        contents: int,
        asking: int,
        kept: Kept | None,
    ) -> Float[Tensor, "b a w"]:
        """From the last `asking` vectors to the first `contents` of them, and to those whose keys were kept."""
        width, first = x.shape[2], x.shape[1] - asking
        query = rotate(self.in_heads(F.linear(x[:, first:], self.qkv.weight[:width])), rotary[:, :, first:])
        key, value = self.in_heads(F.linear(x[:, :contents], self.qkv.weight[width:])).chunk(2, dim=2)
        key = rotate(key, rotary[:, :, :contents])
        if kept is None:
            always = self.in_heads(self.always.expand(len(x), 1, -1))
            key, value = F.pad(key, (0, 0, 0, 0, 1, 0)), torch.cat([always, value], dim=1)
        else:
            key, value = _with_kept(key, value, kept)
        return self.mixed(query, key, value, attn_mask=bias[:, :, first:])


class OrderedTransformerBase(TransformerBase, OrderedNetwork):
    """What transformers that follow an order share: a label, but no time; and the tokens beside a position.

    Args:
        num_states: `n`, of which the last is the mask; or `States`, in place of both sizes.
        num_positions: `d`.
        beside: distances of the tokens that a vector starts from, besides its own: `(1, 2, 3)` for a sequence, `(1, 8)`
            for an image with rows of 8 pixels, `()` for the columns of a table.

    The other arguments are those of `TransformerBase`.
    """

    signs: ClassVar[tuple[int, ...]]
    """On which sides: -1 is to the left, where the first positions are."""
    offsets: Int[Tensor, " o"]

    def __init__(
        self,
        num_states: int | States,
        num_positions: int | None = None,
        *,
        beside: Sequence[int] = (1, 2, 3),
        blocks: int = 4,
        width: int = 96,
        heads: int = 4,
        conditioning: int = 64,
        dropout: float = 0.1,
        num_classes: int = 0,
        label_dropout: float = 0.1,
        placed: bool = False,
    ):
        super().__init__(
            num_states, num_positions, blocks=blocks, width=width, heads=heads, conditioning=conditioning,
            dropout=dropout, num_classes=num_classes, label_dropout=label_dropout, placed=placed,
        )  # fmt: skip
        if min(beside, default=1) < 1:
            raise ValueError(f"beside must be distances of at least 1, got {list(beside)}")
        self._options = {**(self._options or {}), "beside": list(beside)}
        self._farthest = max(beside, default=0)
        offsets = torch.tensor([sign * distance for distance in beside for sign in self.signs], dtype=torch.long)
        self.register_buffer("offsets", offsets, persistent=False)
        self._add_neighbours()

    @classmethod
    def build(cls, tensors: Any, **config: Any) -> "OrderedTransformerBase":
        """As described; models that were saved before vectors had neighbours have none."""
        return cls(**{"beside": (), **config})

    def _add_neighbours(self) -> None:
        self.neighbours = self._linear_of_neighbours()

    def _linear_of_neighbours(self) -> nn.Linear | None:
        width = self.tokens.weight.shape[1]
        return nn.Linear(len(self.offsets) * width, width, bias=False) if len(self.offsets) else None

    def _start(
        self,
        own: Float[Tensor, "b m w"],
        at: Int[Tensor, "c m"],
        beside: Int[Tensor, "b m o"],
        linear: nn.Linear | None,
    ) -> Float[Tensor, "b m w"]:
        """What the vectors at positions `at` start from: what is their own, their neighbours, and their place."""
        if linear is not None:
            own = own + linear(self.tokens(beside).flatten(2))
        return own if self.places is None else own + self.places[at]

    def _around(self, values: Int[Tensor, "b d"], at: Int[Tensor, "c m"]) -> Int[Tensor, "b m o"]:
        """The values beside each position of `at`; beyond both ends, the number of the mask."""
        padded = F.pad(values, (self._farthest, self._farthest), value=self.num_states - 1)
        places = at[..., None] + (self.offsets + self._farthest)
        return padded.gather(1, places.flatten(1).expand(len(values), -1)).unflatten(1, places.shape[1:])

    def add_conditioning(self, width: int, conditioning: int, label_dropout: float) -> None:
        self.label = LabelEmbedding(self.num_classes, conditioning, label_dropout if self.num_classes else 0.0)

    def condition(self, label: Int[Tensor, " b"] | None, batch: int) -> Float[Tensor, "#b c"]:
        """The vector that all layers receive: the class, or that there is none; one for all rows without classes."""
        if not self.num_classes:
            check_unlabelled(label)
        return F.silu(self.label(label, batch if self.num_classes else 1))

    def cache(self, batch: int, slots: int) -> "KVCache | None":
        sharded = hasattr(self.tokens.weight, "full_tensor")  # and put together for `forward` only: nothing can be kept
        always = [block.always for block in self.blocks if isinstance(block, OrderedBlock)]
        # one slot more: for what everyone sees, or for the mask that a causal network begins with
        return None if sharded else KVCache(self, batch, slots + 1, always)

    @abstractmethod
    def read_on(
        self,
        cache: "KVCache",
        x_t: Int[Tensor, "b d"],
        turn: Int[Tensor, "b d"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        query_positions: Int[Tensor, "b m"],
        label: Int[Tensor, " b"] | None,
    ) -> Float[Tensor, "b m n"]:
        """See `KVCache.outputs_at`."""


class OrderedTransformer(OrderedTransformerBase):
    """Two streams through one set of weights, so that one pass answers for every position of a path.

    Position `i` has a content, which sees itself and the contents of earlier turns, and a query, whose token is hidden
    and which sees the contents of earlier turns. The queries are what the outputs are made of. (XLNet, arXiv
    1906.08237, has such streams.) A content never changes once it is written, so that sampling can keep its keys and
    values. In every block there is also one learned value that everyone sees: the first query has nothing else to look
    at.

    Both start from the tokens beside them, with masks for those that are not written yet: for every distance `k` in
    `beside`, `W_k [e(x_{i-k}), e(x_{i+k})]` is added, contents and queries having matrices of their own. Without them
    the first block would have to find them.

    Arguments are those of `OrderedTransformerBase`.

    >>> network = OrderedTransformer(num_states=28, num_positions=64, width=32)
    >>> x_0, turn = torch.zeros(2, 64, dtype=torch.long), torch.rand(2, 64).argsort(-1)
    >>> network(x_0, turn=turn).shape
    torch.Size([2, 64, 28])
    """

    block, signs = OrderedBlock, (-1, 1)

    def _add_neighbours(self) -> None:
        super()._add_neighbours()
        self.content_neighbours = self._linear_of_neighbours()

    @classmethod
    def build(cls, tensors: Any, **config: Any) -> "OrderedTransformer":
        """As described; contents of models that were saved before they had neighbours have none."""
        network = cls(**{"beside": (), **config})
        if tensors is not None and "content_neighbours.weight" not in tensors:
            network.content_neighbours = None
        return network

    def forward(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"] | None = None, label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d n"]:
        turn = self.default_turns(x_t) if turn is None else turn
        at = torch.arange(self.num_positions, device=x_t.device)[None]
        earlier = turn[:, None] < turn[:, :, None]
        seen = F.pad(torch.cat([earlier | (at == at.T), earlier], dim=1), (1, 0), value=True)
        beside = self._beside(x_t, turn, at.expand(len(x_t), -1))
        twice, beside = torch.cat([at, at], dim=1), torch.cat([beside, beside], dim=1)
        return self._streams(x_t, twice, beside, label, seen, [None] * len(self.blocks))

    def read_on(
        self,
        cache: "KVCache",
        x_t: Int[Tensor, "b d"],
        turn: Int[Tensor, "b d"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        query_positions: Int[Tensor, "b m"],
        label: Int[Tensor, " b"] | None,
    ) -> Float[Tensor, "b m n"]:
        contents, kept = cache.take(turn.gather(1, at), filled)
        seen = torch.cat([contents, cache.seen(turn.gather(1, query_positions))], dim=1)
        both = torch.cat([at, query_positions], dim=1)
        return self._streams(x_t.gather(1, at), both, self._beside(x_t, turn, both), label, seen, kept)

    def _beside(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"], at: Int[Tensor, "b m"]
    ) -> Int[Tensor, "b m o"]:
        """The tokens of earlier turns beside each position of `at`, and masks for all others."""
        earlier = self._around(turn, at) < turn.gather(1, at)[..., None]
        return torch.where(earlier, self._around(x_t, at), self.num_states - 1)

    def _streams(
        self,
        x: Int[Tensor, "b k"],
        at: Int[Tensor, "c q"],
        beside: Int[Tensor, "b q o"],
        label: Int[Tensor, " b"] | None,
        seen: Bool[Tensor, "b q s"],
        kept: list[Any],
    ) -> Float[Tensor, "b m n"]:
        """Contents of the tokens `x`, and queries after them, through all blocks; `seen` is what each of them sees."""
        condition, (batch, read), total = self.condition(label, len(x)), x.shape, at.shape[1]
        hidden = self.tokens.weight[-1].expand(batch, total - read, -1)
        contents = self._start(self.tokens(x), at[:, :read], beside[:, :read], self.content_neighbours)
        queries = self._start(hidden, at[:, read:], beside[:, read:], self.neighbours)
        both = torch.cat([contents, queries], dim=1)
        angles = self.rotary[:, at][:, :, :, None]
        bias = torch.where(seen, both.new_zeros(()), -torch.inf)[:, None]
        for block, slots in zip(self.blocks, kept, strict=True):
            # no block comes after the last, and so no one asks for the contents that it would make
            asking = total - read if block is self.blocks[-1] else total
            both = block(both, condition, angles, bias, read, asking, slots)
        return self.last(both[:, both.shape[1] - (total - read) :], condition)


class KVCache:
    """Keys and values of the tokens that a transformer has read, in every block: one slot per token of a row.

    Args:
        network: which computes them.
        batch: number of rows.
        slots: number of tokens of a row at most.
        always: a value in each block that everyone sees, as a token before all turns, with a key of 0; or nothing.
    """

    reach: int
    """The number of slots in use: that of the row with most tokens, or more."""

    def __init__(self, network: OrderedTransformerBase, batch: int, slots: int, always: Sequence[Tensor] = ()):
        weight, heads = network.tokens.weight, network.heads
        shape = (batch, heads, slots + 1, weight.shape[1] // heads)
        self.reach, self._network, self._slots = min(1, len(always)), network, slots
        self._count = torch.full((batch, 1), self.reach, device=weight.device)
        self._turn = torch.full((batch, slots + 1), -1, device=weight.device)
        self._first = (slots + 1) * torch.arange(batch * heads, device=weight.device).view(batch, 1, heads)
        self._blocks = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in network.blocks]
        for value, (_, kept) in zip(always, self._blocks, strict=False):
            kept[:, :, 0] = value.detach().unflatten(0, (heads, -1))

    def outputs_at(
        self,
        x_t: Int[Tensor, "b d"],
        turn: Int[Tensor, "b d"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        query_positions: Int[Tensor, "b m"],
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """Outputs at some positions, each from the tokens of earlier turns, after the new ones have been read.

        Args:
            x_t: the tokens written so far, new ones included, and masks.
            turn: the turn of each position.
            at: the positions of new tokens.
            filled: which of them exist, for rows with fewer tokens.
            query_positions: the positions to answer for.
            label: as for `OrderedNetwork.forward`.
        """
        with torch.inference_mode():  # less to do for each operation than without gradients
            return self._network.read_on(self, x_t, turn, at, filled, query_positions, label)

    def forget(self, count: Int[Tensor, "b 1"]) -> None:
        """Give the slots of the last tokens of each row, so many of them, to those that come next."""
        self._count = self._count - count
        self.reach = int(self._count.max())

    def seen(self, turn: Int[Tensor, "b q"]) -> Bool[Tensor, "b q s"]:
        """Which of the slots in use hold a token of an earlier turn than each of these."""
        kept = torch.arange(self.reach, device=turn.device) < self._count
        return kept[:, None] & (self._turn[:, None, : self.reach] < turn[:, :, None])

    def take(self, turn: Int[Tensor, "b k"], filled: Bool[Tensor, "b k"]) -> tuple[Bool[Tensor, "b k s"], list[Kept]]:
        """Slots for new tokens in every block; and what each of them sees: itself, and tokens of earlier turns."""
        # what does not exist goes to one more slot, which is never in use
        slot = torch.where(filled, self._count + filled.cumsum(-1) - 1, self._slots)
        self._turn.scatter_(1, slot, turn)
        self._count = self._count + filled.sum(-1, keepdim=True)
        self.reach = min(self.reach + filled.shape[1], self._slots)
        itself = slot[:, :, None] == torch.arange(self.reach, device=slot.device)
        slots = (self._first + slot[:, :, None]).flatten()
        return self.seen(turn) | itself, [(*each, slots, self.reach) for each in self._blocks]


class CausalBlock(Block):
    """A block in which every position attends to itself and those to its left."""

    def attend(
        self,
        x: Float[Tensor, "b q w"],
        rotary: Float[Tensor, "2 c q 1 h"],
        seen: Bool[Tensor, "b 1 q s"] | None = None,
        kept: Kept | None = None,
    ) -> Float[Tensor, "b q w"]:
        query, key, value = self.turned(x, rotary)
        if kept is not None:
            key, value = _with_kept(key, value, kept)
        return self.mixed(query, key, value, attn_mask=seen, is_causal=seen is None)


class CausalTransformer(OrderedTransformerBase):
    """One stream, one order: every position is predicted from those to its left.

    With it a bridge is an autoregressive model. Its bound is the likelihood itself, since there is one order only. What
    is given must be a beginning. A position starts from the token before it and, by `W_k e(x_{i-k})`, from those at the
    distances `k` of `beside`. Arguments are those of `OrderedTransformerBase`.

    >>> CausalTransformer(num_states=28, num_positions=64, width=32)(torch.zeros(2, 64, dtype=torch.long)).shape
    torch.Size([2, 64, 28])
    """

    block, signs = CausalBlock, (-1,)

    @property
    def order(self) -> Int[Tensor, " d"]:
        return torch.arange(self.num_positions, device=self.rotary.device)

    def forward(
        self, x_t: Int[Tensor, "b d"], turn: Int[Tensor, "b d"] | None = None, label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d n"]:
        turn = self.default_turns(x_t) if turn is None else turn
        step, stands = turn.diff(dim=-1), x_t[:, :-1] != self.num_states - 1
        if not torch.compiler.is_compiling() and ((step < 0) | ((step == 0) & stands)).any():
            raise ValueError(
                "a CausalTransformer reads from left to right: unmasked tokens must come before all masked ones"
            )
        at = torch.arange(self.num_positions, device=x_t.device)[None]
        # every position is predicted from the token before it, the first one from a mask
        x = F.pad(x_t[:, :-1], (1, 0), value=self.num_states - 1)
        return self._stream(x, at, self._around(x_t, at), label)

    def read_on(
        self,
        cache: KVCache,
        x_t: Int[Tensor, "b d"],
        turn: Int[Tensor, "b d"],
        at: Int[Tensor, "b k"],
        filled: Bool[Tensor, "b k"],
        query_positions: Int[Tensor, "b m"],
        label: Int[Tensor, " b"] | None,
    ) -> Float[Tensor, "b m n"]:
        """What may be asked for is the next position of each row."""
        tokens, at = x_t.gather(1, at), at + 1  # the position that a token predicts
        if not cache.reach:
            tokens, at = F.pad(tokens, (1, 0), value=self.num_states - 1), F.pad(at, (1, 0))
            filled = F.pad(filled, (1, 0), value=True)
        seen, kept = cache.take(at, filled)
        inside = at.clamp(max=self.num_positions - 1)
        output = self._stream(tokens, inside, self._around(x_t, inside), label, seen, kept)
        asked = (at[:, None] == query_positions[:, :, None]) & filled[:, None]
        return output.take_along_dim(asked.long().argmax(-1)[..., None], 1)

    def _stream(
        self,
        x: Int[Tensor, "b k"],
        at: Int[Tensor, "c k"],
        beside: Int[Tensor, "b k o"],
        label: Int[Tensor, " b"] | None,
        seen: Bool[Tensor, "b k s"] | None = None,
        kept: list[Kept] | None = None,
    ) -> Float[Tensor, "b k n"]:
        """Outputs at positions `at`, from the token `x` before each, those beside it, and what this token sees."""
        condition, x = self.condition(label, len(x)), self._start(self.tokens(x), at, beside, self.neighbours)
        rotary, seen = self.rotary[:, at][:, :, :, None], None if seen is None else seen[:, None]
        for number, block in enumerate(self.blocks):
            x = block(x, condition, rotary, seen, None if kept is None else kept[number])
        return self.last(x, condition)

"""Data cut into splits: sequences of tokens, read from disk on demand; batches are pure functions of the step."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core import checks

_BLOCK = 1 << 20  # tokens that are held as int64 at once when all the data are walked through
_SALT = 0x646D62  # "dmb"
_MOST_PLACES, _LEAST_SEQUENCES = 50, 4  # from which text is held out, and of each of them to test


class Batch(NamedTuple):
    """The data of one training step."""

    x_0: Int[Tensor, "b d"]
    label: Int[Tensor, " b"] | None


class Split(ABC):
    """`len(split)` sequences of `num_positions` tokens in `[0, num_states)`, in a fixed order.

    The tokens stay in the array they came in, of any integer type and often a memory-mapped file; what is asked for is
    copied out as int64.
    """

    _place: ClassVar[str]  # of a token in the data, for messages

    def __init__(self, tokens: np.ndarray, num_positions: int, num_states: int):
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers, got {tokens.dtype}")
        self.num_positions, self.num_states = num_positions, num_states
        self._tokens = tokens
        self._counts: Int[Tensor, "h n"] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | Tensor) -> Int[Tensor, "b d"]:
        """Sequences by a slice or by an integer tensor of indexes, as int64 on the CPU."""
        return _tensor(self._read(self._indexes(rows)))

    def spread(self, count: int) -> Int[Tensor, " k"]:
        """Indexes of `count` sequences spread evenly over the split; of all sequences, if there are fewer."""
        # in float64, so that each is another one however many there are
        return torch.linspace(0, len(self) - 1, min(count, len(self)), dtype=torch.float64).round().long()

    def labels(self, rows: slice | Tensor) -> Int[Tensor, " b"] | None:
        """Their class labels, if the data have any."""
        return None

    @abstractmethod
    def batch(self, size: int, *, step: int, seed: int) -> Batch:
        """The training batch of `step`: a function of `(seed, step)` alone.

        A run that is resumed at any step so sees the data it would have seen, without any state of a loader saved.
        """

    def counts(self) -> Int[Tensor, "h n"]:
        """How often each state occurs: at each position for `Rows` (`h = d`), over all tokens for a `Stream` (`h = 1`).

        The data are walked through in blocks, once, unless `raw` has done so; the answer is kept.
        """
        if self._counts is None:
            deque(self.raw(), maxlen=0)
        assert self._counts is not None
        return self._counts.clone()

    def bigrams(self, most: int = 1 << 22) -> Int[Tensor, "n n"]:
        """How often state `y` comes right after state `x`, `[x, y]`, in as many sequences as hold `most` tokens.

        These sequences are spread evenly over the split.

        >>> Rows(np.array([[0, 1, 0], [1, 0, 1]], dtype=np.uint8), num_states=2).bigrams()
        tensor([[0, 2],
                [2, 0]])
        """
        tokens = self[self.spread(max(1, most // self.num_positions))]
        pairs = tokens[:, :-1] * self.num_states + tokens[:, 1:]
        counts = torch.bincount(pairs.flatten(), minlength=self.num_states**2)
        return counts.view(self.num_states, self.num_states)

    def raw(self) -> Iterator[bytes]:
        """All tokens and then all labels as bytes, a block at a time, whatever type they are stored as.

        States are counted on the way.
        """
        dtype, n = np.min_scalar_type(self.num_states - 1).newbyteorder("<"), self.num_states
        counts = np.zeros(1, dtype=np.int64)
        for _, block in self._blocks():
            cells = block.astype(np.int64) + np.arange(block.shape[1]) * n
            counts = counts + np.bincount(cells.ravel(), minlength=block.shape[1] * n)
            yield block.astype(dtype).tobytes()
        self._counts = torch.from_numpy(counts).view(-1, n)
        labels = self.labels(slice(None))
        if labels is not None:
            yield labels.numpy().astype("<i8").tobytes()

    @abstractmethod
    def _read(self, rows: np.ndarray) -> np.ndarray:
        """The sequences `[b, d]` of these indexes, of any integer type."""

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[Sequence[int] | np.ndarray, np.ndarray]]:
        """All tokens as `[m, h]` arrays, each with where its rows lie in the data."""

    def _indexes(self, rows: slice | Tensor) -> np.ndarray:
        if isinstance(rows, slice):
            return np.arange(len(self))[rows]
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise ValueError(f"rows must be a slice or integers of shape [b], got {rows.dtype} {list(rows.shape)}")
        indexes = rows.cpu().numpy()
        outside = (indexes < 0) | (indexes >= len(self))
        if outside.any():
            raise ValueError(f"rows must lie in [0, {len(self)}), got {indexes[outside][0]}")
        return indexes

    def _check_tokens(self) -> None:
        for places, block in self._blocks():
            if block.dtype.kind == "u" and np.iinfo(block.dtype).max < self.num_states:
                return  # the type cannot hold anything illegal: no need to read the file
            if block.min() < 0 or block.max() >= self.num_states:
                row, position = np.argwhere((block < 0) | (block >= self.num_states))[0]
                place = self._place.format(places[row], position)
                raise ValueError(f"tokens must lie in [0, {self.num_states}), got {block[row, position]} at {place}")


class Rows(Split):
    """Sequences of a fixed length, one per row.

    Training goes through the data in epochs without replacement: epoch `e` is a permutation that is a function of
    `(seed, e)`, and a batch may straddle epochs.

    Args:
        tokens: integers `[N, …]`; the axes after the first are flattened into positions as rows are read.
        num_states: all tokens lie in `[0, num_states)`.
        labels: class labels `[N]`, if any.
        rows: which rows of `tokens` belong to this split, in order. Default: all of them.

    >>> split = Rows(np.array([[0, 1], [2, 0], [1, 1]], dtype=np.uint8), num_states=3)
    >>> split[1:]
    tensor([[2, 0],
            [1, 1]])
    >>> split.counts()
    tensor([[1, 1, 1],
            [1, 2, 0]])
    """

    _place = "row {}, position {}"

    def __init__(
        self,
        tokens: np.ndarray,
        num_states: int,
        *,
        labels: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ):
        super().__init__(tokens, int(np.prod(tokens.shape[1:])), num_states)
        if tokens.ndim < 2 or 0 in tokens.shape[1:]:
            raise ValueError(f"tokens must have shape [rows, positions], got {list(tokens.shape)}")
        if labels is not None and labels.shape != tokens.shape[:1]:
            raise ValueError(f"labels must have shape [{len(tokens)}], got {list(labels.shape)}")
        self._labels, self._rows = labels, np.arange(len(tokens)) if rows is None else rows
        if len(self) == 0:
            raise ValueError("tokens must have at least one row, got none")
        self._check_tokens()

    def __len__(self) -> int:
        return len(self._rows)

    def labels(self, rows: slice | Tensor) -> Int[Tensor, " b"] | None:
        return None if self._labels is None else _tensor(self._labels[self._rows[self._indexes(rows)]])

    def batch(self, size: int, *, step: int, seed: int) -> Batch:
        checks.at_least(1, size=size)
        checks.at_least(0, step=step, seed=seed)
        epoch, place = np.divmod(np.arange(step * size, (step + 1) * size), len(self))
        parts = [permutation(len(self), seed, e)[place[epoch == e]] for e in np.unique(epoch).tolist()]
        rows = torch.from_numpy(np.concatenate(parts))
        return Batch(self[rows], self.labels(rows))

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return self._tokens[self._rows[rows]].reshape(len(rows), self.num_positions)

    def _blocks(self) -> Iterator[tuple[Sequence[int] | np.ndarray, np.ndarray]]:
        # at least as many tokens as the table of counts has cells, so that adding tables up costs no more than reading
        size = max(_BLOCK // self.num_positions, self.num_states)
        for first in range(0, len(self), size):
            rows = np.arange(first, min(first + size, len(self)))
            yield self._rows[rows], self._read(rows)


class Stream(Split):
    """One long sequence, or pieces of it. Evaluation reads consecutive chunks; training reads crops at random offsets.

    Chunks do not overlap, and what is left over at the end of a piece is dropped; crops begin anywhere in a piece, and
    so use every token. None reaches over the edge of a piece.

    Args:
        tokens: integers `[L]`.
        num_states: all tokens lie in `[0, num_states)`.
        length: tokens of a chunk or crop.
        pieces: where the pieces begin and end, `[k, 2]`, in order. Default: one piece, all of `tokens`.

    >>> split = Stream(np.array([0, 1, 2, 0, 1, 2, 0], dtype=np.uint8), num_states=3, length=2)
    >>> split[:]
    tensor([[0, 1],
            [2, 0],
            [1, 2]])
    >>> split.counts()
    tensor([[3, 2, 2]])
    """

    _place = "offset {}"

    def __init__(self, tokens: np.ndarray, num_states: int, length: int, pieces: np.ndarray | None = None):
        super().__init__(tokens, length, num_states)
        if tokens.ndim != 1:
            raise ValueError(f"tokens must have shape [length], got {list(tokens.shape)}")
        checks.at_least(1, length=length)
        self.pieces = np.array([[0, len(tokens)]]) if pieces is None else pieces
        sizes = self.pieces[:, 1] - self.pieces[:, 0]
        if length > max(sizes):
            where = "" if pieces is None else " of a piece"
            raise ValueError(f"length must be at most the number of tokens{where}, {max(sizes)}, got {length}")
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
        # of each piece and those before it
        self._chunks, self._crops = np.cumsum(sizes // length), np.cumsum(np.maximum(sizes - length + 1, 0))
        self.left_over = int((sizes % length).sum())
        """Tokens at the end of pieces that do not fill a chunk."""
        self._check_tokens()

    def __len__(self) -> int:
        return int(self._chunks[-1])

    def batch(self, size: int, *, step: int, seed: int) -> Batch:
        checks.at_least(1, size=size)
        checks.at_least(0, step=step, seed=seed)
        crops = random_bits(size, seed, step) % np.uint64(self._crops[-1])
        return Batch(_tensor(self._windows[self._offsets(crops.astype(np.int64), self._crops, 1)]), None)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return self._windows[self._offsets(rows, self._chunks, self.num_positions)]

    def _offsets(self, windows: np.ndarray, counts: np.ndarray, apart: int) -> np.ndarray:
        """Where windows begin that lie `apart` in each piece; `counts` are those of each piece and all before."""
        piece = np.searchsorted(counts, windows, side="right")
        return self.pieces[piece, 0] + (windows - np.append(0, counts)[piece]) * apart

    def _blocks(self) -> Iterator[tuple[Sequence[int] | np.ndarray, np.ndarray]]:
        for begin, end in self.pieces.tolist():
            for first in range(begin, end, _BLOCK):
                block = self._tokens[first : min(first + _BLOCK, end), None]
                yield range(first, first + len(block)), block


class Splits(NamedTuple):
    """All splits of a data set: `DataSet(…, **splits._asdict())`."""

    train: Split
    validation: Split
    test: Split


def split_rows(tokens: np.ndarray, num_states: int, labels: np.ndarray | None = None) -> Splits:
    """80 / 10 / 10 by a fixed permutation of the rows; each split keeps the rows in their order in the file.

    >>> [len(split) for split in split_rows(np.zeros((25, 4), dtype=int), num_states=2)]
    [21, 2, 2]
    """
    return Splits(*(Rows(tokens, num_states, labels=labels, rows=part) for part in tenths(len(tokens))))


def tenths(count: int) -> list[np.ndarray]:
    """The rows to train on, to validate with and to test on: 80 / 10 / 10."""
    if count < 3:
        raise ValueError(f"data must have at least 3 rows, one per split, got {count}")
    tenth = max(1, round(count / 10))
    return set_apart(count, tenth, tenth)


def set_apart(count: int, *sizes: int) -> list[np.ndarray]:
    """Of `count` rows, all but those set apart, and then those: parts of `sizes` by a fixed permutation, each sorted.

    >>> [part.tolist() for part in set_apart(6, 2, 1)]
    [[0, 2, 3], [1, 4], [5]]
    """
    ends = count - np.cumsum(sizes[::-1])[::-1]
    return [np.sort(part) for part in np.split(permutation(count, 0), ends)]


def split_stream(tokens: np.ndarray, num_states: int, length: int, places: int = 1) -> Splits:
    """About 90 % of a text to train on, 5 % to validate and 5 % to test; by default in this order.

    With several `places`, the text is cut into as many blocks of equal size. In the middle of each lie whole sequences
    for validation, then as many for the test, between two gaps as long as a sequence, so that nothing overlaps.

    >>> [len(split) for split in split_stream(np.zeros(1000, dtype=int), num_states=2, length=10)]
    [90, 5, 5]
    >>> [len(split) for split in split_stream(np.zeros(8000, dtype=int), num_states=2, length=10, places=10)]
    [700, 40, 40]
    """
    part = len(tokens) // 20
    if places > 1:
        middle, size = (2 * np.arange(places) + 1) * len(tokens) // (2 * places), round(part / places / length) * length
        validation, test = (np.stack([begin, begin + size], 1) for begin in (middle - size, middle))
        gaps = np.stack([validation[:, 0] - length, test[:, 1] + length], 1)
        train = np.concatenate([[0], gaps.ravel(), [len(tokens)]]).reshape(-1, 2)
        return Splits(*(Stream(tokens, num_states, length, pieces) for pieces in (train, validation, test)))
    parts = np.split(tokens, [len(tokens) - 2 * part, len(tokens) - part])
    for name, piece in zip(("training", "validation", "test"), parts, strict=True):
        if length > len(piece):
            shorter = f", or a length of at most {part:,}" if part else ""
            raise ValueError(
                f"a sequence of {length:,} tokens is longer than the {name} split, {len(piece):,} tokens: "
                f"give more text{shorter}"
            )
    return Splits(*(Stream(piece, num_states, length) for piece in parts))


def most_places(count: int, length: int) -> int:
    """From how many places of a text of `count` tokens to hold out: up to 50, with four sequences each to test or more.

    >>> most_places(10**6, length=64), most_places(20_000, length=64), most_places(5000, length=64)
    (50, 3, 1)
    """
    checks.at_least(1, length=length)
    return max(1, min(_MOST_PLACES, count // 20 // (_LEAST_SEQUENCES * length)))


def random_bits(count: int, *seed: int) -> np.ndarray:
    """`count` random 64-bit integers, a function of `seed` alone.

    NumPy promises that the raw bits of a generator never change, which it does not of shuffles or bounded integers: if
    those changed, an upgrade would move rows from one split to another. The salt keeps the draws apart from those of a
    user's own `default_rng(0)`: without it, data that were made with that generator would be split by their values.
    """
    return np.random.PCG64([_SALT, *seed]).random_raw(count)


@lru_cache(maxsize=2)  # a batch straddles two epochs at most, unless the data are fewer than it
def permutation(count: int, *seed: int) -> np.ndarray:
    """A permutation of `range(count)`, a function of `seed` alone. The latest are kept, and cannot be written to.

    >>> permutation(5, 0)
    array([0, 3, 2, 4, 1])
    """
    order = np.argsort(random_bits(count, *seed), kind="stable")
    order.setflags(write=False)
    return order


def _tensor(values: np.ndarray) -> Int[Tensor, "..."]:
    return torch.from_numpy(values.astype(np.int64))

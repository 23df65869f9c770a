"""A data set: three splits, the meaning of their tokens, and their frequencies."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.data.codecs import Codec
from dmb.data.lengths import Lengths
from dmb.data.splits import Split, Stream


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DataSet:
    """Tokens, and the codec that turns them back into text, images or tables.

    Args:
        name: `digits`, `text8`, …, or the file's name.
        source: the name or path to `load` this data set again; empty for an array from memory.
        codec: tokens <-> text, images or table rows.
        train: the split for training.
        validation: the split for choosing models.
        test: the split for reporting results.
        state_counts: the number of states of each position, if they differ.
        num_classes: labels lie in `[0, num_classes)`; 0 for data without labels.
        class_names: the names of the classes in the order of their labels, if they have names.
        padding: the state that stands after the end of shorter sequences; None if all have the same length.
        notes: notes on how the data were read: what was guessed, changed or dropped.
    """

    name: str
    source: str
    codec: Codec
    train: Split
    validation: Split
    test: Split
    state_counts: Int[Tensor, " d"] | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    padding: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = self.codec.num_states
        if n < 2:
            raise ValueError(f"{self.name} must have at least 2 states, got {n}: all tokens are equal")
        for part, split in self.splits().items():
            if split.num_states != n:
                raise ValueError(f"the {part} split must have the codec's {n} states, got {split.num_states}")
            if split.num_positions != self.num_positions:
                raise ValueError(
                    f"the {part} split must have {self.num_positions} positions like the training split, "
                    f"got {split.num_positions}"
                )
            self._check_labels(part, split)
        if len(self.class_names) not in (0, self.num_classes):
            raise ValueError(f"class_names must have {self.num_classes} names, or none, got {len(self.class_names)}")
        if self.state_counts is not None:
            self._check_state_counts(self.state_counts)

    def __repr__(self) -> str:
        """The first lines that `dmb train` prints.

        >>> from dmb.data import digits
        >>> digits()
        digits: 1,797 sequences of 64 tokens: 1,437 train, 180 validation, 180 test
        integers in [0, 17) of shape 8 × 8
        10 classes
        """
        return f"{self.name}: " + "\n".join(self.describe())

    @property
    def num_positions(self) -> int:
        """`d`, the number of tokens per sequence."""
        return self.train.num_positions

    @property
    def num_states(self) -> int:
        """`n`, the number of states of a token."""
        return self.train.num_states

    @cached_property
    def lengths(self) -> Lengths | None:
        """The law of the lengths of training sequences; None if all sequences have the same length."""
        if self.padding is None:
            return None
        return Lengths(self._with_length(self.train).tolist(), self.padding)

    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def describe(self) -> list[str]:
        """A description in a few short lines: the sizes, the meaning of the tokens, and the notes.

        >>> from dmb.data import digits
        >>> print(*digits().describe(), sep="\\n")
        1,797 sequences of 64 tokens: 1,437 train, 180 validation, 180 test
        integers in [0, 17) of shape 8 × 8
        10 classes
        """
        splits = self.splits()
        total = sum(map(len, splits.values()))
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in splits.items())
        lines = [f"{total:,} {self.codec.unit.format(self.num_positions)}: {sizes}", *self.codec.describe()]
        if self.num_classes:
            lines.append(f"{self.num_classes:,} classes")
        streams = {name: split.left_over for name, split in splits.items() if isinstance(split, Stream)}
        ends = ", ".join(f"{count:,} {name}" for name, count in streams.items() if count)
        if ends:
            lines.append(f"tokens at the end of a split that do not fill a sequence are not evaluated: {ends}")
        return lines + list(self.notes)

    def digest(self) -> str:
        """A digest of every token and label, in order: data with the same digest are equal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """On the same walk the splits count their states: see `_counted`."""
        content = hashlib.blake2b(digest_size=16)
        for name, split in self.splits().items():
            content.update(f"{name} {len(split)} {split.num_positions} {split.num_states} ".encode())
            for block in split.raw():
                content.update(block)
        return content.hexdigest()

    def marginals(self, pseudo_count: float = 1.0) -> Float[Tensor, "d n"]:
        """The distribution of each position's token in the training split.

        `μ(x) = (count(x) + pseudo_count / m) / (N + pseudo_count)` for the `m` states of the position, 0 for others.
        The pseudo count keeps the cost of states that do not occur in training finite. All positions of a text share
        one histogram, and so one row, expanded; so do those of sequences that differ in length, without their padding.

        >>> from dmb.data import array
        >>> import numpy as np
        >>> data = array(np.array([[0, 2], [1, 2], [0, 2], [0, 1]]))
        >>> data.marginals().shape, data.marginals().sum(-1)
        (torch.Size([2, 3]), tensor([1., 1.]))
        """
        return self._marginals(pseudo_count).float().expand(self.num_positions, -1)

    def unigram_bits(
        self, split: Split, marginals: Float[Tensor, "d n"] | None = None, lengths: Lengths | None = None
    ) -> float:
        """Cross-entropy in bits per token of `split` under the marginals: the baseline that every model must beat.

        `-1/N Σ count(x) log2 μ(x)`, where `N` is the number of tokens counted. `μ` is `marginals()` by default. If
        lengths differ, every sequence pays `-log2 p(length)` as well, with the law `lengths` (default: `self.lengths`).
        """
        if split.num_states != self.num_states:
            raise ValueError(f"split must have {self.num_states} states, got {split.num_states}")
        counts, nats = self._counts(split), 0.0
        lengths = lengths or self.lengths
        if lengths is not None:
            nats = float((self._with_length(split) * lengths.nats(torch.arange(1, self.num_positions + 1))).sum())
        mu = self._marginals(1.0) if marginals is None else marginals[: len(counts)].double()
        if len(mu) not in (1, len(counts)):
            raise ValueError(f"split must have {len(mu)} positions, got {split.num_positions}")
        return float((nats - torch.special.xlogy(counts, mu).sum()) / counts.sum() / math.log(2))

    def baselines(self) -> dict[str, float]:
        """`unigram_bits` of every split, by name."""
        return {name: self.unigram_bits(split) for name, split in self.splits().items()}

    def differs(self, baselines: dict[str, float], *, by: float = 1e-9) -> bool:
        """Whether the data differ from those with these `baselines`, by a relative difference of more than `by`."""
        return any(not math.isclose(bits, baselines[name], rel_tol=by) for name, bits in self.baselines().items())

    def _marginals(self, pseudo_count: float) -> Float[Tensor, "h n"]:
        if not 0 <= pseudo_count < math.inf:
            raise ValueError(f"pseudo_count must be finite and at least 0, got {pseudo_count}")
        counts, legal = self._counts(self.train), self._legal().double()
        smooth = pseudo_count * legal / legal.sum(-1, keepdim=True)
        return (counts + smooth) / (counts.sum(-1, keepdim=True) + pseudo_count)

    def _counts(self, split: Split) -> Float[Tensor, "h n"]:
        """How often each state occurs, padding never."""
        counts = self._counted(split).double()
        if self.padding is None:
            return counts
        counts[:, self.padding] = 0
        return counts.sum(0, keepdim=True)

    def _with_length(self, split: Split) -> Int[Tensor, " d"]:
        """How many sequences have length 1, 2, …, `d`: as many more have no padding there as at the next position."""
        reach = len(split) - self._counted(split)[:, self.padding]
        return reach - torch.nn.functional.pad(reach[1:], (0, 1))

    def _counted(self, split: Split) -> Int[Tensor, "h n"]:
        """The counts of a split, from the walk through all data that gives their digest as well."""
        self.digest()
        return split.counts()

    def _legal(self) -> Bool[Tensor, "h n"]:
        counts = torch.tensor([self.num_states]) if self.state_counts is None else self.state_counts
        return torch.arange(self.num_states) < counts[:, None]

    def _check_labels(self, part: str, split: Split) -> None:
        labels = split.labels(slice(None))
        if (labels is None) != (self.num_classes == 0):
            raise ValueError(f"num_classes must be 0 if and only if there are no labels, got {self.num_classes}")
        if labels is not None and (labels.min() < 0 or labels.max() >= self.num_classes):
            low, high = labels.aminmax()
            raise ValueError(f"{part} labels must lie in [0, {self.num_classes}), got {low} to {high}")

    def _check_state_counts(self, state_counts: Int[Tensor, " d"]) -> None:
        if len(state_counts) != self.num_positions:
            raise ValueError(f"state_counts must have shape [{self.num_positions}], got {list(state_counts.shape)}")
        if state_counts.min() < 1 or state_counts.max() > self.num_states:
            raise ValueError(f"state_counts must lie in [1, {self.num_states}], got {state_counts.tolist()}")
        for part, split in self.splits().items():
            beyond = (self._counted(split) > 0) & ~self._legal()
            if beyond.any():
                position, token = beyond.nonzero()[0].tolist()
                raise ValueError(
                    f"{part} tokens must lie in [0, {state_counts[position]}) at position {position}, got {token}"
                )

"""Data cut into training, validation and test splits, the same way every time and everywhere."""

from typing import NamedTuple

import numpy as np

from dmb.data.splits import Rows, Split, Stream, permutation


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


def split_stream(tokens: np.ndarray, num_states: int, length: int) -> Splits:
    """The first 90 % of a text to train on, the next 5 % to validate, the last 5 % to test.

    >>> [len(split) for split in split_stream(np.zeros(1000, dtype=int), num_states=2, length=10)]
    [90, 5, 5]
    """
    part = len(tokens) // 20
    parts = np.split(tokens, [len(tokens) - 2 * part, len(tokens) - part])
    for name, piece in zip(("training", "validation", "test"), parts, strict=True):
        if length > len(piece):
            shorter = f", or a length of at most {part:,}" if part else ""
            raise ValueError(
                f"a sequence of {length:,} tokens is longer than the {name} split, {len(piece):,} tokens: "
                f"give more text{shorter}"
            )
    return Splits(*(Stream(piece, num_states, length) for piece in parts))

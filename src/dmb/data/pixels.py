"""Splits of images, which stay on disk as bytes and become tokens as they are read."""

import numpy as np
from jaxtyping import UInt8

from dmb.data.codecs.picture import states_of_values
from dmb.data.splits import Rows


class Pixels(Rows):
    """Images as rows of tokens, a channel after the other of a pixel after the other, each in `levels` steps.

    Args:
        images: `[N, h, w, c]`, often a memory-mapped file.
        levels: of a channel; see `Picture`.
        labels: class labels `[N]`, if any.
        rows: which images belong to this split, in order. Default: all of them.

    >>> Pixels(np.array([[[[0, 127, 255]]]], dtype=np.uint8), levels=4)[:]
    tensor([[0, 1, 3]])
    """

    def __init__(
        self,
        images: UInt8[np.ndarray, "N h w c"],
        levels: int,
        *,
        labels: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ):
        self._states = states_of_values(levels)
        super().__init__(images, levels, labels=labels, rows=rows)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return self._states[super()._read(rows)]

    def _check_tokens(self) -> None:
        """Nothing to read for: every byte is a level."""

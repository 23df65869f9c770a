"""Sequences as plain values to display; the page or window decides how they look."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

Symbols = list[list[str | None]]
"""One string per token of every sequence; None for a token that the codec does not know, such as a mask."""


@dataclass(frozen=True)
class Lines:
    """Running text."""

    symbols: Symbols
    gap: str = ""
    """The separator between two symbols."""


@dataclass(frozen=True)
class Rows:
    """Rows of a table."""

    symbols: Symbols
    columns: list[str]


@dataclass(frozen=True)
class Images:
    """Images; a token that the codec does not know is drawn as state 0."""

    pixels: UInt8[np.ndarray, "b h w c"]
    grid: tuple[int, int]
    """Number of rows and columns of tokens; the channels of a pixel follow each other."""


View = Lines | Rows | Images

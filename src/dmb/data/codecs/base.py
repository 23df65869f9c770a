"""The contract every codec keeps: tokens as files, as lines for a terminal, and as plain values to display."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from dmb._core import checks
from dmb._core.configuration import Configurable

FOLDER = "/"
"""What `Codec.check_path` says of a folder."""


Symbols = list[list[str | None]]
"""One string per token of every sequence; None for a token that the codec does not know, such as a mask."""


@dataclass(frozen=True)
class Lines:
    """Running text, with `gap` between two symbols."""

    symbols: Symbols
    gap: str = ""


@dataclass(frozen=True)
class Cells:
    """Rows of a table: the cells of its columns."""

    symbols: Symbols
    columns: list[str]


@dataclass(frozen=True)
class Images:
    """Images; a token that the codec does not know is drawn as state 0.

    `grid` is the number of rows and columns of tokens; the channels of a pixel follow each other.
    """

    pixels: UInt8[np.ndarray, "b h w c"]
    grid: tuple[int, int]


View = Lines | Cells | Images
"""Sequences as plain values to display; the page or window decides how they look."""


class Codec(Configurable, ABC):
    """Tokens <-> what the user knows. JSON describes it (`to_config`), so a saved model can decode its samples.

    Attributes:
        num_states: tokens lie in `[0, num_states)`.
        formats: extensions that `write` knows, the usual one first; any, if empty.
        fills_folders: whether `write` can also fill a folder with a `.png` for each sequence.
        unit: what a user calls sequences; filled in with the number of positions.
        token: what a user calls one of their tokens.
        gap: what stands between two symbols in a line of them.
        incidental: the arguments in `config` that tokens do not depend on.
    """

    num_states: int
    formats: ClassVar[tuple[str, ...]] = ()
    fills_folders: bool = False
    unit: ClassVar[str] = "sequences of {:,} tokens"
    token: ClassVar[str] = "token"
    gap: ClassVar[str] = " "
    incidental: ClassVar[tuple[str, ...]] = ()

    @property
    def extension(self) -> str:
        """Of the file that `write` makes by default."""
        return self.formats[0] if self.formats else ".txt"

    @abstractmethod
    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        """Each sequence as a string for a terminal."""

    @abstractmethod
    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """Write sequences in the format the data came in; `path` never holds half of them."""

    def check_path(self, path: Path, name: str = "path") -> str:
        """The extension of `path`, in lower case, if `write` can write there; so that one can ask before the work.

        `FOLDER` if that is where a `.png` for each sequence goes. Messages call the path by its `name`.
        """
        folder = self.fills_folders and (path.is_dir() or not path.suffix)
        suffix = path.suffix.lower()
        if self.formats and suffix not in self.formats and not folder:
            alternative = ", or be a folder for one .png each" if self.fills_folders else ""
            raise ValueError(f"{name} must end in {' or '.join(self.formats)}{alternative}, got {path}")
        if not path.parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
        return FOLDER if folder else suffix

    def describe(self) -> list[str]:
        """What tokens mean, in a few short lines for the user."""
        return [f"{self.num_states:,} states"]

    @abstractmethod
    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """What is known of a sequence: tokens, and -1 where the model chooses.

        `blank` stands for one such position; what a template leaves out is blank too.
        """

    def meaning(self) -> dict[str, Any]:
        """All that tokens mean: two codecs for which it is the same read the same data."""
        return {key: value for key, value in self.to_config().items() if key not in self.incidental}

    def view(self, tokens: Int[Tensor, "b d"]) -> View:
        """How to show sequences, token by token; those outside `[0, num_states)`, such as masks, are left blank."""
        states = tokens[self.knows(tokens)].unique()
        symbols = dict(zip(states.tolist(), self.symbols(states), strict=True))
        return Lines([[symbols.get(token) for token in row] for row in tokens.tolist()], self.gap)

    def symbols(self, states: Int[Tensor, " k"]) -> list[str]:
        """What each state is called."""
        return [str(state) for state in states.tolist()]

    def knows(self, tokens: Int[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        """Which tokens are states of the codec; a process may have more, such as a mask."""
        return (tokens >= 0) & (tokens < self.num_states)

    def legal(self, tokens: Int[Tensor, "b d"]) -> np.ndarray:
        """The tokens as an array, once they are known to lie in `[0, num_states)`."""
        return checks.tokens("tokens", tokens, (tokens.shape[1], self.num_states)).cpu().numpy()


def filled(tokens: np.ndarray, num_positions: int) -> Int[Tensor, " d"]:
    """A template of `num_positions`, blank after `tokens` ends.

    >>> filled(np.array([4, -1, 2]), 5)
    tensor([ 4, -1,  2, -1, -1])
    """
    if len(tokens) > num_positions:
        raise ValueError(f"the template must have at most {num_positions} positions, got {len(tokens)}")
    template = torch.full((num_positions,), -1)
    template[: len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
    return template


def shortened(values: list[str], most: int = 8) -> str:
    """A list for a message: all of it if short, else its beginning and how many more there are.

    >>> shortened(["red", "green", "blue"], most=2)
    "'red', 'green' and 1 more"
    """
    shown = ", ".join(repr(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most:,} more"

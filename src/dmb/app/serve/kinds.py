"""What a visitor can give, by the kind of data: the contract of text, tables and images."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_SAMPLES


class Kind(ABC):
    """A kind of data on the page.

    Args:
        playground: the model.
    """

    most: int = MOST_SAMPLES  # how many samples one can ask for
    usual: int = 8  # how many samples there are unless one asks for more
    verb: str = "Draw"  # what the main button does

    def __init__(self, playground: Playground):
        self.playground = playground

    @abstractmethod
    def inputs(self) -> list[Any]:
        """Make the components in which something is given, and return those whose values `template` takes."""

    @abstractmethod
    def template(self, *values: Any) -> Int[Tensor, " d"]:
        """What is given: tokens, and negative numbers for blanks. A ValueError if a visitor sent what cannot be."""

    def write(self, folder: Path, tokens: Int[Tensor, "k d"]) -> Path:
        """Samples as a file in the format of the data. Nothing in its name comes from a visitor."""
        path = folder / f"samples{self.playground.codec.extension}"
        self.playground.codec.write(path, tokens)
        return path

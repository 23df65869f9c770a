"""The contract every kind of column keeps."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import date
from typing import ClassVar

import numpy as np

from dmb.configurable import Configurable

Value = str | int | float | bool | date | None
"""What a cell of a table can hold; `None` is missing."""


class Column(Configurable, ABC):
    """Values of a column <-> states `0, 1, …`; a state may stand for many values."""

    kind: ClassVar[str]
    """What a user calls it."""
    labels: list[str]
    """What each state is called; a missing value is called nothing at all."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def states(self, values: Sequence[Value], nearest: bool = False) -> np.ndarray:
        """The state of each value, and -1 for those that the column does not know.

        Args:
            values: any sequence.
            nearest: an unknown number has the state of the nearest known one.
        """

    @abstractmethod
    def values(self, states: np.ndarray, rng: np.random.Generator) -> list[Value]:
        """A value for each state; drawn, where a state stands for many."""

    @abstractmethod
    def means(self) -> list[Value]:
        """The one value that stands best for each state: for numbers, the mean."""

    def log_density(self, values: Sequence[Value]) -> np.ndarray:
        """`log p(value | its state)`, in nats: 0 where a state is one value, a density where values are real."""
        return np.zeros(len(values))

    @property
    def missing(self) -> int | None:
        """The state that stands for a missing value, if the column has any."""
        return self.labels.index("") if "" in self.labels else None

    def called(self, state: int) -> str:
        """What a state is called where "nothing at all" would not be seen."""
        return self.labels[state] or "missing"

    def describe(self) -> str:
        """The column in a few words."""
        return f"{len(self):,} values"


def shown(value: Value) -> str:
    """A value as text; a missing one is nothing at all."""
    return "" if value is None else str(value)

"""The contract every kind of column keeps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import date
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from dmb._core.configuration import Configurable

Value = str | int | float | bool | date | None
"""What a cell of a table can hold; `None` is missing."""

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""What stands for a missing number in files."""


class Column(Configurable, ABC):
    """Values of a column <-> states `0, 1, …`; a state may stand for many values.

    Attributes:
        kind: what a user calls it.
        labels: what each state is called; a missing value is called nothing at all.
    """

    kind: ClassVar[str]
    labels: list[str]

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

    def in_type(self, value: Value) -> Value:
        """A value that a user gives, in the type of the column."""
        return value

    @abstractmethod
    def means(self) -> list[Value]:
        """The one value that stands best for each state: for numbers, the mean."""

    @abstractmethod
    def expected(self, p: Float[np.ndarray, "b n"], real: bool | None = None) -> list[Value]:
        """For each row of probabilities of the states, the one value to put in: the mean, or else the likeliest.

        Args:
            p: rows that add up to 1; a missing value has probability 0.
            real: whether a column of whole numbers may take a mean that is none; else the nearest value is taken.
                Default: no, if its values are whole numbers.
        """

    def log_density(self, values: Sequence[Value]) -> np.ndarray:
        """`log p(value | its state)`, in nats: 0 where a state is one value, a density where values are real."""
        return np.zeros(len(values))

    @property
    def missing(self) -> int | None:
        """The state that stands for a missing value, if the column has any."""
        return self.labels.index("") if "" in self.labels else None

    def display_name(self, state: int) -> str:
        """What a state is called where "nothing at all" would not be seen."""
        return self.labels[state] or "missing"

    def describe(self) -> str:
        """The column in a few words."""
        return f"{len(self):,} values"


def as_number(value: Value) -> float:
    """The number that a cell holds, or nan.

    >>> as_number("-1.5e3"), as_number(" 7,25 "), as_number("seven")
    (-1500.0, 7.25, nan)
    """
    if value is None or value == "":
        return np.nan
    try:
        return float(value.replace(",", ".") if isinstance(value, str) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.nan


def as_numbers(values: Sequence[Value]) -> np.ndarray:
    """`as_number` of each value, at once if they are numbers already."""
    if set(map(type, values)) <= {int, float, type(None)}:
        try:
            return np.array(values, dtype=float)
        except OverflowError:  # a whole number that no float can hold
            pass
    return np.array([as_number(value) for value in values], dtype=float)


def numeric(values: Sequence[Value]) -> bool:
    """Whether values are finite numbers, in the type of numbers or as text, and not codes such as 00501."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    if any(len(text) > 1 and text[0] == "0" and text.isdigit() for text in texts):
        return False
    return all(not isinstance(value, bool) and math.isfinite(as_number(value)) for value in values)


def whole(values: Sequence[Value]) -> bool:
    """Whether numbers are whole, by their type or as text."""
    return all(isinstance(value, int) or str(value).strip().lstrip("+-").isdigit() for value in values)


def shown(value: Value) -> str:
    """A value as text; a missing one is nothing at all."""
    return "" if value is None else str(value)

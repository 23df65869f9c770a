"""Columns of dates and times."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
from jaxtyping import Float

from dmb.data.columns.base import Column, Value
from dmb.data.columns.number import Number

_UNITS = {"day": timedelta(days=1), "second": timedelta(seconds=1), "microsecond": timedelta(microseconds=1)}
_START = datetime(1970, 1, 1)


class Date(Column):
    """Dates, or dates with a time: a `Number` of days, seconds or microseconds since 1970.

    Args:
        number: the description of that column.
        unit: `day`, `second` or `microsecond`.
        typed: values are dates, not text.
        separator: what stands between a date and a time in text.

    >>> column = Date.of(["2024-01-01", "2024-01-03"], np.array([5.0, 2.0]))
    >>> column.states(["2024-01-03", "yesterday"]), column.labels
    (array([ 1, -1]), ['2024-01-01', '2024-01-03'])
    """

    kind = "date"

    def __init__(self, number: dict[str, Any], unit: str = "day", typed: bool = False, separator: str = "T"):
        self.number: Number = Number(**{name: value for name, value in number.items() if name != "type"})
        self.unit, self.typed, self.separator = unit, typed, separator
        self.labels = [" to ".join(self._text(int(end)) for end in label.split(" to ")) if label else ""
                       for label in self.number.labels]  # fmt: skip

    @classmethod
    def of(cls, values: Sequence[Value], counts: np.ndarray, *, bins: int = 64, missing: bool = False) -> "Date":
        """The column of training data with these distinct values, and how often each occurs."""
        moments = [as_moment(value) for value in values]
        since = [moment - _START for moment in moments if moment is not None]
        unit = next(name for name, unit in _UNITS.items() if all(not gap % unit for gap in since))
        numbers = np.array([gap // _UNITS[unit] for gap in since], dtype=float)
        distinct, place = np.unique(numbers, return_inverse=True)
        weights = np.bincount(place, weights=counts)
        number = Number.of(distinct, weights, bins=bins, integer=True, missing=missing)
        separator = next((value[10] for value in values if isinstance(value, str) and len(value) > 10), "T")
        return cls(number.config(), unit, not any(isinstance(value, str) for value in values), separator)

    def states(self, values: Sequence[Value], nearest: bool = False) -> np.ndarray:
        return self.number.states(self._numbers(values), nearest)

    def values(self, states: np.ndarray, rng: np.random.Generator) -> list[Value]:
        return [self._value(number) for number in self.number.values(states, rng)]

    def means(self) -> list[Value]:
        return [self._value(number) for number in self.number.means()]

    def expected(self, p: Float[np.ndarray, "b n"], real: bool | None = None) -> list[Value]:
        return [self._value(number) for number in self.number.expected(p, real=True)]

    def log_density(self, values: Sequence[Value]) -> np.ndarray:
        return self.number.log_density(self._numbers(values))

    def describe(self) -> str:
        first, last = (self.labels[end].split(" to ")[end] for end in (bool(self.number.config()["missing"]), -1))
        return f"dates from {first} to {last}, {len(self):,} states"

    def config(self) -> dict[str, Any]:
        return {"number": self.number.config(), "unit": self.unit, "typed": self.typed, "separator": self.separator}

    def _numbers(self, values: Sequence[Value]) -> list[Value]:
        moments = [as_moment(value) for value in values]
        return [
            value if moment is None else (moment - _START) / _UNITS[self.unit]
            for moment, value in zip(moments, values, strict=True)
        ]

    def _value(self, number: Value) -> Value:
        if not isinstance(number, int | float):
            return None
        return _START + round(number) * _UNITS[self.unit] if self.typed else self._text(round(number))

    def _text(self, number: int) -> str:
        moment = _START + number * _UNITS[self.unit]
        return moment.date().isoformat() if self.unit == "day" else moment.isoformat(self.separator)


def as_moment(value: Value) -> datetime | None:
    """The moment that a cell holds: a date, or text in ISO's format without a time zone.

    >>> as_moment("2024-02-29 12:30"), as_moment("29.2.2024")
    (datetime.datetime(2024, 2, 29, 12, 30), None)
    """
    if isinstance(value, str) and len(value) >= 10 and value[4:5] == "-":
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return value if value.tzinfo is None else None
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else None

"""Columns of dates and times."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from jaxtyping import Float

from dmb.data.columns.base import Column, Value
from dmb.data.columns.number import Number

_UNITS = {name: timedelta(**{f"{name}s": 1}) for name in ("day", "hour", "minute", "second", "microsecond")}
_START = datetime(1970, 1, 1)


class Date(Column):
    """Dates, or dates with a time: a `Number` of days, hours, … or microseconds since 1970.

    Args:
        number: the description of that column.
        unit: `day`, `hour`, `minute`, `second` or `microsecond`.
        typed: values are dates, not text.
        separator: what stands between a date and a time in text.
        timed: text has a time, be it midnight in all rows.
        plain: values are dates without a time, also by their type.
        zone: time zone of all values, whose clocks they show: `Z`, an offset such as `+02:00`, or a name such as
            `Europe/Berlin`. Default: values have none.

    >>> column = Date.of(["2024-01-01", "2024-01-03"], np.array([5.0, 2.0]))
    >>> column.states(["2024-01-03", "yesterday"]), column.labels
    (array([ 1, -1]), ['2024-01-01', '2024-01-03'])
    """

    kind = "date"

    def __init__(
        self,
        number: dict[str, Any],
        unit: str = "day",
        typed: bool = False,
        separator: str = "T",
        timed: bool = False,
        plain: bool = False,
        zone: str | None = None,
    ):
        self.number: Number = Number(**{name: value for name, value in number.items() if name != "type"})
        self.unit, self.typed, self.separator = unit, typed, separator
        self.timed, self.plain, self.zone = timed, plain, zone
        self._zone = None if zone is None else _zone_called(zone)
        self.labels = [" to ".join(self._text(int(end)) for end in label.split(" to ")) if label else ""
                       for label in self.number.labels]  # fmt: skip

    @classmethod
    def of(cls, values: Sequence[Value], counts: np.ndarray, *, bins: int = 64, missing: bool = False) -> "Date":
        """The column of training data with these distinct values, and how often each occurs."""
        zone = _common_zone(values, counts)
        known = UTC if zone is None else _zone_called(zone)
        since = [moment - _START for value in values if (moment := as_moment(value, known)) is not None]
        unit = next((name for name, unit in _UNITS.items() if all(not gap % unit for gap in since)), None)
        if unit is None:  # times of pandas
            raise ValueError("dates must be whole microseconds, got nanoseconds: round them")
        numbers = np.array([gap // _UNITS[unit] for gap in since], dtype=float)
        distinct, place = np.unique(numbers, return_inverse=True)
        weights = np.bincount(place, weights=counts)
        number = Number.of(distinct, weights, bins=bins, integer=True, missing=missing)
        separators = [value[10] for value in values if isinstance(value, str) and len(value) > 10]
        typed = not any(isinstance(value, str) for value in values)
        plain = typed and not any(isinstance(value, datetime) for value in values)
        return cls(number.config(), unit, typed, next(iter(separators), "T"), bool(separators), plain, zone)

    def states(self, values: Sequence[Value], nearest: bool = False) -> np.ndarray:
        return self.number.states(self._numbers(values), nearest)

    def values(self, states: np.ndarray, rng: np.random.Generator) -> list[Value]:
        return [self._value(number) for number in self.number.values(states, rng)]

    def axis(self, states: np.ndarray, rng: np.random.Generator) -> Float[np.ndarray, " k"]:
        """How long after 1970, in units, a date of each state lies; nan for a missing one."""
        return self.number.axis(states, rng)

    def at(self, place: float) -> str:
        """What is written there."""
        return self._text(round(place))

    def means(self) -> list[Value]:
        return [self._value(number) for number in self.number.means()]

    def expected(self, p: Float[np.ndarray, "b n"], real: bool | None = None) -> list[Value]:
        return [self._value(number) for number in self.number.expected(p, real=True)]

    def in_type(self, value: Value) -> Value:
        return self._value(self._numbers([value])[0])

    def log_density(self, values: Sequence[Value]) -> np.ndarray:
        return self.number.log_density(self._numbers(values))

    def describe(self) -> str:
        given = [label.split(" to ") for label in self.labels if label]
        first, last = given[0][0], given[-1][-1]
        return f"dates from {first} to {last}, {len(self):,} states"

    def config(self) -> dict[str, Any]:
        others = {"timed": self.timed, "plain": self.plain, "zone": self.zone}
        return {
            "number": self.number.config(), "unit": self.unit, "typed": self.typed, "separator": self.separator,
        } | {name: value for name, value in others.items() if value}  # fmt: skip

    def _numbers(self, values: Sequence[Value]) -> list[Value]:
        moments = [as_moment(value, self._zone or UTC) for value in values]
        return [
            value if moment is None else (moment - _START) / _UNITS[self.unit]
            for moment, value in zip(moments, values, strict=True)
        ]

    def _value(self, number: Value) -> Value:
        if not isinstance(number, int | float):
            return None
        if not self.typed:
            return self._text(round(number))
        moment = self._moment(round(number))
        return moment.date() if self.plain else moment.replace(tzinfo=self._zone)

    def _moment(self, number: int) -> datetime:
        """Never beyond the last of all, to which databases set what has no end: its microseconds are rounded up."""
        return _START + min(number * _UNITS[self.unit], datetime.max - _START)

    def _text(self, number: int) -> str:
        moment = self._moment(number)
        if self.unit == "day" and not self.timed:
            return moment.date().isoformat()
        return moment.isoformat(self.separator) + ("" if self.typed or self.zone is None else self.zone)


def as_moment(value: Value, zone: tzinfo = UTC) -> datetime | None:
    """The moment that a cell holds, a date or text in ISO's format; if it has a time zone, by the clocks of `zone`.

    >>> as_moment("2024-02-29T12:30:00+02:00")
    datetime.datetime(2024, 2, 29, 10, 30)
    >>> as_moment("2024-02-29 12:30"), as_moment("29.2.2024")
    (datetime.datetime(2024, 2, 29, 12, 30), None)
    """
    try:
        if isinstance(value, str) and len(value) >= 10 and value[4:5] == "-":
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value if value.tzinfo is None else value.astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):  # no date, or one beyond the years 1 to 9999 by the clocks of the zone
        return None
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else None


def zone_of(value: Value) -> str | None:
    """The time zone of a date of a cell, as at the end of text in ISO's format: its name, or else its offset."""
    if isinstance(value, str):
        found = re.search(r"(Z|[+-]\d{2}(:?\d{2})?)$", value[10:])
        return None if found is None else found[1]
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    name = str(value.tzinfo)
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return f"{value:%z}"
    return name


def _common_zone(values: Sequence[Value], counts: np.ndarray) -> str | None:
    """The time zone that most rows have, as text; None if none has one."""
    rows: Counter[str | None] = Counter()
    for value, count in zip(values, counts, strict=True):
        rows[zone_of(value)] += count
    del rows[None]
    return max(rows, key=rows.__getitem__, default=None)


def _zone_called(name: str) -> tzinfo:
    if name[0] in "Z+-":
        zone = datetime.strptime(name if len(name) != 3 else f"{name}00", "%z").tzinfo
        assert zone is not None
        return zone
    return ZoneInfo(name)

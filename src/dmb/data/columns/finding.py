"""Which kind of column a list of values is, by rules that can be explained."""

import math
import re
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

import numpy as np

from dmb.data.columns.base import MISSING, Column, Value, as_number, as_numbers, numeric, whole
from dmb.data.columns.category import Category
from dmb.data.columns.date import Date, as_moment, zone_of
from dmb.data.columns.number import Number
from dmb.data.reading import as_value_error

KINDS = ("category", "number", "date", "drop")
"""What a user can say a column is."""
MOST_VALUES = 10_000  # of a category

_MANY = 20  # more different numbers or dates than this are measured, not chosen from a list
_EXACT = 2**53  # whole numbers beyond this are rounded
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")  # 12,345.6
_UNIQUE = 0.5  # share of rows with a value of their own from which on text is a name or prose


class Found(NamedTuple):
    """A column, or None if it is left out, and why."""

    column: Column | None
    note: str = ""


def column_of(
    name: str,
    values: Sequence[Value],
    counts: Sequence[int] | np.ndarray,
    kind: str | None = None,
    *,
    bins: int = 64,
    in_training: np.ndarray | None = None,
) -> Found:
    """The column that holds these distinct `values` so many times each.

    Numbers and dates with more than 20 different values are binned; with fewer they are categories in their order
    (except dates whose type says so), as is all else. Left out are text of which more than half the rows have a value
    of their own (a name, or prose), and whole numbers that differ in all rows and lie within twice their count (a
    number for each row).

    Args:
        name: of the column.
        values: distinct ones.
        counts: how many rows have each.
        kind: the kind it must be, one of `KINDS`; default: what the rules say.
        bins: maximum number of states of a number or date.
        in_training: how many rows of the training split have each value, for the bins; default: `counts`.

    >>> column_of("size", ["1.5", "2.5", ""], [10, 20, 1]).column.labels
    ['', '1.5', '2.5']
    >>> column_of("id", list(range(100)), [1] * 100)
    Found(column=None, note="'id' numbers the rows: left out")
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"the kind of column {name!r} must be one of {', '.join(KINDS)}, got {kind!r}")
    counts = np.asarray(counts)
    content = _Content(name, values, counts if in_training is None else in_training)
    nominal = kind == "category"
    if kind is None:
        content.check_almost_numbers()
        kind = content.kind()
        useless = _useless(content, kind, counts)
        if useless:
            return Found(None, f"{name!r} {useless}: left out")
    if kind == "drop":
        return Found(None)
    if kind == "number":
        return Found(content.number(bins), content.numbers_note())
    if kind == "date":
        return Found(content.date(bins))
    column = content.category(nominal)
    return Found(column, f"{name!r} is always {values[0]!r}" if len(column) == 1 else "")


class _Content:
    """Distinct values and how many rows of the training split have each; what they could be."""

    def __init__(self, name: str, values: Sequence[Value], counts: np.ndarray):
        self.name, self.values, self.counts = name, values, counts
        self.empty = np.array([value is None or value != value or not str(value).strip() for value in values])
        self.absent = self.empty | np.array([str(value).strip() in MISSING for value in values])
        self.numbers = as_numbers([None if isinstance(value, bool) else value for value in values])
        given = self.numbers[~self.absent]
        self.numeric = bool(len(given) and numeric(self._but(self.absent)))
        moments = self._but(self.empty)
        self.dated = (
            bool(moments)
            and all(as_moment(value) is not None for value in moments)
            and len({zone_of(value) is None for value in moments}) == 1
        )

    def kind(self) -> str:
        many, typed = (~self.absent).sum() > _MANY, any(isinstance(value, date) for value in self.values)
        return "number" if self.numeric and many else "date" if self.dated and (many or typed) else "category"

    def check_almost_numbers(self) -> None:
        """Raise a ValueError for numbers that would become categories, or other numbers, without a word."""
        texts = [text for text in self._but(self.absent) if isinstance(text, str)]
        grouped = [text for text in texts if "," in text]
        alone = all(_GROUPED.fullmatch(text.strip()) for text in grouped) and (
            len(grouped) < len(texts) or any(text.count(",") > 1 or "." in text for text in grouped)
        )
        if grouped and alone and numeric([text.replace(",", "") for text in texts]):
            rule = f"column {self.name!r} must have no commas between thousands, got {grouped[0]!r}"
            raise ValueError(f"{rule}: remove them, or say that it is a category")
        numbers = self.numbers[~self.absent]
        if np.isinf(numbers).any() and not np.isnan(numbers).any() and len(numbers) > _MANY:
            odd = self._but(self.absent)[int(np.isinf(numbers).argmax())]
            rule = f"column {self.name!r} must hold finite numbers, got {odd!r}"
            raise ValueError(f"{rule}: leave the cell empty, or say that the column is a category")

    def numbers_note(self) -> str:
        """What a user should know of how numbers were read."""
        given = self._but(self.absent)
        comma = next((text for text in given if isinstance(text, str) and "," in text), None)
        if comma is not None:
            return f"{self.name!r} has decimal commas: {comma!r} is read as {as_number(comma):g}"
        if np.abs(self.numbers[~self.absent]).max() > _EXACT and whole(given):
            return f"{self.name!r} has whole numbers of more than 15 digits, which are rounded; a category keeps them"
        return ""

    def number(self, bins: int) -> Number:
        if not self.numeric:
            odd = next((value for value in self._but(self.absent) if not np.isfinite(as_number(value))), self.values[0])
            raise ValueError(f"column {self.name!r} must hold finite numbers, got {odd!r}: it may be a category")
        distinct, place = np.unique(self.numbers[~self.absent], return_inverse=True)  # 1.5 and 1.50 are one
        counts = np.bincount(place, weights=self.counts[~self.absent])
        return Number.of(
            distinct, counts, bins=bins, integer=whole(self._but(self.absent)), missing=bool(self.absent.any())
        )

    def date(self, bins: int) -> Date:
        if not self.dated:
            odd = next((value for value in self._but(self.empty) if as_moment(value) is None), self.values[0])
            raise ValueError(f"column {self.name!r} must hold dates such as 2024-02-29, got {odd!r}")
        counts = self.counts[~self.empty]
        with as_value_error(f"column {self.name!r}", ValueError):
            return Date.of(self._but(self.empty), counts, bins=bins, missing=bool(self.empty.any()))

    def category(self, nominal: bool) -> Category:
        if len(self.values) > MOST_VALUES:
            raise ValueError(
                f"column {self.name!r} has {len(self.values):,} values, too many for categories: remove or round it"
            )
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            raise ValueError(f"column {self.name!r} must hold finite numbers, got nan or inf: make it null or a string")
        if any(isinstance(value, date) for value in self.values):
            raise ValueError(f"column {self.name!r} must not hold dates to be a category: write them as text")
        return Category(sorted(self.values, key=lambda value: _order(value, self.numeric)), nominal)

    def _but(self, left_out: np.ndarray) -> list[Value]:
        return [value for value, out in zip(self.values, left_out, strict=True) if not out]


def _useless(content: _Content, kind: str, counts: np.ndarray) -> str:
    """Why a column can teach nothing, if so."""
    values, rows = content.values, int(counts.sum())
    numbers = content.numbers
    differ = kind == "number" and len(np.unique(numbers)) == rows
    if differ and np.ptp(numbers) < 2 * rows and (numbers == numbers.round()).all():
        return "numbers the rows"
    if kind == "category" and len(values) > max(5 * _MANY, _UNIQUE * rows):
        texts = [value for value in values if isinstance(value, str)]
        what = "prose" if sum(value.count(" ") for value in texts) > 3 * len(texts) else "a name"
        return f"is {what}, with {len(values):,} values in {rows:,} rows"
    return ""


def _order(value: Value, numeric: bool) -> tuple[bool, float, str]:
    """Missing values first, numbers by size, all else by the alphabet."""
    return value is not None, as_number(value) if numeric and value not in (None, "") else -math.inf, str(value)

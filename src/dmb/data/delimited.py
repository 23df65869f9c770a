"""How a file of delimited values is laid out: told by its first lines, with rules that can be explained."""

import csv
import io
import math
from typing import NamedTuple

from dmb.data.columns.base import MISSING, as_number
from dmb.data.reading import File

DELIMITERS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
"""Commas last: numbers may have them as well."""

_SAMPLE = 1 << 18  # symbols that are looked at
_FEWEST_ROWS, _LONGEST_VALUE = 5, 64  # of a file that is taken for a table though its name does not say so


class Layout(NamedTuple):
    """How to read a table.

    Args:
        columns: how many values the first line has.
        delimiter: what separates values.
        spaced: a space follows every delimiter, and is no part of the value.
        header: the first line has the names of the columns.
    """

    columns: int
    delimiter: str
    spaced: bool
    header: bool

    def notes(self, suffix: str) -> list[str]:
        """What the user should know about a file that ends in `suffix`."""
        unnamed, by = suffix not in (".csv", ".tsv", ".txt"), DELIMITERS[self.delimiter]
        data_first = "the first line looks like data, not like a header: columns are called column_1, column_2, …"
        notes = {
            "read as a table: all lines have the same number of values; to read text, name it .txt": unnamed,
            f"columns are separated by {by}": self.delimiter != {".tsv": "\t"}.get(suffix, ","),
            f"spaces after {by} were removed": self.spaced,
            data_first: not self.header,
        }
        return [note for note, holds in notes.items() if holds]


def layout_of(file: File) -> Layout:
    """The layout of a file that is known to be a table.

    The delimiter is one that gives every line the same number of values, at least 2; if there is none, the one that
    occurs most often in the first line, or a comma.
    """
    sample = _sample(file)
    fitting = [delimiter for delimiter in DELIMITERS if _width(_rows(sample, delimiter))]
    first = sample.partition("\n")[0]
    delimiter = fitting[0] if fitting else max(reversed(DELIMITERS), key=first.count)
    rows = _rows(sample, delimiter)
    others = [value for row in rows for value in row[1:]]
    spaced = bool(others) and all(value.startswith(" ") for value in others)
    return Layout(len(rows[0]) if rows else 0, delimiter, spaced, _has_header(rows))


def looks_delimited(file: File) -> bool:
    """Whether a file is a table though its name does not say so.

    All its first lines, at least 5, have the same number of short values: 3 or more if commas separate them, else 2.
    """
    try:
        sample = _sample(file)
    except ValueError:
        return False
    for delimiter in DELIMITERS:
        rows = _rows(sample, delimiter)
        fewest = 3 if delimiter == "," else 2
        if _width(rows) >= fewest and len(rows) >= _FEWEST_ROWS:
            return all(len(value) <= _LONGEST_VALUE for row in rows for value in row)
    return False


def _sample(file: File) -> str:
    """The first lines, without one that the sample cuts."""
    text = io.TextIOWrapper(io.BytesIO(file.head), file.encoding, errors="replace", newline="").read(_SAMPLE)
    return text.rpartition("\n")[0] or text if len(text) == _SAMPLE else text


def _rows(sample: str, delimiter: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
    except csv.Error:  # a value too long for the module
        return []


def _width(rows: list[list[str]]) -> int:
    """How many values every row has, if that is one number and at least 2; else 0."""
    widths = {len(row) for row in rows}
    return next(iter(widths)) if len(widths) == 1 and min(widths) > 1 else 0


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns.

    It does if it has a word above numbers. It does not if it has a number above numbers, or if most of its values occur
    again in their columns. If nothing speaks against it, it does. What stands for a missing value says nothing.
    """
    if not rows:
        return True
    first, *others = rows
    columns = [[value for value in column if value.strip() not in MISSING] for column in zip(*others, strict=False)]
    above = [value for value, column in zip(first, columns, strict=False) if column and all(map(_is_number, column))]
    if any(value.strip() not in MISSING and not _is_number(value) for value in above):
        return True
    if any(map(_is_number, above)):
        return False
    repeated = sum(value in column for value, column in zip(first, columns, strict=False))
    return 2 * repeated <= len(first)


def _is_number(value: str) -> bool:
    return not math.isnan(as_number(value))

"""Tables: every column has its own values."""

import csv
import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs.base import Codec, filled, shortened
from dmb.data.codecs.views import Rows, Symbols, View
from dmb.files import written_whole

_DESCRIBED = 12  # columns
Value = str | int | float | bool | None


class Columns(Codec):
    """One token a column, whose states are the values that the column knows.

    A row reads `column=value, column=value`; a part with a comma or a quote in it is quoted as in a CSV file. A missing
    value (`None`) is shown as nothing at all.

    Args:
        names: of the columns, in order.
        values: of each column; token `k` stands for the `k`-th.

    >>> import torch
    >>> codec = Columns(["size", "colour"], [[1, 2], ["blue", "green", "red"]])
    >>> codec.decode(torch.tensor([[1, 0]]))
    ['size=2, colour=blue']
    >>> codec.template("colour=red", num_positions=2)
    tensor([-1,  2])
    """

    extension = ".csv"
    formats = (".csv", ".parquet")
    unit = "rows of {:,} columns"

    def __init__(self, names: list[str], values: list[list[Value]]):
        if not names or len(names) != len(values):
            raise ValueError(f"names and values must be equally long and not empty, got {len(names)} and {len(values)}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"names must not repeat a column, got {twice!r} twice")
        for name, known in zip(names, values, strict=True):
            if not known or len(set(known)) < len(known):
                raise ValueError(f"values of column {name!r} must be distinct and not empty, got {known[:8]}")
        self.names = list(names)
        self.values = [list(known) for known in values]
        self.state_counts = [len(known) for known in values]
        self.num_states = max(self.state_counts)
        self._states = [{value: token for token, value in enumerate(known)} for known in self.values]

    def state(self, column: int, value: Value) -> int | None:
        """The token of a value, if the column knows it."""
        return self._states[column].get(value)

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        return [
            ", ".join(_quoted(f"{name}={_shown(value)}") for name, value in zip(self.names, row, strict=True))
            for row in self._rows(tokens)
        ]

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """CSV with the header the data came with, or Parquet (extra `table`) if `path` ends in `.parquet`."""
        suffix, rows = self.check_path(path), self._rows(tokens)
        if suffix == ".csv":
            # a bare carriage return is quoted by newer versions of the csv module only
            lines: list[list[Value]] = [[*self.names], *rows]
            returns = any("\r" in _shown(value) for line in lines for value in line)
            text = io.StringIO(newline="")
            writer = csv.writer(text, quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL, lineterminator="\n")
            writer.writerows(lines)
            with written_whole(path) as part:
                part.write_bytes(text.getvalue().encode())
            return
        pyarrow, parquet = import_pyarrow()
        table = pyarrow.table([pyarrow.array([row[c] for row in rows]) for c in range(len(self.names))], self.names)
        with written_whole(path) as part:
            parquet.write_table(table, part)

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """`column=value, column=value`; columns that are left out, or have the value `blank`, are blank.

        Spaces around `=` and `,` do not count, except where a name or a value has them itself.
        """
        tokens = np.full(len(self.names), -1)
        lines = list(csv.reader(io.StringIO(text.strip("\r\n"), newline=""), skipinitialspace=True))
        if len(lines) > 1:
            raise ValueError(f"the template must be one line, got {len(lines)}: put commas between columns")
        given = set()
        for field in lines[0] if lines else []:
            column, value = self._split(field)
            if column in given:
                raise ValueError(f"the template must name a column once, got {self.names[column]!r} twice")
            given.add(column)
            if value.strip() != blank:
                tokens[column] = self._state_shown(column, value)
        return filled(tokens, num_positions)

    def describe(self) -> list[str]:
        lines = [
            f"column {name!r}: {len(known):,} values: {shortened([_shown(value) for value in known], 5)}"
            for name, known in zip(self.names[:_DESCRIBED], self.values, strict=False)
        ]
        more = len(self.names) - _DESCRIBED
        return [*lines, f"and {more:,} more columns"] if more > 0 else lines

    def view(self, tokens: Int[Tensor, "b d"]) -> View:
        """A missing value is called so."""
        cells: Symbols = [
            [
                ("missing" if known[token] is None else str(known[token])) if 0 <= token < len(known) else None
                for known, token in zip(self.values, row, strict=True)
            ]
            for row in tokens.tolist()
        ]
        return Rows(cells, self.names)

    def config(self) -> dict[str, Any]:
        return {"names": self.names, "values": self.values}

    def _rows(self, tokens: Int[Tensor, "b d"]) -> list[list[Value]]:
        if tokens.shape[1] != len(self.names):
            raise ValueError(f"tokens must have {len(self.names)} positions, one per column, got {tokens.shape[1]}")
        legal = self.legal(tokens)
        beyond = np.argwhere(legal >= np.array(self.state_counts))
        if len(beyond):
            row, column = beyond[0]
            raise ValueError(
                f"tokens of column {self.names[column]!r} must lie in [0, {self.state_counts[column]}), "
                f"got {legal[row, column]} at row {row}"
            )
        return [[known[token] for known, token in zip(self.values, row, strict=True)] for row in legal.tolist()]

    def _split(self, field: str) -> tuple[int, str]:
        """The column that a field of a template names, and what follows the equals sign."""
        for pattern, bare in ((r"{}=(.*)", False), (r"\s*{}\s*=(.*)", True)):
            # the longest name that fits, because a name may hold an equals sign itself
            for index, name in sorted(enumerate(self.names), key=lambda item: (-len(item[1].strip()), len(item[1]))):
                found = re.fullmatch(pattern.format(re.escape(name.strip() if bare else name)), field, re.DOTALL)
                if found:
                    return index, found[1]
        raise ValueError(f"the template must name columns {shortened(self.names)} as column=value, got {field!r}")

    def _state_shown(self, column: int, shown: str) -> int:
        known = [_shown(value) for value in self.values[column]]
        for value in (shown, shown.strip()):
            if value in known:
                return known.index(value)
        raise ValueError(f"column {self.names[column]!r} must be one of {shortened(known)}, got {shown.strip()!r}")


def import_pyarrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`, which only Parquet files need."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError("Parquet needs the extra `table`: pip install 'discrete-markov-bridge[table]'") from error


def _shown(value: Value) -> str:
    return "" if value is None else str(value)


def _quoted(field: str) -> str:
    plain = not any(symbol in field for symbol in ',"\r\n') and field == field.lstrip()
    return field if plain else '"' + field.replace('"', '""') + '"'

"""Tables: every column has its own values."""

import copy
import csv
import io
import re
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dmb._core.configuration import Configurable
from dmb._core.files import written_whole
from dmb.data.codecs.base import Cells, Codec, Symbols, View, filled, shortened
from dmb.data.columns import Category, Column, Date, Number, Value
from dmb.data.columns.base import shown
from dmb.data.reading import as_value_error

_DESCRIBED = 12  # columns


class Columns(Codec):
    """One token a column, whose states are values, or bins of values, that the column knows.

    A row reads `column=value, column=value`; a part with a comma or a quote in it is quoted as in a CSV file. A missing
    value (`None`) is shown as nothing at all. Where a state is a bin, a value in it is drawn, always the same for the
    same tokens.

    Args:
        names: of the columns, in order.
        values: the columns; a list stands for a category with these values.
        left_out: names of columns of the data that the model does not have.

    >>> import torch
    >>> codec = Columns(["size", "colour"], [[1, 2], ["blue", "green", "red"]])
    >>> codec.decode(torch.tensor([[1, 0]]))
    ['size=2, colour=blue']
    >>> codec.template("colour=red", num_positions=2)
    tensor([-1,  2])
    """

    formats = (".csv", ".parquet")
    unit = "rows of {:,} columns"

    def __init__(self, names: list[str], values: Sequence[Column | list[Value]], left_out: Sequence[str] = ()):
        if not names or len(names) != len(values):
            raise ValueError(f"names and values must be equally long and not empty, got {len(names)} and {len(values)}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"names must not repeat a column, got {twice!r} twice")
        self.names, self.left_out = list(names), list(left_out)
        self.columns = [_column(name, known) for name, known in zip(names, values, strict=True)]
        self.state_counts = [len(column) for column in self.columns]
        self.num_states = max(self.state_counts)
        self._given_values: dict[int, Value] = {}

    @classmethod
    def build(cls, *tensors: Any, **config: Any) -> "Columns":
        values = [Configurable.from_config(known) if isinstance(known, dict) else known for known in config["values"]]
        return cls(**config | {"values": values})

    @property
    def ordered(self) -> Bool[Tensor, "d n"]:
        """The states that lie in an order: those of numbers and dates, except a missing one."""
        first, count = torch.tensor([self.ordered_from, self.state_counts])[..., None]
        states = torch.arange(self.num_states)
        return (first <= states) & (states < count)

    @property
    def ordered_from(self) -> list[int]:
        """The first of the states of each column that lie in an order; their number if none do."""
        return [int(c.missing is not None) if isinstance(c, Number | Date) else len(c) for c in self.columns]

    def cells(self, tokens: Int[Tensor, "b d"]) -> list[list[Value]]:
        """The values of each column, one list a column."""
        legal = self._legal(tokens)
        rng = np.random.default_rng([int.from_bytes(sha256(legal.tobytes()).digest()[:8])])
        drawn = [column.values(legal[:, index], rng) for index, column in enumerate(self.columns)]
        return [
            [self._given_values[k]] * len(cells) if k in self._given_values else cells for k, cells in enumerate(drawn)
        ]

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        return [
            ", ".join(_quoted(f"{name}={shown(value)}") for name, value in zip(self.names, row, strict=True))
            for row in zip(*self.cells(tokens), strict=True)
        ]

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """CSV with the header the data came with, or Parquet (extra `table`) if `path` ends in `.parquet`."""
        self.check_path(path)
        write_cells(path, dict(zip(self.names, self.cells(tokens), strict=True)))

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """`column=value, column=value`; columns that are left out, or have the value `blank`, are blank.

        Spaces around `=` and `,` do not count, except where a name or a value has them itself.
        """
        tokens = np.full(len(self.names), -1)
        for column, (state, _) in self._given(text, blank).items():
            tokens[column] = state
        return filled(tokens, num_positions)

    def with_given_values(self, text: str, blank: str = "_") -> "Columns":
        """The codec for samples that a template leads to: a number or date that it gives is shown as it was given.

        Its state alone would stand for all values of its bin.
        """
        again = copy.copy(self)
        again._given_values = {column: value for column, (_, value) in self._given(text, blank).items()}
        return again

    def _given(self, text: str, blank: str) -> dict[int, tuple[int, Value]]:
        """The state and the value of each column that a template gives."""
        with as_value_error("the template cannot be read", csv.Error):
            lines = list(csv.reader(io.StringIO(text.strip("\r\n"), newline=""), skipinitialspace=True))
        if len(lines) > 1:
            raise ValueError(f"the template must be one line, got {len(lines)}: put commas between columns")
        given: dict[int, tuple[int, Value] | None] = {}
        for field in lines[0] if lines else []:
            column, value = self._split(field)
            if column in given:
                raise ValueError(f"the template must name a column once, got {self.names[column]!r} twice")
            given[column] = None if value.strip() == blank else self._state_shown(column, value)
        return {column: each for column, each in given.items() if each is not None}

    def describe(self) -> list[str]:
        lines = [
            f"column {name!r}: {column.describe()}"
            for name, column in zip(self.names[:_DESCRIBED], self.columns, strict=False)
        ]
        more = len(self.names) - _DESCRIBED
        return [*lines, f"and {more:,} more columns"] if more > 0 else lines

    def view(self, tokens: Int[Tensor, "b d"]) -> View:
        """A missing value is called so."""
        cells: Symbols = [
            [
                column.display_name(token) if 0 <= token < len(column) else None
                for column, token in zip(self.columns, row, strict=True)
            ]
            for row in tokens.tolist()
        ]
        return Cells(cells, self.names)

    def config(self) -> dict[str, Any]:
        values = [c.known if isinstance(c, Category) and not c.nominal else c.to_config() for c in self.columns]
        return {"names": self.names, "values": values} | ({"left_out": self.left_out} if self.left_out else {})

    def _legal(self, tokens: Int[Tensor, "b d"]) -> np.ndarray:
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
        return legal

    def _split(self, field: str) -> tuple[int, str]:
        """The column that a field of a template names, and what follows the equals sign."""
        for pattern, bare in ((r"{}=(.*)", False), (r"\s*{}\s*=(.*)", True)):
            # the longest name that fits, because a name may hold an equals sign itself
            for index, name in sorted(enumerate(self.names), key=lambda item: (-len(item[1].strip()), len(item[1]))):
                found = re.fullmatch(pattern.format(re.escape(name.strip() if bare else name)), field, re.DOTALL)
                if found:
                    return index, found[1]
        raise ValueError(f"the template must name columns {shortened(self.names)} as column=value, got {field!r}")

    def _state_shown(self, column: int, text: str) -> tuple[int, Value]:
        known = self.columns[column]
        for value in (text, text.strip()):
            if isinstance(known, Category) and value in known.labels:
                state = known.labels.index(value)
                return state, known.known[state]
            [state] = known.states([value]).tolist()
            if state >= 0:
                return state, None if state == known.missing else known.in_type(value)
        what = known.describe() if not isinstance(known, Category) else f"one of {shortened(known.labels)}"
        raise ValueError(f"column {self.names[column]!r} must be {what}, got {text.strip()!r}")


def write_cells(path: Path, columns: dict[str, list[Value]]) -> None:
    """Write a table: Parquet (extra `table`) if `path` ends in `.parquet`, else CSV."""
    if path.suffix.lower() == ".parquet":
        pyarrow, parquet = import_pyarrow()
        table = pyarrow.table([pyarrow.array(values) for values in columns.values()], [*columns])
        with written_whole(path) as part:
            parquet.write_table(table, part)
        return
    lines = [[*columns], *zip(*columns.values(), strict=True)]
    # a bare carriage return is quoted by newer versions of the csv module only
    returns = any("\r" in shown(value) for line in lines for value in line)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL, lineterminator="\n")
    writer.writerows(lines)
    with written_whole(path) as part:
        part.write_bytes(text.getvalue().encode())


def _column(name: str, known: Column | list[Value]) -> Column:
    try:
        return known if isinstance(known, Column) else Category(known)
    except ValueError as error:
        raise ValueError(f"values of column {name!r} must be{str(error).removeprefix('values must be')}") from error


def import_pyarrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`, which only Parquet files need."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError("Parquet needs the extra `table`: pip install 'discrete-markov-bridge[table]'") from error


def _quoted(field: str) -> str:
    plain = not any(symbol in field for symbol in ',"\r\n') and field == field.lstrip()
    return field if plain else '"' + field.replace('"', '""') + '"'

"""Tables of categories: CSV and Parquet files."""

import csv
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dmb.data.base import DataSet
from dmb.data.codecs import Columns
from dmb.data.codecs.base import shortened
from dmb.data.codecs.columns import import_pyarrow
from dmb.data.columns import Value, column_of
from dmb.data.delimited import layout_of
from dmb.data.reading import Progress, as_value_error, existing, opened, suffix_of
from dmb.data.splits import Rows, Splits, tenths

_ROWS_PER_STATE, _FEWEST_STATES, _MOST_STATES = 50, 64, 1024  # of a column of numbers


class Table(NamedTuple):
    """A table as it was read: `codes[row, column]` numbers the distinct values of its column, in any order."""

    names: list[str]
    codes: np.ndarray
    distinct: list[list[Value]]
    notes: list[str]

    def cells(self, name: str) -> list[Value]:
        """A column, row by row; all missing, if the table does not have it."""
        if name not in self.names:
            return [None] * len(self.codes)
        index = self.names.index(name)
        return [self.distinct[index][code] for code in self.codes[:, index].tolist()]


def table(
    path: str | Path,
    codec: Columns | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """A table whose columns each have their own values, split 80 / 10 / 10 by a fixed permutation of the rows.

    Files of delimited values: commas, tabs, semicolons or bars, whichever gives all lines the same number of values.
    An empty value is missing; empty lines are skipped. If the first line is no header (see `dmb.data.delimited`),
    columns are called `column_1`, `column_2`, …. Parquet (extra `table`): integers, floats, booleans, dates and strings
    keep their type, and a null is missing. What kind of column each is, `dmb.data.columns.column_of` finds out.

    Args:
        path: of the file.
        codec: one that exists already, such as a trained model's; columns and values must be its own.
        kinds: of columns by name, where the rules are wrong: `category`, `number`, `date` or `drop`.
        bins: maximum number of states of a column of numbers or dates; default: see `default_bins`.
        progress: called with the bytes read so far and in all.
    """
    path = existing(Path(path))  # a message of its own, without its name before it
    with as_value_error(f"{path}", ValueError):
        content = read_table(path, [] if codec is None else codec.names, progress)
        return as_data_set(content, path.name, str(path.absolute()), codec, kinds, bins)


def as_data_set(
    content: Table,
    name: str,
    source: str = "",
    codec: Columns | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
    test: bool = True,
) -> DataSet:
    """The data set of a table that has been read; the arguments are those of `DataSet` and `table`.

    Without `test`, no row is set apart for a test: the test split is the validation split, and all others train.
    """
    if len(content.codes) == 0:
        raise ValueError("at least 3 rows are needed, got none")
    parts = tenths(len(content.codes))
    if not test:
        parts = [np.sort(np.concatenate([parts[0], parts[2]])), parts[1], parts[1]]
    if codec is None:
        bins = default_bins(len(parts[0])) if bins is None else bins
        codec, notes = _codec(content, parts[0], kinds or {}, bins)
    else:
        notes = []
    tokens = tokens_of(content, codec)
    return DataSet(
        name=name,
        source=source,
        codec=codec,
        **Splits(*(Rows(tokens, codec.num_states, rows=rows) for rows in parts))._asdict(),
        state_counts=torch.tensor(codec.state_counts),
        notes=(*content.notes, *notes, *_missing(tokens, codec)),
    )


def default_bins(rows: int) -> int:
    """Maximum number of states of a column of numbers: one for every 50 training rows, from 64 to 1,024.

    So states are as fine as there are rows to learn them from, and codes that rows share stay apart.

    >>> default_bins(500), default_bins(40_000), default_bins(1_000_000)
    (64, 800, 1024)
    """
    return min(max(rows // _ROWS_PER_STATE, _FEWEST_STATES), _MOST_STATES)


def read_table(path: Path, header: list[str], progress: Progress | None = None) -> Table:
    """The content of a CSV or Parquet file; a first line that is `header` is one, whatever it looks like."""
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, header, progress)


def size_of(path: Path) -> tuple[int, int]:
    """The number of rows and columns of a CSV or Parquet file, at a glance: lines that are no rows are counted too."""
    if path.suffix.lower() == ".parquet":
        about = import_pyarrow()[1].read_metadata(path)
        return about.num_rows, about.num_columns
    file = opened(path)
    return sum(chunk.count(b"\n") for chunk in file.chunks()), layout_of(file).columns


def _read_csv(path: Path, header: list[str], progress: Progress | None) -> Table:
    file = opened(path)
    layout, codes, empty = layout_of(file), array("I"), 0
    lines = file.lines(progress, newline="")
    reader = csv.reader(lines, strict=True, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
    try:
        first = next(reader, [])
        layout = layout._replace(header=layout.header or _named(first) == header)
        names = _named(first if layout.header else [""] * len(first))
        unnamed = [name for name, there in zip(names, first, strict=True) if layout.header and not there]
        check_names(names)
        known: list[dict[Value, int]] = [{} for _ in names]
        for row in reader if layout.header else chain([first], reader):
            if row and len(row) != len(names):
                like = "the header" if layout.header else "the first"
                raise ValueError(f"line {reader.line_num} must have {len(names)} values like {like}, got {len(row)}")
            empty += not row
            for values, value in zip(known, row, strict=False):
                codes.append(values.setdefault(value, len(values)))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    notes = file.notes() + layout.notes(suffix_of(path))
    if unnamed:
        notes.append(f"columns without a name are called by their place: {shortened(unnamed)}")
    if empty:
        notes.append(f"{empty:,} empty {'line' if empty == 1 else 'lines'} skipped")
    return Table(names, np.frombuffer(codes, dtype=np.uint32).reshape(-1, len(names)), [list(v) for v in known], notes)


def _named(header: list[str]) -> list[str]:
    """The names of columns; those that have none are called by their place."""
    return [name or f"column_{number + 1}" for number, name in enumerate(header)]


def _read_parquet(path: Path) -> Table:
    pyarrow, parquet = import_pyarrow()
    with as_value_error("cannot be read as Parquet"):
        content = parquet.read_table(path, memory_map=True)
        content.validate(full=True)
    names, kinds = list(content.column_names), pyarrow.types
    check_names(names)
    codes, distinct = np.empty((content.num_rows, len(names)), dtype=np.uint32), []
    for index, (name, column) in enumerate(zip(names, content.columns, strict=True)):
        if kinds.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        legal = (
            kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_large_string,
            kinds.is_date, kinds.is_timestamp,
        )  # fmt: skip
        if not any(test(column.type) for test in (*legal, kinds.is_null)):
            raise ValueError(f"column {name!r} must hold numbers, booleans, dates or strings, got {column.type}")
        plain = column.cast(pyarrow.string()) if kinds.is_null(column.type) else column
        encoded = plain.combine_chunks().dictionary_encode(null_encoding="encode")
        codes[:, index] = encoded.indices.to_numpy(zero_copy_only=False)
        with as_value_error(f"column {name!r} cannot be read"):  # dates that Python does not know
            distinct.append(encoded.dictionary.to_pylist())
    return Table(names, codes, distinct, [])


def _missing(tokens: np.ndarray, codec: Columns) -> Iterator[str]:
    missing = {
        name: np.count_nonzero(tokens[:, position] == column.missing)
        for position, (name, column) in enumerate(zip(codec.names, codec.columns, strict=True))
        if column.missing is not None
    }
    if missing:
        listed = ", ".join(f"{count:,} in {name!r}" for name, count in [*missing.items()][:8])
        more = f" and more in {len(missing) - 8:,} other columns" if len(missing) > 8 else ""
        yield f"missing values are a value of their own: {listed}{more}"


def check_names(names: list[str]) -> None:
    """Raise a ValueError unless every column has a name of its own."""
    if not names:
        raise ValueError("the file must have a header with the names of the columns, got none")
    if "" in names:
        raise ValueError(f"every column must have a name, got none for column {names.index('') + 1}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column names must be distinct, got {twice!r} twice")


def _codec(content: Table, rows: np.ndarray, kinds: Mapping[str, str], bins: int) -> tuple[Columns, list[str]]:
    """The columns of a table, and notes on them; bins are made of the training split alone, which has these rows."""
    unknown = [name for name in kinds if name not in content.names]
    if unknown:
        raise ValueError(f"no column is called {unknown[0]!r}: there are {shortened(content.names)}")
    found = {}
    for name, values, codes in zip(content.names, content.distinct, content.codes.T, strict=True):
        counts, seen = (np.bincount(part, minlength=len(values)) for part in (codes, codes[rows]))
        found[name] = column_of(name, values, counts, kinds.get(name), bins=bins, in_training=seen)
    columns = {name: column for name, (column, _) in found.items() if column is not None}
    notes = [note for _, note in found.values() if note]
    if not columns:
        raise ValueError(f"no column is left: {'; '.join(notes)}")
    return Columns([*columns], [*columns.values()], [name for name in found if name not in columns]), notes


def tokens_of(content: Table, codec: Columns, gaps: bool = False) -> np.ndarray:
    """The tokens of a table; columns and values must be those of the codec.

    With `gaps`, -1 stands for missing values and for columns that the table lacks, and a number that is new has the
    state of the nearest known one.
    """
    names = [name for name in content.names if name not in codec.left_out]
    if not gaps and set(names) != set(codec.names):
        raise ValueError(f"columns must be {shortened(codec.names)}, got {shortened(content.names)}")
    if not set(names) & set(codec.names):
        raise ValueError(f"the table must have one of the columns {shortened(codec.names)}, got {shortened(names)}")
    kind = np.int64 if gaps else np.min_scalar_type(codec.num_states - 1)
    tokens = np.full((len(content.codes), len(codec.names)), -1 if gaps else 0, dtype=kind)
    for position, (name, column) in enumerate(zip(codec.names, codec.columns, strict=True)):
        if name not in content.names:
            continue
        index = content.names.index(name)
        values, codes = content.distinct[index], content.codes[:, index]
        states = column.states(values, nearest=gaps)
        gone = np.array([value is None or value == "" for value in values], dtype=bool)
        gone = gaps & (gone | (states == column.missing))
        unknown = (states < 0) & ~gone
        if unknown.any():
            first = int(unknown.argmax())
            legal = f"one of {shortened(column.labels)}" if column.kind == "category" else column.describe()
            row = int((codes == first).argmax())
            raise ValueError(f"column {name!r} must be {legal}, got {values[first]!r} in row {row + 1}")
        tokens[:, position] = np.where(gone, -1, states)[codes]
    return tokens

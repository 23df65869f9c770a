"""Tables of categories: CSV and Parquet files."""

import csv
import io
import math
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dmb.data.base import DataSet
from dmb.data.codecs import Columns
from dmb.data.codecs.base import shortened
from dmb.data.codecs.columns import Value, import_pyarrow
from dmb.data.delimited import is_number, layout_of
from dmb.data.home import Progress, existing, reason
from dmb.data.partition import split_rows

MOST_VALUES = 10_000  # of a column; more are likely a number or a name

_MANY_NUMBERS = 20  # different ones in a column: it is likely a measurement, and not a category
_ROWS = 10_000  # read between two reports of progress


class Table(NamedTuple):
    """A table as it was read: `codes[row, column]` numbers the distinct values of its column, in any order."""

    names: list[str]
    codes: np.ndarray
    distinct: list[list[Value]]
    notes: list[str]


def table(path: str | Path, codec: Columns | None = None, progress: Progress | None = None) -> DataSet:
    """A table whose columns each have their own values, split 80 / 10 / 10 by a fixed permutation of the rows.

    Files of delimited values: commas, tabs, semicolons or bars, whichever gives all lines the same number of values.
    Every value is a string, the empty one included; empty lines are skipped. If the first line is no header (see
    `dmb.data.delimited`), columns are called `column_1`, `column_2`, …. Parquet (extra `table`): integers, floats,
    booleans and strings keep their type, and a null is a value as well.

    Args:
        path: of the file.
        codec: one that exists already, such as a trained model's; columns and values must be its own.
        progress: called with the bytes read so far and in all.
    """
    path = existing(Path(path))
    try:
        known = [] if codec is None else codec.names
        content = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, known, progress)
        _check(content)
        codec = _codec(content) if codec is None else codec
        tokens = _tokens(content, codec)
        train, validation, test = split_rows(tokens, codec.num_states)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return DataSet(
        name=path.name,
        source=str(path.absolute()),
        codec=codec,
        train=train,
        validation=validation,
        test=test,
        state_counts=torch.tensor(codec.state_counts),
        notes=(*content.notes, *_notes(content)),
    )


def _read_csv(path: Path, header: list[str], progress: Progress | None) -> Table:
    """A first line that is `header` is one, whatever it looks like."""
    layout, total, codes = layout_of(path), path.stat().st_size, array("H")
    with path.open("rb") as raw, io.TextIOWrapper(raw, layout.encoding, newline="") as file:
        reader = csv.reader(file, strict=True, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
        try:
            first = next(reader, [])
            layout = layout._replace(header=layout.header or first == header)
            names = first if layout.header else [f"column_{number + 1}" for number in range(len(first))]
            _check_names(names)
            known: list[dict[Value, int]] = [{} for _ in names]
            empty = 0
            for row in reader if layout.header else chain([first], reader):
                if not row:
                    empty += 1
                    continue
                if len(row) != len(names):
                    like = "the header" if layout.header else "the first"
                    raise ValueError(
                        f"line {reader.line_num} must have {len(names)} values like {like}, got {len(row)}"
                    )
                for values, value in zip(known, row, strict=True):
                    codes.append(values.setdefault(value, len(values)))
                if max(map(len, known)) > MOST_VALUES:
                    break  # the answer is an error whatever follows
                if progress is not None and reader.line_num % _ROWS == 0:
                    progress(raw.tell(), total)
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            encoding = layout.encoding.removesuffix("-sig").upper()
            raise ValueError(f"not {encoding} near line {reader.line_num + 1}: save it as UTF-8") from error
    notes = list(layout.notes(path.suffix.lower()))
    if empty:
        notes.append(f"{empty:,} empty {'line' if empty == 1 else 'lines'} skipped")
    return Table(names, np.frombuffer(codes, dtype=np.uint16).reshape(-1, len(names)), [list(v) for v in known], notes)


def _read_parquet(path: Path) -> Table:
    pyarrow, parquet = import_pyarrow()
    try:
        content = parquet.read_table(path, memory_map=True)
        content.validate(full=True)
        names = list(content.column_names)
    except Exception as error:  # a file can be broken in any way
        raise ValueError(f"cannot be read as Parquet: {reason(error)}") from error
    _check_names(names)
    codes, distinct = np.empty((content.num_rows, len(names)), dtype=np.uint32), []
    kinds = pyarrow.types
    for index, name in enumerate(names):
        column = content.column(index)
        if kinds.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        legal = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_large_string)
        if not any(test(column.type) for test in (*legal, kinds.is_null)):
            raise ValueError(f"column {name!r} must hold numbers, booleans or strings, got {column.type}")
        encoded = column.cast(pyarrow.string()) if kinds.is_null(column.type) else column
        encoded = encoded.combine_chunks().dictionary_encode(null_encoding="encode")
        codes[:, index] = encoded.indices.to_numpy(zero_copy_only=False)
        distinct.append(encoded.dictionary.to_pylist())
    return Table(names, codes, distinct, [])


def _notes(content: Table) -> Iterator[str]:
    numeric, missing = {}, {}
    for column, (name, values) in enumerate(zip(content.names, content.distinct, strict=True)):
        given = [value for value in values if value not in (None, "")]
        if len(given) > _MANY_NUMBERS and all(is_number(value) for value in given):
            numeric[name] = len(given)
        if len(given) < len(values):
            codes = [code for code, value in enumerate(values) if value in (None, "")]
            missing[name] = int(np.isin(content.codes[:, column], codes).sum())
    if numeric:
        most = max(numeric.values())
        yield f"numbers in {shortened([*numeric])} are read as categories without an order, up to {most:,} in a column"
    if missing:
        listed = ", ".join(f"{count:,} in {name!r}" for name, count in [*missing.items()][:8])
        more = f" and more in {len(missing) - 8:,} other columns" if len(missing) > 8 else ""
        yield f"missing values are a value of their own: {listed}{more}"


def _check_names(names: list[str]) -> None:
    if not names:
        raise ValueError("the file must have a header with the names of the columns, got none")
    if "" in names:
        raise ValueError(f"every column must have a name, got none for column {names.index('') + 1}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column names must be distinct, got {twice!r} twice")


def _check(content: Table) -> None:
    if len(content.codes) == 0:
        raise ValueError("at least 3 rows are needed, got none")
    for name, values in zip(content.names, content.distinct, strict=True):
        if len(values) > MOST_VALUES:
            raise ValueError(
                f"column {name!r} has more than {MOST_VALUES:,} values, too many for categories: remove or round it"
            )
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise ValueError(f"column {name!r} must hold finite numbers, got nan or inf: make it null or a string")


def _codec(content: Table) -> Columns:
    def order(value: Value) -> tuple[bool, Value]:
        return value is not None, 0 if value is None else value  # null first

    return Columns(content.names, [sorted(values, key=order) for values in content.distinct])


def _tokens(content: Table, codec: Columns) -> np.ndarray:
    if content.names != codec.names:
        raise ValueError(f"columns must be {shortened(codec.names)}, got {shortened(content.names)}")
    tokens = np.empty(content.codes.shape, dtype=np.min_scalar_type(codec.num_states - 1))
    for column, values in enumerate(content.distinct):
        states = [codec.state(column, value) for value in values]
        if None in states:
            unknown = states.index(None)
            row = int((content.codes[:, column] == unknown).argmax())
            legal = shortened([str(value) for value in codec.values[column]])
            raise ValueError(
                f"column {codec.names[column]!r} must be one of {legal}, got {values[unknown]!r} in row {row + 1}"
            )
        tokens[:, column] = np.array(states)[content.codes[:, column]]
    return tokens

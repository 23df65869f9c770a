"""Tables of categories: CSV and Parquet files."""

import csv
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dmb.data.base import DataSet
from dmb.data.codecs import Columns
from dmb.data.codecs.base import shortened
from dmb.data.codecs.columns import Value, import_pyarrow
from dmb.data.home import existing
from dmb.data.partition import split_rows

MOST_VALUES = 10_000  # of a column; more are likely a number or a name


class Table(NamedTuple):
    """A table as it was read: `codes[row, column]` numbers the distinct values of its column, in any order."""

    names: list[str]
    codes: np.ndarray
    distinct: list[list[Value]]


def table(path: str | Path, codec: Columns | None = None) -> DataSet:
    """A table whose columns each have their own values, split 80 / 10 / 10 by a fixed permutation of the rows.

    CSV: UTF-8 with a header; every value is a string, the empty one included; empty lines are skipped. Parquet (extra
    `table`): integers, floats, booleans and strings keep their type, and a null is a value as well.

    Args:
        path: of the file.
        codec: one that exists already, such as a trained model's; columns and values must be its own.
    """
    path = existing(Path(path))
    try:
        content = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
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
    )


def _read_csv(path: Path) -> Table:
    codes = array("H")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            _check_names(names)
            known: list[dict[Value, int]] = [{} for _ in names]
            for row in _full_rows(reader, len(names)):
                for values, value in zip(known, row, strict=True):
                    codes.append(values.setdefault(value, len(values)))
                if max(map(len, known)) > MOST_VALUES:
                    break  # the answer is an error whatever follows
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 near line {reader.line_num + 1}") from error
    return Table(names, np.frombuffer(codes, dtype=np.uint16).reshape(-1, len(names)), [list(v) for v in known])


def _full_rows(reader: "csv._reader", width: int) -> Iterator[list[str]]:
    for row in reader:
        if row and len(row) != width:
            raise ValueError(f"line {reader.line_num} must have {width} values like the header, got {len(row)}")
        if row:
            yield row


def _read_parquet(path: Path) -> Table:
    pyarrow, parquet = import_pyarrow()
    try:
        content = parquet.read_table(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"cannot be read as Parquet: {error}") from error
    names = list(content.column_names)
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
    return Table(names, codes, distinct)


def _check_names(names: list[str]) -> None:
    if not names:
        raise ValueError("a header with the names of the columns is needed, got none")
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
            raise ValueError(f"column {name!r} has more than {MOST_VALUES:,} distinct values: is that a category?")
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

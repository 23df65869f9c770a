"""Samples beside real data: how like real rows a model's rows are; whether its records differ, are new, and valid.

Both are asked of other rows and records as well, to say what the figures are worth.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from dmb.app.evaluation.drawing import Stages, draw, unwatched
from dmb.bridges import Bridge
from dmb.data import Columns, DataSet, Records
from dmb.data.codecs import Smiles
from dmb.data.columns import Column, Date, Number, Value
from dmb.data.columns.base import as_number
from dmb.data.columns.date import as_moment
from dmb.data.reading import existing
from dmb.data.sources.table import Table, read_table
from dmb.data.splits import tenths

MOST_ROWS = 10_000  # rows that are drawn and compared, unless told otherwise
MOST_RECORDS = 1000  # records that are drawn and compared, unless told otherwise
_AT_ONCE = 4096  # training records


@dataclass(frozen=True, kw_only=True)
class TableQuality:
    """How like real rows of one split some rows are: the figures of `dmb.tables.quality.Quality`.

    Args:
        split: the split of the real rows.
        what: `samples`, `independent columns` or `training rows`.
        rows: number of real rows, and of samples.
        shapes, pairs, auc, auc_error, accuracy, copies: see there.
        seed: of samples, subsets and folds.
        step: the step of the run's model, where a run has stored the result.
    """

    kind: ClassVar[str] = "tables"

    split: str
    what: str
    rows: int
    shapes: float
    pairs: float
    auc: float
    auc_error: float
    accuracy: float
    copies: float
    seed: int
    step: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.what:<19}  beside {self.rows:,} rows of {self.split}: shapes {self.shapes:.3f}, pairs "
            f"{self.pairs:.3f}, classifier AUC {self.auc:.3f} ± {self.auc_error:.3f}, accuracy {self.accuracy:.3f}, "
            f"nearer to training rows {self.copies:.3f}"
        )


def table_quality(
    bridge: Bridge, data: DataSet, split: str = "test", *, count: int | None = None, seed: int = 0,
    progress: Stages = unwatched,
) -> list[TableQuality]:  # fmt: skip
    """Compare samples, independent columns and training rows with real rows, whose values are read from their file.

    Args:
        bridge: a model of the table.
        data: the data that it learned.
        split: `train`, `validation` or `test`.
        count: how many rows of the split, spread evenly over it, and samples; default: all, at most 10,000.
        seed: of samples, subsets and folds.
        progress: see `drawing.Stages`.
    """
    from dmb.tables.quality import anchors, quality  # scikit-learn, slow to import

    codec = data.codec
    assert isinstance(codec, Columns)
    with progress("reading the rows") as advance:
        table = read_table(existing(Path(data.source)), codec.names, advance)
    parts = dict(zip(data.splits(), tenths(len(table.codes)), strict=True))
    real = _columns(table, codec, parts[split], count or MOST_ROWS)
    training = _columns(table, codec, parts["train"], len(parts["train"]))
    rows = len(real[codec.names[0]])
    with progress("sampling") as advance:
        tokens = torch.cat(list(draw(bridge, rows, calls=bridge.usual_calls, seed=seed, progress=advance)))
    drawn = zip(codec.names, codec.columns, codec.cells(tokens), strict=True)
    samples, found = {name: plain(column, values) for name, column, values in drawn}, []
    for what, compared in ({"samples": samples} | anchors(training, rows, seed)).items():
        with progress(f"comparing {what} with rows of {split}") as advance:
            figures = quality(compared, real, training, seed, advance)
        found.append(TableQuality(split=split, what=what, rows=rows, seed=seed, **figures._asdict()))
    return found


def _columns(table: Table, codec: Columns, rows: np.ndarray, most: int) -> dict[str, list[Value]]:
    """Values of some rows, spread evenly, by the columns that the model has."""
    chosen = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)]
    columns = {}
    for name, column in zip(codec.names, codec.columns, strict=True):
        index = table.names.index(name)
        values = plain(column, table.distinct[index])
        columns[name] = [values[code] for code in table.codes[chosen, index].tolist()]
    return columns


def plain(column: Column, values: list[Value]) -> list[Value]:
    """Values of a column in their own type: numbers that a file has as text are numbers, dates are dates."""
    if isinstance(column, Number):
        numbers = [as_number(value) for value in values]
        return [number if np.isfinite(number) else None for number in numbers]
    if isinstance(column, Date):
        return [as_moment(value) for value in values]
    return [None if value == "" else value for value in values]


@dataclass(frozen=True, kw_only=True)
class RecordQuality:
    """How many of some records differ, are new, and are valid.

    Args:
        split: the split that samples are to be like.
        what: `samples`, or the records of a split.
        count: number of these records.
        different: share of records that remain if copies of each other are left out.
        new: of the different ones, the share of those that are not in the training data.
        valid: share of records that a checker accepts; None without one.
        seed: of the samples.
        step: the step of the run's model, where a run has stored the result.
    """

    kind: ClassVar[str] = "records"

    split: str
    what: str
    count: int
    different: float
    new: float
    valid: float | None = None
    seed: int
    step: int | None = None

    def __str__(self) -> str:
        valid = "" if self.valid is None else f", {self.valid:.1%} valid"
        return f"{self.count:,} {self.what}: {self.different:.1%} different, {self.new:.1%} of these new{valid}"


def record_quality(
    bridge: Bridge, data: DataSet, split: str = "test", *, count: int | None = None, seed: int = 0,
    progress: Stages = unwatched,
) -> list[RecordQuality]:  # fmt: skip
    """Draw as many records as there are in a split, at most 1,000 by default, and look at both.

    Args:
        bridge: a model of records.
        data: the data that it learned.
        split: `train`, `validation` or `test`.
        count: how many, at most.
        seed: of the samples.
        progress: see `drawing.Stages`.
    """
    codec, part = data.codec, data.splits()[split]
    assert isinstance(codec, Records)
    count = min(count or MOST_RECORDS, len(part))
    known = {text for first in range(0, len(data.train), _AT_ONCE)
             for text in codec.decode(data.train[first : first + _AT_ONCE])}  # fmt: skip
    with progress("sampling") as advance:
        drawn = codec.decode(torch.cat(list(draw(bridge, count, seed=seed, progress=advance))))
    check, found = checker(codec), []
    for what, texts in (("samples", drawn), (f"{split} records", codec.decode(part[part.spread(count)]))):
        different, new, valid = shares(texts, known, check)
        found.append(
            RecordQuality(split=split, what=what, count=count, different=different, new=new, valid=valid, seed=seed)
        )
    return found


def shares(
    texts: list[str], known: set[str], check: Callable[[str], bool] | None = None
) -> tuple[float, float, float | None]:
    """The shares of the texts that differ, of these those that are not known, and of all those that pass a check.

    >>> shares(["CC", "CC", "CO"], known={"CO"})
    (0.6666666666666666, 0.5, None)
    """
    different = set(texts)
    valid = None if check is None else sum(map(check, texts)) / len(texts)
    return len(different) / len(texts), len(different - known) / len(different), valid


def checker(codec: Records) -> Callable[[str], bool] | None:
    """Tells valid records: SMILES that RDKit reads, if it is installed; None for all others."""
    if isinstance(codec, Smiles):
        with suppress(ImportError):
            from rdkit import Chem, RDLogger

            RDLogger.DisableLog("rdApp.*")  # a line per molecule that cannot be read
            return lambda text: Chem.MolFromSmiles(text) is not None
    return None

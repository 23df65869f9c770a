"""How like real rows a model's rows are, beside rows that say what such figures are worth."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from dmb.app.evaluation.drawing import Stages, draw, unwatched
from dmb.bridges import Bridge
from dmb.data import Columns, DataSet
from dmb.data.columns import Column, Date, Number, Value
from dmb.data.columns.base import as_number
from dmb.data.columns.date import as_moment
from dmb.data.reading import existing
from dmb.data.sources.table import Table, read_table
from dmb.data.splits import tenths

MOST_ROWS = 10_000  # rows that are drawn and compared, unless told otherwise


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

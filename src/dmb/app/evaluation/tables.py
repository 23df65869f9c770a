"""How like real rows a model's rows are, beside rows that say what such figures are worth."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from dmb.app.evaluation.drawing import Advance, draw
from dmb.bridges import Bridge
from dmb.data import Columns
from dmb.data.columns import Column, Date, Number, Value
from dmb.data.columns.base import as_number
from dmb.data.columns.date import as_moment
from dmb.data.reading import existing
from dmb.data.sources.table import Table, read_table
from dmb.data.splits import tenths

if TYPE_CHECKING:
    from dmb.tables.quality import Quality

MOST_ROWS = 10_000
"""Rows that are drawn and compared, unless told otherwise."""
SPLITS = ("train", "validation", "test")

Progress = Callable[[str], AbstractContextManager[Advance]]


@dataclass(frozen=True, kw_only=True)
class TableQuality:
    """Samples, independent columns and training rows, each compared with real rows of one split."""

    kind: ClassVar[str] = "tables"

    split: str
    rows: int
    """Number of samples, and of real rows."""
    calls: int
    seed: int
    found: dict[str, "Quality"]
    """By what was compared: `samples`, `independent columns`, `training rows`."""

    def records(self) -> dict[str, dict[str, Any]]:
        """What to store, by what was compared."""
        common = {"split": self.split, "rows": self.rows, "seed": self.seed}
        return {what: {"what": what} | common | found._asdict() for what, found in self.found.items()}

    def __str__(self) -> str:
        header = ("", "shapes", "pairs", "classifier AUC", "accuracy", "nearer to training rows")
        lines = [
            (what, f"{q.shapes:.3f}", f"{q.pairs:.3f}", f"{q.auc:.3f} ± {q.auc_error:.3f}", f"{q.accuracy:.3f}",
             f"{q.copies:.3f}") for what, q in self.found.items()
        ]  # fmt: skip
        widths = [max(map(len, cells)) for cells in zip(header, *lines, strict=True)]
        told = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                for line in (header, *lines)]  # fmt: skip
        return "\n".join([f"{self.rows:,} samples beside {self.rows:,} rows of {self.split}:", *told])


class RealRows:
    """What samples are compared with: rows of a split and training rows, with their values as they are in the file.

    Args:
        source: the file.
        codec: of the model; only its columns are looked at.
        split: `train`, `validation` or `test`.
        rows: how many rows of the split, spread evenly over it; default: all, at most 10,000.
        progress: called with the bytes read so far and in all.
    """

    def __init__(
        self,
        source: str | Path,
        codec: Columns,
        split: str = "test",
        rows: int | None = None,
        progress: Advance | None = None,
    ):
        content = read_table(existing(Path(source)), codec.names, progress)
        parts = dict(zip(SPLITS, tenths(len(content.codes)), strict=True))
        self.split, self.codec = split, codec
        self.real = self._columns(content, parts[split], rows or MOST_ROWS)
        self.training = self._columns(content, parts["train"], len(parts["train"]))
        self.rows = len(self.real[codec.names[0]])

    def _columns(self, content: Table, rows: np.ndarray, most: int) -> dict[str, list[Value]]:
        chosen = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)]
        columns = {}
        for name, column in zip(self.codec.names, self.codec.columns, strict=True):
            index = content.names.index(name)
            values = plain(column, content.distinct[index])
            columns[name] = [values[code] for code in content.codes[chosen, index].tolist()]
        return columns


def table_quality(
    bridge: Bridge, real: RealRows, *, calls: int | None = None, seed: int = 0, progress: Progress | None = None
) -> TableQuality:
    """Draw as many rows as there are real ones, and compare.

    Args:
        bridge: a model of the table.
        real: what to compare with.
        calls: network calls per sample; default: `Bridge.usual_calls`.
        seed: of samples, subsets and folds.
        progress: called with what is about to be done, gives a context, whose value is called with what is done and
            all there is to do.
    """
    from dmb.tables.quality import anchors, quality  # scikit-learn, slow to import

    progress = progress or (lambda what: nullcontext(lambda done, total: None))
    codec, calls = real.codec, bridge.usual_calls if calls is None else calls
    with progress("sampling") as advance:
        tokens = torch.cat(list(draw(bridge, real.rows, seed=seed, advance=advance, calls=calls)))
    drawn = zip(codec.names, codec.columns, codec.cells(tokens), strict=True)
    kinds = {"samples": {name: plain(column, values) for name, column, values in drawn}}
    found = {}
    for what, rows in (kinds | anchors(real.training, real.rows, seed)).items():
        with progress(f"comparing {what} with rows of {real.split}") as advance:
            found[what] = quality(rows, real.real, real.training, seed, advance)
    return TableQuality(split=real.split, rows=real.rows, calls=calls, seed=seed, found=found)


def plain(column: Column, values: list[Value]) -> list[Value]:
    """Values of a column in their own type: numbers that a file has as text are numbers, dates are dates."""
    if isinstance(column, Number):
        numbers = [as_number(value) for value in values]
        return [number if np.isfinite(number) else None for number in numbers]
    if isinstance(column, Date):
        return [as_moment(value) for value in values]
    return [None if value == "" else value for value in values]

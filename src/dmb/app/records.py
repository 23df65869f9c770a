"""What a run has recorded, typed: the lines of `metrics.jsonl` and the results in `evaluation.json`."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dmb._core.configuration import check_types, conforms
from dmb._core.files import read_sizes, written_whole
from dmb._core.pretrained import WEIGHTS
from dmb.app.evaluation import ImageQuality, Likelihood, RecordQuality, TableQuality

METRICS, EVALUATION = "metrics.jsonl", "evaluation.json"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of `metrics.jsonl`. A number that was not measured is nan; bits are bits per token."""

    phase: str
    """`matrix`, `score`, `validation` or `calibration`."""
    step: int
    """Steps of Score-learning so far."""
    seconds: float
    """Time spent on the run so far."""
    cpu_seconds: float = math.nan
    """Processor time spent on the run so far; nan throughout if a version that did not record it made a part."""
    cycle: int = 0
    tokens: int = 0
    """Tokens seen in Score-learning so far."""
    prior_bits: float = math.nan
    """J_Q."""
    matrix_step: int = 0
    """Steps of Matrix-learning in this cycle so far (phase `matrix`)."""
    marginal_bits: float = math.nan
    """KL(μ || p_0) of the training data's marginals and their estimate (phases `matrix` and `validation`)."""
    score_bits: float = math.nan
    """J_score: of training batches (phase `score`) or of validation data (phase `validation`)."""
    bits: float = math.nan
    """The bound on validation data (phases `validation` and `calibration`)."""
    stderr: float = math.nan
    """The standard error of `bits`."""
    improved: bool = False
    """Whether this evaluation was the best so far, so that its model was saved."""
    tokens_per_second: float = math.nan
    gradient_norm: float = math.nan
    learning_rate: float = math.nan
    alpha: tuple[float, ...] = ()
    """Rates of the clocks, averaged over positions; empty if none were recorded."""
    log_speeds: tuple[float, ...] = ()
    """Logarithms of the speeds of positions; empty if there are none."""


@dataclass(frozen=True, kw_only=True)
class BoundResult(Likelihood):
    """A result of `dmb evaluate`."""

    step: int | None = None
    """The step of the model that was evaluated."""

    def in_words(self) -> str:
        """The bound with its standard error."""
        return f"{self.bits:.4f} ± {self.stderr:.4f} bits per {self.token} on {self.split}"


@dataclass(frozen=True, kw_only=True)
class ImageResult(ImageQuality):
    """A result of `dmb fid`."""

    step: int | None = None
    """The step of the model that was evaluated."""


@dataclass(frozen=True, kw_only=True)
class TableResult(TableQuality):
    """A result of `dmb evaluate --quality` for a table."""

    step: int | None = None
    """The step of the model that was evaluated."""


@dataclass(frozen=True, kw_only=True)
class RecordResult(RecordQuality):
    """The same for records."""

    step: int | None = None
    """The step of the model that was evaluated."""


def read_metrics(folder: Path) -> list[Record]:
    """All records of a run, in order. A last line that a kill has cut short is left out."""
    file, records = folder / METRICS, list[Record]()
    *lines, last = file.read_bytes().split(b"\n") if file.is_file() else [b""]
    for number, line in enumerate([*lines, last] if _is_json(last) else lines, 1):
        if not _is_json(line):
            raise ValueError(f"{file} is not JSON in line {number}: delete this line")
        records.append(_typed(Record, json.loads(line), file))
    if not all(math.isfinite(record.cpu_seconds) for record in records):
        records = [replace(record, cpu_seconds=math.nan) for record in records]
    return records


def rewind(folder: Path, count: int) -> None:
    """Drop all lines of the metrics but the first `count`: a resumed run makes the others again."""
    file = folder / METRICS
    if file.exists():
        lines = file.read_bytes().splitlines(keepends=True)
        with written_whole(file) as part:
            part.write_bytes(b"".join(line for line in lines[:count] if line.endswith(b"\n")))


def read_bounds(folder: Path) -> dict[str, BoundResult]:
    """The bounds that `dmb evaluate` has written, by split."""
    return _results(BoundResult, read_evaluations(folder), "bits", folder)


def read_images(folder: Path) -> dict[str, ImageResult]:
    """The distances of images that `dmb fid` has written, by split."""
    return _results(ImageResult, read_evaluations(folder).get("images", {}), "fid", folder)


def read_tables(folder: Path) -> list[TableResult]:
    """How like real rows samples are, and what they are compared with, by split."""
    return _parts(TableResult, "tables", folder)


def read_records(folder: Path) -> list[RecordResult]:
    """How many samples differ and are new, and of real records, by split."""
    return _parts(RecordResult, "records", folder)


def read_evaluations(folder: Path) -> dict[str, Any]:
    """`evaluation.json` as it is; empty if there is none."""
    file = folder / EVALUATION
    if not file.is_file():
        return {}
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not JSON: {error}; delete it") from error
    if not conforms(results, dict[str, dict]):
        raise ValueError(f"{file} must hold a JSON object of objects, got {results!r:.80}: delete it")
    return results


def read_parameters(folder: Path) -> int:
    """How many parameters the network of the saved model has, read off the file's table of contents."""
    return sum(size for name, size in read_sizes(folder / WEIGHTS).items() if name.startswith("network."))


def best(records: list[Record]) -> Record | None:
    """The evaluation that the saved model comes from; None before the first."""
    return next((record for record in reversed(records) if record.improved), None)


def validations(records: list[Record]) -> list[Record]:
    """The evaluations on validation data, in order."""
    return [record for record in records if record.phase == "validation"]


def bits_after(records: Sequence[Record], cpu_seconds: float) -> float:
    """The best bound on validation data after this processor time, interpolated linearly between evaluations.

    Such a curve is usually convex, so interpolation overestimates it, and favours no run that lasts longer. After the
    last evaluation it is the best of all; before the first, or if times are unknown, nan.
    """
    known = [record for record in records if math.isfinite(record.cpu_seconds) and math.isfinite(record.bits)]
    times, bits = [record.cpu_seconds for record in known], accumulate((record.bits for record in known), min)
    return float(np.interp(cpu_seconds, times, [*bits], left=math.nan)) if known else math.nan


def _results(kind: type[T], found: dict[str, Any], figure: str, folder: Path) -> dict[str, T]:
    """The results that have this figure, by split."""
    results = {split: values for split, values in found.items() if isinstance(values, dict) and figure in values}
    return {split: _typed(kind, values, folder / EVALUATION) for split, values in results.items()}


def _parts(kind: type[T], name: str, folder: Path) -> list[T]:
    """What `dmb evaluate --quality` has written under a name, of all splits."""
    splits = [found for found in read_evaluations(folder).get(name, {}).values() if isinstance(found, dict)]
    return [_typed(kind, values, folder / EVALUATION) for found in splits for values in found.values()]


def _typed(kind: type[T], values: Any, file: Path) -> T:
    """An object of the dataclass `kind`; null is nan where a number is meant, and unknown names are left out."""
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold JSON objects, got {values!r}")
    if "steps" in values:  # as it was called at first
        values = {"calls": values["steps"], **values}
    known: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = values.get(field.name)
        if isinstance(value, list):
            known[field.name] = tuple(math.nan if item is None else item for item in value)
        elif value is not None:
            known[field.name] = value
        elif field.type is float:
            known[field.name] = math.nan
    try:
        check_types(kind, known)
        return kind(**known)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} has a wrong entry: {error}") from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True

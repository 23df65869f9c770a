"""What a run has recorded, typed: the lines of `metrics.jsonl` and the results in `evaluation.json`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dmb._core.configuration import check_types, conforms, from_json
from dmb._core.files import read_sizes, written_whole
from dmb._core.pretrained import WEIGHTS
from dmb.app.evaluation import ImageQuality, Likelihood, RecordQuality, SamplerBound, TableQuality
from dmb.data.reading import as_value_error

METRICS, EVALUATION = "metrics.jsonl", "evaluation.json"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of `metrics.jsonl`. A number that was not measured is nan; bits are bits per token.

    Args:
        phase: `matrix`, `score`, `validation` or `calibration`.
        step: steps of Score-learning so far.
        seconds: time spent on the run so far.
        cpu_seconds: processor time spent on the run so far; nan throughout if a version that did not record it made a
            part.
        cycle: the cycle of Algorithm 1.
        tokens: tokens seen in Score-learning so far.
        prior_bits: J_Q.
        matrix_step: steps of Matrix-learning in this cycle so far (phase `matrix`).
        marginal_bits: KL(μ || p_0) of the training data's marginals and their estimate (phases `matrix` and
            `validation`).
        score_bits: J_score: of training batches (phase `score`) or of validation data (phase `validation`).
        bits: the bound on validation data (phases `validation` and `calibration`).
        stderr: the standard error of `bits`.
        improved: whether this evaluation was the best so far, so that its model was saved.
        tokens_per_second, gradient_norm, learning_rate: of Score-learning.
        alpha: rates of the clocks, averaged over positions; empty if none were recorded.
        log_speeds: logarithms of the speeds of positions; empty if there are none.
    """

    phase: str
    step: int
    seconds: float
    cpu_seconds: float = math.nan
    cycle: int = 0
    tokens: int = 0
    prior_bits: float = math.nan
    matrix_step: int = 0
    marginal_bits: float = math.nan
    score_bits: float = math.nan
    bits: float = math.nan
    stderr: float = math.nan
    improved: bool = False
    tokens_per_second: float = math.nan
    gradient_norm: float = math.nan
    learning_rate: float = math.nan
    alpha: tuple[float, ...] = ()
    log_speeds: tuple[float, ...] = ()


def read_metrics(folder: Path) -> list[Record]:
    """All records of a run, in order. A last line that a kill has cut short is left out."""
    file, records = folder / METRICS, list[Record]()
    *lines, last = file.read_bytes().split(b"\n") if file.is_file() else [b""]
    for number, line in enumerate([*lines, last], 1):
        try:
            values = from_json(line)
        except ValueError:
            if number > len(lines):
                break
            raise ValueError(f"{file} is not JSON in line {number}: delete this line") from None
        records.append(_typed(Record, values, file))
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


def read_bounds(folder: Path) -> dict[str, Likelihood]:
    """The bounds that `dmb evaluate` has written, by split."""
    file, results = folder / EVALUATION, read_evaluations(folder)
    found = [_typed(Likelihood, values, file) for values in results.values() if "bits" in values]
    return {each.split: each for each in found}


def read_all_calls(folder: Path) -> list[SamplerBound]:
    """All bounds at numbers of calls that `dmb evaluate --calls` has written; nan where a model needs more calls."""
    found = _results(SamplerBound, "impossible", folder)
    return [replace(each, bits=math.inf) if each.impossible else each for each in found]


def read_calls(folder: Path, model: Record | None) -> list[SamplerBound]:
    """Those of one split, in the order of their numbers of calls.

    Args:
        folder: the run folder.
        model: the evaluation that the model comes from, see `best`. Bounds of other models are left out.
    """
    step = None if model is None else model.step
    found = [each for each in read_all_calls(folder) if each.step == step and not math.isnan(each.bits)]
    split = next((name for name in ("test", "validation", "train") if any(each.split == name for each in found)), "")
    return sorted((each for each in found if each.split == split), key=lambda each: each.calls)


def read_images(folder: Path) -> list[ImageQuality]:
    """The distances of images that `dmb fid` has written: one for each split and way to sample."""
    found = _results(ImageQuality, "fid", folder)
    return [*{(each.split, each.sampler, each.calls, each.guidance): each for each in found}.values()]


def read_tables(folder: Path) -> list[TableQuality]:
    """How like real rows samples are, and what they are compared with, by split."""
    return _results(TableQuality, "shapes", folder)


def read_records(folder: Path) -> list[RecordQuality]:
    """How many samples differ and are new, and of real records, by split."""
    return _results(RecordQuality, "different", folder)


def read_evaluations(folder: Path) -> dict[str, Any]:
    """`evaluation.json` as it is; empty if there is none."""
    file = folder / EVALUATION
    if not file.is_file():
        return {}
    try:
        results = from_json(file.read_text(encoding="utf-8"))
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


def _results(kind: type[T], figure: str, folder: Path) -> list[T]:
    """All results that have a figure, wherever they are among the evaluations."""

    def within(found: dict[str, Any]) -> list[dict[str, Any]]:
        inner = [each for each in found.values() if isinstance(each, dict)]
        return [found] if figure in found else [each for values in inner for each in within(values)]

    return [_typed(kind, values, folder / EVALUATION) for values in within(read_evaluations(folder))]


def _typed(kind: type[T], values: Any, file: Path) -> T:
    """An object of the dataclass `kind`; null is nan where a number is meant, and unknown names are left out."""
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold JSON objects, got {values!r}")
    if "steps" in values:  # as it was called at first
        values = {"calls": values["steps"], **values}
    hints = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    numbers = {name: math.nan for name, hint in hints.items() if hint is float}
    known = numbers | {name: _with_nan(values[name]) for name in hints if values.get(name) is not None}
    with as_value_error(f"{file} has a wrong entry", TypeError, ValueError):
        check_types(kind, known)
        return kind(**known)


def _with_nan(value: Any) -> Any:
    """A list as a tuple, with nan for null."""
    return tuple(math.nan if item is None else item for item in value) if isinstance(value, list) else value

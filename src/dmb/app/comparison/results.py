"""What has come of a comparison: the results of every finished run, and their means over seeds."""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.plan import Plan
from dmb.app.records import BoundResult, Record, bits_after, read_bounds, read_metrics, read_parameters, validations


@dataclass(frozen=True)
class RunResult:
    """A finished run: the bound on test data, the last record, and all evaluations on validation data."""

    seed: int
    parameters: int
    test: BoundResult
    last: Record
    curve: tuple[Record, ...]


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row with the means over its finished runs; nan if there is none. Bits are bits per token."""

    name: str
    title: str
    bits: float
    stderr: float
    """A mean, too: all runs are evaluated on the same sequences."""
    deviation: float
    """Standard deviation of `bits` over seeds; nan for one seed, or a bound that is not finite."""
    relative: float
    """How many per cent more bits than the best row it needs."""
    prior_bits: float
    minutes: float
    cpu_minutes: float
    validation_bits_at_equal_cpu_time: float
    """The best bound on validation data after `least_cpu_minutes`."""
    runs: tuple[RunResult, ...]
    failures: dict[int, str]
    """By seed."""


@dataclass(frozen=True)
class Results:
    """All rows, best first; those without a finished run last."""

    plan: Plan
    unigram_bits: float
    """What the training data's marginals alone need on validation data."""
    least_cpu_minutes: float
    """Processor time per run of the row that used least; nan if unknown."""
    rows: tuple[RowResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        figures = {"unigram_bits": self.unigram_bits, "least_cpu_minutes": self.least_cpu_minutes}
        return {"comparison": self.plan.to_json(), **figures, "rows": [asdict(row) for row in self.rows]}


def results(plan: Plan, failures: dict[Path, str]) -> Results:
    """What has come of `plan` so far; `failures` says why runs failed, by folder."""
    jobs = plan.jobs()
    finished = {row: [_run(job) for job in jobs if job.row == row and job.task() is None] for row in plan.rows}
    lowest = _least([_mean(runs, lambda run: run.test.bits) for runs in finished.values()])
    least = _least([_mean(runs, lambda run: run.last.cpu_seconds) for runs in finished.values()])
    rows = []
    for row, runs in finished.items():
        bits = [run.test.bits for run in runs]
        rows.append(RowResult(
            name=row.name, title=row.title, bits=_mean(runs, lambda run: run.test.bits),
            stderr=_mean(runs, lambda run: run.test.stderr),
            deviation=statistics.stdev(bits) if len(bits) > 1 and all(map(math.isfinite, bits)) else math.nan,
            relative=100 * (_mean(runs, lambda run: run.test.bits) / lowest - 1),
            prior_bits=_mean(runs, lambda run: run.test.prior_bits),
            minutes=_mean(runs, lambda run: run.last.seconds / 60),
            cpu_minutes=_mean(runs, lambda run: run.last.cpu_seconds / 60),
            validation_bits_at_equal_cpu_time=_mean(runs, lambda run: bits_after(run.curve, least)), runs=tuple(runs),
            failures={job.seed: failures[job.path] for job in jobs if job.row == row and job.path in failures},
        ))  # fmt: skip
    rows.sort(key=lambda row: (math.isnan(row.bits), row.bits))
    return Results(plan, plan.data.unigram_bits(plan.data.validation), least / 60, tuple(rows))


def _mean(runs: list[RunResult], figure: Callable[[RunResult], float]) -> float:
    return statistics.fmean(map(figure, runs)) if runs else math.nan


def _least(values: list[float]) -> float:
    return min(filter(math.isfinite, values), default=math.nan)


def _run(job: Job) -> RunResult:
    records, test = read_metrics(job.path), read_bounds(job.path)["test"]
    return RunResult(job.seed, read_parameters(job.path), test, records[-1], tuple(validations(records)))

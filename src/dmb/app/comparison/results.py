"""What has come of a comparison: the figures of every finished run, and their means over seeds."""

import math
import statistics
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.plan import Plan
from dmb.app.comparison.rows import Row
from dmb.app.runs import Run
from dmb.pretrained import WEIGHTS


class Validation(NamedTuple):
    """One evaluation on validation data in the course of training."""

    tokens: int
    """Seen in Score-learning by then."""
    cpu_seconds: float
    """Processor time of the run by then, this evaluation included; nan if unknown."""
    bits: float
    """The bound, bits per token."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The figures of one finished run. Bits are bits per token."""

    seed: int
    bits: float
    """The bound on test data."""
    stderr: float
    score_bits: float
    prior_bits: float
    validation_bits: float
    """The best bound on validation data, whose model is the one that is evaluated."""
    step: int
    """The step of that model."""
    minutes: float
    """Of training."""
    cpu_minutes: float
    """Processor time of training; nan if the run, or a part of it, was made by a version that did not record it."""
    tokens: int
    """Seen in Score-learning."""
    tokens_per_second: float
    """Median of the reports."""
    parameters: int
    """Of the network."""
    curve: tuple[Validation, ...]
    """All evaluations on validation data, in order."""

    def validation_bits_after(self, cpu_minutes: float) -> float:
        """The best bound on validation data that the run had reached after so much processor time.

        Between two evaluations it is linear in time. Such a curve is usually convex, so this is rather too high than
        too low: a run that goes on for longer gains nothing by it. After the last evaluation it is the best of all;
        before the first, or if times are unknown, nan.
        """
        known = [point for point in self.curve if math.isfinite(point.cpu_seconds) and math.isfinite(point.bits)]
        if not known:
            return math.nan
        times = [point.cpu_seconds for point in known]
        best = list(accumulate((point.bits for point in known), min))
        return float(np.interp(60 * cpu_minutes, times, best, left=math.nan))


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row: its finished runs, and why others failed. A mean over no runs is nan."""

    row: Row
    runs: tuple[RunResult, ...]
    failures: dict[int, str]
    """By seed."""

    def mean(self, name: str) -> float:
        """Of one figure over the runs."""
        return statistics.fmean(getattr(run, name) for run in self.runs) if self.runs else math.nan

    @property
    def bits(self) -> float:
        """Mean over seeds of the bound on test data."""
        return self.mean("bits")

    @property
    def stderr(self) -> float:
        """Standard error of `bits` as an estimate for these very networks: the mean of those of the runs.

        All look at the same test sequences, so a mean over them is hardly surer than one. It says nothing about how
        other seeds would have done; `deviation` does.
        """
        return self.mean("stderr")

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds of the bound on test data; nan for one seed, or a bound that is not finite."""
        bits = [run.bits for run in self.runs]
        return statistics.stdev(bits) if len(bits) > 1 and all(map(math.isfinite, bits)) else math.nan


@dataclass(frozen=True, kw_only=True)
class Results:
    """All rows, best first; those without a finished run last."""

    plan: Plan
    rows: tuple[RowResult, ...]
    unigram_bits: float
    """What the training data's marginals alone need on validation data."""

    def relative(self, row: RowResult) -> float:
        """How many per cent more bits than the best row it needs."""
        return 100 * (row.bits / self.rows[0].bits - 1)

    @property
    def least_cpu_minutes(self) -> float:
        """Processor time per run (mean over seeds) of the row that used least; nan if that of no row is known."""
        means = [row.mean("cpu_minutes") for row in self.rows]
        return min((minutes for minutes in means if math.isfinite(minutes)), default=math.nan)

    def validation_bits_at_equal_cpu_time(self, row: RowResult) -> float:
        """The bound on validation data that `row` had reached after `least_cpu_minutes`, mean over seeds."""
        minutes = self.least_cpu_minutes
        return statistics.fmean(run.validation_bits_after(minutes) for run in row.runs) if row.runs else math.nan

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        return {
            "comparison": self.plan.to_json(),
            "unigram_bits": self.unigram_bits,
            "least_cpu_minutes": self.least_cpu_minutes,
            "rows": [
                {
                    **asdict(row.row),
                    "bits": row.bits,
                    "stderr": row.stderr,
                    "deviation": row.deviation,
                    "relative": self.relative(row),
                    **{name: row.mean(name) for name in MEANS},
                    "validation_bits_at_equal_cpu_time": self.validation_bits_at_equal_cpu_time(row),
                    "runs": [asdict(run) | {"curve": [point._asdict() for point in run.curve]} for run in row.runs],
                    "failures": row.failures,
                }
                for row in self.rows
            ],
        }


MEANS = ("score_bits", "prior_bits", "validation_bits", "minutes", "cpu_minutes", "tokens", "tokens_per_second",
         "parameters")  # fmt: skip


def results(plan: Plan, failures: dict[Path, str]) -> Results:
    """What has come of `plan` so far.

    Args:
        plan: what was to be run.
        failures: why a run failed, by its folder.
    """
    jobs = plan.jobs()
    rows = [
        RowResult(
            row=row,
            runs=tuple(_run(job) for job in jobs if job.row == row and not job.commands()),
            failures={job.seed: failures[job.path] for job in jobs if job.row == row and job.path in failures},
        )
        for row in plan.rows
    ]
    rows.sort(key=lambda row: (math.isnan(row.bits), row.bits))
    return Results(plan=plan, rows=tuple(rows), unigram_bits=plan.data.unigram_bits(plan.data.validation))


def _run(job: Job) -> RunResult:
    run = Run.open(job.path)
    metrics, test, best = run.metrics(), run.evaluations()["test"], run.best()
    cpu_seconds = _cpu_seconds(metrics)
    speeds = [record["tokens_per_second"] for record in metrics if record.get("tokens_per_second")]
    return RunResult(
        seed=job.seed,
        **{name: _number(test[name]) for name in ("bits", "stderr", "score_bits", "prior_bits")},
        validation_bits=_number(best["bits"]),
        step=best["step"],
        minutes=metrics[-1]["seconds"] / 60,
        cpu_minutes=cpu_seconds[-1] / 60,
        tokens=metrics[-1]["tokens"],
        tokens_per_second=statistics.median(speeds) if speeds else math.nan,
        parameters=_parameters(job.path / WEIGHTS),
        curve=tuple(
            Validation(record["tokens"], seconds, _number(record["bits"]))
            for record, seconds in zip(metrics, cpu_seconds, strict=True)
            if record["phase"] == "validation"
        ),
    )


def _cpu_seconds(metrics: list[dict[str, Any]]) -> list[float]:
    """The processor time of the run at each record; all nan if one lacks it.

    A run that an older version began and this one resumed counts only since then: its times are no use, either.
    """
    seconds = [_number(record.get("cpu_seconds")) for record in metrics]
    return seconds if all(map(math.isfinite, seconds)) else [math.nan] * len(seconds)


def _number(value: float | None) -> float:
    """JSON has no word for nan but null."""
    return math.nan if value is None else float(value)


def _parameters(weights: Path) -> int:
    """Of the network, read off the file's table of contents."""
    with safe_open(weights, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("network.")]  # noqa: SIM118 (not a dictionary)
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)

"""What has come of a comparison: the figures of every finished run, and their means over seeds."""

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.plan import Plan
from dmb.app.comparison.rows import Row
from dmb.app.runs import Run
from dmb.pretrained import WEIGHTS


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
    tokens: int
    """Seen in Score-learning."""
    tokens_per_second: float
    """Median of the reports."""
    parameters: int
    """Of the network."""
    curve: tuple[tuple[int, float], ...]
    """The bound on validation data after so many tokens."""


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

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        return {
            "comparison": self.plan.to_json(),
            "unigram_bits": self.unigram_bits,
            "rows": [
                {
                    **asdict(row.row),
                    "bits": row.bits,
                    "stderr": row.stderr,
                    "deviation": row.deviation,
                    "relative": self.relative(row),
                    **{name: row.mean(name) for name in MEANS},
                    "runs": [asdict(run) for run in row.runs],
                    "failures": row.failures,
                }
                for row in self.rows
            ],
        }


MEANS = ("score_bits", "prior_bits", "validation_bits", "minutes", "tokens", "tokens_per_second", "parameters")


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
    speeds = [record["tokens_per_second"] for record in metrics if record.get("tokens_per_second")]
    return RunResult(
        seed=job.seed,
        **{name: _number(test[name]) for name in ("bits", "stderr", "score_bits", "prior_bits")},
        validation_bits=_number(best["bits"]),
        step=best["step"],
        minutes=metrics[-1]["seconds"] / 60,
        tokens=metrics[-1]["tokens"],
        tokens_per_second=statistics.median(speeds) if speeds else math.nan,
        parameters=_parameters(job.path / WEIGHTS),
        curve=tuple(
            (record["tokens"], _number(record["bits"])) for record in metrics if record["phase"] == "validation"
        ),
    )


def _number(value: float | None) -> float:
    """JSON has no word for nan but null."""
    return math.nan if value is None else float(value)


def _parameters(weights: Path) -> int:
    """Of the network, read off the file's table of contents."""
    with safe_open(weights, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("network.")]  # noqa: SIM118 (not a dictionary)
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)

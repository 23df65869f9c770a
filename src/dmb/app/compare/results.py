"""What has come of a comparison: the results of every finished run, their means over seeds, and a table of those."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Template

from dmb.app.compare.plan import Job, Plan
from dmb.app.evaluation import Likelihood, SamplerBound
from dmb.app.records import Record, bits_after, read_bounds, read_metrics, read_parameters, validations
from dmb.version import __version__

T = TypeVar("T")
HEADER = ("row", "what", "test bits per token", "s.d. over seeds", "above the best", "prior part", "runs",
          "CPU minutes per run", "validation bits at equal CPU time")  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """A finished run: the bound on test data, the last record, and all evaluations on validation data."""

    seed: int
    parameters: int
    test: Likelihood
    last: Record
    curve: tuple[Record, ...]
    calls: tuple[SamplerBound, ...]


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """Means over the finished runs of a row (nan if there is none): bits per token on test data, and CPU minutes.

    `deviation` is the standard deviation of `bits` over seeds, `relative` per cent above the best row.
    """

    name: str
    title: str
    bits: float
    stderr: float  # not smaller with more seeds, for all see the same sequences
    deviation: float
    relative: float
    prior_bits: float
    cpu_minutes: float
    validation_at_end: float
    validation_bits_at_equal_cpu_time: float
    runs: tuple[RunResult, ...]
    calls: tuple[SamplerBound, ...]  # means, too
    failures: dict[int, str]


@dataclass(frozen=True)
class Results:
    """All rows, best first, with what the marginals alone need on validation data, and the CPU time of the fastest."""

    plan: Plan
    unigram_bits: float
    least_cpu_minutes: float
    rows: tuple[RowResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        figures = {"unigram_bits": self.unigram_bits, "least_cpu_minutes": self.least_cpu_minutes}
        return {"version": __version__, "comparison": self.plan.to_json(), **figures, "rows": [*map(asdict, self.rows)]}


def results(plan: Plan, failures: dict[Path, str]) -> Results:
    """What has come of `plan` so far; `failures` says why runs failed, by folder."""
    jobs, rows = plan.jobs(), list[RowResult]()
    finished = {row: [_run(job) for job in jobs if job.row == row and job.task() is None] for row in plan.rows}
    bits = {row: _mean(runs, lambda run: run.test.bits) for row, runs in finished.items()}
    minutes = {row: _mean(runs, lambda run: run.last.cpu_seconds / 60) for row, runs in finished.items()}
    lowest, least = (min(filter(math.isfinite, means.values()), default=math.nan) for means in (bits, minutes))
    for row, runs in finished.items():
        each = [run.test.bits for run in runs]
        rows.append(RowResult(
            name=row.name, title=row.title, bits=bits[row], stderr=_mean(runs, lambda run: run.test.stderr),
            deviation=statistics.stdev(each) if len(each) > 1 and all(map(math.isfinite, each)) else math.nan,
            relative=100 * (bits[row] / lowest - 1), prior_bits=_mean(runs, lambda run: run.test.prior_bits),
            cpu_minutes=minutes[row], runs=tuple(runs), validation_at_end=_mean(runs, lambda run: run.curve[-1].bits),
            validation_bits_at_equal_cpu_time=_mean(runs, lambda run: bits_after(run.curve, 60 * least)),
            calls=tuple(_at_calls(runs)),
            failures={job.seed: failures[job.path] for job in jobs if job.row == row and job.path in failures},
        ))  # fmt: skip
    rows.sort(key=lambda row: (math.isnan(row.bits), row.bits))
    return Results(plan, plan.data.unigram_bits(plan.data.validation), least, tuple(rows))


def _at_calls(runs: list[RunResult]) -> Iterator[SamplerBound]:
    """Means over runs: inf if a run has that, nan if the model needs more calls."""
    for same in zip(*(run.calls for run in runs), strict=True):
        names = ("bits", "stderr", "impossible", "seconds")
        yield replace(same[0], **{name: _mean(same, attrgetter(name)) for name in names})


def _mean(runs: Sequence[T], figure: Callable[[T], float]) -> float:
    return statistics.fmean(map(figure, runs)) if runs else math.nan


def _run(job: Job) -> RunResult:
    records, test = read_metrics(job.path), read_bounds(job.path)["test"]
    return RunResult(
        job.seed, read_parameters(job.path), test, records[-1], tuple(validations(records)), tuple(job.bounds())
    )


def lines(results: Results) -> list[tuple[str, ...]]:
    """One line per row, best first, as `HEADER` has it."""
    lines = list[tuple[str, ...]]()
    for row in results.rows:
        bits = f"{_shown(row.bits, '.4f')} ± {_shown(row.stderr, '.4f')}"
        lines.append((
            row.name, row.title, bits if row.runs else "failed" if row.failures else "not yet",
            _shown(row.deviation, ".4f"), _shown(row.relative, ".2f", " %"), _shown(row.prior_bits, ".5f"),
            f"{len(row.runs)} of {results.plan.seeds}", _shown(row.cpu_minutes, ".1f"),
            _shown(row.validation_bits_at_equal_cpu_time, ".4f"),
        ))  # fmt: skip
    return lines


def table(results: Results) -> str:
    """One line per row; below it, what failed and why."""
    return _markdown(HEADER, lines(results)) + failed(results)


def failed(results: Results) -> str:
    """What failed and why, after an empty line; nothing if nothing did."""
    found = [
        f"- {row.name}, seed {seed}, failed: `{reason.replace('`', chr(39))}`\n"
        for row in results.rows
        for seed, reason in row.failures.items()
    ]
    return "".join(["\n", *found] if found else [])


def calls_table(results: Results) -> str:
    """One line per row and sampler: the bits of what is sampled with each number of network calls."""
    header, lines = ("row", "sampler", *(f"{number} calls" for number in results.plan.calls)), list[tuple[str, ...]]()
    for row in results.rows:
        for sampler, found in groupby(row.calls, attrgetter("how")):
            lines.append((row.name, sampler, *map(_bits, found)))
    return _markdown(header, lines)


def _bits(found: SamplerBound) -> str:
    if math.isnan(found.bits):
        return ""
    return f"{found.bits:.4f} ± {found.stderr:.4f}" if math.isfinite(found.bits) else "inf"


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    lines = [header, ("---", "---", *["---:"] * (len(header) - 2)), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def page(results: Results) -> str:
    """The table, what its figures mean, and the commands that make them."""
    template = Template(Path(__file__).with_name("page.jinja").read_text(encoding="utf-8"), trim_blocks=True)
    minutes = None if math.isnan(results.least_cpu_minutes) else results.least_cpu_minutes
    few = calls_table(results) if results.plan.calls else None
    return template.render(table=table(results), few_calls=few, plan=results.plan, minutes=minutes, version=__version__)


def _shown(value: float, how: str, unit: str = "") -> str:
    return f"{value:{how}}{unit}" if math.isfinite(value) else "–"

"""A comparison from beginning to end: run what is missing, and write down what has come of it."""

from pathlib import Path

from rich.console import Console

from dmb.app.comparison.curves import curves
from dmb.app.comparison.jobs import Job
from dmb.app.comparison.plan import Plan
from dmb.app.comparison.results import Results, results
from dmb.app.comparison.running import run
from dmb.app.comparison.table import page, table
from dmb.app.comparison.watching import Watch
from dmb.app.display import duration
from dmb.app.reports.drawing import to_png
from dmb.files import to_json, written_whole


def compare(plan: Plan, *, workers: int, console: Console) -> int:
    """Train and evaluate what `plan` asks for and its folder lacks, and print the table of all that is there.

    Args:
        plan: what to compare.
        workers: runs side by side.
        console: where to show progress.

    Returns:
        0; 1 if a run failed; 128 plus the number of the signal that stopped it.
    """
    if workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    everything = plan.with_earlier()
    for job in everything.jobs():
        job.refuse_another()
    plan.out.mkdir(parents=True, exist_ok=True)
    everything.write()
    # of earlier rows, those whose evaluation was another than this one are evaluated again, to stand in one table
    earlier = [job for job in everything.jobs() if job not in plan.jobs() and len(job.commands()) == 1]
    jobs, failures = [*plan.jobs(), *earlier], dict[Path, str]()

    def ended(job: Job, failure: str | None) -> None:
        if failure is not None:
            failures[job.path] = failure
        found = _written(everything, failures)
        watch.ended(job, f"failed: {failure}" if failure is not None else _outcome(found, job))

    with Watch(console, jobs).shown() as watch:
        number = run([job for job in jobs if job.commands()], workers=workers, ended=ended, watch=watch.update)
    found = _written(everything, failures)
    if number:
        console.print(f"stopped; go on with: {plan.command()}", highlight=False, markup=False, soft_wrap=True)
        return 128 + number
    print(table(found), end="")
    return 1 if failures else 0


def _written(plan: Plan, failures: dict[Path, str]) -> Results:
    """All that has come of `plan` so far, written to its folder."""
    found = results(plan, failures)
    contents = {
        "results.json": (to_json(found.to_json(), indent=2) + "\n").encode(),
        "table.md": page(found).encode(),
        "curves.png": to_png(curves(found)),
    }
    for name, content in contents.items():
        with written_whole(plan.out / name) as part:
            part.write_bytes(content)
    return found


def _outcome(found: Results, job: Job) -> str:
    [result] = [result for row in found.rows if row.row == job.row for result in row.runs if result.seed == job.seed]
    return f"{result.bits:.4f} ± {result.stderr:.4f} bits per token on test, {duration(60 * result.minutes)}"

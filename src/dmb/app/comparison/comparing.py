"""A comparison from beginning to end: run what is missing, and write down what has come of it."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.plan import RESULTS, Plan
from dmb.app.comparison.results import Results, results
from dmb.app.comparison.running import run as run_all
from dmb.app.comparison.table import page, table
from dmb.app.display import duration
from dmb.files import to_json, written_whole


def compare(plan: Plan, *, workers: int, console: Console) -> int:
    """Train and evaluate what `plan` asks for and its folder lacks, and print the table of all that is there.

    As many runs as there are `workers` go side by side. The exit code is 1 if a run failed, 128 plus the number of the
    signal that stopped it, or 0.
    """
    if workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    whole = plan.with_earlier()
    for job in whole.jobs():
        job.refuse_another()
    plan.out.mkdir(parents=True, exist_ok=True)
    failures: dict[Path, str] = {}
    _written(whole, failures)
    # earlier rows that were evaluated otherwise are evaluated again, to stand in one table
    jobs = plan.jobs() + [job for job in whole.jobs() if job not in plan.jobs() and job.task() == "evaluate"]
    steps, ends = {job: job.step() for job in jobs}, [job for job in jobs if job.task() is None]
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
                   console=console, transient=True, disable=not console.is_terminal)  # fmt: skip
    all_steps = bar.add_task("", total=len(jobs) * plan.steps)

    def watch(running: list[Job]) -> None:
        if console.is_terminal:
            steps.update({job: job.step() for job in running})
            names = ", ".join(f"{job} step {steps[job]}" for job in running)
            bar.update(all_steps, completed=sum(steps.values()), description=names)

    def ended(job: Job, failure: str | None) -> None:
        ends.append(job)
        if failure is not None:
            failures[job.path] = failure
        found = _written(whole, failures)
        outcome = _outcome(found, job) if failure is None else f"failed: {failure}"
        _say(console, f"{job}: {outcome}  ({len(ends)} of {len(jobs)} runs)")

    with bar:
        number = run_all([job for job in jobs if job.task()], workers=workers, ended=ended, watch=watch)
    found = _written(whole, failures)
    if number:
        _say(console, f"stopped; go on with: {plan.commands[-1]}")
        return 128 + number
    print(table(found), end="")
    return 1 if failures else 0


def _written(plan: Plan, failures: dict[Path, str]) -> Results:
    """All that has come of `plan` so far, written to its folder."""
    from dmb.app.comparison.curves import curves  # matplotlib is slow to import
    from dmb.app.reports.drawing import to_png

    found = results(plan, failures)
    texts = {RESULTS: to_json(found.to_json(), indent=2) + "\n", "table.md": page(found)}
    files = {name: text.encode() for name, text in texts.items()} | {"curves.png": to_png(curves(found))}
    for name, content in files.items():
        with written_whole(plan.out / name) as part:
            part.write_bytes(content)
    return found


def _outcome(found: Results, job: Job) -> str:
    [run] = [run for row in found.rows if row.name == job.row.name for run in row.runs if run.seed == job.seed]
    return f"{run.test.bits:.4f} ± {run.test.stderr:.4f} bits per token on test, {duration(run.last.seconds)}"


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)

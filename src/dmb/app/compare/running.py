"""A comparison from beginning to end: run what is missing, side by side, and write down what has come of it."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from rich.console import Console

from dmb._core.files import write_json, written_whole
from dmb.app.compare.plan import RESULTS, Job, Plan, Task
from dmb.app.compare.results import HEADER, Results, calls_table, failed, lines, page, results, table
from dmb.app.display import progress_bar, say, tabulated
from dmb.app.records import read_bounds
from dmb.app.signals import Signals

SHOWN = (0, 2, 3, 4, 6, 7)  # columns of the table that fit into a terminal


def compare(plan: Plan, *, workers: int, console: Console) -> int:
    """Run what the folder of `plan` lacks, and print its table; 0, 1 if a run failed, or 128 + the signal it got."""
    if workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    whole, failures = plan.with_earlier(), dict[Path, str]()
    for job in whole.jobs():
        job.check_same()
    _write(whole, failures)
    own = {job.path for job in plan.jobs()}
    # earlier rows that were evaluated otherwise are evaluated again, to stand in one table
    jobs = [job for job in whole.jobs() if job.path in own or job.task() == "evaluate"]
    steps, left = {job: job.step() for job in jobs}, [job for job in jobs if job.task()]
    bar = progress_bar(console)
    done = bar.add_task("", total=len(jobs) * plan.steps)

    def watch(running: list[Job]) -> None:
        if console.is_terminal:
            steps.update({job: job.step() for job in running})
            names = [f"{job} step {steps[job]}" for job in running]
            bar.update(done, completed=sum(steps.values()), description=", ".join(names))

    def ended(job: Job, failure: str | None) -> None:
        left.remove(job)
        if failure is not None:
            failures[job.path] = failure
        _write(whole, failures)
        outcome = f"failed: {failure}" if failure is not None else read_bounds(job.path)["test"].in_words()
        console.out(f"{job}: {outcome}  ({len(jobs) - len(left)} of {len(jobs)} runs)", highlight=False)

    with bar:
        number = run(left, workers=workers, ended=ended, watch=watch)
    found = _write(whole, failures)
    if number:
        console.out(f"stopped; continue with: {plan.commands[-1]}", highlight=False)
        return 128 + number
    if sys.stdout.isatty():
        tabulated([HEADER[k] for k in SHOWN], [[line[k] for k in SHOWN] for line in lines(found)])
        print(failed(found), end="")
    else:
        print(table(found), end="")
    if whole.calls:
        print("\n" + calls_table(found), end="")
    pictures = "curves.png and calls.png" if whole.calls else "curves.png"
    say(
        console,
        f"{plan.out}: table.md says what columns mean, results.json has every figure, {pictures} the curves",
    )
    return 1 if failures else 0


def _write(plan: Plan, failures: dict[Path, str]) -> Results:
    """All that has come of `plan` so far, written to its folder."""
    from dmb.app.compare.curves import bits_over_calls, curves  # matplotlib is slow to import
    from dmb.app.report.figures import to_png

    found = results(plan, failures)
    plan.out.mkdir(parents=True, exist_ok=True)
    write_json(plan.out / RESULTS, found.to_json())
    files = {"table.md": page(found).encode(), "curves.png": to_png(curves(found))}
    files |= {"calls.png": to_png(bits_over_calls(found))} if any(row.calls for row in found.rows) else {}
    for name, content in files.items():
        with written_whole(plan.out / name) as part:
            part.write_bytes(content)
    return found


def run(
    jobs: Sequence[Job], *, workers: int, ended: Callable[[Job, str | None], None], watch: Callable[[list[Job]], None]
) -> int:
    """Run all tasks of all jobs, `workers` at a time; 0, or the number of the signal that stopped it.

    The tasks of a job follow each other, as long as each succeeds; a failed job does not stop the others. A signal is
    passed to all processes as SIGTERM, so that training saves a checkpoint before it ends. `ended` is called with each
    job that ends, and the reason if it failed; `watch` from time to time with the running jobs.
    """
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // workers))} | os.environ
    waiting, running, tasks, stopping = list(jobs), dict[Job, Popen[bytes]](), dict[Job, Task](), False

    def start(job: Job) -> bool:
        """Start the next task of `job`; False if there is none, or if its last task did not complete."""
        task = job.task()
        if task is None or task == tasks.get(job):
            return False
        tasks[job], command = task, job.command(task)
        job.write_recipe()
        with Path(f"{job.path}.log").open("a", encoding="utf-8") as log:
            print(f"$ {shlex.join(command)}", file=log, flush=True)
            running[job] = Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environment)
        return True

    with Signals() as signals:
        try:
            while running or (waiting and not signals.caught):
                while waiting and len(running) < workers and not signals.caught:
                    start(waiting.pop(0))
                watch(list(running))
                time.sleep(0.3)
                if signals.caught and not stopping:
                    stopping = True
                    for process in running.values():
                        process.terminate()
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    code = running.pop(job).returncode
                    if code == 0 and not signals.caught and start(job):
                        continue
                    if job.task() is None:
                        ended(job, None)
                    elif not signals.caught:
                        lines = Path(f"{job.path}.log").read_text(encoding="utf-8", errors="replace").split("\n")
                        ended(job, f"exit code {code}: {[line.strip() for line in lines if line.strip()][-1]}")
        finally:  # leave no process behind, whatever went wrong
            for process in running.values():
                process.terminate()
                process.wait()
    return signals.caught


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

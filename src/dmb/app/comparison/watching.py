"""What a comparison looks like in a terminal."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from dmb.app.comparison.jobs import Job
from dmb.app.display import duration

EVERY = 1.0
"""Seconds between looks into the folders of running jobs."""
FORWARD = 1 / 3
"""What evaluating a batch costs, in training steps: nothing is differentiated."""


class Watch:
    """A live picture of all runs in a terminal; there and elsewhere (a file, a pipe), one line for each that ends.

    Args:
        console: where to.
        jobs: all runs, those that are finished included.
    """

    def __init__(self, console: Console, jobs: list[Job]):
        self.console = console
        self.jobs = jobs
        self._progress = {job.path: job.progress() for job in jobs}
        self._finished = {job.path for job in jobs if not job.commands()}
        self._before = self._done()
        self._began = self._looked = time.monotonic()
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["Watch"]:
        """While the block runs."""
        if not self.console.is_terminal:
            yield self
            return
        with Live(console=self.console, refresh_per_second=4, transient=True) as self._live:
            yield self

    def update(self, running: list[Job]) -> None:
        """Show how far the jobs that are running have come."""
        if self._live is None or time.monotonic() - self._looked < EVERY:
            return
        self._look(running)
        table = Table.grid(padding=(0, 2))
        for job in running:
            step, bits = self._progress[job.path]
            bound = "" if bits is None else f"validation {bits:.4f} bits"
            doing = "evaluating" if step == job.steps else f"step {step}/{job.steps}"
            table.add_row(job.row.name, f"seed {job.seed}", doing, bound)
        self._live.update(Group(table, self._bar()))

    def ended(self, job: Job, line: str) -> None:
        """Say what has come of `job`."""
        self._look([job])
        self._finished.add(job.path)
        self.console.print(f"{job.name}: {line}  ({self._runs()})", highlight=False, markup=False, soft_wrap=True)

    def _look(self, jobs: list[Job]) -> None:
        self._progress |= {job.path: job.progress() for job in jobs}
        self._looked = time.monotonic()

    def _done(self) -> float:
        """Work done, in training steps."""
        return math.fsum(
            _work(job) if job.path in self._finished else self._progress[job.path].step for job in self.jobs
        )

    def _runs(self) -> str:
        """How many have ended, and how long the others take at the pace so far, if there is one."""
        runs, done = f"{len(self._finished)} of {len(self.jobs)} runs", self._done()
        if done <= self._before:
            return runs
        pace = (time.monotonic() - self._began) / (done - self._before)
        return f"{runs}, {duration(pace * (math.fsum(map(_work, self.jobs)) - done))} left"

    def _bar(self) -> Progress:
        bar = Progress(BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
        bar.add_task(self._runs(), total=math.fsum(map(_work, self.jobs)), completed=round(self._done()))
        return bar


def _work(job: Job) -> float:
    """All there is to do for `job`, in training steps."""
    return job.steps + FORWARD * job.sequences * job.samples / job.recipe.training.batch_size

"""Running jobs side by side, each in processes of its own, safe to interrupt."""

import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence

from dmb.app.comparison.jobs import Job
from dmb.app.signals import Signals

PAUSE = 0.2
"""Seconds between looks at what is running."""


def run(
    jobs: Sequence[Job],
    *,
    workers: int,
    ended: Callable[[Job, str | None], None],
    watch: Callable[[list[Job]], None],
) -> int:
    """Run all commands of all jobs; 0, or the number of the signal that stopped it.

    The commands of a job run one after the other, as long as each succeeds; a job that fails stops no other. SIGINT and
    SIGTERM reach whatever runs as SIGTERM, upon which training saves itself, and are waited for.

    Args:
        jobs: in the order in which they are begun.
        workers: how many run side by side; they share the cores among them, unless
            `OMP_NUM_THREADS` says how many each has.
        ended: called with every job that has come to its end, and with the reason if it failed.
        watch: called now and then with the jobs that are running.
    """
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // workers))} | os.environ
    waiting = deque(jobs)
    running: list[_Child] = []
    with Signals() as signals:
        try:
            while running or (waiting and not signals.caught):
                while waiting and len(running) < workers and not signals.caught:
                    running.append(_Child(waiting.popleft(), environment))
                watch([child.job for child in running])
                time.sleep(PAUSE)
                if signals.caught:
                    for child in running:
                        child.stop()
                for child in list(running):
                    code = child.poll()
                    if code is not None:
                        running.remove(child)
                        if not signals.caught or not child.job.commands():
                            ended(child.job, _failure(child.job, code))
        finally:  # an error of ours leaves none behind
            for child in running:
                child.stop()
            for child in running:
                child.process.wait()
    return signals.caught


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Child:
    """A job under way: one of its commands at a time."""

    def __init__(self, job: Job, environment: dict[str, str]):
        self.job, self.environment = job, environment
        self.waiting = deque(job.commands())
        self.stopped = False
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self.process = self._next()

    def poll(self) -> int | None:
        """The exit code of the last command, or of the first that failed; None while there is something to do."""
        code = self.process.poll()
        if code != 0 or not self.waiting:
            return code
        self.process = self._next()
        return None

    def stop(self) -> None:
        """Ask it, once, to come to an end."""
        self.waiting.clear()
        if not self.stopped:
            self.process.terminate()
        self.stopped = True

    def _next(self) -> subprocess.Popen[bytes]:
        command = self.waiting.popleft()
        with self.job.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment
            )


def _failure(job: Job, code: int) -> str | None:
    """Why there is still something to do, in one line; None if there is not."""
    if not job.commands():
        return None
    lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
    return f"exit code {code}: {next((line.strip() for line in reversed(lines) if line.strip()), '')}"

"""Running jobs side by side, each in processes of its own, safe to interrupt."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from subprocess import DEVNULL, STDOUT, Popen

from dmb.app.comparison.jobs import Job, Task
from dmb.app.signals import Signals

PAUSE = 0.3
"""Seconds between looks at what is running."""


def run(
    jobs: Sequence[Job], *, workers: int, ended: Callable[[Job, str | None], None], watch: Callable[[list[Job]], None]
) -> int:
    """Run all tasks of all jobs, so many side by side; 0, or the number of the signal that stopped it.

    The tasks of a job run one after the other, as long as each succeeds; a job that fails stops no other. On SIGINT or
    SIGTERM, all processes get SIGTERM, which lets training save a checkpoint, and `run` waits for them. `ended` is
    called with each job that ends, and the reason if it failed; `watch` now and then with those that are running.
    """
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // workers))} | os.environ
    waiting, running, tasks, stopping = list(jobs), dict[Job, Popen[bytes]](), dict[Job, Task](), False

    def start(job: Job) -> bool:
        """Start the next task of `job`; False if there is none, or if the last one has left it to be done again."""
        task = job.task()
        if task is None or task == tasks.get(job):
            return False
        tasks[job], command = task, job.command(task)
        with job.log.open("a", encoding="utf-8") as log:
            print(f"$ {shlex.join(command)}", file=log, flush=True)
            running[job] = Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environment)
        return True

    with Signals() as signals:
        try:
            while running or (waiting and not signals.caught):
                while waiting and len(running) < workers and not signals.caught:
                    waiting[0].write_recipe()
                    start(waiting.pop(0))
                watch(list(running))
                time.sleep(PAUSE)
                if signals.caught and not stopping:
                    stopping = True
                    for process in running.values():
                        process.terminate()
                for job, code in [(job, process.poll()) for job, process in running.items()]:
                    if code is None:
                        continue
                    del running[job]
                    if code == 0 and not signals.caught and start(job):
                        continue
                    finished = job.task() is None
                    if finished or not signals.caught:
                        lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
                        last = next(line.strip() for line in reversed(lines) if line.strip())
                        ended(job, None if finished else f"exit code {code}: {last}")
        finally:  # leave no process behind, whatever went wrong
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
    return signals.caught


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

import os
import signal
import sys
from dataclasses import dataclass

import pytest

from dmb.app.compare.plan import Job
from dmb.app.compare.running import cores, run


@dataclass(frozen=True)
class Script(Job):
    """A job whose tasks are Python of one's choice, each done once it has left a file with its number."""

    code: tuple[str, ...]

    def task(self):
        left = [number for number in range(len(self.code)) if not (self.path / str(number)).exists()]
        return left[0] if left else None

    def command(self, task):
        return [
            sys.executable,
            "-c",
            BEGIN + self.code[task].replace("DONE", f"(path / '{task}').touch()"),
            str(self.path),
        ]


BEGIN = "import os, pathlib, signal, sys, time\npath = pathlib.Path(sys.argv[1]); path.mkdir(exist_ok=True)\n"


@pytest.fixture
def scripts(planned):
    def make(*codes):
        jobs = planned(seeds=len(codes)).jobs()[::2]
        return [Script(**vars(job), code=code) for job, code in zip(jobs, codes, strict=True)]

    return make


def outcome(jobs, **options):
    """Exit signal, and what each job that ended came to."""
    ended = {}
    number = run(jobs, ended=lambda job, failure: ended.update({job.seed: failure}), **{"workers": 1, "watch": lambda _: None} | options)  # fmt: skip
    return number, ended


def test_commands_of_a_job_follow_each_other_and_write_to_its_log(scripts):
    jobs = scripts(("print('first'); DONE", "print('second'); DONE"))
    assert outcome(jobs) == (0, {0: None})
    lines = (jobs[0].path.parent / "seed-0.log").read_text().splitlines()
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]


def test_a_job_that_fails_says_why_and_stops_no_other(scripts):
    jobs = scripts(("print('fine')\nsys.exit('out of luck')", "DONE"), ("DONE",), ("pass",))
    number, ended = outcome(jobs)
    assert number == 0
    assert ended[0] == "exit code 1: out of luck"
    assert not (jobs[0].path / "1").exists()
    assert ended[1] is None
    assert ended[2].startswith("exit code 0")  # it said that all is well, and left nothing


@pytest.mark.parametrize("threads", [None, "7"])
def test_no_more_than_so_many_run_side_by_side_and_cores_are_shared_among_them(scripts, monkeypatch, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    code = ("(path / 'threads').write_text(os.environ['OMP_NUM_THREADS']); time.sleep(0.5); DONE", "DONE")
    together = []
    jobs = scripts(code, code, code)
    assert outcome(jobs, workers=2, watch=lambda running: together.append(len(running)))[1] == dict.fromkeys(range(3))
    assert max(together) == 2
    assert {(job.path / "threads").read_text() for job in jobs} == {threads or str(max(1, cores() // 2))}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_what_runs_save_itself_and_starts_nothing_more(scripts, interrupted, number):
    saves = (
        "def save(*_): (path / 'saved').touch(); time.sleep(0.3); (path / 'left').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); (path / 'ready').touch(); time.sleep(60)"
    )
    jobs = scripts((saves, "DONE"), (saves, "DONE"), ("DONE",))

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupted(number, [job.path / "ready" for job in jobs[:2]])
    assert outcome(jobs, workers=2) == (number, {})
    assert all((job.path / "left").exists() and job.task() == 0 for job in jobs[:2])
    assert not jobs[2].path.exists()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_error_of_ours_leaves_no_process_behind(scripts):
    jobs = scripts(("(path / 'pid').write_text(str(os.getpid())); time.sleep(60)",))

    def watch(running):
        if (jobs[0].path / "pid").exists() and (jobs[0].path / "pid").read_text():
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        outcome(jobs, watch=watch)
    with pytest.raises(ProcessLookupError):
        os.kill(int((jobs[0].path / "pid").read_text()), 0)

"""Runs as users start them: in processes of their own, several at once, and killed without warning."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import forks
from commands import dmb_, flags
from dmb.app.locks import working_in
from dmb.training.checkpoint import Checkpoints

SOURCE = Path(__file__).parents[2] / "src"
SETTINGS = {"cycles": 2, "score_steps": 8, "matrix_steps": 3, "evaluate_every": 8, "log_every": 1, "batch_size": 16,
            "width": 16, "blocks": 1, "dropout": 0, "chains": 8, "chain_calls": 2, "evaluate_sequences": 16}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def command(out, *options, settings):
    return ["train", "digits", "--out", out, "--accelerator", "cpu", *options, *flags(**settings)]


def here(out, *options, settings=SETTINGS):
    """What a process does by itself is the same in this one, which has torch loaded already."""
    assert dmb_(*command(out, *options, settings=settings)) == 0


def start(tmp_path, out, *options, settings=SETTINGS):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "DMB_DATA": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-m", "dmb", *command(out, *options, settings=settings)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


def losses(path):
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [record["score_bits"] for record in records if record["phase"] == "score"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "objective"),
    [
        ("ddp", {"matrix_objective": "joint", "schedule": "canonical", "matrix_learning_rate": 0.1}),
        ("fsdp", {}),
        (
            "fsdp",
            {
                "network": "ordered",
                "heads": 2,
                "mask": True,
                "floor": 0,
                "learn": "log",
                "write_order": "learned",
                "matrix_objective": "joint",
                "orders": 2,
            },
        ),
    ],
    ids=["ddp, rates learned on the bound", "fsdp", "fsdp, an order learned by whole paths"],
)
def test_two_processes_learn_what_one_does(tmp_path, strategy, objective):
    here("one", settings=SETTINGS | objective)
    alone = losses(tmp_path / "one")
    options = ("two", "--devices", "2", "--strategy", strategy)
    if strategy == "ddp":  # one command that starts the other process itself
        finish(start(tmp_path, *options, settings=SETTINGS | objective))
    else:
        both = forks.dmb_pair(*command(*options, settings=SETTINGS | objective), output=tmp_path / "words")
        assert forks.codes(*both) == [0, 0], (tmp_path / "words.0").read_text() + (tmp_path / "words.1").read_text()
    assert len(alone) == 16
    assert losses(tmp_path / "two") == pytest.approx(alone, abs=1e-5)
    # and one process can go on where two have stopped
    here("two", "--resume", settings={"cycles": 3})
    assert len(losses(tmp_path / "two")) == 24


@pytest.mark.long
def test_a_run_killed_at_random_moments_resumes_to_the_same_weights(tmp_path):
    settings = SETTINGS | {
        "cycles": 3,
        "score_steps": 40,
        "evaluate_every": 10,
        "dropout": 0.2,
        "infill": 0.2,
        "tied": True,
    }
    here("straight", settings=settings)
    chance = random.Random(0)
    codes = []
    for _ in range(3):
        process = forks.dmb(*command("broken", "--resume", settings=settings), output=os.devnull)
        known = Checkpoints(tmp_path / "broken" / "checkpoints").steps()
        while Checkpoints(tmp_path / "broken" / "checkpoints").steps() == known and process.is_alive():
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.join()
        codes.append(process.exitcode)
    assert codes[0] == -signal.SIGKILL  # the others may have come to their end
    here("broken", "--resume", settings=settings)
    one, other = (Checkpoints(tmp_path / name / "checkpoints").newest() for name in ("straight", "broken"))
    assert one.state["step"] == other.state["step"] == 120
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert losses(tmp_path / "straight") == losses(tmp_path / "broken")


@pytest.mark.long
def test_a_folder_in_use_is_refused_by_all_processes_in_one_line(tmp_path):
    here("run")
    with working_in(tmp_path / "run"):
        both = forks.dmb_pair(
            *command("run", "--resume", "--devices", "2", settings={"cycles": 3}), output=tmp_path / "words"
        )
        codes = forks.codes(*both)
    outputs = [(tmp_path / f"words.{rank}").read_text() for rank in range(2)]
    assert codes == [2, 2], outputs
    assert "another process is training in run" in outputs[0]
    assert "Traceback" not in "".join(outputs)


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves_cleanly(tmp_path, number, code):
    settings = {"score_steps": 100000, "evaluate_every": 100000, "log_every": 5, "width": 16}
    process = forks.dmb(*command("run", settings=settings), output=tmp_path / "words")
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and '"score"' in metrics.read_text()) and process.is_alive():
        time.sleep(0.05)
    os.kill(process.pid, number)
    codes = forks.codes(process)
    output = (tmp_path / "words").read_text()
    assert codes == [code], output
    assert "continue with: dmb resume run" in output
    assert "Traceback" not in output
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] > 0

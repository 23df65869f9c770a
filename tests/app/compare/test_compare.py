import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

import dmb.app.compare.running
from commands import dmb_, flags
from dmb.app.compare import compare

SETTINGS = {"width": 16, "blocks": 1, "evaluate_every": 5, "evaluate_sequences": 32, "chains": 4, "chain_calls": 2}
SET = flags(**SETTINGS)
SMALL = ["--seeds", 1, "--steps", 10, "--sequences", 32]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(Path(dmb.__file__).parents[1]))  # for the processes, wherever they are
    monkeypatch.chdir(tmp_path)


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def instead(tmp_path, monkeypatch):
    """Have this shell script run instead of `python -m dmb`."""

    def put(script):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return put


@pytest.mark.long
def test_two_rows_through_real_processes(tmp_path, capsys, instead):
    """One row was trained and evaluated by hand, and is taken over; the other is new. Then nothing is left to do."""
    row = {
        "score_steps": 10,
        "cycles": 1,
        "matrix_steps": 0,
        "mask": True,
        "init": "gather",
        "floor": 0.0,
        "head": "mean",
        "infill": 0.0,
        "learn": "log",
        "schedule": "loglinear",
        "start": "histogram",
        "matrix_learning_rate": 0.01,
        "matrix_weight_decay": 0.0,
        "matrix_clip": 0.0,
    }
    settings = flags(**SETTINGS | row, patience=0)
    assert dmb_("train", "digits", "--out", "out/mdlm/seed-0", *settings) == 0
    assert dmb_("evaluate", "out/mdlm/seed-0", "--sequences", 32) == 0
    by_hand = contents(tmp_path / "out/mdlm/seed-0")
    capsys.readouterr()
    command = ("compare", "digits", "--out", "out", "--rows", "mdlm", "sedd-uniform", *SMALL, *SET)
    assert dmb_(*command) == 0
    assert json.loads((tmp_path / "out/sedd-uniform/seed-0.json").read_text())["head"] == "score"

    first, out = capsys.readouterr(), tmp_path / "out"
    assert contents(out / "mdlm/seed-0") == by_hand
    assert {file.name for file in out.iterdir()} == {
        "results.json", "table.md", "curves.png", "mdlm", "sedd-uniform"
    }  # fmt: skip
    results = json.loads((out / "results.json").read_text())["rows"]
    assert {row["name"] for row in results} == {"mdlm", "sedd-uniform"}
    for row in results:
        [result] = row["runs"]
        stored = json.loads((out / row["name"] / "seed-0/evaluation.json").read_text())["test"]
        assert (result["test"], stored["sequences"]) == (stored, 32)
        last = json.loads((out / row["name"] / "seed-0/metrics.jsonl").read_text().splitlines()[-1])
        assert 60 * row["cpu_minutes"] == pytest.approx(last["cpu_seconds"])
        assert result["curve"][-1]["cpu_seconds"] == last["cpu_seconds"] > 0
        assert f"| {row['name']} | {row['title']} | {stored['bits']:.4f} ± {stored['stderr']:.4f} |" in first.out
    assert (out / "table.md").read_text().startswith(first.out)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len([line for line in first.err.splitlines() if "bits per token on test" in line]) == 1

    before = contents(out)
    instead("exit 1")
    assert dmb_(*command) == 0
    assert capsys.readouterr().out == first.out
    assert contents(out) == before


def test_a_run_that_fails_is_shown_with_its_last_words(capsys, instead):
    instead('echo "$@" | grep -q mdlm/seed-0 && echo "dmb: no memory" || exit 3; exit 1')
    assert dmb_("compare", "digits", "--out", "out", "--rows", "mdlm", "sedd-uniform", *SMALL, *SET) == 1
    said = capsys.readouterr()
    for row in ("mdlm", "sedd-uniform"):
        assert f"{row} seed 0: failed" in said.err
        assert f"- {row}, seed 0, failed" in said.out
    assert "- mdlm, seed 0, failed: `exit code 1: dmb: no memory`" in said.out
    assert said.out.count("| failed |") == 2


def test_stopped_it_says_how_to_go_on(tmp_path, capsys, instead, interrupted):
    instead("trap 'exit 143' TERM; touch ready; while true; do sleep 0.05; done")

    interrupted(signal.SIGTERM, [tmp_path / "ready"])
    assert dmb_("compare", "digits", "--out", "out", "--rows", "mdlm", *SMALL, *SET) == 143
    said = capsys.readouterr()
    words = "dmb compare digits --recipe digits --out out --rows mdlm --seeds 1 --steps 10 --sequences 32 --samples 1"
    assert f"continue with: {words} --blocks 1 --width 16" in said.err
    assert "failed" not in said.err + (tmp_path / "out/table.md").read_text()


def test_the_rows_can_be_listed_without_doing_anything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dmb.app.compare.running, "Popen", lambda *_, **__: pytest.fail("started"))
    assert dmb_("compare", "digits", "--steps", 10, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    mdlm = lines.index("mdlm: mask, mean head (MDLM, MD4)")
    assert "--score-steps 10" in lines[mdlm + 1]
    assert any(line.startswith("mean-natural: ") for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare letters", "no data set or file called 'letters'"),
        ("compare digits --rows mdlm magic", "no row called 'magic': choose from sedd-uniform, sedd-absorb, "),
        ("compare digits --floor 0.1", "process.floor cannot be set: the row sedd-absorb sets it itself"),
        ("compare digits --rows mdlm --cycles 3", "training.cycles cannot be set: the row mdlm sets"),
        ("compare digits --seed 3", "seed cannot be set in a comparison: --seeds N uses the seeds"),
        ("compare digits --minutes 3", "minutes must be off in a comparison"),
        ("compare digits --steps 7 --rows mdlm mean-natural", "--steps must be a multiple of 2 for the row mean-natural, got 7"),
        ("compare digits --seeds 0", "--seeds must be at least 1, got 0"),
        ("compare digits --workers 0", "--workers must be at least 1, got 0"),
        ("compare digits --rows mdlm --heads 8", "network.heads cannot be set: it means nothing to any row"),
        ("compare digits --tempo 3", "unrecognized options: --tempo, 3"),
        ("compare nowhere.npy", "no data set or file called 'nowhere.npy'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, capsys, arguments, message):
    assert dmb_(*arguments.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"dmb: {message}")
    assert len(said.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_terminal_shows_how_far_the_runs_have_come(tmp_path, planned, made_up, monkeypatch):
    """Half of one run of two is there; the others fail at once, and are said to."""
    plan = planned(seeds=1)
    made_up(plan.jobs()[0], validation=(3.25,), evaluated=0)
    monkeypatch.setattr(sys, "executable", "false")
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    assert compare(plan, workers=2, console=console) == 1
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", console.file.getvalue())  # without colours and moves of the cursor
    assert "mdlm seed 0 step 5, mean-natural seed 0 step 0" in shown
    assert "25%" in shown
    assert "mdlm seed 0: failed: exit code 1" in shown
    assert "(2 of 2 runs)" in shown


def test_a_run_that_was_cut_short_goes_on(tmp_path, planned, made_up, instead):
    """What it is called with: `resume`, and no recipe."""
    plan = planned("mdlm", seeds=1)
    made_up(plan.jobs()[0], validation=(3.25,), evaluated=0)
    instead(f'echo "$@" >> {tmp_path}/said')
    assert compare(plan, workers=1, console=Console(file=io.StringIO())) == 1
    assert (tmp_path / "said").read_text() == f"-m dmb resume {plan.jobs()[0].path}\n"

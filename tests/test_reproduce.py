"""What the first screen of README promises about the paper: each of its commands runs, and prints what it should.

Commands are shortened by their own flags; Text8, which would need a network, gives way to Python's documentation.
"""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

import dmb
from commands import dmb_
from dmb.app.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README, REPRODUCE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/reproduce.md"))
pytestmark = pytest.mark.usefixtures("no_type_checks")


def command(start):
    """The one command of README's first 60 lines that starts so, without its comment."""
    (line,) = [line for line in README.splitlines()[:60] if line.startswith(start)]
    return shlex.split(line, comments=True)


def script(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_command_for_algorithm_1_wakes_all_clocks_and_finds_the_marginals(capsys):
    _, path = command("python examples/paper.py")
    script(path).main(["--cycles", "2", "--matrix-steps", "100", "--score-steps", "60"])
    _, *rows = capsys.readouterr().out.splitlines()
    (kl, before, *sleeping, after, low, high, bound, _), (kl_2, *_) = (
        map(float, re.findall(r"[\d.]+(?:e-?\d+)?", row.split(maxsplit=2)[2])) for row in rows
    )
    assert sleeping == [1e-10, 1.0]
    assert low > 1e-2 * high
    assert after < before / 10
    assert kl_2 < kl / 5
    assert 2 < bound < 4


@pytest.mark.long
def test_the_command_for_theorems_misses_none_by_more_than_rounding(capsys):
    _, path = command("python examples/theorems.py")
    script(path).main()
    errors = {}
    for line in capsys.readouterr().out.splitlines():
        where, *_, error = re.split(r"\s{2,}", line)
        errors[where] = float(error)
    allowed = {"Eq. 1": 1e-9, "Eq. 10": 1e-2, "Theorem 4.7": 0.0}  # differences; samples; an inequality
    assert {where: error for where, error in errors.items() if not 0 <= error <= allowed.get(where, 1e-13)} == {}
    assert {int(n) for where in errors for n in re.findall(r"(?:Eq\.|,) (\d+)(?!\.)", where)} == {*range(1, 15)}
    statements = {f"4.{n}" for n in range(1, 8)} | {"3.1", "5.1", "5.2"}
    assert {n for where in errors for n in re.findall(r"\d\.\d", where)} == statements


@pytest.mark.long
def test_the_command_for_a_row_of_table_1_trains_it_alive(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(dmb.__file__).parents[1]))  # for the processes, wherever they are
    _, *arguments = command("dmb compare text8")
    assert arguments[:2] == ["compare", "text8"]
    arguments[1] = "pydocs"
    small = {"--steps": 16, "--length": 16, "--width": 16}
    arguments = [small.get(flag, value) for flag, value in zip(["", *arguments], arguments, strict=False)]
    shorter = ["--sequences", 16, "--blocks", 1, "--heads", 1, "--evaluate-every", 8, "--evaluate-sequences", 16]
    assert dmb_(*arguments, *shorter, "--chains", 8, "--chain-calls", 2, "--out", tmp_path / "out") == 0
    (log,) = (tmp_path / "out").rglob("metrics.jsonl")
    first, *_, last = [
        r for r in map(json.loads, log.read_text().splitlines()) if r["phase"] == "matrix" and r["cycle"] == 0
    ]
    assert max(first["alpha"][:-1]) < 1e-9 < 1e-3 * max(last["alpha"]) < min(last["alpha"])
    assert last["prior_bits"] < first["prior_bits"] / 2
    assert "dmb-published" in (tmp_path / "out" / "table.md").read_text()


def test_the_row_at_the_papers_size_is_named_too():
    named = re.search(r"`dmb train text8 --recipe (\w+)`", "\n".join(README.splitlines()[:60]))
    assert named[1] == "text8_paper"


def test_the_exact_bridge_draws_a_trace_that_never_rises(tmp_path, capsys):
    example = script("examples/exact_bridge.py")
    example.STARTS, example.CYCLES, example.OUT = 2, 3, tmp_path / "trace.png"
    example.main()
    printed = capsys.readouterr().out
    assert re.findall(r"rises: (\d+)", printed) == ["0", "0"]
    assert abs(float(re.search(r"entropy = (\S+) nats", printed)[1])) < 1e-12
    assert example.OUT.stat().st_size > 10_000


def test_reproduce_has_a_line_for_everything_in_the_paper():
    lines = [line.split("|")[1].strip() for line in REPRODUCE.splitlines() if line.startswith("| ")]
    wanted = [f"Eq. {n}" for n in range(1, 15)] + ["Theorem 3.1", "Proposition 4.1", "Theorem 4.2", "Lemma 4.3"]
    wanted += ["Lemma 4.4", "Lemma 4.5", "Proposition 4.6", "Theorem 4.7", "Proposition 5.1", "Proposition 5.2"]
    wanted += [
        "Lines 4–8",
        "Lines 9–13",
        "Line 14",
        "Table 1",
        "Table 2",
        "Section 5.2",
        "Appendix G.1",
        "Appendix G.2",
    ]
    assert [name for name in wanted if not any(re.match(rf"{re.escape(name)}\b", line) for line in lines)] == []


def test_what_reproduce_refers_to_exists():
    files = re.findall(r"`(?:python )?((?:examples|benchmarks|tests)/\S+?\.py)", REPRODUCE)
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []
    commands = re.findall(r"`dmb (\w+)", REPRODUCE)
    assert commands
    assert [name for name in commands if name not in COMMANDS] == []
    tests = re.findall(r"`(test_\w+)`", REPRODUCE)
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in tests if f"def {name}(" not in sources] == []
    named = re.findall(r"`theory\.(\w+)`", REPRODUCE)
    assert [name for name in named if not hasattr(dmb.theory, name)] == []

"""Bounds of what few calls sample, in a comparison: what is evaluated, and what is made of it."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from commands import dmb_, flags
from dmb._core.files import to_json
from dmb.app.compare import compare
from dmb.app.compare.curves import bits_over_calls
from dmb.app.compare.results import calls_table, page, results
from dmb.app.evaluation import SamplerBound
from dmb.app.runs import Run


@pytest.fixture
def bounded(made_up):
    """Write a run with bounds by sampler, grid and number of calls: bits, or None for a model that needs more calls."""

    def make(job, bounds, **figures):
        made_up(job, bits=2.0, **figures)
        run = Run.open(job.path)
        for (sampler, grid, calls), bits in bounds.items():
            run.add_evaluation(
                SamplerBound(
                    split="test", sampler=sampler, grid=grid, calls=calls, bits=math.nan if bits is None else bits,
                    stderr=0.01, impossible=float(bits == math.inf) / 4, seconds=0.5, sequences=32, of_sequences=180,
                    samples=1, seed=0,
                ),
                run.best(),
            )  # fmt: skip

    return make


def usual(*calls, sampler="ancestral", grid="canonical", bits=2.5):
    return {(sampler, grid, number): bits for number in calls}


def words_after(command, flag):
    """The words that follow a flag, up to the next one."""
    rest = command[command.index(flag) + 1 :]
    return rest[: next((place for place, word in enumerate(rest) if word.startswith("--")), None)]


# -- what is evaluated ------------------------------------------------------------------------------------------------


def test_a_finished_run_without_these_bounds_is_evaluated_and_not_trained(planned, made_up):
    plain, few = (planned("mdlm", seeds=1, calls=calls).jobs()[0] for calls in ((), (4, 16)))
    made_up(plain)
    assert (plain.task(), few.task()) == (None, "evaluate")
    assert "--calls" not in plain.command("evaluate")
    assert words_after(few.command("evaluate"), "--calls") == ["4", "16"]
    assert words_after(few.command("evaluate"), "--sampler") == ["ancestral"]


def test_only_numbers_that_are_missing_are_asked_for(planned, bounded):
    job = planned("mdlm", seeds=1, calls=(16, 4, 8, 4)).jobs()[0]
    bounded(job, usual(4, 8))
    assert words_after(job.command("evaluate"), "--calls") == ["16"]
    bounded_all = replace(job, calls=(4, 8))
    assert bounded_all.task() is None


def test_bounds_on_other_sequences_or_of_an_earlier_model_are_computed_again(planned, bounded):
    job = planned("mdlm", seeds=1, calls=(4,)).jobs()[0]
    bounded(job, usual(4))
    assert job.task() is None
    stored = json.loads((job.path / "evaluation.json").read_text())
    for name, value in {"sequences": 20, "samples": 2, "seed": 1, "step": 3, "split": "train"}.items():
        changed = json.loads(json.dumps(stored))
        changed["calls"]["test"]["ancestral"]["4"][name] = value
        (job.path / "evaluation.json").write_text(json.dumps(changed))
        assert job.task() == "evaluate", name


def test_a_model_that_needs_more_calls_is_not_asked_for_ever(planned, bounded):
    job = planned("autoregressive", seeds=1, calls=(4, 64)).jobs()[0]
    bounded(job, usual(4, bits=None) | usual(64))
    assert job.task() is None


@pytest.mark.parametrize(
    ("row", "samplers", "grids"),
    [
        ("mdlm", ["ancestral", "euler"], ["canonical"]),
        ("sedd-absorb", ["tweedie", "euler"], ["canonical"]),
        ("dmb-published", ["tweedie", "euler"], ["canonical"]),
        ("paths", ["ancestral"], ["canonical", "best"]),
        ("streams", ["ancestral"], ["canonical"]),
        ("autoregressive", ["ancestral"], ["canonical"]),
    ],
)
def test_a_model_is_evaluated_with_its_usual_sampler_and_those_asked_for_that_it_has(row, samplers, grids, planned):
    plan = planned(row, network={"heads": 2}, calls=(4,), sampler=("euler",), seeds=1)
    command = (job := plan.jobs()[0]).command("evaluate")
    assert (words_after(command, "--sampler"), words_after(command, "--grid")) == (samplers, grids)
    bridge = job.recipe.build(plan.data)
    assert [bridge.step_sampler(None), *("euler" for _ in samplers[1:])] == samplers


def test_another_sampler_is_evaluated_beside_the_usual_one(planned, bounded):
    job = planned("mdlm", seeds=1, calls=(4, 8), sampler=("euler",)).jobs()[0]
    bounded(job, usual(4, 8) | usual(8, sampler="euler"))
    assert words_after(job.command("evaluate"), "--calls") == ["4"]


def test_a_folder_takes_more_calls_and_samplers(planned):
    first = planned("mdlm", calls=(4, 8), sampler=("euler",))
    first.out.mkdir()
    (first.out / "results.json").write_text(to_json({"comparison": first.to_json()}))
    whole = planned("mdlm", calls=(16, 4)).with_earlier()
    assert (whole.calls, whole.sampler) == ([4, 8, 16], ["euler"])
    assert planned("mdlm").with_earlier().calls == [4, 8]


def test_a_run_is_one_job_whatever_calls_the_folder_has(planned, made_up, tmp_path, monkeypatch):
    """Two processes in one run folder would disturb each other."""
    first = planned("mdlm", seeds=1, calls=(4,))
    first.out.mkdir()
    (first.out / "results.json").write_text(to_json({"comparison": first.to_json()}))
    made_up(first.jobs()[0])
    asked = []
    monkeypatch.setattr("dmb.app.compare.running.run", lambda jobs, **_: asked.extend(jobs) or 0)
    assert compare(planned("mdlm", seeds=1), workers=2, console=Console(file=io.StringIO())) == 0
    assert [(job.path, job.calls) for job in asked] == [(first.jobs()[0].path, (4,))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--calls", 4, 0), "--calls must be at least 1, got 0"),
        (("--sampler", "euler"), "--sampler is for bounds at numbers of network calls: give --calls, too"),
        (("--calls", 4, "--sampler", "first_hitting"), "--sampler"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    assert dmb_("compare", "digits", "--out", tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


# -- what is made of it -----------------------------------------------------------------------------------------------


@pytest.fixture
def found(planned, bounded):
    """Two seeds of mdlm, whose Euler steps are infinite for one of them; paths, and a network from left to right."""
    plan = planned("mdlm", "paths", "autoregressive", network={"heads": 2}, calls=(4, 64), sampler=("euler",))
    jobs = {(job.row.name, job.seed): job for job in plan.jobs()}
    for seed, extra in ((0, 0.0), (1, 0.2)):
        euler = {("euler", "canonical", 4): math.inf if seed else 9.0, ("euler", "canonical", 64): 3.0 + extra}
        bounded(jobs["mdlm", seed], usual(4, bits=2.7 + extra) | usual(64, bits=2.5) | euler)
    bounded(jobs["paths", 0], usual(4, bits=2.4) | usual(64, bits=2.0) | usual(4, 64, grid="best", bits=1.75))
    bounded(jobs["autoregressive", 0], usual(4, bits=None) | usual(64, bits=1.5))
    return results(plan, {})


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_the_table_has_a_column_per_number_of_calls_and_a_line_per_row_and_sampler(found):
    header, _, *lines = map(cells, calls_table(found).splitlines())
    assert header == ["row", "sampler", "4 calls", "64 calls"]
    assert {tuple(line[:2]): line[2:] for line in lines} == {
        ("mdlm", "ancestral"): ["2.8000 ± 0.0100", "2.5000 ± 0.0100"],
        ("mdlm", "euler"): ["inf", "3.1000 ± 0.0100"],
        ("paths", "ancestral"): ["2.4000 ± 0.0100", "2.0000 ± 0.0100"],
        ("paths", "ancestral, best grid"): ["1.7500 ± 0.0100"] * 2,
        ("autoregressive", "ancestral"): ["", "1.5000 ± 0.0100"],
    }


def test_the_page_and_the_json_hold_them_and_only_if_they_were_asked_for(found, planned, made_up):
    assert calls_table(found) in page(found)
    written = json.loads(to_json(found.to_json()))
    assert (written["comparison"]["calls"], written["comparison"]["sampler"]) == ([4, 64], ["euler"])
    rows = {row["name"]: row["calls"] for row in written["rows"]}
    assert [(each["sampler"], each["calls"], each["bits"], each["impossible"]) for each in rows["mdlm"]] == [
        ("ancestral", 4, pytest.approx(2.8), 0.0), ("ancestral", 64, 2.5, 0.0),
        ("euler", 4, None, 0.125), ("euler", 64, pytest.approx(3.1), 0.0),
    ]  # fmt: skip
    plan = planned("sedd-uniform", seeds=1)
    made_up(plan.jobs()[0])
    assert "calls" not in page(results(plan, {}))


def test_the_picture_draws_bits_over_tokens_per_call(found):
    [axes] = bits_over_calls(found).axes
    assert axes.get_xscale() == "log"
    drawn = {container.get_label(): container.lines[0].get_xydata() for container in axes.containers}
    np.testing.assert_allclose(drawn["mdlm, ancestral"], [[16, 2.8], [1, 2.5]])
    np.testing.assert_allclose(drawn["mdlm, euler"], [[1, 3.1]])
    np.testing.assert_allclose(drawn["autoregressive, ancestral"], [[1, 1.5]])
    assert len(drawn) == 5
    assert len({container.lines[0].get_color() for container in axes.containers}) == 5


@pytest.mark.long
def test_through_real_processes_a_trained_run_is_evaluated_at_these_calls(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    small = flags(width=16, heads=2, blocks=1, evaluate_every=5, evaluate_sequences=32)
    words = (
        "compare",
        "digits",
        "--out",
        "out",
        "--rows",
        "paths",
        "--seeds",
        1,
        "--steps",
        10,
        "--sequences",
        32,
        *small,
    )
    assert dmb_(*words) == 0
    weights = (tmp_path / "out/paths/seed-0/model.safetensors").read_bytes()
    before = (tmp_path / "out/paths/seed-0/metrics.jsonl").read_bytes()
    assert not (tmp_path / "out/calls.png").exists()
    capsys.readouterr()
    assert dmb_(*words, "--calls", 2, 64) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "out/paths/seed-0/model.safetensors").read_bytes() == weights
    assert (tmp_path / "out/paths/seed-0/metrics.jsonl").read_bytes() == before
    stored = json.loads((tmp_path / "out/paths/seed-0/evaluation.json").read_text())["calls"]["test"]
    assert {how: [*found] for how, found in stored.items()} == {
        "ancestral": ["2", "64"], "ancestral, best grid": ["2", "64"]
    }  # fmt: skip
    for how, found in stored.items():
        bits = " | ".join(f"{found[calls]['bits']:.4f} ± {found[calls]['stderr']:.4f}" for calls in ("2", "64"))
        assert f"| paths | {how} | {bits} |" in out
    assert (tmp_path / "out/calls.png").read_bytes().startswith(b"\x89PNG")

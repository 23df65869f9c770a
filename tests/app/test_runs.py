import dataclasses
import io
import json
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import dmb
from dmb.app import recipes
from dmb.app.display import Display, counting
from dmb.app.locks import working_in
from dmb.app.runs import Run
from dmb.app.session import session
from dmb.training import Fact, engine

SETTINGS = {"cycles": 1, "score_steps": 4, "matrix_steps": 1, "evaluate_every": 2, "log_every": 1, "width": 16,
            "blocks": 1, "batch_size": 8, "chains": 4, "chain_calls": 2, "evaluate_sequences": 8, "length": 8,
            "source": "markov"}  # fmt: skip
BASELINE = Fact("marginals alone", "4.5000", "bits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    recipe = recipes.recipe("text_gather").changed(**SETTINGS)
    data = dmb.data.markov(length=8)
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", recipe, data)
    bridge = recipe.build(data)
    reports = list(dmb.train(bridge, data, recipe.training, fabric=engine(accelerator="cpu"), folder=run.path))
    for report in reports:
        run.log(report)
    return run, bridge, reports


def test_a_run_opens_as_what_it_was(finished):
    run, bridge, reports = finished
    again = Run.open(run.path)
    assert again.recipe == run.recipe
    assert again.codec.to_config() == run.codec.to_config()
    assert again.about == run.about
    assert [(record.phase, record.step) for record in again.metrics()] == [(r.phase, r.step) for r in reports]
    assert again.metrics()[-1].bits == reports[-1].bits
    loaded, trained = again.bridge().state_dict(), bridge.state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)
    data = again.data()
    assert again.about["unigram_bits"]["test"] == pytest.approx(data.unigram_bits(data.test))
    torch.testing.assert_close(again.summary()["marginals"], data.marginals())


def test_a_line_that_a_kill_cut_short_is_left_out_and_made_again(finished, tmp_path):
    run, _, reports = finished
    lines = (run.path / "metrics.jsonl").read_text()
    copy = Run(tmp_path, run.recipe, run.codec, run.about)
    (tmp_path / "samples").mkdir()
    (tmp_path / "metrics.jsonl").write_text(lines[:-20])
    assert len(copy.metrics()) == len(reports) - 1
    copy.log(reports[-1])  # as a resumed run does
    assert copy.metrics() == run.metrics()
    again = Run(tmp_path, run.recipe, run.codec, run.about)
    again.log(reports[3])
    assert again.metrics() == run.metrics()[:4]


def test_classes_go_by_names_and_numbers_also_once_the_run_is_opened_again(tmp_path):
    digits = dmb.data.digits()
    names = ("nought", "1", "0", *(f"class {number}" for number in range(3, 10)))
    Run.create(tmp_path / "run", recipes.recipe("digits"), dataclasses.replace(digits, class_names=names))
    run = Run.open(tmp_path / "run")
    assert [run.label(given) for given in ("nought", "class 9", "7", "-1")] == [0, 9, 7, -1]
    assert run.label("0") == 2  # a class of this name is meant before the number
    with pytest.raises(
        ValueError, match=r"--label must be a class \('nought', .* and 2 more\) or its number, got 'owl'"
    ):
        run.label("owl")
    plain = Run(run.path, run.recipe, run.codec, run.about | {"class_names": []})
    with pytest.raises(ValueError, match="--label must be a whole number, got 'owl'"):
        plain.label("owl")


def test_only_one_process_trains_in_a_folder(finished):
    run, _, _ = finished
    with working_in(run.path), pytest.raises(ValueError, match="another process"), working_in(run.path):
        pass


def test_of_two_runs_that_start_at_one_moment_in_one_folder_the_second_is_refused(tmp_path, monkeypatch):
    recipe, create, refused = recipes.recipe("digits"), Run.create, []

    def created(*arguments):
        """While the first makes its folder, the second, which found nothing there either, comes to the same line."""
        with monkeypatch.context() as patch:
            patch.setattr(Run, "create", create)
            with pytest.raises(ValueError, match="another process is training in") as caught:
                session(
                    recipe,
                    tmp_path / "run",
                    resume=False,
                    console=Console(quiet=True),
                    launch=partial(engine, accelerator="cpu"),
                )
            refused.append(caught)
        raise ValueError("far enough")

    monkeypatch.setattr(Run, "create", created)
    with pytest.raises(ValueError, match="far enough"):
        session(
            recipe,
            tmp_path / "run",
            resume=False,
            console=Console(quiet=True),
            launch=partial(engine, accelerator="cpu"),
        )
    assert refused
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_kill_while_the_folder_is_made_does_not_block_it(finished, tmp_path, monkeypatch):
    run, _, _ = finished
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_write_config", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Run.create(tmp_path / "new", run.recipe, run.data())
    with pytest.raises(ValueError, match="not a run folder"):
        Run.open(tmp_path / "new")
    Run.create(tmp_path / "new", run.recipe, run.data())
    assert Run.open(tmp_path / "new").recipe == run.recipe


def test_a_file_that_is_no_run_is_refused(tmp_path):
    for content in ("", "[1, 2]", '{"format": 3}', '{"format": 3, "recipe": {}}'):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match="does not describe a run"):
            Run.open(tmp_path)


def test_a_run_of_an_earlier_format_is_told_from_one_of_another_kind(tmp_path):
    (tmp_path / "run.json").write_text('{"format": 1, "version": "0.1.0"}')
    with pytest.raises(ValueError, match=r"is a run of format 1, made by dmb 0.1.0, .* reads format 3"):
        Run.open(tmp_path)


def test_what_is_left_of_a_summary_is_told_from_a_whole_one(finished, tmp_path):
    shutil.copytree(finished[0].path, tmp_path / "copy")
    file = tmp_path / "copy" / "data.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"data\.safetensors cannot be read"):
        Run.open(tmp_path / "copy").summary()


def test_reports_are_valid_json_without_gaps(finished):
    _, _, reports = finished
    assert [report.index for report in reports] == list(range(len(reports)))
    assert all(json.loads(json.dumps(report.record())) == report.record() for report in reports)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_shows_phase_bound_and_sample(finished, terminal):
    run, _, reports = finished
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with Display(console, run.codec, BASELINE).shown() as display:
        for report in reports:
            display.update(report)
    shown = text.getvalue()
    last = reports[-1]
    assert ("J_Q" if terminal else "Matrix-learning") in shown
    assert f"{last.bits:.4f}" in shown
    assert "4/4" in shown
    if terminal:
        assert run.codec.decode(last.sample)[0] in shown
        assert "marginals alone  4.5000 bits" in shown


def test_the_bar_moves_between_two_reports_and_leaves_out_steps_that_time_will_not_allow(finished, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dmb.app.display.time.monotonic", lambda: now[0])
    report = dataclasses.replace(finished[2][-1], step=200, total_steps=2500, seconds=120.0, seconds_left=30.0)
    display = Display(Console(file=io.StringIO(), width=120), finished[0].codec)
    display.update(report)
    for seconds, words in (
        (0, "80% step 200  30 s left"),
        (15, "90% step 200  15 s left"),
        (99, "100% step 200  0 s left"),
    ):
        now[0] = 100.0 + seconds
        (shown := Console(file=io.StringIO(), width=120)).print(display._picture())
        assert words in shown.file.getvalue()


def test_a_line_tells_where_what_how_fast_and_how_long_to_go(finished):
    _, _, reports = finished
    text = io.StringIO()
    display = Display(Console(file=text, width=200), finished[0].codec)
    score = next(report for report in reports if report.phase == "score")
    display.update(dataclasses.replace(score, step=2, seconds_left=60.0, tokens_per_second=1234.5))
    display.update(reports[-1])
    bound = reports[-1].validation
    best = "  best so far" if reports[-1].improved else ""
    assert text.getvalue().splitlines() == [
        f"cycle 0  step      2/4  Score-learning   loss {score.bits:.4f}  speed 1,234 tokens/s  1 min 00 s left",
        f"cycle 0  step      4/4  validation       bound {bound.bits_per_token:.4f} ± {bound.stderr:.4f} bits per token"
        + best,
    ]


def test_tensorboard_has_pictures_of_images_and_training_beside_validation(finished, tmp_path):
    run, _, reports = finished
    images = dmb.data.digits()
    logged = SimpleNamespace(scalars=[], pictures=[])
    board = SimpleNamespace(
        add_scalar=lambda tag, value, step: logged.scalars.append(tag),
        add_image=lambda tag, pixels, step, dataformats: logged.pictures.append(pixels),
        flush=lambda: None,
    )
    shown = Run(tmp_path, run.recipe, images.codec, {})
    shown._logged, shown._tensorboard = True, board
    shown.log(dataclasses.replace(reports[-1], sample=images.train[torch.arange(1)]))
    assert {"bits/validation", "score_bits/validation"} <= set(logged.scalars)
    assert logged.pictures[0].shape[2] in (1, 3)


def test_a_count_that_takes_long_is_shown_where_nobody_watches_too(monkeypatch):
    text, now = io.StringIO(), iter([0.0, 1.0, 6.0, 6.0, 7.0, 40.0, 40.0])
    monkeypatch.setattr("dmb.app.display.time.monotonic", lambda: next(now))
    with counting(Console(file=text), "counting") as advance:
        for done in (1, 2, 3, 4):
            advance(done, 10)
    assert text.getvalue() == "counting: 2 of 10\ncounting: 4 of 10\n"


def test_samples_may_hold_what_a_terminal_takes_for_markup(finished):
    _, _, reports = finished
    codec = dmb.data.Characters("[]/\\x" + "".join(chr(ord("a") + i) for i in range(22)))
    console = Console(file=io.StringIO(), force_terminal=True)
    with Display(console, codec, BASELINE).shown() as display:
        display.update(dataclasses.replace(reports[-1], sample=torch.tensor([[3, 0, 2, 4, 1]])))
    assert "\\[/x]" in console.file.getvalue()

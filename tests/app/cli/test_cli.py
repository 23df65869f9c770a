import collections
import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dmb
from commands import dmb_, flags
from dmb.app.cli import COMMANDS
from dmb.app.evaluation.images import originals
from dmb.app.recipes import recipe
from dmb.app.records import read_evaluations
from dmb.app.runs import Run

TINY = flags(cycles=1, score_steps=6, matrix_steps=2, evaluate_every=3, log_every=2, width=16, blocks=1, batch_size=8,
             chains=8, chain_calls=2, evaluate_sequences=8)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    assert dmb_("train", "digits", "--out", path, "--accelerator", "cpu", *TINY) == 0
    return path


@pytest.fixture
def run(trained, tmp_path):
    """A run of one's own, to read or to change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_folder_holds_what_it_should(run):
    names = {path.name for path in run.iterdir()}
    assert names >= {"run.json", "config.json", "model.safetensors", "metrics.jsonl", "data.safetensors", "checkpoints",
                     "samples", "tensorboard"}  # fmt: skip
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    phases = ["matrix", "matrix", "score", "validation", "score", "score", "validation"]
    assert [record["phase"] for record in records] == phases
    assert list((run / "tensorboard").glob("events*"))
    bridge = dmb.Bridge.from_pretrained(run)
    assert bridge.sample(2, calls=2).shape == (2, 64)
    assert len(list((run / "samples").iterdir())) == 2


def test_evaluate_prints_json_and_remembers_it(run, capsys):
    assert dmb_("evaluate", run, "--sequences", 20, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    data = dmb.data.digits()
    assert result["unigram_bits"] == pytest.approx(data.unigram_bits(data.test))
    assert result["sequences"] == 20
    assert result["bits"] == pytest.approx(result["score_bits"] + result["prior_bits"])
    assert read_evaluations(run)["test"] == result | {"step": Run.open(run).best().step}


def test_quality_is_refused_for_what_is_no_table(run, capsys):
    assert dmb_("evaluate", run, "--quality") == 2
    said = f"dmb: --quality is for tables and records, and {run} is no model of them: leave it out, or use dmb fid for images\n"
    assert capsys.readouterr().err == said


def test_evaluate_gives_the_same_figure_twice_and_another_with_another_seed(run, capsys):
    for seed in (0, 0, 1):
        assert dmb_("evaluate", run, "--sequences", 20, "--seed", seed, "--json") == 0
    first, second, third = (json.loads(line)["bits"] for line in capsys.readouterr().out.splitlines())
    assert first == second != third


def test_sample_writes_the_datas_own_format(run, tmp_path, capsys):
    assert dmb_("sample", run, "-n", 3, "--calls", 2, "--out", tmp_path / "more.npy") == 0
    images = np.load(tmp_path / "more.npy")
    assert images.shape == (3, 8, 8)
    assert capsys.readouterr().out == f"{tmp_path / 'more.npy'}\n"
    assert dmb_("sample", run, "-n", 2, "--calls", 2, "--json") == 0
    assert np.array(json.loads(capsys.readouterr().out)["tokens"]).shape == (2, 64)


def test_steps_is_another_name_for_calls_and_says_so(run, capsys):
    said = []
    for words in (["--calls", 2], ["--steps", 2], ["--steps=2"]):
        assert dmb_("sample", run, "-n", 2, *words, "--json") == 0
        said.append(capsys.readouterr())
    assert said[0].out == said[1].out == said[2].out
    assert "--steps is another name for --calls" not in said[0].err
    assert all("--steps is another name for --calls" in each.err for each in said[1:])


def test_a_resumed_run_goes_on_with_its_own_settings(run, capsys):
    assert dmb_("resume", run, "--accelerator", "cpu", "--cycles", 2) == 0
    records = Run.open(run).metrics()
    assert [record.step for record in records if record.phase == "validation"] == [3, 6, 9, 12]
    assert Run.open(run).recipe.training.cycles == 2
    assert Run.open(run).recipe.training.batch_size == 8


def test_a_time_limit_of_a_resumed_run_is_not_kept_and_the_end_says_what_to_do_next(run, capsys):
    capsys.readouterr()
    assert dmb_("resume", run, "--accelerator", "cpu", "--cycles", 2, "--minutes", 5) == 0
    again = Run.open(run)
    assert (again.recipe.training.cycles, again.recipe.training.minutes) == (2, None)
    assert f"best model: {again.best().bits:.4f} ± " in capsys.readouterr().err


def test_a_run_whose_time_is_up_says_so(run, capsys):
    assert dmb_("resume", run, "--accelerator", "cpu", "--cycles", 9, "--minutes", 1e-9) == 0
    assert f"time is up; dmb resume {run} --minutes 5 would continue\nbest model" in capsys.readouterr().err


def test_one_command_starts_a_run_or_continues_it(tmp_path, capsys):
    for cycles in (1, 2, 2):
        code = dmb_(
            "train", "digits", "--out", "run", "--resume", "--accelerator", "cpu", *TINY[2:], "--cycles", cycles
        )
        assert code == 0
    assert [record.step for record in Run.open(tmp_path / "run").metrics() if record.phase == "validation"] == [
        3,
        6,
        9,
        12,
    ]


def test_a_run_is_not_continued_on_other_data(run, capsys):
    capsys.readouterr()
    assert dmb_("train", "pydocs", "--out", run, "--resume") == 2
    assert "is a run on digits, not on pydocs: choose another --out" in capsys.readouterr().err


def test_a_run_that_is_over_says_why_and_how_to_train_for_longer(run, capsys):
    capsys.readouterr()
    assert dmb_("resume", run, "--accelerator", "cpu") == 0
    assert "nothing left to do: all steps are done; --cycles 2 trains" in capsys.readouterr().err
    assert dmb_("resume", run, "--accelerator", "cpu", "--cycles", 2, "--tolerance", 99) == 0
    assert (
        "nothing left to do: the bound has fallen below --tolerance 99.0; --tolerance 0 continues"
        in capsys.readouterr().err
    )
    impatient = flags(cycles=40, learning_rate=1e-12, ema=0.0, patience=2, tolerance=0.0)
    assert dmb_("resume", run, "--accelerator", "cpu", *impatient) == 0
    done = Run.open(run).metrics()
    assert done[-1].step < 240
    assert "stopped early: 2 evaluations have not improved; --patience 4, or 0 (no limit)" in capsys.readouterr().err
    assert dmb_("resume", run, "--accelerator", "cpu", "--minutes", 1) == 0
    assert "nothing left to do: 2 evaluations have not improved; --patience" in capsys.readouterr().err
    assert Run.open(run).metrics() == done
    assert (
        dmb_("resume", run, "--accelerator", "cpu", "--cycles", 80) == 0
    )  # more steps are wanted: patience begins anew
    assert Run.open(run).metrics()[-1].step > done[-1].step


def test_a_run_says_how_to_repeat_it_and_the_repetition_is_the_same(run, tmp_path, capsys):
    command = json.loads((run / "run.json").read_text())["command"]
    words = shlex.split(command)
    assert words[:5] == ["dmb", "train", "digits", "--recipe", "digits"]
    again = [*words[1:-1], tmp_path / "again", "--accelerator", "cpu"]
    assert dmb_(*again) == 0
    assert Run.open(tmp_path / "again").recipe == Run.open(run).recipe
    assert dmb_("train", "--recipe", run, "--out", tmp_path / "third", "--accelerator", "cpu") == 0
    first, *others = (
        dmb.Bridge.from_pretrained(path).state_dict() for path in (run, tmp_path / "again", tmp_path / "third")
    )
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_what_the_data_are_decides_the_recipe(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 300)
    (tmp_path / "survey.csv").write_text("colour,size\n" + "red,big\nblue,small\n" * 50)
    np.save(tmp_path / "tokens.npy", np.zeros((50, 4), dtype=np.uint8))
    np.save(tmp_path / "long.npy", np.full((50, 512), 255, dtype=np.uint8))
    expected = {"novel.txt": "64", "survey.csv": "columns", "tokens.npy": "mlp", "long.npy": "ordered", "digits": "mlp"}
    for source, word in expected.items():
        assert dmb_("train", source, "--show") == 0
        shown = capsys.readouterr().out
        assert f"--network {word}" in shown or f"--length {word}" in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["evaluate run", "resume run --cycles 2", "report run"])
def test_data_that_have_changed_are_noticed(tmp_path, capsys, command):
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 300)
    assert dmb_("train", "novel.txt", "--out", "run", "--accelerator", "cpu", *TINY, *flags(length=8, heads=2)) == 0
    # the same letters as often: only their order has changed
    (tmp_path / "novel.txt").write_text("the mat sat on the cat. " * 300)
    capsys.readouterr()
    if command == "report run":
        assert dmb_(*command.split()) == 0  # it needs no data but what the folder holds
    else:
        assert dmb_(*command.split()) == 2
        assert "novel.txt has changed since the run began: restore it, or train again" in capsys.readouterr().err


def test_a_run_that_goes_on_keeps_its_model(run, capsys):
    capsys.readouterr()
    assert dmb_("resume", run, "--width", 32, "--head", "score") == 2
    assert "head, network.width cannot change during a run" in capsys.readouterr().err
    assert Run.open(run).recipe.network.width == 16


def test_the_first_lines_say_what_was_understood_and_how_long_it_takes(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 300)
    assert dmb_("train", "novel.txt", "--out", "run", "--accelerator", "cpu", *TINY, *flags(length=8, heads=2)) == 0
    said = capsys.readouterr().err
    assert "novel.txt" in said.splitlines()[0]
    assert "6 steps of Score-learning by whole paths, which learn the order as well" in said
    assert "about " in said
    assert "dmb resume run" in said


def test_where_samples_cannot_go_is_said_before_they_are_drawn(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dmb.Bridge, "trajectory", lambda *_, **__: pytest.fail("drawn"))
    capsys.readouterr()
    for out, message in (("x.foo", "must end in .npy or .png"), ("nowhere/x.npy", "no folder nowhere")):
        assert dmb_("sample", run, "--out", out) == 2
        assert message in capsys.readouterr().err


def test_without_a_standard_error_the_json_is_still_json(run, capsys):
    assert dmb_("evaluate", run, "--sequences", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["stderr"] is None


def test_show_prints_every_setting_and_does_nothing(tmp_path, capsys):
    assert dmb_("train", "text8", "--recipe", "text8_paper", "--show", "--compile") == 0
    shown = capsys.readouterr().out.splitlines()
    paper = flags(head="unscaled_score", blocks=12, width=768, length=256, batch_size=512, learning_rate=0.0003,
                  weight_decay=0.01, schedule="loglinear", init="gather", ema=0.9999)  # fmt: skip
    pairs = {" ".join(pair) for pair in zip(paper[::2], paper[1::2], strict=True)}
    assert pairs | {"--compile"} <= set(shown)
    assert len(shown) == len(recipe("text8").settings()) - 1  # all but the source
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_table_comes_back_as_a_table(tmp_path, capsys):
    generator = np.random.default_rng(3)
    colours = ["red", "green", "blue, dark", 'a "quoted" one']
    names = ["colour", "size", "yes", "month", "grade", "city"]
    columns = [
        generator.choice(colours, 800, p=[0.4, 0.3, 0.2, 0.1]),
        generator.choice(["S", "M", "L"], 800),
        generator.choice(["yes", "no"], 800, p=[0.9, 0.1]),
        generator.choice([f"{month:02d}" for month in range(1, 13)], 800),
        generator.choice(list("ABCDE"), 800),
        generator.choice([f"city {index}" for index in range(20)], 800),
    ]
    with open(tmp_path / "survey.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, *zip(*columns, strict=True)])
    settings = flags(cycles=2, score_steps=150, evaluate_every=150, width=32, chains=64, batch_size=64)
    run = tmp_path / "run"
    assert dmb_("train", tmp_path / "survey.csv", "--out", run, "--accelerator", "cpu", *settings) == 0
    assert dmb_("sample", run, "-n", 600, "--calls", 8, "--out", tmp_path / "more.csv") == 0
    with open(tmp_path / "more.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == names
    assert len(rows) == 600
    for index, column in enumerate(columns):
        truth, seen = collections.Counter(column), collections.Counter(row[index] for row in rows)
        assert seen.keys() <= truth.keys()
        distance = sum(abs(truth[value] / 800 - seen[value] / 600) for value in truth) / 2
        assert distance < 0.13  # 20 cities drawn 600 and 800 times differ by 0.07 on average
    capsys.readouterr()
    assert dmb_("sample", run, "-n", 4, "--calls", 4, "--template", "colour=red, yes=no", "--json") == 0
    texts = json.loads(capsys.readouterr().out)["text"]
    assert all("colour=red" in text and "yes=no" in text for text in texts)
    assert dmb_("sample", run, "--length", 2) == 2
    assert "--length is for text and records; samples" in capsys.readouterr().err


def test_text_is_trained_sampled_and_filled_in(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text("der Fluß ist tief. " * 400, encoding="utf-8")
    run = tmp_path / "run"
    assert dmb_("train", "novel.txt", "--out", run, "--accelerator", "cpu", *TINY, *flags(length=19, heads=2)) == 0
    assert dmb_("sample", run, "-n", 1, "--calls", 4, "--template", "der ____ ist") == 0
    text = capsys.readouterr().out.rstrip("\n")
    assert len(text) == 19
    assert text.startswith("der ")
    assert text[8:12] == " ist"
    assert dmb_("sample", run, "-n", 2, "--calls", 4, "--length", 50, "--json") == 0
    said = capsys.readouterr()
    assert [len(text) for text in json.loads(said.out)["text"]] == [50, 50]
    [windows] = said.err.splitlines()  # and nothing of the order, which is that for 4 calls
    assert windows == "written in windows of 19, each given half of the one before"
    assert dmb_("sample", run, "-n", 2, "--calls", 4, "--length", 7, "--json") == 0
    assert [len(text) for text in json.loads(capsys.readouterr().out)["text"]] == [7, 7]
    for length in (0, -5):
        assert dmb_("sample", run, "--length", length) == 2
        assert f"--length must be at least 1, got {length}" in capsys.readouterr().err
    assert dmb_("evaluate", run, "--split", "validation") == 0
    (tmp_path / "other.txt").write_text("der Fluß ist breit! " * 400, encoding="utf-8")
    assert dmb_("evaluate", run, "--data", "other.txt") == 2
    assert "symbol 'b' at offset 13" in capsys.readouterr().err


def an_empty_file(tmp_path):
    (tmp_path / "empty.txt").touch()


def a_short_file(tmp_path):
    (tmp_path / "short.txt").write_text("too short")


def a_full_folder(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()


def a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()


def an_old_run(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text('{"format": 0, "version": "0.0.1"}')


def no_preparation(tmp_path):
    pass


@pytest.mark.parametrize(
    ("prepare", "command", "message"),
    [
        (no_preparation, "trian digits", "no command called 'trian': did you mean train?"),
        (no_preparation, "train nothing", "no data set or file called 'nothing'"),
        (a_short_file, "train shrot.txt", "did you mean 'short.txt'?"),
        (no_preparation, "train digits --recipe digit", "no recipe called 'digit': did you mean digits?"),
        (no_preparation, "train digits --recipe mine.py:deep", "no Python file called"),
        (an_empty_file, "train empty.txt", "empty"),
        (a_short_file, "train short.txt", "longer than"),
        (no_preparation, "train", "DATA is missing: give a file"),
        (no_preparation, "train digits --witdh 64", "--witdh, 64; did you mean --width?"),
        (no_preparation, "train digits --lr 1e-3", "--lr, 1e-3; did you mean --learning-rate?"),
        (no_preparation, "train digits --epochs 3", "did you mean --minutes or --score-steps?"),
        (no_preparation, "train digits --device cpu", "did you mean --accelerator cpu"),
        (no_preparation, "train digits --data x", "did you mean DATA without a flag?"),
        (no_preparation, "evaluate run --lr 1", "unrecognized options: --lr, 1; see dmb evaluate --help"),
        (no_preparation, "train text --data x.txt", "text is a recipe, and no file or folder: name the data first"),
        (no_preparation, "train images photos", "dmb train DATA --recipe images"),
        (no_preparation, "train digits photos", "unexpected argument: photos; see"),
        (no_preparation, "sample", "missing: RUN (the run folder); see dmb sample --help"),
        (no_preparation, "impute", "missing: RUN (the run folder, of a table), FILE (the file with gaps"),
        (no_preparation, "help trian", "no command called 'trian': did you mean train?"),
        (no_preparation, "train digits --cycles three", "--cycles must be a whole number, got 'three'; see"),
        (no_preparation, "train digits --length ten", "--length must be a whole number, got 'ten'; see"),
        (no_preparation, "train digits --minutes ten", "--minutes must be a number, got 'ten'; see"),
        (no_preparation, "train digits --order up", "invalid choice 'up' for argument '--order'"),
        (no_preparation, "train digits --cycles", "missing value for argument '--cycles'"),
        (no_preparation, "train digits --batch-size 0", "batch_size must be at least 1"),
        (no_preparation, "train digits --dropout nan", "dropout must lie in"),
        (no_preparation, "train digits --heads 0", "heads must be at least 1"),
        (no_preparation, "train digits --learning-rate inf", "learning_rate must be finite"),
        (no_preparation, "train digits --resume", "--resume needs --out"),
        (a_full_folder, "train digits --out full", "exists already"),
        (a_file_in_the_way, "train digits --out file/run", "cannot write to"),
        (no_preparation, "evaluate nowhere", "not a run folder: it has no run.json; dmb train DATA makes one"),
        (an_old_run, "evaluate odl", "odl is not a run folder: did you mean old?"),
        (an_old_run, "evaluate .", "it has no run.json; there are 'old'"),
        (a_short_file, "evaluate short.txt", "it is a file; dmb train short.txt makes a run of it"),
        (an_old_run, "evaluate old", "run of format 0, made by dmb 0.0.1"),
        (an_old_run, "resume old", "run of format 0"),
        (an_old_run, "report old", "run of format 0"),
        (no_preparation, "prepare text8 --from missing.zip", "missing.zip"),
        (no_preparation, "prepare cifar10 --from missing.tar.gz", "missing.tar.gz"),
        (a_short_file, "prepare cifar10 --from short.txt", "SHA-256"),
        (no_preparation, "train text8", "dmb prepare text8"),
        (no_preparation, "train cifar10", "dmb prepare cifar10"),
        (a_full_folder, "train full", "full must hold images"),
        (no_preparation, "train digits --levels 8", "levels applies to images only, got 8 for digits"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, prepare, command, message):
    prepare(tmp_path)
    assert dmb_(*command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("dmb: ")


def test_a_symbol_outside_the_alphabet_of_a_template_is_named(run, tmp_path, capsys):
    capsys.readouterr()
    assert dmb_("sample", run, "--template", "0,1,99") == 2
    assert "99" in capsys.readouterr().err


def test_a_folder_of_images_is_trained_on_and_sampled_as_a_sheet(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for index in range(20):
        pixels = np.random.default_rng(index).integers(256, size=(3, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    tiny = [*TINY, *flags(levels=4, network="mlp")]
    assert dmb_("train", "photos", "--out", "run", "--accelerator", "cpu", *tiny) == 0
    run = Run.open(tmp_path / "run")
    assert (run.recipe.data.levels, run.data().num_states, run.codec.shape) == (4, 4, [3, 4, 3])
    assert len(list((tmp_path / "run" / "samples").glob("*.png"))) == 2
    assert dmb_("sample", "run", "-n", 4, "--calls", 2, "--out", "x.png") == 0
    with Image.open(tmp_path / "x.png") as sheet:
        assert sheet.size == (2 * 128 + 2, 2 * 96 + 2)
    assert dmb_("evaluate", "run", "--data", "photos", "--sequences", 2) == 0


def test_photographs_of_any_size_are_trained_on_and_read_as_squares(tmp_path, capsys):
    for folder in ("photos", "others"):
        (tmp_path / folder).mkdir()
        for index in range(20):
            pixels = np.random.default_rng(index).integers(256, size=(9 + index % 3, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{index}.png")
    tiny = [*TINY, *flags(levels=4, network="mlp")]
    assert dmb_("train", "photos", "--out", "run", "--accelerator", "cpu", *tiny) == 2
    assert "got 12 × 10: add --size 8 (in Python: size=8) to crop each image" in capsys.readouterr().err
    assert dmb_("train", "photos", "--out", "run", "--accelerator", "cpu", "--size", 4, *tiny) == 0
    assert "files cropped to squares and resized to 4 × 4 pixels: 20" in capsys.readouterr().err
    run = Run.open(tmp_path / "run")
    assert (run.recipe.data.size, run.data().codec.shape, originals(run.data()).num_states) == (4, [4, 4, 3], 256)
    assert dmb_("evaluate", "run", "--data", "others", "--sequences", 2) == 0
    assert dmb_("resume", "run", "--accelerator", "cpu", "--cycles", 3) == 0
    assert dmb_("sample", "run", "--out", "x.txt") == 2
    assert "--out must end in .png or .npy, or be a folder" in capsys.readouterr().err


def test_large_images_are_said_to_be_faster_as_codes(tmp_path, capsys):
    for side in (4, 20):
        (tmp_path / f"of {side}").mkdir()
        for index in range(12):
            Image.new("RGB", (side, side), (index, 0, 0)).save(tmp_path / f"of {side}" / f"{index}.png")
        tiny = [*TINY, *flags(levels=4, score_steps=1, batch_size=2, width=4, heads=1)]
        assert dmb_("train", f"of {side}", "--out", f"run{side}", "--accelerator", "cpu", *tiny) == 0
        cure = f"dmb tokenize '{tmp_path}/of {side}' --out codes, then dmb train codes\n"
        assert (cure in capsys.readouterr().err) == (side == 20)


def test_a_class_is_sampled_by_its_name(tmp_path, capsys, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for shade in range(5):
            Image.fromarray(np.full((2, 2), 50 * shade, dtype=np.uint8)).save(tmp_path / "pets" / name / f"{shade}.png")
    settings = recipe("images").changed(source="pets", levels=2, classes=True, width=8, heads=1, blocks=1)
    data = settings.data.load()
    run = Run.create(tmp_path / "run", settings, data)
    settings.build(data).write(run.path)
    labels, trajectory = [], dmb.Bridge.trajectory

    def recorded(bridge, count, *, label, **options):
        labels.append(label.tolist())
        return trajectory(bridge, count, label=label, **options)

    monkeypatch.setattr(dmb.Bridge, "trajectory", recorded)
    assert [dmb_("sample", run.path, "-n", 2, "--calls", 1, "--label", given) for given in ("dog", 0)] == [0, 0]
    assert labels == [[1, 1], [0, 0]]
    assert dmb_("sample", run.path, "--label", "owl") == 2
    assert "--label must be a class ('cat', 'dog') or its number, got 'owl'" in capsys.readouterr().err


def test_cifar10_is_prepared_from_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dmb.data.sources.cifar10.BATCH", 2)
    (tmp_path / "mine").mkdir()
    for part, count in (("train", 10), ("test", 2)):
        np.save(tmp_path / "mine" / f"x_{part}.npy", np.zeros((count, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / "mine" / f"y_{part}.npy", np.arange(count, dtype=np.uint8))
    assert dmb_("prepare", "cifar10", "--from", "mine") == 0
    assert Path(capsys.readouterr().out.rstrip()).is_relative_to(tmp_path / "home")
    assert len(dmb.data.load("cifar10").train) == 9


def test_every_command_has_a_help_page_that_names_its_options(capsys):
    options = {"quickstart": "--out", "prepare": "--from", "train": "--minutes", "resume": "--cycles",
               "evaluate": "--split", "sample": "--template", "impute": "--draw", "report": "--seed", "card": "--license", "compare": "--workers",
               "tokenize": "--grid", "fid": "--images", "serve": "--host"}  # fmt: skip
    assert options.keys() == COMMANDS.keys()
    for command, option in options.items():
        assert dmb_(command, "--help") == 0
        page = capsys.readouterr().out
        assert option in page
        assert ">>>" not in page  # examples for Python
        if command in ("train", "sample", "compare", "evaluate", "serve"):
            text = " ".join(page.replace("│", " ").split())
            assert not re.search(r"default: [^()]*\(default: None\)", text), command  # which of the two?
    assert dmb_() == 0
    overview = capsys.readouterr().out
    assert all(command in overview for command in COMMANDS)


@pytest.mark.parametrize(
    ("asked", "as_"),
    [("help", "--help"), ("help prepare", "prepare --help"), ("version", "--version"), ("-V", "--version")],
)
def test_help_and_the_version_are_found_by_other_names_too(capsys, asked, as_):
    for words in (asked, as_):
        assert dmb_(*words.split()) == 0
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :] != ""


def test_help_shows_the_settings_of_the_data_that_are_named(capsys):
    assert dmb_("train", "digits", "--help") == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--width INT Size of hidden vectors. (default: 256)" in words
    assert "DATA" in words
    assert "--matrix-clip" not in words
    assert dmb_("train", "digits", "--help-all") == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--width INT Size of hidden vectors. (default: 256)" in words
    assert "--matrix-clip" in words


def test_the_overview_does_not_wait_for_torch():
    script = "import sys; from dmb.app.cli import overview; overview(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


OWN = """
from dataclasses import dataclass, replace
import dmb
from dmb.app import recipes

class TinyNetwork(dmb.MLP):
    pass

@dataclass(frozen=True, kw_only=True)
class Tiny:
    girth: int = 8
    ages: tuple[int, ...] = (1, 2)
    def build(self, process, data):
        return TinyNetwork(process, width=self.girth, blocks=1)

def small():
    return replace(recipes.recipe("digits"), network=Tiny())
"""


def test_a_recipe_of_ones_own_with_a_network_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    tiny = flags(cycles=1, score_steps=6, matrix_steps=2, evaluate_every=3, batch_size=8, evaluate_sequences=8)
    own = ["--recipe", "mine.py:small"]
    sizes = ["--girth", 12, "--ages", 3, 4, 5]
    assert dmb_("train", "digits", *own, *sizes, "--out", "run", "--accelerator", "cpu", *tiny) == 0
    there = Run.open(tmp_path / "run", "mine.py:small")
    assert (there.recipe.network.girth, there.recipe.network.ages) == (12, (3, 4, 5))
    assert "--girth 12 --ages 3 4 5 --cycles 1" in json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert dmb_("evaluate", "run", "--sequences", 4, *own) == 0
    assert dmb_("sample", "run", "-n", 1, "--calls", 2, *own) == 0
    assert "dmb resume run --recipe mine.py:small continues" in capsys.readouterr().err
    assert dmb_("resume", "run", *own, *sizes, "--score-steps", 9, "--accelerator", "cpu") == 0
    again = ["train", "digits", *own, "--out", "run", "--resume", "--accelerator", "cpu"]
    assert dmb_(*again, "--score-steps", 12) == 0  # as a scheduler starts it again
    assert Run.open(tmp_path / "run", "mine.py:small").metrics()[-1].step == 12
    capsys.readouterr()
    assert dmb_("evaluate", "run") == 2  # a folder does not run code of its own accord
    assert "give --recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("torch.nn.Module", "cannot be saved with its bridge: make it a dmb.Network"),
        ("dmb.Network", "could not be loaded again: Forgetful cannot be built from {}"),
    ],
)
def test_a_network_that_could_not_be_loaded_again_is_refused_before_there_is_a_folder(
    tmp_path, capsys, network, message
):
    (tmp_path / "mine.py").write_text(f"""
from dataclasses import dataclass, replace
import dmb, torch
from dmb.app import recipes

class Forgetful({network}):
    def __init__(self, n, d):
        super().__init__()
        self.num_states, self.num_positions = n, d
        self.table = torch.nn.Embedding(n, n)
    def forward(self, x_t, t, label=None, given=None):
        return self.table(x_t)

@dataclass(frozen=True, kw_only=True)
class Choice:
    def build(self, process, data):
        return Forgetful(process.num_states, process.num_positions)

def small():
    return replace(recipes.recipe("digits"), network=Choice())
""")
    assert dmb_("train", "digits", "--recipe", "mine.py:small", "--out", "run", "--accelerator", "cpu") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_of_two_files_only_the_one_that_the_user_names_is_run(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    own, tiny = ["--recipe", "mine.py:small"], flags(cycles=1, score_steps=2, matrix_steps=0, evaluate_sequences=8)
    assert dmb_("train", "digits", *own, "--out", "run", "--accelerator", "cpu", *tiny) == 0
    (tmp_path / "other.py").write_text("open('run-it-was', 'w')\n" + OWN.replace("TinyNetwork", "Another"))
    file = tmp_path / "run" / "run.json"
    file.write_text(file.read_text().replace("mine.py:small", "other.py:small"))
    assert dmb_("resume", "run", *own, "--score-steps", 3, "--accelerator", "cpu") == 0
    assert not (tmp_path / "run-it-was").exists()
    assert f"--recipe {'mine.py'}:small" in json.loads(file.read_text())["command"]


def test_the_seed_of_the_network_does_not_depend_on_what_ran_before():
    data = dmb.data.digits()
    torch.manual_seed(5)
    one = recipe("digits").build(data)
    torch.manual_seed(6)
    other = recipe("digits").build(data)
    assert torch.equal(one.network.tokens.weight, other.network.tokens.weight)


CUT = flags(length=8, cycles=1, score_steps=30, evaluate_every=15, log_every=30, width=16, blocks=1, heads=1,
            learning_rate=0.02, warmup=1, batch_size=32, evaluate_sequences=64)  # fmt: skip


def test_a_text_run_of_an_earlier_version_is_evaluated_and_resumed_by_its_own_split(tmp_path, capsys):
    Path("novel.txt").write_text("abc" * 3000 + "xyz" * 300)
    assert dmb_("train", "novel.txt", "--out", "old", "--accelerator", "cpu", "--held-out", "end", *CUT) == 0
    assert "more than their errors allow" in capsys.readouterr().err  # validation text has other letters
    config = json.loads(Path("old/run.json").read_text())
    assert config["recipe"]["data"].pop("held_out") == "end"
    Path("old/run.json").write_text(json.dumps(config))
    assert dmb_("evaluate", "old", "--sequences", "8") == 0
    assert dmb_("resume", "old", "--score-steps", "31") == 0
    assert json.loads(Path("old/run.json").read_text())["recipe"]["data"]["held_out"] == "end"
    assert Run.open(Path("old")).data().train[:].max() == 2  # the abc


def test_training_says_how_text_was_split_and_warns_of_nothing_where_all_text_is_alike(tmp_path, capsys):
    Path("novel.txt").write_text("abc" * 3000 + "xyz" * 300)
    assert dmb_("train", "novel.txt", "--out", "new", "--accelerator", "cpu", *CUT) == 0
    said = capsys.readouterr().err
    assert "validation and test text come from 15 places" in said
    assert "errors allow" not in said


def test_what_is_published_of_a_run_names_no_folder_of_this_machine(tmp_path, monkeypatch):
    Path("novel.txt").write_text("abc" * 300)
    brief = flags(length=8, cycles=1, score_steps=2, evaluate_every=2, width=16, blocks=1, heads=1, batch_size=24,
                  evaluate_sequences=8)  # fmt: skip
    run = tmp_path / "runs" / "novel"
    assert dmb_("train", tmp_path / "novel.txt", "--out", run, "--accelerator", "cpu", *brief) == 0
    assert dmb_("report", run) == dmb_("card", run) == 0
    for name in ("run.json", "config.json", "metrics.jsonl", "report.html", "README.md"):
        assert str(tmp_path) not in (run / name).read_text(), name
    config = json.loads((run / "run.json").read_text())
    assert config["recipe"]["data"]["source"] == "novel.txt"
    assert config["command"].startswith("dmb train novel.txt --recipe text")
    assert config["command"].endswith("--out novel")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the run knows where its data are
    assert dmb_("evaluate", run, "--sequences", 4) == dmb_("resume", run, "--score-steps", 3) == 0
    assert dmb_("train", "--recipe", run, "--out", "again", "--accelerator", "cpu") == 0
    assert Run.open(Path("again")).recipe.data.source == str(tmp_path / "novel.txt")
    assert str(tmp_path) not in (run / "run.json").read_text()
    (run / "local.json").unlink()  # as where it was downloaded
    assert dmb_("sample", run, "-n", 1, "--calls", 4) == 0
    assert dmb_("evaluate", run) == 2
    monkeypatch.chdir(tmp_path)
    assert dmb_("evaluate", run, "--sequences", 4) == 0

import collections
import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

import dmb
from commands import dmb_
from dmb.app.runs import Run
from dmb.app.tokenizer import VQVAE

TINY = ["--set", "cycles=1", "score_steps=6", "matrix_steps=2", "evaluate_every=3", "log_every=2", "width=16",
        "blocks=1", "batch_size=8", "chains=8", "chain_steps=2", "evaluate_sequences=8"]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    assert dmb_("train", "digits", "--out", path, "--accelerator", "cpu", *TINY) == 0
    return path


def test_a_run_folder_holds_what_it_should(run):
    names = {path.name for path in run.iterdir()}
    assert names >= {"run.json", "config.json", "model.safetensors", "metrics.jsonl", "data.safetensors", "checkpoints",
                     "samples", "tensorboard"}  # fmt: skip
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["phase"] for record in records] == ["matrix", "score", "validation", "score", "score", "validation"]
    assert list((run / "tensorboard").glob("events*"))
    bridge = dmb.Bridge.from_pretrained(run)
    assert bridge.sample(2, steps=2).shape == (2, 64)
    assert len(list((run / "samples").iterdir())) == 2


def test_evaluate_prints_json_and_remembers_it(run, capsys):
    assert dmb_("evaluate", run, "--sequences", 20, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    data = dmb.data.digits()
    assert result["unigram_bits"] == pytest.approx(data.unigram_bits(data.test))
    assert result["sequences"] == 20
    assert result["bits"] == pytest.approx(result["score_bits"] + result["prior_bits"])
    assert Run.open(run).evaluations()["test"] == result | {"step": Run.open(run).best()["step"]}


def test_evaluate_gives_the_same_figure_twice_and_another_with_another_seed(run, capsys):
    for seed in (0, 0, 1):
        assert dmb_("evaluate", run, "--sequences", 20, "--seed", seed, "--json") == 0
    first, second, third = (json.loads(line)["bits"] for line in capsys.readouterr().out.splitlines())
    assert first == second != third


def test_sample_writes_the_datas_own_format(run, tmp_path, capsys):
    assert dmb_("sample", run, "-n", 3, "--steps", 2, "--out", tmp_path / "more.npy") == 0
    images = np.load(tmp_path / "more.npy")
    assert images.shape == (3, 8, 8)
    assert capsys.readouterr().out == f"{tmp_path / 'more.npy'}\n"
    assert dmb_("sample", run, "-n", 2, "--steps", 2, "--json") == 0
    assert np.array(json.loads(capsys.readouterr().out)["tokens"]).shape == (2, 64)


def test_a_resumed_run_goes_on_with_its_own_settings(run, capsys):
    assert dmb_("train", "digits", "--out", run, "--resume", "--accelerator", "cpu", "--set", "cycles=2") == 0
    records = Run.open(run).metrics()
    assert [r["step"] for r in records if r["phase"] == "validation"] == [3, 6, 9, 12]
    assert Run.open(run).recipe.training.cycles == 2
    assert Run.open(run).recipe.training.batch_size == 8


def test_settings_may_come_one_by_one(capsys):
    assert dmb_("train", "digits", "--set", "cycles=7", "--show", "--set", "width=9", "seed=4") == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"training.cycles=7", "network.width=9", "training.seed=4"} <= set(shown)


@pytest.mark.parametrize("command", ["evaluate run", "train pydocs --out run --resume --set cycles=2", "report run"])
def test_data_that_have_changed_are_noticed(tmp_path, capsys, command):
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 300)
    settings = [*TINY, "length=8", "heads=2"]
    assert dmb_("train", "pydocs", "--data", "novel.txt", "--out", "run", "--accelerator", "cpu", *settings) == 0
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 200 + "the mat sat on the cat. " * 150)
    capsys.readouterr()
    if command == "report run":
        assert dmb_(*command.split()) == 0  # it needs no data but what the folder holds
    else:
        assert dmb_(*command.split()) == 2
        assert "novel.txt has changed since the run began" in capsys.readouterr().err


def test_a_run_that_goes_on_keeps_its_model(run, capsys):
    capsys.readouterr()
    assert dmb_("train", "digits", "--out", run, "--resume", "--set", "width=32", "head=score") == 2
    assert "network.width, head cannot change in the middle of a run" in capsys.readouterr().err
    assert Run.open(run).recipe.network.width == 16


def test_where_samples_cannot_go_is_said_before_they_are_drawn(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dmb.Bridge, "sample", lambda *_, **__: pytest.fail("drawn"))
    capsys.readouterr()
    for out, message in (("x.foo", "must end in .npy or .png"), ("nowhere/x.npy", "no folder nowhere")):
        assert dmb_("sample", run, "--out", out) == 2
        assert message in capsys.readouterr().err


def test_without_a_standard_error_the_json_is_still_json(run, capsys):
    assert dmb_("evaluate", run, "--sequences", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["stderr"] is None


def test_show_prints_every_setting_and_does_nothing(tmp_path, capsys):
    assert dmb_("train", "text8_paper", "--show", "--set", "compile=true") == 0
    shown = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    paper = {"network.blocks": "12", "network.width": "768", "data.length": "256", "training.batch_size": "512",
             "training.learning_rate": "0.0003", "training.weight_decay": "0.01", "process.schedule": "loglinear",
             "process.init": "gather", "head": "unscaled_score", "training.ema": "0.9999", "training.compile": "true"}  # fmt: skip
    assert paper.items() <= shown.items()
    assert not (tmp_path / "runs").exists()


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
    settings = ["--set", "cycles=2", "score_steps=150", "evaluate_every=150", "width=32", "chains=64", "batch_size=64"]
    run = tmp_path / "run"
    assert (
        dmb_("train", "table", "--data", tmp_path / "survey.csv", "--out", run, "--accelerator", "cpu", *settings) == 0
    )
    assert dmb_("sample", run, "-n", 600, "--steps", 8, "--out", tmp_path / "more.csv") == 0
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
    assert dmb_("sample", run, "-n", 4, "--steps", 4, "--template", "colour=red, yes=no", "--json") == 0
    texts = json.loads(capsys.readouterr().out)["text"]
    assert all("colour=red" in text and "yes=no" in text for text in texts)


def test_text_is_trained_sampled_and_filled_in(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text("der Fluß ist tief. " * 400, encoding="utf-8")
    run = tmp_path / "run"
    code = dmb_("train", "pydocs", "--data", "novel.txt", "--out", run, "--accelerator", "cpu", *TINY, "length=19",
                "heads=2")  # fmt: skip
    assert code == 0
    assert dmb_("sample", run, "-n", 1, "--steps", 4, "--template", "der ____ ist") == 0
    text = capsys.readouterr().out.rstrip("\n")
    assert len(text) == 19
    assert text.startswith("der ")
    assert text[8:12] == " ist"
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


def photos(tmp_path, size=8):
    (tmp_path / "photos").mkdir()
    for index in range(40):
        shade = np.linspace(0, 255 * np.random.default_rng(index).random(), size)
        Image.fromarray(np.add.outer(shade, shade / 2).astype(np.uint8)).save(tmp_path / "photos" / f"{index}.png")


def no_preparation(tmp_path):
    pass


@pytest.mark.parametrize(
    ("prepare", "command", "message"),
    [
        (no_preparation, "train nothing", "no recipe called 'nothing': there are digits"),
        (no_preparation, "train pydocs --data missing.txt", "no data set or file called 'missing.txt'"),
        (an_empty_file, "train pydocs --data empty.txt", "empty"),
        (a_short_file, "train pydocs --data short.txt", "longer than"),
        (no_preparation, "train digits --set cycle=3", "no setting called 'cycle'; did you mean"),
        (no_preparation, "train digits --set cycles=three", "must be a whole number, got 'three'"),
        (no_preparation, "train digits --set order=up", "must be one of ascending, descending, natural"),
        (no_preparation, "train digits --set cycles", "must look like name=value"),
        (no_preparation, "train digits --set batch_size=0", "batch_size must be at least 1"),
        (no_preparation, "train digits --set dropout=nan", "dropout must lie in"),
        (no_preparation, "train digits --set heads=0", "heads must be at least 1"),
        (no_preparation, "train digits --set learning_rate=inf", "learning_rate must be finite"),
        (no_preparation, "train digits --resume", "--resume needs --out"),
        (a_full_folder, "train digits --out full", "exists already"),
        (a_file_in_the_way, "train digits --out file/run", "cannot write to"),
        (no_preparation, "evaluate nowhere", "not a run folder"),
        (an_old_run, "evaluate old", "run of format 0 (dmb 0.0.1)"),
        (an_old_run, "train digits --out old --resume", "run of format 0"),
        (an_old_run, "report old", "run of format 0"),
        (no_preparation, "prepare text8 --from missing.zip", "missing.zip"),
        (no_preparation, "prepare cifar10 --from missing.tar.gz", "missing.tar.gz"),
        (a_short_file, "prepare cifar10 --from short.txt", "SHA-256"),
        (no_preparation, "train text8", "dmb prepare text8"),
        (no_preparation, "train digits --data cifar10", "dmb prepare cifar10"),
        (a_full_folder, "train digits --data full", "full must hold images"),
        (no_preparation, "train digits --set levels=8", "levels is read for images only, got 8 for digits"),
        (no_preparation, "train vqvae --data digits", "a VQ-VAE is trained on images: cifar10, or a folder of them"),
        (no_preparation, "train vqvae --set cycles=3", "no setting called 'cycles'"),
        (no_preparation, "train vqvae --set steps=0", "steps must be finite and at least 1, got 0"),
        (photos, "train vqvae --data photos --set grid=3", "size / grid must be a power of 2, at least 2, got 8 / 3"),
        (no_preparation, "compare vqvae", "forward processes are compared, which vqvae has none of"),
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
    tiny = [*TINY, "levels=4", "network=mlp"]
    assert dmb_("train", "digits", "--data", "photos", "--out", "run", "--accelerator", "cpu", *tiny) == 0
    run = Run.open(tmp_path / "run")
    assert (run.recipe.data.levels, run.data().num_states, run.codec.shape) == (4, 4, [3, 4, 3])
    assert len(list((tmp_path / "run" / "samples").glob("*.png"))) == 2
    assert dmb_("sample", "run", "-n", 4, "--steps", 2, "--out", "x.png") == 0
    with Image.open(tmp_path / "x.png") as sheet:
        assert sheet.size == (2 * 96 + 2, 2 * 72 + 2)
    assert dmb_("evaluate", "run", "--data", "photos", "--sequences", 2) == 0


SMALL_VQVAE = ["--set", "grid=4", "codes=8", "width=8", "blocks=0", "code_width=2", "batch_size=4", "log_every=2",
               "evaluate_every=4", "steps=6"]  # fmt: skip


def test_a_vqvae_is_trained_goes_on_and_says_that_it_is_no_bridge(tmp_path, capsys):
    photos(tmp_path)
    command = ["train", "vqvae", "--data", "photos", "--out", "run", "--accelerator", "cpu"]
    assert dmb_(*command, *SMALL_VQVAE) == 0
    assert "photos, images of 8 × 8 pixels as 4 × 4 codes out of 8; 6 steps of 4 images" in capsys.readouterr().err
    vqvae = VQVAE.from_pretrained("run")
    pixels = torch.tensor(np.asarray(Image.open(tmp_path / "photos" / "3.png")))[None, ..., None]
    assert vqvae.reconstruct(pixels).shape == (1, 8, 8, 1)
    assert {file.name for file in (tmp_path / "run" / "samples").iterdir()} == {
        "step_000000004.png",
        "step_000000006.png",
    }
    assert dmb_(*command, "--resume", "--set", "steps=10") == 0
    records = Run.open(tmp_path / "run").metrics()
    assert [r["step"] for r in records if r["phase"] == "validation"] == [4, 6, 8, 10]
    capsys.readouterr()
    assert dmb_(*command, "--resume", "--set", "codes=16") == 2
    assert "autoencoder.codes cannot change in the middle of a run" in capsys.readouterr().err
    assert dmb_("report", "run") == 0
    assert (tmp_path / "run" / "report.html").is_file()
    capsys.readouterr()
    assert dmb_("evaluate", "run") == 0
    assert capsys.readouterr().out.startswith("PSNR ")
    assert dmb_("sample", "run") == 2
    *_, error = capsys.readouterr().err.splitlines()
    advice = "train a bridge on its codes with dmb train cifar10 --data run"
    assert error == f"dmb: run is a VQ-VAE, not a bridge: {advice}"
    assert dmb_("train", "digits", "--out", "run", "--resume") == 2
    assert "run is a run of the recipe vqvae, not of digits" in capsys.readouterr().err


def test_show_prints_the_settings_of_a_vqvae(capsys):
    assert dmb_("train", "vqvae", "--show", "--set", "codes=64", "minutes=3") == 0
    shown = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    expected = {"data.source": "cifar10", "autoencoder.grid": "8", "autoencoder.codes": "64",
                "training.batch_size": "32", "training.minutes": "3.0"}  # fmt: skip
    assert expected.items() <= shown.items()


def test_cifar10_is_prepared_from_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dmb.data.sources.cifar10.BATCH", 2)
    (tmp_path / "mine").mkdir()
    for part, count in (("train", 10), ("test", 2)):
        np.save(tmp_path / "mine" / f"x_{part}.npy", np.zeros((count, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / "mine" / f"y_{part}.npy", np.arange(count, dtype=np.uint8))
    assert dmb_("prepare", "cifar10", "--from", "mine") == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'home' / 'cache' / 'cifar10-'}")
    assert len(dmb.data.load("cifar10").train) == 9


def test_every_command_has_a_help_page_that_names_its_options(capsys):
    options = {"quickstart": "--out", "prepare": "--from", "train": "--resume", "evaluate": "--split",
               "sample": "--template", "report": "--seed", "compare": "--workers"}  # fmt: skip
    for command, option in options.items():
        assert dmb_(command, "--help") == 0
        assert option in capsys.readouterr().out
    assert dmb_() == 0
    assert all(command in capsys.readouterr().out for command in ["quickstart"])


def test_the_seed_of_the_network_does_not_depend_on_what_ran_before():
    data = dmb.data.digits()
    torch.manual_seed(5)
    one = dmb.app.recipes.digits().build(data)
    torch.manual_seed(6)
    other = dmb.app.recipes.digits().build(data)
    assert torch.equal(one.network.tokens.weight, other.network.tokens.weight)

"""Nothing is lost and nothing misread, whatever happens to a run: full disks, kills, damage, absurd wishes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dmb
from commands import dmb_, flags
from dmb._core.files import read_tensors, write_tensors
from dmb.app.records import read_evaluations
from dmb.app.signals import Signals
from dmb.training.checkpoint import Checkpoint, read, write
from faults import flip, full_disk, kill_a_writer, orphans
from stopping import same

TINY = ["--accelerator", "cpu", *flags(
    cycles=1, score_steps=4, matrix_steps=1, evaluate_every=2, log_every=1, width=8, blocks=1, batch_size=4, chains=4,
    chain_calls=2, evaluate_sequences=4
)]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished and evaluated run, and its data beside it."""
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(5, size=(40, 6)).astype(np.uint8))
    assert dmb_("train", folder / "tokens.npy", "--out", folder / "run", *TINY) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def small_world(trained, tmp_path, monkeypatch, no_type_checks):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(trained.parent / "tokens.npy", "tokens.npy")


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def refused(capsys):
    """Call a command that must fail with exit code 2 and one line; the line."""

    def call(*arguments):
        capsys.readouterr()
        assert dmb_(*arguments) == 2
        said = capsys.readouterr().err.splitlines()
        assert [line.startswith("dmb: ") for line in said] == [False] * (len(said) - 1) + [True]
        return said[-1]

    return call


def program(*arguments, **options):
    """The command as a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "dmb", *arguments], stderr=subprocess.PIPE, text=True, **options)


# -- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "file"),
    [
        (100, "data.safetensors"),
        (3_000, "run/"),
        (60_000, "checkpoints/step_000000000.safetensors"),
        (100_000, "checkpoints/step_000000002.safetensors"),
    ],
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path, trained, refused, size, file):
    with full_disk(size):
        line = refused("train", "tokens.npy", "--out", "run", *TINY)
    assert re.match(r"dmb: run/.* cannot be written: .*too large", line)
    assert file in line
    assert orphans(tmp_path) == []
    assert dmb_("train", "tokens.npy", "--out", "run", "--resume", *TINY) == 0
    one, other = (dmb.Bridge.from_pretrained(path).state_dict() for path in (trained, tmp_path / "run"))
    assert same(one, other)


@pytest.mark.parametrize("size", [200, 3_000])
def test_a_full_disk_while_images_become_codes_is_one_line(tmp_path, refused, size):
    (tmp_path / "photos").mkdir()
    for index in range(20):
        Image.fromarray(np.full((8, 8), 12 * index, dtype=np.uint8)).save(tmp_path / "photos" / f"{index}.png")
    wanted = flags(grid=2, codes=4, width=8, steps=2, batch_size=4, evaluate_every=1)
    with full_disk(size):
        assert "cannot be written: " in refused("tokenize", "photos", "--out", "codes", "--accelerator", "cpu", *wanted)
    assert orphans(tmp_path) == []
    assert dmb_("tokenize", "photos", "--out", "codes", "--resume", "--accelerator", "cpu", *wanted) == 0


def test_an_output_that_is_full_is_one_line():
    for arguments in (["--version"], ["--help"]):
        with open("/dev/full", "w") as full:
            process = program(*arguments, stdout=full)
        assert process.communicate()[1] == "dmb: the output cannot be written: No space left on device\n"
        assert process.returncode == 2


# -- nothing lost -----------------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_is_printed_first(run, capsys):
    (run / ".evaluation.lock").symlink_to("elsewhere")  # as unusable as on a disk that is read-only, also for root
    assert dmb_("evaluate", run, "--sequences", 2) == 2
    output, error = capsys.readouterr()
    assert "bits per token on test" in output
    assert error.startswith(f"dmb: the result was printed, but cannot be stored: {run} cannot be written to: ")
    assert read_evaluations(run) == {}


@pytest.mark.parametrize("command", ["resume run", "train run/../tokens.npy --out run --resume"])
def test_a_model_whose_checkpoints_are_gone_is_not_trained_over(trained, capsys, monkeypatch, command):
    monkeypatch.chdir(trained.parent)
    checkpoints = Path("run/checkpoints").rename("checkpoints")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file() and path.name != ".lock"}
    capsys.readouterr()
    try:
        assert dmb_(*command.split(), "--accelerator", "cpu") == 2
        said = capsys.readouterr().err
        assert "dmb: run holds a trained model, model.safetensors, but no checkpoint, so training would begin" in said
        assert "continuing" not in said
        assert all(path.read_bytes() == content for path, content in before.items())
        assert not Path("run/checkpoints").exists()
    finally:
        checkpoints.rename("run/checkpoints")


def test_a_run_without_its_samples_goes_on(run):
    for sample in (run / "samples").iterdir():
        sample.unlink()
    (run / "samples").rmdir()
    assert dmb_("resume", run, "--score-steps", 6, "--accelerator", "cpu") == 0
    assert [path.name for path in (run / "samples").iterdir()] == ["step_000000006.npy"]


def test_what_kills_have_left_is_removed_at_the_next_start(run):
    for file in ("model.safetensors", "checkpoints/step_000000004.safetensors", "samples/x.npy", "report.html"):
        kill_a_writer(run / file)
    (run / "checkpoints" / ".tmpA1b2C3").touch()
    assert len(orphans(run)) == 5
    assert dmb_("resume", run, "--accelerator", "cpu") == 0
    assert orphans(run) == []


def test_files_of_tensors_have_the_permissions_that_the_umask_gives(run):
    before = os.umask(0o027)
    try:
        assert dmb_("train", "tokens.npy", "--out", "other", *TINY) == 0
    finally:
        os.umask(before)
    files = [*(run.parent / "other").rglob("*.safetensors")]
    assert len(files) >= 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}


def test_a_checkpoint_that_a_file_manager_has_copied_is_passed_over(run):
    newest = run / "checkpoints" / "step_000000004.safetensors"
    (run / "checkpoints" / "step_000000004 (1).safetensors").write_bytes(newest.read_bytes())
    assert dmb_("resume", run, "--score-steps", 6, "--accelerator", "cpu") == 0


# -- nothing misread --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "data.safetensors"])
@pytest.mark.parametrize("command", ["evaluate", "sample"])
def test_a_flipped_bit_is_refused(run, refused, file, command):
    flip(run / file, -7)
    if (file, command) == ("data.safetensors", "sample"):
        assert dmb_("sample", run, "-n", 1, "--calls", 2) == 0  # which does not read it
    else:
        assert f"{run / file} is damaged, because its digest does not match: restore it" in refused(command, run)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("process.legal", torch.Tensor.long, "does not describe a bridge: legal must be boolean"),
        ("network.conditioning.time.first.weight", torch.Tensor.half, "others are torch.float"),
        ("network.conditioning.time.first.bias", lambda bias: bias[:1], "does not fit"),
    ],
)
def test_a_model_with_a_tensor_of_another_kind_is_refused(run, refused, name, wrong, message):
    tensors, _ = read_tensors(run / "model.safetensors")
    write_tensors(run / "model.safetensors", tensors | {name: wrong(tensors[name])})
    assert message in refused("sample", run, "-n", 1, "--calls", 2)


@pytest.mark.parametrize("wrong", [lambda x: x[..., :-1], lambda x: x.double() + 1, lambda x: x[None]])
@pytest.mark.parametrize("name", ["marginals", "examples"])
def test_a_summary_of_other_data_is_refused(run, refused, name, wrong):
    tensors, _ = read_tensors(run / "data.safetensors")
    write_tensors(run / "data.safetensors", tensors | {name: wrong(tensors[name])})
    assert "data.safetensors does not describe the data of a run" in refused("evaluate", run, "--sequences", 2)


def changed(path, **entries):
    """Change entries of a JSON file; a dot leads into an object."""
    whole = json.loads(path.read_text())
    for name, value in entries.items():
        *above, last = name.split("__")
        inner = whole
        for key in above:
            inner = inner[key]
        inner[last] = value
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("run.json", {"recipe__network__width": "8"}, "width must be a whole number, got '8'"),
        ("run.json", {"recipe__training": [1]}, "it must be a JSON object, got [1]"),
        ("run.json", {"recipe__head": 3}, "head must be 'mean' or 'score' or 'unscaled_score', got 3"),
        ("run.json", {"recipe__training__cycles": 10**20}, "cycles must be a whole number, got 1000"),
        ("run.json", {"recipe__name": None}, "does not describe a run"),
        ("run.json", {"codec__shape": "x"}, "does not describe a run"),
        ("run.json", {"codec": []}, "does not describe a run"),
        ("run.json", {"unigram_bits": {"test": "x"}}, "unigram_bits must be numbers"),
        ("config.json", {"network__width": "x"}, "config.json does not describe a bridge"),
        ("config.json", {"network__blocks": 10**20}, "config.json does not describe a bridge"),
        (
            "config.json",
            {"network__dropout": float("nan")},
            "does not describe a bridge: numbers must be finite, got NaN",
        ),
        ("config.json", {"process": None}, "config.json does not describe a bridge"),
        ("evaluation.json", {"test": 3}, "evaluation.json must hold a JSON object of objects"),
    ],
)
def test_a_wrong_type_in_a_file_is_one_line_that_names_it(run, refused, file, entries, message):
    assert dmb_("evaluate", run, "--sequences", 2) == 0
    changed(run / file, **entries)
    line = refused("evaluate", run, "--sequences", 2)
    assert message in line
    assert file in line


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"step": "4"}, "is not a checkpoint"),
        ({"seconds": None}, "the checkpoint does not fit this model: seconds must be a number, got None"),
        ({"more": 1}, "the checkpoint does not fit this model: it has an unknown entry, more"),
        ({}, "the checkpoint does not fit this model: score_optimiser"),
    ],
)
def test_a_checkpoint_with_a_wrong_state_or_tensor_is_refused(run, refused, state, message):
    for path in (run / "checkpoints").iterdir():
        tensors, found = read(path)
        if not state:
            name = next(name for name in tensors if name.endswith(".exp_avg") and name.startswith("score"))
            tensors[name] = tensors[name].flatten()[:-1]
        write(path, Checkpoint(tensors, found | state))
    with pytest.warns(UserWarning, match="not a checkpoint") if "step" in state else _nothing():
        line = refused("resume", run, "--score-steps", 6, "--accelerator", "cpu")
    assert message in line or "no checkpoint in" in line


class _nothing:
    def __enter__(self): ...

    def __exit__(self, *_): ...


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"phase": "score"}', '{"phase": "score", "step": "x", "seconds": 1}', "\0"]
)
def test_damaged_metrics_are_named(run, refused, line):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    assert "metrics.jsonl" in refused("evaluate", run, "--sequences", 2)


@pytest.mark.parametrize("content", ["", "[", "[1]", "\udcff", '{"test": {"bits": "x"}}'])
def test_a_damaged_evaluation_is_named(run, refused, content):
    (run / "evaluation.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "evaluation.json" in refused("report", run)


@pytest.mark.parametrize("entries", [{"steps": "x"}, {"rows": 3}, {"seeds": 10**9}, {"recipe": []}, {"commands": None}])
def test_a_comparison_with_a_wrong_type_is_named(tmp_path, refused, entries):
    (tmp_path / "table").mkdir()
    shared = dmb.app.recipes.recipe("array").to_json()
    about = {"recipe": shared, "rows": ["mdlm"], "commands": [], "seeds": 1, "steps": 4, "sequences": 4, "samples": 1}
    (tmp_path / "table" / "results.json").write_text(json.dumps({"comparison": about | entries}))
    line = refused("compare", "tokens.npy", "--out", "table", "--rows", "mdlm", "--steps", 4)
    assert "results.json was made by another version or from other data" in line


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("--learning-rate 1e300", "learning_rate must be in (0, 1,000,000], got 1e+300"),
        ("--floor 1e308", "floor must be a rate in [0, 1,000,000], got 1e+308"),
        ("--width 100000000", "width must be at most 16,384, got 100000000"),
        ("--batch-size 1000000000000", "batch_size must be at most 16,777,216"),
        ("--chains 100000000000000000000", "--chains must be a whole number, got 100000000000000000000, which is too"),
        ("--network ordered --write-order learned --tilt 1e300", "tilt must lie in [0, 10], got 1e+300"),
        ("--encoding words.json --length 4", "give it an unknown token (unk_token), or use another one"),
    ],
)
def test_an_absurd_wish_is_one_line(tmp_path, refused, wish, message):
    vocabulary = {"type": "WordLevel", "vocab": {"the": 0, "cat": 1}, "unk_token": "[UNK]"}
    (tmp_path / "words.json").write_text(json.dumps({"model": vocabulary, "pre_tokenizer": {"type": "Whitespace"}}))
    (tmp_path / "novel.txt").write_text("the cat sat. " * 50)
    source = "novel.txt" if "--encoding" in wish else "tokens.npy"
    assert message in refused("train", source, "--out", "new", *TINY, *wish.split())
    assert not (tmp_path / "new" / "run.json").exists()


def test_a_label_that_is_too_large_is_one_line(run, refused):
    assert "--label must be a whole number, got" in refused("sample", run, "--label", 10**20)
    assert "--label is for models trained with --classes" in refused("sample", run, "--label", 3)


def test_sizes_beyond_the_memory_are_one_line(run, capsys, monkeypatch):
    def much(*_, **__):
        return torch.empty(1 << 60)

    monkeypatch.setattr(dmb.Bridge, "trajectory", much)
    assert dmb_("sample", run) == 1
    assert capsys.readouterr().err == "dmb: not enough memory: try smaller sizes, such as width, length or batch_size\n"


# -- manners ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "tokens.npy", "--out", ""], "--out must not be empty"),
        (["train", "tokens.npy", "--out="], "--out must not be empty"),
        (["train", ""], "an argument must not be empty"),
        (["evaluate", "run", "--data", ""], "--data must not be empty"),
        (["sample", "run", "--out", "\udcff.npy"], "names must be UTF-8, got \ufffd.npy: rename it"),
        (["train", "tokens.npy", "--out", "\udcff"], "names must be UTF-8"),
    ],
)
def test_names_that_are_empty_or_not_utf8_are_refused(run, refused, command, message):
    assert message in refused(*command)


def test_an_empty_template_means_that_nothing_is_known(run, capsys):
    assert dmb_("sample", run, "-n", 1, "--calls", 2, "--template", "") == 0


def test_help_says_that_torchscript_runs_code(capsys):
    assert dmb_("fid", "--help") == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "A TorchScript file can run code of its own when it is opened: give one only if you trust it." in words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("library", ["_multiarray_umath", "libtorch_cpu"])
def test_a_signal_while_modules_are_imported_is_one_line(number, library):
    process = program("train", "tokens.npy", stdout=subprocess.DEVNULL)
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == "dmb: interrupted\n"
    assert process.returncode == 128 + number


def test_a_terminal_that_is_closed_stops_training_at_a_checkpoint_unless_that_is_ignored():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_a_home_directory_the_line_says_what_to_set(tmp_path, refused, monkeypatch):
    (tmp_path / "novel.txt").write_text("the cat sat. " * 50)
    for name in ("HOME", "DMB_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user whom the machine does not know
    line = refused("train", "novel.txt", "--length", "4", "--out", "run")
    assert line.endswith("is in a home directory that does not exist: set $DMB_DATA")


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    ("file", "commands"),
    [
        ("run.json", ["evaluate run", "resume run", "train --recipe run --show"]),
        ("config.json", ["evaluate run", "sample run"]),
        ("evaluation.json", ["evaluate run --sequences 2", "report run"]),
        ("metrics.jsonl", ["evaluate run", "report run"]),
    ],
)
def test_json_of_brackets_within_brackets_is_one_line(run, refused, file, commands):
    path = run / file
    for content in (DEEP + "\n", f'{{"bits": {DEEP}}}\n'):
        path.write_text(content)
        for words in commands:
            assert file in refused(*words.split())


@pytest.mark.parametrize("bits", [{}, {"train": 1.0}, {"train": None, "validation": None, "test": None}])
def test_a_run_is_resumed_and_reported_whatever_the_bits_of_its_marginals(run, bits):
    config = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(config | {"unigram_bits": bits}))
    assert dmb_("resume", run, "--score-steps", 5, "--accelerator", "cpu") == 0
    assert dmb_("report", run) == 0

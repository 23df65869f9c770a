"""`dmb tokenize`, as a user calls it."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from dmb.app import session
from dmb.app.cli import tokenize as command
from dmb.app.images import VQVAE, Codes
from dmb.app.images.codes import images_of, write_codes
from dmb.app.loading import load
from dmb.app.locks import locked
from dmb.app.signals import Signals
from dmb.training.checkpoint import Checkpoints
from stopping import StopAfter, same

SMALL = ["--grid", "4", "--codes", "8", "--width", "8", "--blocks", "0", "--code-width", "2", "--batch-size", "4",
         "--log-every", "2", "--evaluate-every", "4", "--steps", "6", "--accelerator", "cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index in range(40):
        shade = np.linspace(0, 255 * np.random.default_rng(index).random(), 8)
        path = tmp_path / "photos" / str(index % 2) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.add.outer(shade, shade / 2).astype(np.uint8)).save(path)


def tokenize(*arguments, out="codes"):
    return command.main(["photos", "--out", out, *map(str, arguments)])


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_images_become_a_folder_of_codes_that_is_a_data_set(tmp_path, capsys):
    assert tokenize(*SMALL) == 0
    folder = tmp_path / "codes"
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", "tokenizer-settings.json", "config.json", "model.safetensors", "metrics.jsonl", "checkpoints", "sheet.png",
                     "tokenizer.json", "train.npy", "validation.npy", "test.npy", "train_labels.npy",
                     "validation_labels.npy", "test_labels.npy"}  # fmt: skip
    shown, about = capsys.readouterr(), json.loads((folder / "tokenizer.json").read_text())
    used = f"{about['perplexity']:.1f} codes in use of 8"
    assert shown.out == f"PSNR {about['psnr']:.2f} dB of 4 test images; {used}\n"
    assert "photos: 40 images of 64 tokens: 32 train, 4 validation, 4 test\n8 × 8 pixels in grey" in shown.err
    assert "making codes: grids of 4 × 4 codes out of 8; 6 steps of 4 images" in shown.err
    assert [(r["phase"], r["step"]) for r in records(folder)] == [
        ("train", 2), ("train", 4), ("validation", 4), ("train", 6), ("validation", 6)
    ]  # fmt: skip
    data, images, vqvae = load(folder), load("photos"), VQVAE.from_pretrained(folder)
    assert isinstance(data.codec, Codes)
    for part, split in images.splits().items():
        tokens = vqvae.encode(torch.from_numpy(images.codec.images(split[:])))
        assert torch.equal(data.splits()[part][:], tokens)
        assert torch.equal(data.splits()[part].labels(slice(None)), split.labels(slice(None)))


def test_it_goes_on_with_the_settings_it_had_unless_others_are_given(tmp_path, capsys):
    assert tokenize(*SMALL) == 0
    assert tokenize("--resume", "--steps", 10, "--accelerator", "cpu") == 0
    settings = json.loads((tmp_path / "codes" / "tokenizer-settings.json").read_text())["settings"]
    assert (settings["steps"], settings["codes"], settings["batch_size"]) == (10, 8, 4)
    assert [r["step"] for r in records(tmp_path / "codes") if r["phase"] == "validation"] == [4, 6, 8, 10]
    assert tokenize("--resume", "--accelerator", "cpu") == 0  # there is nothing left to do but the codes


def test_a_tokenizer_begun_before_codes_were_directions_goes_on_with_points(tmp_path):
    assert tokenize(*SMALL, "--no-cosine") == 0
    file = tmp_path / "codes" / "tokenizer-settings.json"
    begun = json.loads(file.read_text())
    del begun["settings"]["cosine"]
    file.write_text(json.dumps(begun))
    with pytest.raises(ValueError, match="--cosine cannot change during training: leave it out, or give False"):
        tokenize("--resume", "--cosine")
    assert tokenize("--resume", "--steps", 8, "--accelerator", "cpu") == 0
    assert not VQVAE.from_pretrained(tmp_path / "codes").cosine


def test_the_decoder_may_go_on_alone_and_every_file_but_its_own_stays(tmp_path, capsys):
    assert tokenize(*SMALL, "--steps", 8, "--adversarial-steps", 4) == 0
    assert "8 steps of 4 images, and 4 of the decoder alone" in capsys.readouterr().err
    assert tokenize(*SMALL, "--steps", 8, out="plain") == 0
    codes, plain = tmp_path / "codes", tmp_path / "plain"
    for name in ("train.npy", "validation.npy", "test.npy", "train_labels.npy"):
        assert (codes / name).read_bytes() == (plain / name).read_bytes(), name
    assert (codes / "model.safetensors").read_bytes() != (plain / "model.safetensors").read_bytes()
    lines = [(r["phase"], r["step"]) for r in records(codes)]
    assert lines[:6] == [(r["phase"], r["step"]) for r in records(plain)]
    assert lines[6:] == [("decoder", 10), ("decoder", 12), ("validation", 12)]
    assert records(codes)[-2]["discriminator"] > 0
    about, before = (json.loads((folder / "tokenizer.json").read_text()) for folder in (codes, plain))
    assert (about["adversarial_steps"], before["adversarial_steps"]) == (4, 0)
    assert about["digest"] == before["digest"]
    with pytest.raises(ValueError, match="--steps cannot change during training: leave it out, or give 8"):
        tokenize("--resume", "--steps", 9)
    assert tokenize("--resume", "--adversarial-steps", 4, "--accelerator", "cpu", out="plain") == 0
    for name in ("model.safetensors", "tokenizer.json", "sheet.png"):
        assert (codes / name).read_bytes() == (plain / name).read_bytes(), name


def test_it_is_safe_to_interrupt_at_any_step(tmp_path, capsys, monkeypatch):
    assert tokenize(*SMALL, out="straight") == 0
    for stop in (1, 4, 5):
        folder = tmp_path / f"broken{stop}"
        with monkeypatch.context() as patch:
            caught = Caught(stop)
            patch.setattr(session, "Signals", lambda caught=caught: caught)
            assert tokenize(*SMALL, out=folder.name) == 128 + signal.SIGINT
        hint = f"continue with: dmb tokenize {tmp_path / 'photos'} --out {folder.name} --resume"
        assert hint in capsys.readouterr().err.replace("\n", " ")
        with pytest.raises(ValueError, match=f"broken{stop} has no tokenizer.json, so it is not finished"):
            load(folder)
        assert tokenize("--resume", "--accelerator", "cpu", out=folder.name) == 0
        last = [Checkpoints(path / "checkpoints").newest() for path in (tmp_path / "straight", folder)]
        assert same(last[0].tensors, last[1].tensors)
        for name in ("train.npy", "validation.npy", "test.npy", "sheet.png", "model.safetensors", "tokenizer.json"):
            assert (folder / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name
        untimed = [
            [{k: v for k, v in record.items() if "second" not in k} for record in records(path)]
            for path in (tmp_path / "straight", folder)
        ]
        assert untimed[0] == untimed[1]


class Caught(StopAfter, Signals):
    """A signal that comes after so many steps."""

    heeded = 0

    def __call__(self):
        stop = super().__call__()
        self.heeded = int(signal.SIGINT) if stop else 0
        return stop

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_kill_while_codes_are_written_leaves_a_folder_that_can_be_finished(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "write_codes", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenize(*SMALL)
    with pytest.raises(ValueError, match="not finished"):
        load(tmp_path / "codes")
    assert tokenize("--resume", "--accelerator", "cpu") == 0
    assert load(tmp_path / "codes").num_positions == 16
    assert write_codes is command.write_codes


def test_a_tokenizer_whose_checkpoints_are_gone_is_not_trained_over(tmp_path):
    assert tokenize(*SMALL) == 0
    folder = tmp_path / "codes"
    shutil.rmtree(folder / "checkpoints")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds a trained model, .*but no checkpoint"):
        tokenize("--resume", "--accelerator", "cpu")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "3"], "size / grid must be a power of 2, at least 2, got 8 / 3"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--minutes", "-1"], "minutes must be positive, got -1"),
    ],
)
def test_settings_that_cannot_be_are_one_line_before_anything_is_written(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        tokenize(*SMALL, *arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "codes").exists()


def test_a_folder_that_is_something_else_is_refused(tmp_path):
    assert tokenize(*SMALL) == 0
    with pytest.raises(ValueError, match="codes exists already: choose another --out, or continue it with --resume"):
        tokenize(*SMALL)
    with pytest.raises(ValueError, match="--codes cannot change during training: leave it out, or give 8"):
        tokenize("--resume", "--codes", 16)
    with pytest.raises(ValueError, match="photos exists already, but is not a folder of codes"):
        tokenize(*SMALL, out="photos")
    shutil.copytree("photos", "others")
    with pytest.raises(ValueError, match=r"codes has codes of .*photos, not of .*others: choose another --out"):
        command.main(["others", "--out", "codes", "--resume"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file exists already, but is not a folder of codes"):
        tokenize(*SMALL, out="file")
    with pytest.raises(ValueError, match="a VQ-VAE needs images: give cifar10, or a folder of images; got digits"):
        command.main(["digits", "--out", "new"])


def test_photographs_of_any_size_are_cropped_and_stay_so(tmp_path, capsys):
    for index, path in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
        with Image.open(path) as image:
            image.resize((20 + index % 3, 14)).save(path)
    with pytest.raises(ValueError, match=r"pixels like .*, got .*: add --size 8 "):
        tokenize(*SMALL)
    assert command.main(["photos", "-o", "codes", "--size", "16", *SMALL]) == 0
    assert "files cropped to squares and resized to 16 × 16 pixels: 40" in capsys.readouterr().err
    data, images = load(tmp_path / "codes"), load("photos", size=16)
    assert data.codec.shape == [16, 16, 1]
    tokens = VQVAE.from_pretrained("codes").encode(torch.from_numpy(images.codec.images(images.test[:])))
    assert torch.equal(data.test[:], tokens)
    assert images_of(tmp_path / "codes").digest() == images.digest()
    with pytest.raises(ValueError, match="--size cannot change during training: leave it out, or give 16"):
        tokenize("--resume", "--size", 8)
    assert tokenize("--resume", "--steps", 8, "--accelerator", "cpu") == 0
    assert json.loads((tmp_path / "codes" / "tokenizer-settings.json").read_text())["size"] == 16


def test_every_setting_is_a_flag_that_is_explained(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    for flag in ("--size", "--grid", "--codes", "--width", "--steps", "--minutes", "--patience", "--resume"):
        assert flag in shown
    words = " ".join(shown.split())
    assert "Number of codes in the codebook" in words
    assert "--adversarial-steps" in words
    assert "the codes of images stay what they are" in words


def test_only_one_process_works_in_a_folder(tmp_path):
    (tmp_path / "codes").mkdir()
    with locked(tmp_path / "codes"), pytest.raises(ValueError, match="another process is training in codes"):
        tokenize(*SMALL)

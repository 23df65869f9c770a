"""What `dmb train` reads: each file of the user's once, and the model is built once more to prove that it can be."""

import os
import sys

import numpy as np
import pytest
from PIL import Image

from commands import dmb_
from dmb.networks import MLP

LETTERS = np.random.default_rng(0)
OPENED: list[str] = []
WATCHED: list[str] = []


def watch(event, arguments):
    """An audit hook cannot be taken away again, so this one only looks while a folder is watched."""
    if WATCHED and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(WATCHED[0]):
            OPENED.append(path)


sys.addaudithook(watch)


def words(symbols, count):
    return ["".join(LETTERS.choice(list(symbols), 3 + i % 9)) for i in range(count)]


def write(folder, name):
    """Small data of the user's, some minutes old."""
    path = folder / name
    if name == "photos":
        path.mkdir()
        for index in range(20):
            pixels = LETTERS.integers(256, size=(4, 4, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(path / f"{index}.png")
    elif name.endswith(".npy"):
        np.save(path, LETTERS.integers(5, size=(60, 8)).astype(np.uint8))
    elif name.endswith(".npz"):
        np.savez(path, LETTERS.integers(5, size=(60, 8)).astype(np.uint8))
    else:
        lines = {
            ".csv": ["size,colour,weight", *(f"{i % 7},{'rgb'[i % 3]},{i * 0.37:.2f}" for i in range(300))],
            ".data": [f"{i % 7},{'rgb'[i % 3]},{i * 0.37:.2f}" for i in range(300)],
            ".fasta": [line for i, word in enumerate(words("ACGT", 60)) for line in (f">s{i}", word)],
            ".smi": words("CNO", 60),
            ".jsonl": [f'"{word}"' for word in words("CNO", 60)],
        }.get(path.suffix, words("abcdefgh ", 1200))
        path.write_text("\n".join(lines) + "\n")
    for file in (path, *(path.iterdir() if path.is_dir() else ())):
        os.utime(file, (1e9, 1e9))
    return path


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """How often each file is opened while `dmb train` runs to its end, called as a user calls it."""
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(name, out, *arguments):
        OPENED.clear()
        WATCHED.append(str(tmp_path / name))
        try:
            assert dmb_("train", name, "--out", out, "--minutes", "0.0001", *arguments) == 0
        finally:
            WATCHED.clear()
        return {path.removeprefix(f"{tmp_path}/"): OPENED.count(path) for path in set(OPENED)}

    return run


SMALL = ("--width", "8", "--blocks", "1")
TEXT = ("--length", "16", *SMALL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("small.txt", TEXT),
        ("small.log", TEXT),
        ("small.csv", ()),
        ("small.data", ()),
        ("small.npy", SMALL),
        ("small.npz", SMALL),
        ("small.fasta", SMALL),
        ("small.smi", SMALL),
        ("small.jsonl", SMALL),
        ("photos", SMALL),
    ],
)
def test_a_file_is_opened_once_and_an_image_once(tmp_path, opened, name, arguments):
    path = write(tmp_path, name)
    files = [str(file.relative_to(tmp_path)) for file in path.iterdir()] if path.is_dir() else [name]
    assert opened(name, "run", *arguments) == dict.fromkeys(files, 1)
    os.utime(path, (1e9, 2e9))
    assert opened(name, "again", *arguments) == dict.fromkeys(files, 1)  # what is cached is known by its content


@pytest.mark.long
def test_a_file_that_has_changed_is_opened_again(tmp_path, opened):
    """In its first seconds, too, when its times cannot tell."""
    table = write(tmp_path, "small.csv")
    opened("small.csv", "run")
    content = table.read_text().replace("r", "R")  # of the same size
    table.write_text(content)
    assert opened("small.csv", "again")["small.csv"] >= 1
    assert "'R'" in (tmp_path / "again" / "run.json").read_text().replace('"', "'")


@pytest.mark.long
def test_a_model_is_built_once_more_to_prove_that_it_can_be_loaded(tmp_path, opened, monkeypatch):
    built, original = [], MLP.__init__
    monkeypatch.setattr(MLP, "__init__", lambda self, *a, **o: built.append(1) or original(self, *a, **o))
    write(tmp_path, "small.npy")
    opened("small.npy", "run", *SMALL)
    assert len(built) == 2

"""What `dmb train` reads: each file of the user's is opened once, and the model is built once more to prove that it can be."""

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import dmb_, flags
from dmb.app.cli.settings import recipe_asked_for
from dmb.data import images, load, reading
from dmb.data.sources import images as module
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
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def counted(path):
    """How often each file at `path` is opened in this block."""
    found = dict[str, int]()
    OPENED.clear()
    WATCHED.append(str(path))
    try:
        yield found
    finally:
        WATCHED.clear()
        found.update({os.path.basename(opened): OPENED.count(opened) for opened in OPENED})


def names(path):
    return [file.name for file in path.iterdir()] if path.is_dir() else [path.name]


KINDS = ("txt", "log", "csv", "data", "npy", "npz", "fasta", "smi", "jsonl")


@pytest.mark.parametrize("name", [*(f"small.{kind}" for kind in KINDS), "photos"])
def test_a_file_is_opened_once_and_an_image_once_to_find_its_recipe_and_to_load_it(folder, name):
    path = write(folder, name)
    for _ in range(2):  # the second time what is cached is known by its content
        with counted(path) as opened:
            recipe = recipe_asked_for(name, None).changed(**({"length": 16} if name[-3:] in ("txt", "log") else {}))
            digest = recipe.data.load().digest()
        assert opened == dict.fromkeys(names(path), 1)
        move(path)
    assert recipe.data.load().digest() == digest


def move(path):
    """Give files other times, as if they had been written again."""
    for file in path.iterdir() if path.is_dir() else (path,):
        os.utime(file, (1e9, 1.1e9))


def test_images_beyond_what_is_kept_are_opened_twice(folder, monkeypatch):
    path = write(folder, "photos")
    whole = images(path).digest()
    shutil.rmtree(folder / "home")
    monkeypatch.setattr(module, "_KEPT", sum(file.stat().st_size for file in sorted(path.iterdir())) // 2)
    with counted(path) as opened:
        assert images(path).digest() == whole
    assert set(opened.values()) == {1, 2}


def test_a_text_is_read_twice_to_know_its_symbols_and_to_make_tokens_of_them(folder):
    """It was read three times; `rchar` counts the bytes that this process has read from any file."""
    counter = Path("/proc/self/io")
    if not counter.exists():
        pytest.skip("only Linux counts what a process reads")
    path = folder / "large.txt"
    path.write_text("".join(words("abcdefgh ", 100)) * 40_000)
    size, before = path.stat().st_size, int(counter.read_text().split()[1])
    load(path).digest()
    read = int(counter.read_text().split()[1]) - before
    assert 2 * size <= read < 2.3 * size


def test_a_file_that_has_changed_is_read_again(folder):
    path, read = write(folder, "small.csv"), []
    remembering = reading.while_unchanged(lambda path: read.append(1) or path.read_bytes())
    for _ in range(2):
        assert remembering(path) == path.read_bytes()
    assert len(read) == 1
    content = path.read_bytes().replace(b"r", b"R")  # of the same size
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))
    assert remembering(path) == content
    assert len(read) == 2


def test_what_is_read_of_a_file_that_has_just_been_written_is_not_kept(folder, monkeypatch):
    """Another change within a tick of the clock would not show in its times."""
    path, read, now = write(folder, "small.csv"), [], [1e9 + 1]
    remembering = reading.while_unchanged(lambda path: read.append(1) or path.read_bytes())
    monkeypatch.setattr(reading.time, "time", lambda: now[0])
    for seconds, reads in ((1, 1), (1, 2), (9, 3), (9, 3)):
        now[0] = 1e9 + seconds
        remembering(path)
        assert len(read) == reads


@pytest.mark.long
def test_training_opens_a_file_once_and_builds_the_model_once_more_to_prove_that_it_can_be_loaded(folder, monkeypatch):
    built, original = [], MLP.__init__
    monkeypatch.setattr(MLP, "__init__", lambda self, *a, **o: built.append(1) or original(self, *a, **o))
    path = write(folder, "small.npy")
    with counted(path) as opened:
        small = flags(width=8, blocks=1, cycles=1, score_steps=1, matrix_steps=1)
        assert dmb_("train", "small.npy", "--out", "run", *small) == 0
    assert (opened, len(built)) == ({"small.npy": 1}, 2)

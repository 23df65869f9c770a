import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from dmb.data import Bytes, Characters, Grid, load
from dmb.data.sources import text8 as text8_module


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(40).reshape(20, 2) % 3)
    np.savez("x.npz", np.arange(40).reshape(20, 2) % 3)
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n3,4\n" * 10)
    (tmp_path / "x.txt").write_text("hello world " * 600)
    (tmp_path / "x.md").write_text("hello world " * 600)
    (tmp_path / "photos").mkdir()
    for index in range(20):
        Image.fromarray(np.full((2, 2, 3), index, dtype=np.uint8)).save(tmp_path / "photos" / f"{index}.png")
    pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").table({"a": [1, 2] * 9}), "x.parquet"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("name", "codec", "positions"),
    [
        ("x.npy", "Grid", 2),
        ("x.npz", "Grid", 2),
        ("x.csv", "Columns", 2),
        ("x.parquet", "Columns", 1),
        ("x.txt", "Characters", 256),
        ("x.md", "Characters", 256),
        ("photos", "Picture", 12),
        ("digits", "Grid", 64),
    ],
)
def test_a_data_set_is_read_by_its_kind_and_can_be_loaded_again(files, name, codec, positions, monkeypatch):
    data = load(name)
    assert type(data.codec).__name__ == codec
    assert data.num_positions == positions
    assert data.name == name
    monkeypatch.chdir("/")
    again = load(data.source, length=data.num_positions, codec=data.codec)
    for split, other in zip(data.splits().values(), again.splits().values(), strict=True):
        assert torch.equal(split[:], other[:])


def test_the_number_of_states_of_an_array_is_that_of_the_codec_given(files):
    assert load("x.npy", codec=Grid([2], 10)).num_states == 10


def test_length_and_encoding_reach_a_text(files):
    data = load("x.txt", length=12, encoding="bytes")
    assert (data.num_positions, data.num_states) == (12, 256)


def test_a_path_or_a_dot_mean_a_file_even_if_it_has_the_name_of_a_data_set(files):
    (files / "digits").write_text("zero one two " * 600)
    assert load("digits").num_positions == 64
    assert load("./digits").num_positions == 256
    assert load(files / "digits").num_positions == 256


def test_the_length_of_built_in_texts_can_be_chosen(monkeypatch, home):
    content = b"abcd " * 800
    monkeypatch.setattr(text8_module, "RAW_SHA256", hashlib.sha256(content).hexdigest())
    home.mkdir()
    (home / "text8").write_bytes(content)
    assert load("text8", length=32).num_positions == 32
    with pytest.raises(ValueError, match="a sequence of 256 tokens is longer than the validation split, 200 tokens"):
        load("text8")  # its own default


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nothing", {}, "no data set or file called 'nothing': give a path, or one of cifar10, digits, markov, pydocs, text8"),
        ("folder", {}, "folder must hold images .* got none"),
        ("folder", {"encoding": "bytes"}, "encoding applies to text files only, got 'bytes' for folder"),
        ("digits", {"levels": 8}, "levels applies to images only, got 8 for digits"),
        ("x.npy", {"levels": 8}, "levels applies to images only, got 8 for x.npy"),
        ("x.txt", {"levels": 8}, "levels applies to images only, got 8 for x.txt"),
        ("cifar10", {"levels": 1}, r"levels must lie in \[2, 256\], got 1"),
        ("photos", {"length": 32}, "length must be 12 for photos, got 32"),
        ("photos", {"codec": Bytes()}, r"photos must be readable by Bytes\(\), got data for Picture\(shape=\[2, 2, 3\], levels=256\)"),
        ("empty.txt", {}, "empty.txt is empty"),
        ("empty.npy", {}, "empty.npy is empty"),
        ("empty.csv", {}, "empty.csv is empty"),
        ("x.txt", {"length": 0}, "length must be at least 1, got 0"),
        ("digits", {"length": 32}, "length must be 64 for digits, got 32"),
        ("x.npy", {"length": 3}, "length must be 2 for x.npy, got 3"),
        ("x.csv", {"length": 3}, "length must be 2 for x.csv, got 3"),
        ("digits", {"encoding": "bytes"}, "encoding applies to text files only, got 'bytes' for digits"),
        ("x.csv", {"encoding": "bytes"}, "encoding applies to text files only, got 'bytes' for x.csv"),
        ("digits", {"codec": Bytes()}, r"digits must be readable by Bytes\(\), got data for Grid\(shape=\[8, 8\], num_states=17\)"),
        ("x.csv", {"codec": Bytes()}, r"x.csv must be readable by Bytes\(\), got data for Columns\(names=\['a', 'b'\], values=.*\)"),
        ("x.npy", {"codec": Grid([1, 2], 3)}, r"readable by Grid\(shape=\[1, 2\], .* got data for Grid\(shape=\[2\]"),
        ("x.txt", {"codec": Grid([2], 3)}, "codec must be a text codec, got Grid"),
        ("x.txt", {"codec": Characters("helo")}, "symbol ' ' at offset 5 is not in the alphabet 'helo'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(files, source, options, message):
    (files / "folder").mkdir()
    for name in ("empty.txt", "empty.npy", "empty.csv"):
        (files / name).touch()
    with pytest.raises(ValueError, match=message) as caught:
        load(source, **options)
    assert "\n" not in str(caught.value)

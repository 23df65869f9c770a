import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dmb.data import BUILT_IN, Characters, array, kind_of, load
from dmb.data.loading import NAMES

IRIS = "".join(f"{5 + i % 7 / 10},{3 + i % 3 / 10},Iris-{'abc'[i % 3]}\n" for i in range(60))
PROSE = "Call me Ishmael. Some years ago, never mind how long precisely,\nhaving little or no money in my purse\n" * 60


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.npy", b"anything", "array"),
        ("x.NPZ", b"anything", "array"),
        ("x.csv", b"anything", "table"),
        ("x.TSV", b"anything", "table"),
        ("x.parquet", b"anything", "table"),
        ("novel.txt", PROSE.encode(), "text"),
        ("novel", PROSE.encode(), "text"),
        ("iris.data", IRIS.encode(), "table"),
        ("iris.data", IRIS.encode("utf-16"), "table"),
        ("iris.data", IRIS.replace(",", ";").encode(), "table"),
        ("iris", IRIS.replace(",", "\t").encode(), "table"),
        ("notes.txt", IRIS.encode(), "text"),  # the extension says so
        ("two.data", b"a,b\n" * 9, "text"),  # a comma a line is common in prose
        ("two.data", b"a|b\n" * 9, "table"),
        ("few.data", b"a;b;c\n" * 4, "text"),
        ("ragged.data", IRIS.encode() + b"one more\n", "text"),
        ("sentences.data", (("word " * 20 + "\t" + "Wort " * 20).encode() + b"\n") * 9, "text"),
        ("binary", bytes(range(256)) * 9, "text"),
    ],
)
def test_what_a_file_is_decides(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    assert kind_of(tmp_path / name) == kind_of(str(tmp_path / name)) == kind


def test_names_and_folders_have_a_kind_too(tmp_path):
    assert {name: kind_of(name) for name in BUILT_IN} == NAMES
    assert kind_of(tmp_path) == "images"


def test_the_kind_of_a_large_file_is_told_by_its_beginning(tmp_path):
    (tmp_path / "x.data").write_text(IRIS * 400 + "and then prose\n")
    assert kind_of(tmp_path / "x.data") == "table"


def test_a_table_without_a_tables_name_trains_on_its_columns(tmp_path):
    """It was read as text, letter by letter."""
    (tmp_path / "iris.data").write_text(IRIS)
    data = load(tmp_path / "iris.data")
    assert data.codec.names == ["column_1", "column_2", "column_3"]
    assert sum(map(len, data.splits().values())) == 60
    assert "to read text, name it .txt" in " ".join(data.describe())
    again = load(data.source, length=3, codec=data.codec)
    assert again.digest() == data.digest()


def test_such_a_file_is_text_to_whoever_says_so(tmp_path):
    (tmp_path / "iris.data").write_text(IRIS)
    for options in ({"kind": "text"}, {"encoding": "bytes"}, {"codec": Characters("".join(sorted(set(IRIS))))}):
        data = load(tmp_path / "iris.data", length=8, **options)
        assert bytes("".join(data.codec.decode(data.train[:1])), "utf-8") == IRIS[:8].encode()
        assert "to read a table, name it .csv" in " ".join(data.describe())
    (tmp_path / "iris.txt").write_text(IRIS)
    assert load(tmp_path / "iris.txt", kind="table").num_positions == 3


@pytest.mark.parametrize(
    ("source", "suggestion"),
    [
        ("noevl.txt", "did you mean 'novel.txt'?"),
        ("NOVEL.TXT", "did you mean 'novel.txt'?"),
        ("digitz", "did you mean 'digits'?"),
        ("texts/novle.txt", "did you mean 'texts/novel.txt'?"),
        ("./digitz", "give a path, or one of cifar10, digits, markov, pydocs, text8"),  # a path is no name
        ("nowhere/novel.txt", "give a path, or one of cifar10, digits, markov, pydocs, text8"),
        ("qqq", "give a path, or one of cifar10, digits, markov, pydocs, text8"),
        ("novel", "did you mean 'novel.txt'?"),
        ("novel.md", "did you mean 'novel.txt'?"),
        ("rows.cvs", "did you mean 'rows.csv'?"),  # rather than rows.md
        ("nothere.csv", "give a path, or one of cifar10, digits, markov, pydocs, text8"),  # an extension is no likeness
    ],
)
def test_a_wrong_guess_gets_a_suggestion(tmp_path, monkeypatch, source, suggestion):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for folder in (tmp_path, tmp_path / "texts"):
        (folder / "novel.txt").write_text(PROSE)
    for name in ("rows.csv", "rows.md", "short.csv", "train.csv"):
        (tmp_path / name).write_text(IRIS)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(source)
    assert str(caught.value) == f"no data set or file called {source!r}: {suggestion}"


def test_mistakes_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("L", (2, 2)).save("one.png")
    np.save("x.npy", np.arange(40).reshape(20, 2) % 3)
    Path("x.csv.tgz").write_bytes(b"\x1f\x8b")
    for source, options, message in [
        ("one.png", {}, "one.png is a single image: give the folder that holds it"),
        ("x.csv.tgz", {}, "x.csv.tgz is compressed: unpack it first"),
        ("", {}, "source must be the name of a data set or a path, got an empty string"),
        ("x" * 5000, {}, "no data set or file called 'xxx"),
        ("x\0y", {}, r"no data set or file called 'x\\x00y'"),
        ("digits", {"kind": "text"}, "kind must be array for digits, got text"),
        (".", {"kind": "table"}, "kind must be images for ., got table"),
        ("digits", {"most_states": 9}, "most_states applies to array files only, got 9 for digits"),
        ("x.npy", {"length": 50}, "length must be 2 for x.npy, got 50: leave it out, except for text"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(source, **options)


def test_a_name_that_is_not_utf8_is_one_line(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with pytest.raises(ValueError, match=r"no data set or file called '.*/caf\\\\xe9.txt'") as caught:
        load(os.fsdecode(path))
    str(caught.value).encode()
    with open(path, "w") as file:
        file.write(PROSE)
    with pytest.raises(ValueError, match=r"the name of .*/caf\\xe9.txt must be UTF-8: rename it") as caught:
        load(os.fsdecode(path))
    str(caught.value).encode()


def test_progress_reaches_whoever_reads(tmp_path):
    (tmp_path / "x.txt").write_text(PROSE)
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n3,4\n" * 10_000)
    (tmp_path / "photos").mkdir()
    for index in range(5):
        Image.new("L", (2, 2), index).save(tmp_path / "photos" / f"{index}.png")
    for name, wanted in {
        "x.txt": [(len(PROSE), len(PROSE))],
        "photos": [(i, 5) for i in range(1, 6)] * 2,  # read, then decoded
    }.items():
        reports = []
        load(tmp_path / name, progress=lambda *report: reports.append(report))  # noqa: B023
        assert reports == wanted
    reports = []
    load(tmp_path / "x.csv", progress=lambda *report: reports.append(report))
    assert [total for _, total in reports] == [80_004] * 2
    assert 0 < reports[0][0] <= reports[1][0] <= 80_004


@pytest.mark.parametrize("shape", [(20, 2), (20, 2, 3)])
def test_a_tensor_is_an_array(shape):
    values = torch.arange(20 * 6)[: int(np.prod(shape))].view(shape) % 5
    data = array(values)
    assert torch.cat([split[:] for split in data.splits().values()]).sum() == values.sum()


@pytest.mark.parametrize("name", ["x.txt", "x.parquet", "x.npz", "x.csv.gz", "x"])
def test_a_named_pipe_is_refused_before_anything_waits_for_it(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} must be a file, got a device"):
        kind_of(tmp_path / name)


def test_data_of_another_kind_are_told_as_such_before_their_length(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n" + "1,x\n2,y\n" * 40)
    with pytest.raises(ValueError, match=r"other.csv must be readable by Characters\(.*, got data for Columns\("):
        load(tmp_path / "other.csv", length=64, codec=Characters("ab"))

"""Compressed files are read wherever plain ones are."""

import bz2
import gzip
import io
import lzma
import random
import sys
import zipfile

import numpy as np
import pytest

import dmb.data.reading as reading
from dmb.data import load, table
from dmb.data.reading import opened


def zipped(content, *names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("inside",):
            archive.writestr(name, content)
    return file.getvalue()


def zstandard(content):
    """As `zstd` and Python 3.14 write it, by pyarrow."""
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return sink.getvalue().to_pybytes()


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zip": zipped,
    ".zst": zstandard,
}
WORDS = random.Random(0).choices(["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"], k=4000)
FILES = {
    "novel.txt": " ".join(WORDS),
    "novel": " ".join(WORDS),
    "utf16.txt": "\ufeff" + " ".join(WORDS),
    "x.csv": "a,b\n" + "1,x\n2,y\n" * 40,
    "x.tsv": "a\tb\n" + "1\tx\n2\ty\n" * 40,
    "iris.data": "5.1,3.5,setosa\n4.9,3.1,virginica\n" * 30,
    "x.fasta": "".join(f">s{k}\n{'ACDE'[k % 4] * (k % 7 + 1)}\n" for k in range(30)),
    "x.jsonl": '"one"\n"two"\n"three"\n' * 9,
}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("name", FILES)
def test_a_compressed_file_is_read_as_what_is_in_it(tmp_path, name, suffix):
    content = FILES[name].encode("utf-16-le" if "16" in name else "utf-8")
    (tmp_path / name).write_bytes(content)
    packed = tmp_path / f"{name}{suffix.upper() if name == 'x.csv' else suffix}"
    packed.write_bytes(PACKERS[suffix](content))
    plain, data = load(tmp_path / name), load(packed)
    assert data.digest() == plain.digest()
    assert data.describe() == plain.describe()
    assert (data.name, data.source) == (packed.name, str(packed))
    again = load(data.source, length=data.num_positions, codec=data.codec)
    assert again.digest() == data.digest()


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_file_may_be_larger_than_what_is_kept(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(reading, "_HEAD", 1000)
    monkeypatch.setattr(reading, "_CHUNK", 3000)
    content = " ".join(WORDS).encode()
    (tmp_path / "x.txt").write_bytes(content)
    (tmp_path / f"x.txt{suffix}").write_bytes(PACKERS[suffix](content))
    reports = []
    data = load(tmp_path / f"x.txt{suffix}", progress=lambda *report: reports.append(report))
    assert data.digest() == load(tmp_path / "x.txt").digest()
    assert reports[-1] == (len(content), 0)  # how much there is to come is not known
    lines = [line for line in opened(tmp_path / f"x.txt{suffix}").lines(None)]
    assert "".join(lines) == content.decode()


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("head", [1000, 1 << 22])
def test_a_damaged_compressed_file_is_named_in_one_line(tmp_path, monkeypatch, suffix, head):
    monkeypatch.setattr(reading, "_HEAD", head)
    content = bytes(np.random.default_rng(0).integers(97, 99, 20_000, dtype=np.uint8))
    whole, path = PACKERS[suffix](content), tmp_path / f"x.txt{suffix}"
    overwritten = whole[: len(whole) // 2] + bytes(100) + whole[len(whole) // 2 + 100 :]
    for broken in (whole[: len(whole) // 2], overwritten, b"no such thing"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"x.txt{suffix}.* cannot be read: .") as caught:
            load(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("two.zip", zipped(b"a,b\n" * 9, "one.csv", "two.csv"), "two.zip must hold one file, got 2: unpack it first"),
        ("none.zip", zipped(b"", "folder/"), "none.zip must hold one file, got 0: unpack it first"),
        ("x.txt.gz", gzip.compress(b""), "x.txt.gz is empty"),
        ("x.npy.gz", gzip.compress(b"1"), "x.npy.gz is compressed: unpack it first"),
        ("x.parquet.xz", lzma.compress(b"1"), "x.parquet.xz is compressed: unpack it first"),
        ("photos.tar.gz", gzip.compress(b"1"), "photos.tar.gz is compressed: unpack it first"),
        ("x.csv.7z", b"1", "x.csv.7z is compressed: unpack it first"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_what_cannot_be_read_packed_is_said(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / name)


def test_the_notes_of_a_compressed_table_are_those_of_the_table(tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a;b\n" + b"1;x\n2;y\n" * 9))
    assert table(tmp_path / "x.csv.gz").notes == ("columns are separated by semicolons",)


def test_zstandard_without_what_reads_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "x.csv.zst").write_bytes(zstandard(b"a,b\n" + b"1,2\n" * 9))
    for name in ("compression.zstd", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"x.csv.zst needs Python 3.14, or the extra `table`: pip install"):
        load(tmp_path / "x.csv.zst")

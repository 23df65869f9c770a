"""A damaged file is read as far as it makes sense, or refused in one line that names it. Nothing else."""

import gzip
import lzma
import struct
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image

from dmb.data import Grid, Picture, load, prepare_cifar10, prepare_text8
from dmb.data.sources import cifar10

CASES = 120
VALUES = np.random.default_rng(0).integers(5, size=(40, 2, 3)).astype(np.uint8)


def photograph(path):
    for index, name in enumerate(("a", "b", "c", path.name)):
        Image.fromarray(VALUES[index] * 50).save(path.with_name(f"{name.removesuffix(path.suffix)}{path.suffix}"))


def parquet(path):
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"size": [1, 2, None, 4] * 10, "name": ["ä", "b", None, "c"] * 10, "flag": [True, False] * 20}
    files.write_table(pyarrow.table(columns), path)


WRITERS = {
    "x.npy": lambda path: np.save(path, VALUES),
    "x.npz": lambda path: np.savez(path, VALUES),
    "three.npz": lambda path: np.savez_compressed(path, train=VALUES, validation=VALUES[:9], test=VALUES[:9]),
    "x.csv": lambda path: path.write_text("a,b\n" + 'x,"1, 2"\ny,ä\n' * 20, encoding="utf-8"),
    "x.csv.gz": lambda path: path.write_bytes(gzip.compress(b"a,b\n" + b"x,1\ny,2\n" * 20)),
    "x.csv.xz": lambda path: path.write_bytes(lzma.compress(b"a,b\n" + b"x,1\ny,2\n" * 20)),
    "utf16.csv": lambda path: path.write_text("a;b\n" + 'x;"1; 2"\ny;ä\n' * 20, encoding="utf-16"),
    "x.parquet": parquet,
    "x.data": lambda path: path.write_text("5.1,3.5,setosa\n4.9,3.1,virginica\n" * 30),
    "photos/x.png": photograph,
    "photos/x.jpg": photograph,
    "photos/x.webp": photograph,
    "photos/x.bmp": photograph,
}


def damaged(whole, generator):
    """Cut short, a few bits flipped, a stretch overwritten or moved."""
    content = bytearray(whole)
    first, last = sorted(generator.integers(len(content), size=2).tolist())
    match int(generator.integers(5)):
        case 0:
            del content[first:]
        case 1 | 2:
            for place in generator.integers(len(content), size=int(generator.integers(1, 5))):
                content[place] ^= 1 << int(generator.integers(8))
        case 3:
            content[first : min(last, first + 40)] = generator.bytes(min(last, first + 40) - first)
        case 4:
            content[first:last], content[:0] = b"", content[first:last]
    return bytes(content)


def complaint(call):
    """What a ValueError says; any other error fails the test."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    WRITERS[name](path)
    whole, generator, refused = path.read_bytes(), np.random.default_rng(0), 0
    source = path.parent if path.parent != tmp_path else path
    assert load(source).num_positions > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of odd files on their way
        for _ in range(CASES if source == path else CASES // 4):  # images are slow, as all of them are cached
            path.write_bytes(damaged(whole, generator))
            message = complaint(lambda: load(source))
            if message is not None:
                assert path.name in message or "photos" in message
                assert "\n" not in message
                assert len(message) < 500
                refused += 1
    assert refused > CASES // 20


HEADERS = [
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (40, 2, 3)",  # the tokenizer of Python fails
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999, 2), }",
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000000000000, 4000000000000000000), }",
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (-40, -6), }",
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (True, 2), }",
    b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (4, 2), }",
    b"{'descr': 'zz', 'fortran_order': False, 'shape': (4, 2), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (4, 2), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2), }",
    b"[" * 50,
    b"(" * 5000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_headers_that_numpy_stumbles_over_are_one_line(tmp_path, header):
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(400)
    (tmp_path / "x.npy").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", raw)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ValueError, match=rf"{name}.* (cannot be read as an array|must hold integers)") as caught:
            load(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"the template .*x.npy (cannot be read|must hold integers)"):
        Grid([2, 3], 5).template(str(tmp_path / "x.npy"), 6)


@pytest.mark.parametrize("change", ["method", "encrypted", "name", "crc"])
def test_archives_that_zipfile_stumbles_over_are_one_line(tmp_path, change):
    np.savez(tmp_path / "x.npz", VALUES)
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    local, central = 0, raw.rindex(b"PK\x01\x02")
    if change == "method":
        raw[local + 8] = raw[central + 10] = 97  # NotImplementedError
    elif change == "encrypted":
        raw[local + 6] |= 1
        raw[central + 8] |= 1  # RuntimeError
    elif change == "name":
        raw[local + 30] = ord("!")
    else:
        raw[central + 16] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(ValueError, match=r"x.npz cannot be read as an array: .+"):
        load(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x.npz is damaged or not Text8: .+"):
        prepare_text8(tmp_path / "x.npz")


def test_a_damaged_template_is_one_line(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(VALUES[0]).save(path)
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    for _ in range(CASES):
        path.write_bytes(damaged(whole, generator))
        message = complaint(lambda: Picture([2, 3, 1]).template(str(path), 6))
        if message is not None:
            assert "x.png" in message
            assert "\n" not in message


def archive_of_text8(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", b"hello world " * 400)


def archive_of_cifar10(path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(__file__, "data_batch_1.bin")


@pytest.mark.parametrize(
    ("prepare", "write"), [(prepare_text8, archive_of_text8), (prepare_cifar10, archive_of_cifar10)]
)
def test_a_damaged_archive_is_one_line(tmp_path, home, monkeypatch, prepare, write):
    path = tmp_path / "mine"
    write(path)
    monkeypatch.setattr(cifar10, "digest_of", lambda path: cifar10.SHA256)  # so that it is opened at all
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    for _ in range(CASES):
        path.write_bytes(damaged(whole, generator) or b"?")
        with pytest.raises(ValueError, match=r"mine (is|must)") as caught:
            prepare(path)
        assert "\n" not in str(caught.value)
    assert not [path for path in home.rglob("*") if path.is_file()]

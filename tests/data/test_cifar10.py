import gzip
import hashlib
import io
import struct
import tarfile
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

from dmb.data import Picture, cifar10, load, prepare_cifar10
from dmb.data.sources import cifar10 as module

ORIGINAL = urllib.request.urlopen
BATCH = 4
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
ADVICE = "download it again"


class Photographs:
    """24 images as they are to come out, and the official archives of them."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.x = generator.integers(256, size=(6 * BATCH, 32, 32, 3), dtype=np.uint8)
        self.y = generator.permutation(np.arange(6 * BATCH) % 10).astype(np.uint8)

    def parts(self):
        for number, name in enumerate(NAMES):
            rows = slice(number * BATCH, (number + 1) * BATCH)
            yield name, self.x[rows], self.y[rows]

    def binary(self):
        files = {}
        for name, x, y in self.parts():
            content = b""
            for image, label in zip(x, y, strict=True):
                planes = b"".join(image[row, :, channel].tobytes() for channel in range(3) for row in range(32))
                content += bytes([label]) + planes
            files[f"cifar-10-batches-bin/{name}.bin"] = content
        return packed(files | {"cifar-10-batches-bin/readme.html": b"<html>"})

    def pickled(self):
        files = {}
        for name, x, y in self.parts():
            planes = b"".join(image[:, :, channel].tobytes() for image in x for channel in range(3))
            files[f"cifar-10-batches-py/{name}"] = python_2_pickle(planes, y)
        return packed(files | {"cifar-10-batches-py/batches.meta": b"not looked at"})

    def folder(self, path, **changes):
        path.mkdir()
        arrays = {"x_train": self.x[: 5 * BATCH], "y_train": self.y[: 5 * BATCH], "x_test": self.x[5 * BATCH :],
                  "y_test": self.y[5 * BATCH :].astype(np.int64)} | changes  # fmt: skip
        for name, values in arrays.items():
            np.save(path / f"{name}.npy", values)
        return path


def python_2_pickle(planes, labels, shape=(BATCH, 3072), function=b"cnumpy.core.multiarray\n_reconstruct\n"):
    """Byte by byte what `cPickle` of Python 2 wrote, which no later Python writes: strings are `U` and `T`."""
    array = (
        function + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01M" + struct.pack("<H", shape[0]) + b"M" + struct.pack("<H", shape[1]) + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(planes)) + planes + b"tb"
    )
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + numbers + b"eu."


def packed(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def trusted(monkeypatch, name, content):
    """Let the module take `content` for the official archive."""
    monkeypatch.setitem(module.SHA256, name, hashlib.sha256(content).hexdigest())
    return content


def left_over(home):
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


@pytest.fixture
def photographs(monkeypatch):
    monkeypatch.setattr(module, "BATCH", BATCH)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("no test goes to the network"))
    return Photographs()


@pytest.mark.parametrize("kind", ["binary", "pickled", "folder", "folder, labels as Keras has them"])
def test_every_form_of_it_becomes_the_same_four_arrays(photographs, tmp_path, home, monkeypatch, kind):
    source = tmp_path / "mine"
    if kind.startswith("folder"):
        photographs.folder(source, **({"y_train": photographs.y[: 5 * BATCH, None]} if "Keras" in kind else {}))
    else:
        name = {"binary": module.BINARY, "pickled": module.PYTHON}[kind]
        source.write_bytes(trusted(monkeypatch, name, getattr(photographs, kind)()))  # told by digest, not by name
    assert prepare_cifar10(source) == home / "cifar10"
    assert left_over(home) == [f"cifar10/{name}.npy" for name in ("x_test", "x_train", "y_test", "y_train")]
    x_train, x_test = (np.load(home / "cifar10" / f"x_{part}.npy", mmap_mode="r") for part in ("train", "test"))
    assert x_train.flags.c_contiguous
    assert x_train.dtype == x_test.dtype == np.uint8
    np.testing.assert_array_equal(np.concatenate([x_train, x_test]), photographs.x)
    y = [np.load(home / "cifar10" / f"y_{part}.npy") for part in ("train", "test")]
    np.testing.assert_array_equal(np.concatenate(y), photographs.y)


def test_pixels_are_tokens_and_classes_are_labels(photographs, tmp_path):
    prepare_cifar10(photographs.folder(tmp_path / "mine"))
    data = load("cifar10")
    assert (data.name, data.source, data.num_positions, data.num_states, data.num_classes) == (
        "cifar10", "cifar10", 3072, 256, 10,
    )  # fmt: skip
    assert isinstance(data.train._tokens, np.memmap)
    np.testing.assert_array_equal(data.test[:], photographs.x[20:].reshape(4, 3072))
    np.testing.assert_array_equal(data.test.labels(slice(None)), photographs.y[20:])
    batch = data.train.batch(6, step=0, seed=0)
    for row, label in zip(batch.x_0.numpy(), batch.label.tolist(), strict=True):
        (index,) = np.flatnonzero((photographs.x.reshape(24, 3072) == row).all(1))
        assert (index < 20, photographs.y[index]) == (True, label)


def test_a_tenth_of_the_training_images_validates_the_same_one_every_time(photographs, tmp_path):
    prepare_cifar10(photographs.folder(tmp_path / "mine"))
    data = cifar10()
    assert [len(split) for split in data.splits().values()] == [18, 2, 4]
    rows = torch.cat([data.train[:], data.validation[:]]).tolist()
    assert sorted(rows) == sorted(photographs.x[:20].reshape(20, 3072).tolist())
    assert torch.equal(data.validation[:], cifar10(256).validation[:])


@pytest.mark.parametrize("levels", [2, 3, 8, 100, 255])
def test_levels_are_uniform_steps(photographs, tmp_path, levels):
    prepare_cifar10(photographs.folder(tmp_path / "mine"))
    data = load("cifar10", levels=levels)
    assert data.num_states == levels
    assert data.test[:].flatten().tolist() == [int(v) * levels // 256 for v in photographs.x[20:].ravel()]
    assert data.train.counts().sum() == 18 * 3072
    again = load(data.source, length=3072, codec=data.codec)
    assert torch.equal(again.test[:], data.test[:])
    with pytest.raises(ValueError, match="must be readable by Picture"):
        load("cifar10", levels=16, codec=Picture([32, 32, 3], levels))


def test_what_is_prepared_is_left_alone(photographs, tmp_path, home):
    assert prepare_cifar10(photographs.folder(tmp_path / "mine")) == prepare_cifar10() == home / "cifar10"
    before = (home / "cifar10" / "x_train.npy").stat()
    prepare_cifar10(home / "cifar10")  # from itself
    assert (home / "cifar10" / "x_train.npy").stat().st_ino == before.st_ino


@pytest.mark.parametrize("folder", [".", "cifar10"])
def test_an_archive_in_the_data_folder_is_prepared_at_first_use(photographs, home, monkeypatch, folder):
    (home / folder).mkdir(parents=True)
    (home / folder / module.BINARY).write_bytes(trusted(monkeypatch, module.BINARY, photographs.binary()))
    assert len(cifar10().test) == 4


def test_a_download_is_checked_and_unpacked(photographs, tmp_path, home, monkeypatch):
    content = trusted(monkeypatch, module.BINARY, photographs.binary())
    (tmp_path / "served").write_bytes(content)
    monkeypatch.setattr(module, "URL", (tmp_path / "served").as_uri())
    monkeypatch.setattr(urllib.request, "urlopen", ORIGINAL)
    reports = []
    prepare_cifar10(progress=lambda done, total: reports.append((done, total)))
    assert reports == [(len(content), len(content))]
    np.testing.assert_array_equal(np.load(home / "cifar10" / "y_test.npy"), photographs.y[20:])


def test_a_download_that_is_cut_short_is_refused_and_nothing_is_kept(photographs, tmp_path, home, monkeypatch):
    content = trusted(monkeypatch, module.BINARY, photographs.binary())
    (tmp_path / "served").write_bytes(content[:-1])
    monkeypatch.setattr(module, "URL", (tmp_path / "served").as_uri())
    monkeypatch.setattr(urllib.request, "urlopen", ORIGINAL)
    with pytest.raises(ValueError, match=r"must have the SHA256 \w+, got \w+ \([\d,]+ bytes\): try again, or .*--from"):
        prepare_cifar10()
    assert left_over(home) == []


def test_without_a_network_a_copy_is_asked_for(photographs, monkeypatch):
    def fails(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fails)
    with pytest.raises(ValueError, match=r"cannot be downloaded \(.+\): .*`dmb prepare cifar10 --from FILE`"):
        prepare_cifar10()


def test_before_it_is_prepared_the_command_is_named(photographs):
    with pytest.raises(ValueError, match=r"cifar10 is not here: run `dmb prepare cifar10`, or .*--from PATH"):
        load("cifar10")


def test_the_digests_are_those_of_the_official_archives():
    assert module.SHA256["cifar-10-binary.tar.gz"].startswith("c4a38c50a1bc5f3a")
    assert module.SHA256["cifar-10-python.tar.gz"].startswith("6d958be074577803")


# -- mistakes ---------------------------------------------------------------------------------------------------------


def refused(home, source, message):
    with pytest.raises(ValueError, match=message) as caught:
        prepare_cifar10(source)
    assert "\n" not in str(caught.value)
    assert left_over(home) == []


def test_a_file_with_another_digest_is_refused_unread(photographs, tmp_path, home):
    (tmp_path / "mine.tar.gz").write_bytes(photographs.pickled())
    refused(home, tmp_path / "mine.tar.gz",
            rf"mine.tar.gz must have the SHA-256 c4a38c50a1bc… .* or 6d958be07457… .*, got .* bytes\): {ADVICE}")  # fmt: skip
    refused(home, tmp_path / "missing.tar.gz", "no file called .*missing.tar.gz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "is damaged"),
        (lambda whole: gzip.compress(gzip.decompress(whole)[:20_000]), "is damaged"),
        (lambda whole: gzip.decompress(whole), "is damaged"),
        (lambda whole: packed({"data_batch_1.bin": b"\x00" * 3073}), "a batch must have 12,292 bytes, got 3,073"),
        (lambda whole: packed({"readme.html": b""}), "must hold data_batch_1, .*, test_batch, got no data_batch_1"),
    ],
    ids=["cut", "cut within", "not gzip", "short batch", "missing"],
)
def test_an_archive_that_is_damaged_is_refused(photographs, tmp_path, home, monkeypatch, change, message):
    (tmp_path / "mine").write_bytes(trusted(monkeypatch, module.BINARY, change(photographs.binary())))
    refused(home, tmp_path / "mine", f"mine .*{message}.*: {ADVICE}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n(U\x04truetR.", "os.system has no place in CIFAR-10"),
        (b"cbuiltins\neval\n(U\x011tR.", "builtins.eval has no place"),
        (python_2_pickle(b"", [], function=b"cnumpy\nload\n"), "numpy.load has no place"),
        (python_2_pickle(b"\x00" * 10, []), "cannot be unpickled"),
        (python_2_pickle(b"\x00" * 9216, [1, 2, 3], shape=(3, 3072)), r"4 images, got uint8 \[3, 3072\] and 3 labels"),
        (b"]", "cannot be unpickled"),
        (b"", "cannot be unpickled"),
        (b"].", "cannot be unpickled"),
    ],
)
def test_a_pickle_of_anything_else_is_refused_and_never_run(photographs, tmp_path, home, monkeypatch, content, message):
    archive = packed({"cifar-10-batches-py/data_batch_1": content})
    (tmp_path / "mine").write_bytes(trusted(monkeypatch, module.PYTHON, archive))
    refused(home, tmp_path / "mine", message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": np.zeros((4, 3, 32, 32), np.uint8)}, r"x_test.npy must hold uint8 of shape \[4, 32, 32, 3\], got uint8 \[4, 3, 32, 32\]"),
        ({"x_train": np.zeros((20, 32, 32, 3))}, r"x_train.npy must hold uint8 of shape .* got float64"),
        ({"y_train": np.zeros((20, 2), np.uint8)}, r"y_train.npy must hold integers of shape \[20\], got uint8 \[20, 2\]"),
        ({"y_test": np.array([0, 1, 2, 10])}, r"y_test.npy must hold labels in \[0, 10\), got 0 to 10"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_cifar_are_named(photographs, tmp_path, home, changes, message):
    refused(home, photographs.folder(tmp_path / "mine", **changes), message)


def test_a_folder_without_all_four_arrays_is_refused(photographs, tmp_path, home):
    (photographs.folder(tmp_path / "mine") / "y_test.npy").unlink()
    refused(home, tmp_path / "mine", "no file called .*y_test.npy")


def test_an_array_that_was_cut_short_since_is_named(photographs, tmp_path, home):
    prepare_cifar10(photographs.folder(tmp_path / "mine"))
    path = home / "cifar10" / "x_test.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"x_test.npy cannot be read as an array .* run `dmb prepare cifar10 --from"):
        cifar10()

import hashlib
import io
import pickle
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
    """24 images as they are to come out, and the official archive of them."""

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

    def folder(self, path, **changes):
        path.mkdir()
        arrays = {"x_train": self.x[: 5 * BATCH], "y_train": self.y[: 5 * BATCH], "x_test": self.x[5 * BATCH :],
                  "y_test": self.y[5 * BATCH :].astype(np.int64)} | changes  # fmt: skip
        for name, values in arrays.items():
            np.save(path / f"{name}.npy", values)
        return path


def packed(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def trusted(monkeypatch, content):
    """Let the module take `content` for the official archive."""
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(content).hexdigest())
    return content


def left_over(home):
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


@pytest.fixture
def photographs(monkeypatch):
    monkeypatch.setattr(module, "BATCH", BATCH)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("no test goes to the network"))
    return Photographs()


@pytest.mark.parametrize("kind", ["binary", "folder", "folder, labels as Keras has them"])
def test_every_form_of_it_becomes_the_same_arrays(photographs, tmp_path, home, monkeypatch, kind):
    source = tmp_path / "mine"
    if kind.startswith("folder"):
        photographs.folder(source, **({"y_train": photographs.y[: 5 * BATCH, None]} if "Keras" in kind else {}))
    else:
        source.write_bytes(trusted(monkeypatch, photographs.binary()))  # told by digest, not by name
    path = prepare_cifar10(source)
    assert path == home / "cifar10"
    arrays = {file.stem: np.load(file) for file in path.iterdir()}
    assert left_over(home) == [f"cifar10/{name}.npy" for name in ("x_test", "x_train", "y_test", "y_train")]
    assert arrays["x_train"].dtype == np.uint8
    np.testing.assert_array_equal(np.concatenate([arrays["x_train"], arrays["x_test"]]), photographs.x)
    np.testing.assert_array_equal(np.concatenate([arrays["y_train"], arrays["y_test"]]), photographs.y)


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


def test_what_is_prepared_is_left_alone(photographs, tmp_path):
    path = prepare_cifar10(photographs.folder(tmp_path / "mine"))
    before = (path / "x_train.npy").stat().st_ino
    assert prepare_cifar10() == path
    assert (path / "x_train.npy").stat().st_ino == before


def test_another_source_replaces_what_is_prepared(photographs, tmp_path):
    prepare_cifar10(photographs.folder(tmp_path / "mine"))
    prepare_cifar10(photographs.folder(tmp_path / "other", x_test=photographs.x[:4]))
    np.testing.assert_array_equal(cifar10().test[:], photographs.x[:4].reshape(4, 3072))


def test_four_arrays_in_the_data_folder_are_prepared_at_first_use(photographs, home):
    home.mkdir()
    photographs.folder(home / "cifar10")
    np.testing.assert_array_equal(cifar10().test[:], photographs.x[20:].reshape(4, 3072))


@pytest.mark.parametrize("folder", [".", "cifar10"])
def test_an_archive_in_the_data_folder_is_prepared_at_first_use(photographs, home, monkeypatch, folder):
    (home / folder).mkdir(parents=True)
    (home / folder / module.ARCHIVE).write_bytes(trusted(monkeypatch, photographs.binary()))
    assert len(cifar10().test) == 4


def test_a_download_is_checked_and_unpacked(photographs, tmp_path, home, monkeypatch):
    content = trusted(monkeypatch, photographs.binary())
    (tmp_path / "served").write_bytes(content)
    monkeypatch.setattr(module, "URL", (tmp_path / "served").as_uri())
    monkeypatch.setattr(urllib.request, "urlopen", ORIGINAL)
    reports = []
    prepare_cifar10(progress=lambda done, total: reports.append((done, total)))
    assert reports == [(len(content), len(content))]
    np.testing.assert_array_equal(cifar10().test.labels(slice(None)), photographs.y[20:])


def test_a_download_that_is_cut_short_is_refused_and_nothing_is_kept(photographs, tmp_path, home, monkeypatch):
    content = trusted(monkeypatch, photographs.binary())
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
    with pytest.raises(ValueError, match=r"cifar10 is not prepared: run `dmb prepare cifar10`, or .*--from PATH"):
        load("cifar10")


def test_the_digest_is_that_of_the_official_archive():
    assert (module.ARCHIVE, module.SHA256[:16]) == ("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a")


# -- mistakes ---------------------------------------------------------------------------------------------------------


def refused(home, source, message):
    with pytest.raises(ValueError, match=message) as caught:
        prepare_cifar10(source)
    assert "\n" not in str(caught.value)
    assert left_over(home) == []


def test_a_file_with_another_digest_is_refused_unread(photographs, tmp_path, home):
    (tmp_path / "mine.tar.gz").write_bytes(photographs.binary())
    refused(home, tmp_path / "mine.tar.gz",
            rf"mine.tar.gz must be cifar-10-binary.tar.gz with the SHA-256 c4a38c50a1bc…, got .*…: {ADVICE}")  # fmt: skip
    refused(home, tmp_path / "missing.tar.gz", "no file called .*missing.tar.gz")


def test_nothing_is_unpickled(photographs, tmp_path, home):
    """Neither another archive, which may hold pickles, nor an array of objects."""

    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    archive = packed({f"cifar-10-batches-py/{name}": pickle.dumps(Bomb()) for name in NAMES})
    (tmp_path / "mine").write_bytes(archive)
    refused(home, tmp_path / "mine", "mine must be cifar-10-binary.tar.gz with the SHA-256")
    folder = photographs.folder(tmp_path / "arrays")
    np.save(folder / "x_test.npy", np.array([[Bomb()]]), allow_pickle=True)
    refused(home, folder, "x_test.npy cannot be read as an array")
    assert "pickle" not in {name.partition(".")[0] for name in vars(module)}


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


@pytest.mark.parametrize("cut", [1, 100, 5000])
def test_an_array_that_is_cut_short_is_named(photographs, tmp_path, home, cut):
    path = photographs.folder(tmp_path / "mine") / "x_test.npy"
    path.write_bytes(path.read_bytes()[:-cut] if cut > 1 else b"\x93NUMPY\x01\x00v\x00{'descr': [[")
    refused(home, tmp_path / "mine", r"x_test.npy cannot be read as an array .* give the folder of all four arrays, or")

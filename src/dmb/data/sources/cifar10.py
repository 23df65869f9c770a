"""CIFAR-10: 60,000 small photographs in ten classes, the usual benchmark of pixel models."""

import tarfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dmb._core.files import write_array
from dmb.data.base import DataSet
from dmb.data.cache import data_home, digest_of, downloaded, tidy
from dmb.data.codecs import Picture
from dmb.data.reading import Progress, as_value_error, existing, mapped
from dmb.data.sources.images import Pixels
from dmb.data.splits import Splits, set_apart

ARCHIVE = "cifar-10-binary.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SHAPE = (32, 32, 3)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH = 10_000  # images of a file in the archive: five to train on, one to test

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def cifar10(levels: int = 256) -> DataSet:
    """50,000 photographs of 32 × 32 pixels to learn from, 10,000 to test, with the class as label.

    The test images are the official ones; 5,000 of the others, by a fixed permutation, are to validate. Read from where
    `dmb prepare cifar10` put them; a copy of the official archive in the data folder is prepared at first use. A
    channel has so many `levels`, see `Picture`.
    """
    codec = Picture(list(SHAPE), levels)
    x, y, x_test, y_test = _read(prepare_cifar10(fetch=False))
    train, validation = (Pixels(x, levels, labels=y, rows=rows) for rows in set_apart(5 * BATCH, BATCH // 2))
    return DataSet(
        name="cifar10",
        source="cifar10",
        codec=codec,
        **Splits(train, validation, Pixels(x_test, levels, labels=y_test))._asdict(),
        num_classes=len(CLASSES),
        class_names=CLASSES,
    )


def prepare_cifar10(source: Path | None = None, progress: Progress | None = None, *, fetch: bool = True) -> Path:
    """Put CIFAR-10 into the data folder as four arrays, and return where.

    Args:
        source: `cifar-10-binary.tar.gz`, or a folder with `x_train.npy`, `y_train.npy`, `x_test.npy` and `y_test.npy`.
            Default: what is in the data folder, else a download.
        progress: called with the bytes downloaded so far and in all (0 if the server does not say).
        fetch: download it if need be.
    """
    folder = data_home() / "cifar10"
    if source is None and all((folder / f"{name}.npy").is_file() for name in _ARRAYS):
        return folder
    given = source or next((path for path in (folder / ARCHIVE, data_home() / ARCHIVE) if path.is_file()), None)
    if given is None:
        with downloaded(
            "cifar10",
            URL,
            folder / ARCHIVE,
            digest=SHA256,
            algorithm="sha256",
            fetch=fetch,
            progress=progress,
            copy="PATH",
        ) as archive:
            arrays = _unpacked(archive)
    elif given.is_dir():
        arrays = _read(given)
    else:
        found = digest_of(existing(given))
        if found != SHA256:
            raise ValueError(
                f"{given} must be {ARCHIVE} with the SHA-256 {SHA256[:12]}…, got {found[:12]}…: download it again"
            )
        with as_value_error(f"{given} is damaged"), given.open("rb") as file:
            arrays = _unpacked(file)
    for name, values in zip(_ARRAYS, arrays, strict=True):
        write_array(tidy(folder) / f"{name}.npy", values)
    return folder


def _read(folder: Path) -> list[np.ndarray]:
    """The four arrays, memory-mapped."""
    arrays, advice = [], f": give the folder of all four arrays, or {ARCHIVE}"
    for part, count in (("train", 5 * BATCH), ("test", BATCH)):
        x_path, y_path = (existing(folder / f"{name}_{part}.npy") for name in "xy")
        x = mapped(x_path, "uint8", np.uint8, (count, *SHAPE), advice=advice)
        y = mapped(y_path, "integers", np.integer, (count,), (count, 1), advice=advice)  # Keras has two axes
        if y.min() < 0 or y.max() >= len(CLASSES):
            raise ValueError(f"{y_path} must hold labels in [0, {len(CLASSES)}), got {y.min()} to {y.max()}")
        arrays += [x, y.reshape(count)]
    return arrays


def _unpacked(file: BinaryIO) -> list[np.ndarray]:
    """The arrays in an archive, whose digest is known to be right."""
    file.seek(0)
    batches = {}
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None and member.name.endswith(".bin"):
                batches[Path(member.name).stem] = np.frombuffer(content.read(), dtype=np.uint8).reshape(BATCH, -1)
    records = np.concatenate([batches[name] for name in sorted(batches)])  # the last is test_batch
    # an image is a byte for the class, then all reds, all greens and all blues, each row by row
    x, y = records[:, 1:].reshape(-1, SHAPE[2], *SHAPE[:2]).transpose(0, 2, 3, 1), records[:, 0]
    end = 5 * BATCH
    return [x[:end], y[:end], x[end:], y[end:]]

"""CIFAR-10: 60,000 small photographs in ten classes, the usual benchmark of pixel models."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from dmb.data.base import DataSet
from dmb.data.cache import cached, digest_of
from dmb.data.codecs import Picture
from dmb.data.download import downloaded
from dmb.data.home import Progress, data_home, existing, explained, mapped
from dmb.data.partition import Splits, set_apart
from dmb.data.pixels import Pixels

ARCHIVE = "cifar-10-binary.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SHAPE = (32, 32, 3)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH = 10_000  # images of a file in the archive: five to train on, one to test

_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")

Records = UInt8[np.ndarray, "N 3073"]
"""An image each: its class, then its values, a channel after the other of a pixel after the other."""


def cifar10(levels: int = 256) -> DataSet:
    """50,000 photographs of 32 × 32 pixels to learn from, 10,000 to test, with the class as label.

    The test images are the official ones; 5,000 of the others, by a fixed permutation, are to validate. Read from where
    `dmb prepare cifar10` put them; a copy of the official archive in the data folder is prepared at first use. A
    channel has so many `levels`, see `Picture`.
    """
    codec = Picture(list(SHAPE), levels)
    records = _records()
    x, y = records[:, 1:].reshape(-1, *SHAPE), records[:, 0]
    parts = (*set_apart(5 * BATCH, BATCH // 2), np.arange(5 * BATCH, 6 * BATCH))
    return DataSet(
        name="cifar10",
        source="cifar10",
        codec=codec,
        **Splits(*(Pixels(x, levels, labels=y, rows=rows) for rows in parts))._asdict(),
        num_classes=len(CLASSES),
        class_names=CLASSES,
    )


def prepare_cifar10(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Unpack CIFAR-10 once and for all, and return where.

    Args:
        source: `cifar-10-binary.tar.gz`, or a folder with `x_train.npy`, `y_train.npy`, `x_test.npy` and `y_test.npy`.
            Default: what is in the data folder, else a download.
        progress: called with the bytes downloaded so far and in all (0 if the server does not say).
    """
    return Path(str(_records(source, fetch=True, progress=progress).filename))


def _records(source: Path | None = None, *, fetch: bool = False, progress: Progress | None = None) -> np.memmap:
    def chunks() -> Iterator[Records]:
        given = source or _found()
        if given is not None and given.is_dir():
            yield from _from_arrays(given)
        elif given is not None:
            found = digest_of(existing(given))
            if found != SHA256:
                raise ValueError(
                    f"{given} must be {ARCHIVE} with the SHA-256 {SHA256[:12]}…, got {found[:12]}… "
                    f"({given.stat().st_size:,} bytes): download it again"
                )
            with given.open("rb") as file:
                yield from _unpacked(file, str(given))
        else:
            keep = _folder() / ARCHIVE
            with downloaded(
                "cifar10", URL, keep, digest=SHA256, algorithm="sha256", fetch=fetch, copy="PATH", progress=progress
            ) as archive:
                yield from _unpacked(archive, URL)

    return cached("cifar10", [SHA256], chunks, again=source is not None)


def _folder() -> Path:
    return data_home() / "cifar10"


def _found() -> Path | None:
    if all((_folder() / f"{name}.npy").is_file() for name in _ARRAYS):
        return _folder()
    return next((path for path in (_folder() / ARCHIVE, data_home() / ARCHIVE) if path.is_file()), None)


def _from_arrays(folder: Path) -> Iterator[Records]:
    x_train, y_train, x_test, y_test = (_array(folder, name) for name in _ARRAYS)
    for x, y in ((x_train, y_train), (x_test, y_test)):
        for first in range(0, len(x), BATCH):
            rows = slice(first, first + BATCH)
            yield _joined(y[rows], x[rows])


def _array(folder: Path, name: str) -> np.ndarray:
    path, count = existing(folder / f"{name}.npy"), (5 if name.endswith("train") else 1) * BATCH
    advice = f": give the folder of all four arrays, or {ARCHIVE}"
    if name.startswith("x"):
        return mapped(path, "uint8", np.uint8, (count, *SHAPE), advice=advice)
    labels = mapped(path, "integers", np.integer, (count,), (count, 1), advice=advice)  # Keras has two axes
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise ValueError(f"{path} must hold labels in [0, {len(CLASSES)}), got {labels.min()} to {labels.max()}")
    return labels.reshape(count)


def _unpacked(file: BinaryIO, name: str) -> Iterator[Records]:
    file.seek(0)
    batches: dict[str, Records] = {}
    again = ": download it again"
    with explained(f"{name} is damaged", advice=again), tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            batch = Path(member.name).name.removesuffix(".bin")
            content = archive.extractfile(member) if batch in _BATCHES else None
            if content is not None:
                batches[batch] = _channels_last(content.read())
    missing = [batch for batch in _BATCHES if batch not in batches]
    if missing:
        raise ValueError(f"{name} must hold {', '.join(_BATCHES)}, got no {missing[0]}{again}")
    yield from (batches[batch] for batch in _BATCHES)


def _channels_last(content: bytes) -> Records:
    """In the archive an image is a byte for the class, then all reds, all greens and all blues, each row by row."""
    height, width, channels = SHAPE
    size = 1 + height * width * channels
    if len(content) != BATCH * size:
        raise ValueError(f"a batch must have {BATCH * size:,} bytes, got {len(content):,}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(BATCH, size)
    planes = records[:, 1:].reshape(-1, channels, height, width)
    return _joined(records[:, 0], planes.transpose(0, 2, 3, 1))


def _joined(y: np.ndarray, x: np.ndarray) -> Records:
    return np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1)

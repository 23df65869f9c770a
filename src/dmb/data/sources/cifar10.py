"""CIFAR-10: 60,000 small photographs in ten classes, the usual benchmark of pixel models."""

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8

from dmb.data.base import DataSet
from dmb.data.codecs import Picture
from dmb.data.download import Progress, downloaded
from dmb.data.home import data_home, existing
from dmb.data.partition import set_apart
from dmb.data.pixels import Pixels
from dmb.files import written_whole

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
BINARY, PYTHON = "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"
SHA256 = {
    BINARY: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    PYTHON: "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
}
SHAPE = (32, 32, 3)
NUM_CLASSES = 10
BATCH = 10_000  # images of a file in the archive: five to train on, one to test

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class _Images(NamedTuple):
    x: UInt8[np.ndarray, "N 32 32 3"]
    y: UInt8[np.ndarray, " N"]


def cifar10(levels: int = 256) -> DataSet:
    """50,000 photographs of 32 × 32 pixels to learn from, 10,000 to test, with the class as label.

    The test images are the official ones; 5,000 of the others, by a fixed permutation, are to validate. Read from where
    `dmb prepare cifar10` put them; a copy of an official archive in the data folder is prepared at first use.

    Args:
        levels: of a channel; see `Picture`.
    """
    codec = Picture(list(SHAPE), levels)
    if not _is_prepared():
        found = _found()
        if found is None:
            raise ValueError(
                "cifar10 is not here: run `dmb prepare cifar10`, or `dmb prepare cifar10 --from PATH` with your copy"
            )
        prepare_cifar10(found)
    x_train, y_train, x_test, y_test = _checked(_folder(), "run `dmb prepare cifar10 --from PATH` again")
    train, validation = set_apart(len(x_train), BATCH // 2)
    return DataSet(
        name="cifar10",
        source="cifar10",
        codec=codec,
        train=Pixels(x_train, levels, labels=y_train, rows=train),
        validation=Pixels(x_train, levels, labels=y_train, rows=validation),
        test=Pixels(x_test, levels, labels=y_test),
        num_classes=NUM_CLASSES,
    )


def prepare_cifar10(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Unpack CIFAR-10 once and for all, and return the folder.

    Args:
        source: `cifar-10-binary.tar.gz`, `cifar-10-python.tar.gz`, or a folder with `x_train.npy`, `y_train.npy`,
            `x_test.npy` and `y_test.npy`; an archive in the data folder or else a download, unless given.
        progress: called with the bytes downloaded so far and in all (0 if the server does not say).
    """
    if source is None and _is_prepared():
        return _folder()
    source = source or _found()
    _folder().mkdir(exist_ok=True)
    if source is None:
        with downloaded(
            URL, _folder() / BINARY, digest=SHA256[BINARY], algorithm="sha256",
            otherwise="get a copy elsewhere and run `dmb prepare cifar10 --from FILE`", progress=progress,
        ) as archive:  # fmt: skip
            _keep(*_unpacked(archive, URL, _from_bytes))
    elif source.is_dir():
        x_train, y_train, x_test, y_test = _checked(source, "give the folder of all four arrays, or an archive")
        if source.resolve() != _folder().resolve():
            _keep(_Images(x_train, y_train), _Images(x_test, y_test))
    else:
        read = _reader(existing(source))
        with source.open("rb") as file:
            _keep(*_unpacked(file, str(source), read))
    return _folder()


def _folder() -> Path:
    return data_home() / "cifar10"


def _is_prepared() -> bool:
    return all((_folder() / f"{name}.npy").exists() for name in _ARRAYS)


def _found() -> Path | None:
    candidates = [folder / name for folder in (_folder(), data_home()) for name in SHA256]
    return next((path for path in candidates if path.is_file()), None)


def _keep(train: _Images, test: _Images) -> None:
    for name, values in zip(_ARRAYS, (*train, *test), strict=True):
        with written_whole(_folder() / f"{name}.npy") as part, part.open("wb") as file:
            np.save(file, values)


def _checked(folder: Path, advice: str) -> list[np.ndarray]:
    """The four arrays, memory-mapped."""
    arrays = []
    for name in _ARRAYS:
        path = existing(folder / f"{name}.npy")
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path} cannot be read as an array ({error}): {advice}") from error
        if name.startswith("y") and values.shape[1:] == (1,):  # as Keras has them
            values = values[:, 0]
        count = (5 if name.endswith("train") else 1) * BATCH
        wanted = [count, *SHAPE] if name.startswith("x") else [count]
        right = values.dtype == np.uint8 if name.startswith("x") else values.dtype.kind in "iu"
        if list(values.shape) != wanted or not right:
            kind = "uint8" if name.startswith("x") else "integers"
            raise ValueError(
                f"{path} must hold {kind} of shape {wanted}, got {values.dtype} {list(values.shape)}: {advice}"
            )
        if name.startswith("y") and (values.min() < 0 or values.max() >= NUM_CLASSES):
            raise ValueError(f"{path} must hold labels in [0, {NUM_CLASSES}), got {values.min()} to {values.max()}")
        arrays.append(values)
    return arrays


# -- the official archives --------------------------------------------------------------------------------------------

_Reader = Callable[[bytes], _Images]


def _reader(source: Path) -> _Reader:
    """How to read an archive, which its digest tells; nothing of another one is looked at."""
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known = {SHA256[BINARY]: _from_bytes, SHA256[PYTHON]: _from_pickle}
    if digest not in known:
        wanted = " or ".join(f"{sha[:12]}… ({name})" for name, sha in SHA256.items())
        raise ValueError(
            f"{source} must have the SHA-256 {wanted}, got {digest[:12]}… ({source.stat().st_size:,} bytes): "
            "download it again"
        )
    return known[digest]


def _unpacked(file: BinaryIO, name: str, read: _Reader) -> tuple[_Images, _Images]:
    file.seek(0)
    wanted = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches: dict[str, _Images] = {}
    try:
        with tarfile.open(fileobj=file, mode="r|gz") as archive:
            for member in archive:
                batch = Path(member.name).name.removesuffix(".bin")
                content = archive.extractfile(member) if batch in wanted else None
                if content is not None:
                    batches[batch] = read(content.read())
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{name} is damaged ({error}): download it again") from error
    missing = [batch for batch in wanted if batch not in batches]
    if missing:
        raise ValueError(f"{name} must hold {', '.join(wanted)}, got no {missing[0]}: download it again")
    *train, test = (batches[batch] for batch in wanted)
    return _Images(np.concatenate([part.x for part in train]), np.concatenate([part.y for part in train])), test


def _from_bytes(content: bytes) -> _Images:
    """An image is a byte for the class, then all reds, all greens and all blues, each row by row."""
    size = 1 + int(np.prod(SHAPE))
    if len(content) != BATCH * size:
        raise ValueError(f"a batch must have {BATCH * size:,} bytes, got {len(content):,}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(BATCH, size)
    return _Images(_channels_last(records[:, 1:]), records[:, 0])


def _from_pickle(content: bytes) -> _Images:
    """The same bytes as an array, and a list of classes, in a dictionary of Python 2, whose strings are bytes."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.array(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # a pickle can fail in any way
        raise ValueError(f"a batch cannot be unpickled: {error}") from error
    if pixels.dtype != np.uint8 or pixels.shape != (BATCH, np.prod(SHAPE)) or labels.shape != (BATCH,):
        raise ValueError(
            f"a batch must hold {BATCH:,} images, got {pixels.dtype} {list(pixels.shape)} and {labels.size:,} labels"
        )
    return _Images(_channels_last(pixels), labels)


def _channels_last(planes: np.ndarray) -> np.ndarray:
    height, width, channels = SHAPE
    return planes.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


class _Unpickler(pickle.Unpickler):
    """Of arrays in builtin containers; whatever else a pickle asks for is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _new_dtype
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _new_array
        raise pickle.UnpicklingError(f"{module}.{name} has no place in CIFAR-10")


# as NumPy's own functions do, whose arguments in old pickles newer versions warn of, and whose home has moved


def _new_dtype(code: bytes, align: int, copy: int) -> np.dtype:
    return np.dtype(code.decode(), align=bool(align), copy=True)  # never NumPy's own, because the pickle sets its state


def _new_array(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    return np.ndarray(0, dtype=np.uint8)  # the pickle sets shape, type and content next

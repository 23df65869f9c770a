"""The data folder, and its cache for whatever takes long to read: arrays, under a digest of what they are made from."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dmb._core.files import remove_orphans, written_whole

_CHUNK = 1 << 20
_HEADER = 128  # bytes; a multiple of 64, as the format asks, and room for any shape
_DIGEST = 32  # bytes at the end of a file, after the array: NumPy does not read them


def data_home() -> Path:
    """The folder of downloads and of the cache: `$DMB_DATA`, or `~/.cache/dmb`; created on demand."""
    given = os.environ.get("DMB_DATA") or "~/.cache/dmb"
    try:
        home = Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(
            f"the data folder {given} is in a home directory that does not exist: set $DMB_DATA"
        ) from error
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the data folder {home} cannot be made ({error.strerror}): set $DMB_DATA") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ValueError(f"the data folder {home} is not writable: set $DMB_DATA")
    return home


def cached(
    name: str, made_from: list[Any], chunks: Callable[[], Iterable[np.ndarray]], *, again: bool = False
) -> np.memmap:
    """An array that is made once, and then memory-mapped from the data folder.

    The file ends with a digest of its content. A damaged file is made again, and so is one of another content.

    Args:
        name: the beginning of the file's name.
        made_from: everything that the array depends on, as JSON: digests of files, settings, a number of the format.
        chunks: makes the array, a few rows at a time, all of one type and shape; called only if there is none yet.
        again: make it even if there is one.
    """
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    path = data_home() / "cache" / f"{name}-{key[:32]}.npy"
    if again or not _is_whole(path):
        _save(tidy(path.parent) / path.name, chunks())
    return np.lib.format.open_memmap(path, mode="r")


def tidy(folder: Path) -> Path:
    """Make `folder`, if it is missing, and remove what killed writers have left there."""
    folder.mkdir(exist_ok=True)
    remove_orphans(folder)
    return folder


def digest_of(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(path: Path, chunks: Iterable[np.ndarray]) -> None:
    count, content, chunk = 0, _digest(), None
    with written_whole(path) as part, part.open("wb") as file:
        file.write(bytes(_HEADER))
        for chunk in chunks:
            raw = chunk.tobytes()
            content.update(raw)
            count += len(chunk)
            file.write(raw)
        if chunk is None or count == 0:
            raise ValueError("the data have no tokens: give data that are not empty")
        header = _header(chunk.dtype, (count, *chunk.shape[1:]))  # only now is the length known
        content.update(header)
        file.write(content.digest())
        file.seek(0)
        file.write(header)


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header, content = file.read(_HEADER), _digest()
            end = path.stat().st_size - _DIGEST
            while file.tell() < end and (chunk := file.read(min(_CHUNK, end - file.tell()))):
                content.update(chunk)
            content.update(header)
            return file.read(_DIGEST) == content.digest()
    except OSError:
        return False


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=_DIGEST)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The `.npy` header (format 1.0), always equally long, so that it can be written last."""
    fields = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    magic = b"\x93NUMPY\x01\x00"
    size = _HEADER - len(magic) - 2
    assert len(fields) < size
    return magic + size.to_bytes(2, "little") + fields.ljust(size - 1) + b"\n"

"""The data folder: files from the network, and a cache of arrays, under a digest of what they are made from."""

import hashlib
import http.client
import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dmb._core.files import remove_orphans, written_whole
from dmb.data.reading import Progress, ignore_progress

_CHUNK = 1 << 20
_HEADER = 128  # bytes: as many as NumPy takes for the arrays that are kept here, of any length
_DIGEST = 32  # bytes at the end of a file, after the array: NumPy does not read them
_TIMEOUT = 30.0  # seconds without a byte of a download


def data_home() -> Path:
    """The folder of downloads and of the cache: `$DMB_DATA`, or `~/.cache/dmb`; created on demand."""
    given = os.environ.get("DMB_DATA") or "~/.cache/dmb"
    try:
        home = Path(given).expanduser().absolute()
        home.mkdir(parents=True, exist_ok=True)
    except RuntimeError as error:
        raise ValueError(
            f"the data folder {given} is in a home directory that does not exist: set $DMB_DATA"
        ) from error
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


@contextmanager
def downloaded(
    name: str,
    url: str,
    path: Path,
    *,
    digest: str,
    algorithm: str,
    fetch: bool,
    progress: Progress | None,
    copy: str = "FILE",
) -> Iterator[BinaryIO]:
    """The file at `url`, once it is complete and its digest right; it is kept as `path` if the block succeeds.

    Args:
        name: of the data set, as `dmb prepare` has it.
        url: of the file.
        path: where to keep it.
        digest: that it must have, as hexadecimal digits.
        algorithm: of the digest, as `hashlib` calls it.
        fetch: whether the user has asked for it; if not, a ValueError says how to.
        progress: called with the bytes so far and in all (0 if the server does not say).
        copy: what the user's own copy may be.
    """
    if not fetch:
        raise ValueError(
            f"{name} is not prepared: run `dmb prepare {name}`, or `dmb prepare {name} --from {copy}` for your own copy"
        )
    otherwise = f"get a copy elsewhere and run `dmb prepare {name} --from FILE`"
    with written_whole(tidy(path.parent) / path.name) as part, part.open("w+b") as file:
        found = hashlib.new(algorithm, usedforsecurity=False)
        done, progress = 0, progress or ignore_progress
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
                total = int(answer.headers.get("Content-Length") or 0)
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    found.update(chunk)
                    done += len(chunk)
                    progress(done, total)
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"{url} cannot be downloaded ({error}): {otherwise}") from error
        if found.hexdigest() != digest:
            raise ValueError(
                f"{url} must have the {algorithm.upper()} {digest}, got {found.hexdigest()} ({done:,} bytes): "
                f"try again, or {otherwise}"
            )
        yield file


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
    count, content, chunk = 0, hashlib.blake2b(digest_size=_DIGEST), None
    with written_whole(path) as part, part.open("wb+") as file:
        file.write(bytes(_HEADER))
        for chunk in chunks:
            raw = chunk.tobytes()
            content.update(raw)
            count += len(chunk)
            file.write(raw)
        if chunk is None or count == 0:
            raise ValueError("the data have no tokens: give data that are not empty")
        file.seek(0)  # only now is the length known
        layout = {"descr": chunk.dtype.str, "fortran_order": False, "shape": (count, *chunk.shape[1:])}
        np.lib.format.write_array_header_1_0(file, layout)
        assert file.tell() == _HEADER
        file.seek(0)
        content.update(file.read(_HEADER))
        file.seek(0, os.SEEK_END)
        file.write(content.digest())


def _is_whole(path: Path) -> bool:
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):  # there is none, or nothing in it
        return False
    digest = hashlib.blake2b(content[_HEADER:-_DIGEST].data, digest_size=_DIGEST)
    digest.update(content[:_HEADER].data)
    return digest.digest() == content[-_DIGEST:].tobytes()

"""Files of text, JSON and tensors: a kill at any moment leaves either the old file or the new one, complete."""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PART = re.compile(r"\..+\.\d+-[0-9a-f]{8}(\.\w+)?|\.tmp\w{6}")  # ours, and those of the safetensors library


class Stored(NamedTuple):
    """What a file of tensors holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to. When the block ends, it is flushed to disk and replaces `path`.

    If the block fails, it is deleted; an OSError of writing becomes a ValueError that names `path`. Its name is unique,
    so several processes may write the same file at once. A link is followed, and permissions are kept; a pipe or a
    device is written to, not replaced.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_whole(folder / "note.txt") as part:
    ...     _ = part.write_text("all of it")
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    path = path.resolve() if path.is_symlink() else path
    through = path.exists() and not path.is_file() and not path.is_dir()
    folder = Path(tempfile.gettempdir()) if through else path.parent
    # the suffix stays: some writers go by it
    part = folder / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{path.suffix}"
    with _naming(path, part), _claimed(part):
        try:
            mode = stat.S_IMODE((path if path.is_file() else part).stat().st_mode)
            yield part
            if through:
                with part.open("rb") as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target)
                return
            part.chmod(mode)  # writers that recreate the file may have changed it
            _flush(part, os.O_RDWR)
            os.replace(part, path)
            if os.name == "posix":  # the name must reach the disk too
                _flush(path.parent, os.O_RDONLY)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, see `to_json`, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(to_json(value, indent=2) + "\n", encoding="utf-8")


def write_array(path: Path, values: np.ndarray) -> None:
    """Write a `.npy` file, whole or not at all."""
    with written_whole(path) as part, part.open("wb") as file:
        np.save(file, values)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write a file of safetensors, with a digest of what it holds, whole or not at all.

    Args:
        path: of the file.
        tensors: what it holds.
        metadata: kept beside them; the digest covers the tensors and the entry `state`. Without metadata, equal tensors
            give equal files; the library writes several entries in any order.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata["digest"] = _digest(plain, metadata.get("state", ""))
    with written_whole(path) as part:
        try:
            save_file(plain, part, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error


def read_tensors(path: Path) -> Stored:
    """What a file of tensors holds; a ValueError if it cannot be read, or has a digest that does not match."""
    with _reading(path), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        digest = metadata.get("digest")
        whole = digest is None or digest == _digest(tensors, metadata.get("state", ""))
    if not whole:
        raise ValueError(f"{path} is damaged, because its digest does not match: restore it from a copy")
    return Stored(tensors, metadata)


def read_sizes(path: Path) -> dict[str, int]:
    """How many numbers each tensor of a file has, read off its table of contents."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file; if that fails, the file stays as it was, and a ValueError names it."""
    with _naming(path), path.open("ab", buffering=0) as file:
        before, content = file.tell(), f"{line}\n".encode()
        try:
            while content:  # a disk that is filling up takes a part
                content = content[file.write(content) :]
        except OSError:
            file.truncate(before)
            raise


def remove_orphans(*folders: Path) -> None:
    """Delete what killed writers have left in these folders; what `written_whole` is still writing stays."""
    for folder in folders:
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            if is_part(path) and not _is_claimed(path):
                path.unlink(missing_ok=True)


def is_part(path: Path) -> bool:
    """Whether this is the name of a file that `written_whole` has not finished.

    >>> is_part(Path(".note.txt.123-0a1b2c3d.txt")), is_part(Path(".note.txt"))
    (True, False)
    """
    return _PART.fullmatch(path.name) is not None


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file until it is closed; False if another process has locked it, or the file system has no locks.

    On a system without such locks (Windows) nothing is locked, and the answer is True.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: numbers that are not finite, which JSON cannot express, become null.

    >>> to_json({"bits": 1.5, "stderr": float("nan")})
    '{"bits": 1.5, "stderr": null}'
    """
    return json.dumps(_speakable(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _speakable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _speakable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_speakable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _naming(path: Path, *others: Path) -> Iterator[None]:
    """Errors of writing name `path`; those that name a file which is neither `path` nor of the `others` stay."""
    own = {None, *map(str, (path, path.parent, *others))}
    try:
        yield
    except OSError as error:
        if (None if error.filename is None else str(error.filename)) not in own:
            raise
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def _claimed(part: Path) -> Iterator[None]:
    """Make the file, and hold a lock on it while the block runs, which tells it from one that a kill has left."""
    with part.open("xb") as file:
        if fcntl is None:
            file.close()  # an open file could not be moved
        else:
            lock(file.fileno())
        yield


def _is_claimed(part: Path) -> bool:
    if fcntl is not None:
        with suppress(OSError), part.open("rb") as file:
            return not lock(file.fileno(), wait=False)
    return True


def _flush(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a file can be broken in any way
        raise ValueError(f"{path} cannot be read: {error}") from error


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    digest = hashlib.blake2b(state.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

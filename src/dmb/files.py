"""Atomic writing: a kill at any moment leaves either the old file or the new one, complete."""

import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to. When the block ends, it is flushed to disk and replaces `path`.

    If the block fails, it is deleted. Its name is unique, so several processes may write the same file at once. A link
    is followed, and permissions are kept; a pipe or a device is written to, not replaced.

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
    with _naming(path):
        part.touch(exist_ok=False)
        mode = stat.S_IMODE((path if path.is_file() else part).stat().st_mode)
    try:
        yield part
        with _naming(path):
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
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def _flush(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

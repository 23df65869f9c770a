"""Writing files so that a kill at any moment leaves either the old one or the new one, whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to. When the block ends it takes the place of `path`, all of it on disk.

    If the block fails it vanishes. Its name is its own, so several processes may write the same file at once.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_whole(folder / "note.txt") as part:
    ...     _ = part.write_text("all of it")
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    # the suffix stays: some writers go by it
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
    with _naming(path):
        part.touch(exist_ok=False)
    try:
        yield part
        with _naming(path):
            _flush(part, os.O_RDWR)
            os.replace(part, path)
            if os.name == "posix":  # the name must reach the disk too
                _flush(path.parent, os.O_RDONLY)
    finally:
        part.unlink(missing_ok=True)


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

"""Locks on folders, so that no two processes write to one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path, name: str = ".lock", *, wait: bool = False) -> Iterator[None]:
    """While the block runs, or this process lives, no other holds the lock `name` in `folder`.

    Args:
        folder: where the lock file lies; links are not followed.
        name: name of the lock file. Training holds `.lock`.
        wait: wait until another process releases the lock; otherwise raise a ValueError.
    """
    with os.fdopen(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)) as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(f"another process is training in {folder}: wait for it, or stop it") from error
        yield

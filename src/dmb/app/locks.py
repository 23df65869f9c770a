"""Locks on folders, so that no two processes write to one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dmb._core.files import lock, remove_orphans


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """While the block runs, no other process trains in `folder`; what killed ones have left there is removed first."""
    with locked(folder):
        remove_orphans(folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()))
        yield


@contextmanager
def locked(folder: Path, name: str = ".lock", *, wait: bool = False) -> Iterator[None]:
    """While the block runs, or this process lives, no other holds the lock `name` in `folder`.

    Args:
        folder: where the lock file lies; links are not followed.
        name: name of the lock file. Training holds `.lock`.
        wait: wait until another process releases the lock; otherwise raise a ValueError.
    """
    try:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to: {error.strerror}") from error
    with os.fdopen(descriptor):
        if not lock(descriptor, wait=wait):
            raise ValueError(f"another process is training in {folder}: wait for it, or stop it")
        yield

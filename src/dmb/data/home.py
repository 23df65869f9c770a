"""Where data are kept, and what every reader of files needs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dmb.files import remove_orphans

Progress = Callable[[int, int], None]
"""Called with the amount done so far and the total (0 if unknown)."""


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""


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


def existing(path: Path) -> Path:
    """Return `path` if a file with something in it is there."""
    if not path.exists():
        raise ValueError(f"no file called {str(path)!r}")
    if not path.is_file():
        raise ValueError(f"{path} must be a file, got {'a folder' if path.is_dir() else 'a device'}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} must be readable, but permission is denied")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return path


def files_in(folder: Path) -> Iterator[Path]:
    """All files in it and the folders in it that are not hidden."""

    def fail(error: OSError) -> None:
        raise ValueError(f"the folder {error.filename} cannot be read: {error.strerror}") from error

    for place, inside, names in os.walk(folder, onerror=fail, followlinks=True):
        here = Path(place)
        if here.is_symlink() and here.resolve() in (above.resolve() for above in here.parents):
            raise ValueError(f"{here} must not link to a folder that contains it, {here.resolve()}: remove the link")
        inside[:] = [name for name in inside if not name.startswith(".")]
        yield from (here / name for name in names if not name.startswith("."))


def mapped(path: Path, what: str, kind: Any, *shapes: tuple[int, ...], advice: str = "") -> np.ndarray:
    """The array in a `.npy` file, memory-mapped; a ValueError, with some advice, unless it has one of these `shapes`.

    `what` says in words what its numbers must be, and `kind` is their type, such as `np.integer`.
    """
    with explained(f"{path} cannot be read as an array", advice=advice):
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    if values.shape not in shapes or not np.issubdtype(values.dtype, kind):
        found = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"{path} must hold {what} of shape {list(shapes[0])}, got {found}{advice}")
    return values


@contextmanager
def explained(what: str, *kinds: type[Exception], advice: str = "") -> Iterator[None]:
    """While the block runs, an error of one of these `kinds` becomes a ValueError: `what`, its message, some advice.

    Without `kinds` it is any error, since a file can be broken in any way, and of its message the first line.

    >>> with explained("the sum of digits.npy cannot be computed", ArithmeticError):
    ...     1 / 0
    Traceback (most recent call last):
    ValueError: the sum of digits.npy cannot be computed: division by zero
    """
    caught = kinds or (Exception,)
    try:
        yield
    except caught as error:
        why = str(error) if kinds else reason(error)
        raise ValueError(f"{what} ({why}){advice}" if advice else f"{what}: {why}") from error


def reason(error: Exception) -> str:
    """An error in one short line: the messages of some libraries are empty, and others quote half the file.

    >>> reason(EOFError()), reason(OSError("No data left\\nin file"))
    ('EOFError', 'No data left')
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 200 else line[:200] + "…"


def tidy(folder: Path) -> Path:
    """Make `folder`, if it is missing, and remove what killed writers have left there."""
    folder.mkdir(exist_ok=True)
    remove_orphans(folder)
    return folder

"""Where data are kept, and what every reader of files needs."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[int, int], None]
"""Called with the amount done so far and the total (0 if unknown)."""

_PART = re.compile(r"\..+\.\d+-[0-9a-f]{8}(\.\w+)?")  # what `written_whole` calls a file that is not complete


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


def reason(error: Exception) -> str:
    """An error in one short line: the messages of some libraries are empty, and others quote half the file.

    >>> reason(EOFError()), reason(OSError("No data left\\nin file"))
    ('EOFError', 'No data left')
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 200 else line[:200] + "…"


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Make `folder`, and remove what killed writers left there. Every writer holds a shared lock while it writes."""
    folder.mkdir(exist_ok=True)
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in folder.iterdir():
                if _PART.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BlockingIOError:  # others are writing here: nothing is known to be left over
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)

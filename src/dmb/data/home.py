"""Where data are kept."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dmb.files import written_whole

_HEADER = 128  # bytes; a multiple of 64, as the format asks, and room for any length


def data_home() -> Path:
    """The folder of prepared data and caches: `$DMB_DATA`, or `~/.cache/dmb`; created on demand."""
    home = Path(os.environ.get("DMB_DATA") or "~/.cache/dmb").expanduser().absolute()
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
        raise ValueError(f"{path} must be readable, got no permission")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return path


def save_tokens(path: Path, chunks: Iterable[np.ndarray], num_states: int) -> None:
    """Write a stream of tokens as a one-dimensional `.npy` of the smallest unsigned type, a chunk at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tokens(Path(folder, "tokens.npy"), [np.array([3, 1]), np.array([4])], num_states=5)
    ...     np.load(Path(folder, "tokens.npy"))
    array([3, 1, 4], dtype=uint8)
    """
    dtype = np.min_scalar_type(num_states - 1).newbyteorder("<")
    count = 0
    with written_whole(path) as part, part.open("wb") as file:
        file.write(_header(dtype, 0))
        for chunk in chunks:
            file.write(chunk.astype(dtype).tobytes())
            count += len(chunk)
        if count == 0:
            raise ValueError("no tokens are left of the data")
        file.seek(0)  # only now is the length known
        file.write(_header(dtype, count))


def _header(dtype: np.dtype, count: int) -> bytes:
    """The `.npy` header (format 1.0) of `count` items, always equally long, so that it can be written over."""
    fields = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}".encode()
    magic = b"\x93NUMPY\x01\x00"
    size = _HEADER - len(magic) - 2
    return magic + size.to_bytes(2, "little") + fields.ljust(size - 1) + b"\n"

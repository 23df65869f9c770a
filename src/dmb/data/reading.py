"""The user's files: opened once, and an error that names the file if they cannot be read."""

import bz2
import codecs
import functools
import gzip
import io
import lzma
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

Progress = Callable[[int, int], None]
"""Called with the amount done so far and the total (0 if unknown)."""
Content = TypeVar("Content")

_HEAD = 1 << 22  # bytes of the beginning of a file, which are kept
_CHUNK = 1 << 22  # bytes of a file that are read at once
_LINES = 10_000  # of a file that are read between two reports of progress
_SETTLED = 2.0  # seconds after which a change of a file must show in its times, on any file system
_MARKS = {  # byte order marks; that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_BROKEN = (EOFError, OSError, RuntimeError, lzma.LZMAError, zipfile.BadZipFile, zlib.error)  # compressed files


def ignore_progress(done: int, total: int) -> None:
    """Progress that nobody watches."""


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


def while_unchanged(read: Callable[[Path], Content]) -> Callable[[Path], Content]:
    """`read`, which is not called again for the file that it was last called for, unless that has changed.

    What is read of a file that has just been written is not kept: its times might not tell another change.
    """

    @functools.lru_cache(maxsize=1)
    def kept(path: Path, *stamp: int) -> Content:
        return read(path)

    @functools.wraps(read)
    def remembering(path: Path) -> Content:
        about, path = existing(path).stat(), path.absolute()
        if time.time() - about.st_mtime < _SETTLED:
            return read(path)
        return kept(path, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)

    return remembering


@dataclass(frozen=True)
class File:
    """A file that has been opened; all of it is in memory if it is small, else its beginning. See `opened`.

    Its bytes are those that a compressed file stands for; its size is 0 if that is compressed and not all in memory.
    """

    path: Path
    size: int
    head: bytes

    @functools.cached_property
    def encoding(self) -> str:
        """UTF-8 unless the file begins with a byte order mark, which tells; as Python calls it."""
        head = self.head[:4096]
        for mark, encoding in _MARKS.items():
            if head.startswith(mark):
                return encoding
        if 4 * max(head[0::2].count(0), head[1::2].count(0)) > len(head) > 3 and 4 * head.count(0) < 3 * len(head):
            raise ValueError(
                "every other byte is zero, as in UTF-16 without a byte order mark: save it as UTF-8, or give "
                "encoding='bytes' (--encoding bytes)"
            )
        return "utf-8"

    def notes(self) -> list[str]:
        """What the user should know about its encoding."""
        usual: dict[str, list[str]] = {"utf-8": [], "utf-8-sig": ["a byte order mark at the beginning was removed"]}
        return usual.get(self.encoding, [f"decoded from {self.encoding.upper()}"])

    def open(self) -> AbstractContextManager[IO[bytes]]:
        """All of its bytes, opened again only if they are not in memory."""
        return io.BytesIO(self.head) if len(self.head) == self.size else unpacked(self.path)

    def chunks(
        self, progress: Progress | None = None, size: int | None = None, use: Callable[[bytes], Any] = len
    ) -> Iterator[bytes]:
        """Its bytes, `size` at a time, which `use` gets as well; `progress` is called once they have been used."""
        progress = progress or ignore_progress
        with self.open() as file:
            done = 0
            while chunk := file.read(size or _CHUNK):
                use(chunk)
                yield chunk
                done += len(chunk)
                progress(done, self.size)

    def text(self, chunks: Iterator[bytes]) -> Iterator[str]:
        """Its `chunks` as text, with line endings as they are and without a byte order mark."""
        decoder, read = codecs.getincrementaldecoder(self.encoding)(), 0
        for chunk in chain(chunks, [b""]):
            pending = len(decoder.getstate()[0])  # the beginning of a symbol that the last chunk cut
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                rule = self.undecodable(f"at byte {read - pending + error.start:,}")
                raise ValueError(f"{rule}, or give encoding='bytes' (--encoding bytes)") from error
            read += len(chunk)
            if text:
                yield text

    def lines(self, progress: Progress | None, *, newline: str | None = None, longest: int = -1) -> Iterator[str]:
        """Its lines, cut after `longest` symbols; `progress` is called with the bytes read so far and in all."""
        number = 0
        with self.open() as raw, io.TextIOWrapper(raw, self.encoding, newline=newline) as text:
            try:
                while line := text.readline(longest):
                    yield line
                    number += 1
                    if progress is not None and number % _LINES == 0:
                        progress(raw.tell() if raw.seekable() else 0, self.size)
            except UnicodeDecodeError as error:
                raise ValueError(self.undecodable(f"near line {number + 1:,}")) from error

    def undecodable(self, where: str) -> str:
        """The message if what stands there is not in the encoding of the file."""
        return f"not {self.encoding.removesuffix('-sig').upper()} {where}: save it as UTF-8"


@while_unchanged
def opened(path: Path) -> File:
    """The file at `path`; a ValueError if there is none, or nothing in it.

    What is small is opened no second time, whoever asks for it: to find out what it is, and then to read it.
    """
    with unpacked(path) as file:
        head = file.read(_HEAD)
    if not head:
        raise ValueError(f"{path} is empty")
    known = path.stat().st_size if path.suffix.lower() not in PACKED else 0
    return File(path, len(head) if len(head) < _HEAD else known, head)


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file; if its extension says that it is compressed, those that it stands for."""
    opener = PACKED.get(path.suffix.lower(), open)
    with as_value_error(f"{path} cannot be read", *_BROKEN), opener(path, "rb") as file:
        yield file


@contextmanager
def _only_member(path: Path, mode: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise ValueError(f"{path} must hold one file, got {len(members)}: unpack it first")
        with archive.open(members[0]) as file:
            yield file


def _zstandard(path: Path, mode: str) -> Any:
    with suppress(ImportError):  # before Python 3.14
        return import_module("compression.zstd").open(path, mode)
    try:
        return import_module("pyarrow").input_stream(path, compression="zstd")
    except ImportError as error:
        cure = "pip install 'discrete-markov-bridge[table]'"
        raise ValueError(f"{path} needs Python 3.14, or the extra `table`: {cure}; or unpack it first") from error


PACKED: dict[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zip": _only_member,
    ".zst": _zstandard,
}
"""Extensions of compressed files that are read as what they stand for, and what opens them."""


def suffix_of(path: Path) -> str:
    """The extension of a file in lower case; of a compressed one, that of what is in it.

    >>> suffix_of(Path("rows.CSV")), suffix_of(Path("rows.csv.gz"))
    ('.csv', '.csv')
    """
    return Path(path.stem if path.suffix.lower() in PACKED else path).suffix.lower()


@while_unchanged
def arrays(path: Path) -> dict[str, np.ndarray]:
    """The array in a `.npy` file, memory-mapped and called `array`; or those in a `.npz` by their names."""
    file: Any  # NumPy's types want one that can be written
    with path.open("rb") as file:
        if file.peek(2).startswith(b"PK"):
            archive = np.load(file, allow_pickle=False)
            members = {key: archive[key] for key in archive.files}
            others = [key for key, values in members.items() if not isinstance(values, np.ndarray)]
            if others:
                raise ValueError(f"it must hold arrays only, got {', '.join(others)}")
            return members
        newer = np.lib.format.read_magic(file) != (1, 0)
        read_header = np.lib.format.read_array_header_2_0 if newer else np.lib.format.read_array_header_1_0
        shape, fortran_order, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("arrays of Python objects are not read")
        return {"array": np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran_order else "C")}


def mapped(path: Path, what: str, kind: Any, *shapes: tuple[int, ...], advice: str = "") -> np.ndarray:
    """The array in a `.npy` file, memory-mapped; a ValueError, with some advice, unless it has one of these `shapes`.

    `what` says in words what its numbers must be, and `kind` is their type, such as `np.integer`.
    """
    with as_value_error(f"{path} cannot be read as an array", advice=advice):
        values = arrays(path)["array"]
    if values.shape not in shapes or not np.issubdtype(values.dtype, kind):
        found = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"{path} must hold {what} of shape {list(shapes[0])}, got {found}{advice}")
    return values


@contextmanager
def as_value_error(what: str, *kinds: type[Exception], advice: str = "") -> Iterator[None]:
    """While the block runs, an error of one of these `kinds` becomes a ValueError: `what`, its message, some advice.

    Without `kinds` it is any error, since a file can be broken in any way, and of its message the first line.

    >>> with as_value_error("the sum of digits.npy cannot be computed", ArithmeticError):
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

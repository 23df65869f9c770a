"""Text8: the first 100 million letters of Wikipedia, the usual benchmark of character-level models."""

import gzip
import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dmb.data.base import DataSet
from dmb.data.cache import cached, data_home, downloaded
from dmb.data.codecs import Characters
from dmb.data.reading import Progress, as_value_error, existing
from dmb.data.sources.built_in import ALPHABET
from dmb.data.splits import split_stream

URL = "http://mattmahoney.net/dc/text8.zip"
SIZE = 100_000_000
ZIP_MD5 = "f26f94c5209bc6159618bad4a559ff81"
RAW_SHA256 = "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"

_CHUNK = 1 << 20
_TO_TOKENS = bytes(max(0, ALPHABET.find(chr(byte))) for byte in range(256))


def text8(length: int = 256) -> DataSet:
    """100 million letters with the official split: 90 million to train, 5 to validate, 5 to test.

    Read from where `dmb prepare text8` put it; a copy of `text8`, `text8.zip` or `text8.gz` in the data folder is
    prepared at first use.
    """
    codec = Characters(ALPHABET)
    splits = split_stream(_tokens(), codec.num_states, length)
    notes = ("split as published: 90 million letters to train, then 5 to validate, then 5 to test",)
    return DataSet(name="text8", source="text8", codec=codec, **splits._asdict(), notes=notes)


def prepare_text8(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Encode Text8 once and for all, and return where.

    Args:
        source: a zip or gzip file of Text8, or the 100,000,000 bytes themselves. Default: a copy in the data folder,
            else a download.
        progress: called with the bytes downloaded so far and in all (0 if the server does not say).
    """
    return Path(str(_tokens(source, fetch=True, progress=progress).filename))


def _tokens(source: Path | None = None, *, fetch: bool = False, progress: Progress | None = None) -> np.memmap:
    def chunks() -> Iterator[np.ndarray]:
        copies = (folder / name for folder in (_folder(), data_home()) for name in ("text8", "text8.zip", "text8.gz"))
        given = source or next((path for path in copies if path.is_file()), None)
        keep = _folder() / "text8.zip"
        download = downloaded("text8", URL, keep, digest=ZIP_MD5, algorithm="md5", fetch=fetch, progress=progress)
        with existing(given).open("rb") if given else download as file:
            yield from _encoded(file, str(given or URL))

    return cached("text8", [RAW_SHA256], chunks, again=source is not None)


def _folder() -> Path:
    folder = data_home() / "text8"
    return data_home() if folder.is_file() else folder  # the user's copy may have the folder's name


def _encoded(file: BinaryIO, name: str) -> Iterator[np.ndarray]:
    digest, size = hashlib.sha256(), 0
    with as_value_error(f"{name} is damaged or not Text8"), _opened(file) as raw:
        while size <= SIZE and (chunk := raw.read(_CHUNK)):  # a file that is too long is not read to its end
            digest.update(chunk)
            size += len(chunk)
            yield np.frombuffer(chunk.translate(_TO_TOKENS), dtype=np.uint8)
    if digest.hexdigest() != RAW_SHA256:
        raise ValueError(
            f"{name} is not Text8: it must have {SIZE:,} bytes with SHA-256 {RAW_SHA256[:12]}…, "
            f"got {digest.hexdigest()[:12]}…"
        )


def _opened(file: BinaryIO) -> Any:
    """A file of the bytes of Text8, whether they come plain, zipped or gzipped; told by how the file begins."""
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(b"PK"):
        archive = zipfile.ZipFile(file)
        if "text8" not in archive.namelist():
            raise ValueError(f"it must hold a file called text8, got {', '.join(archive.namelist())}")
        return archive.open("text8")
    return gzip.open(file) if magic.startswith(b"\x1f\x8b") else file

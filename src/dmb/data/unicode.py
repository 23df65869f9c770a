"""Text files in Unicode: which encoding a file has, and its text a chunk at a time."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from dmb.data.home import Progress

_MARKS = {  # byte order marks; that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(path: Path) -> str:
    """UTF-8 unless the file begins with a byte order mark, which tells; as Python calls it."""
    with path.open("rb") as file:
        head = file.read(4096)
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if 4 * max(head[0::2].count(0), head[1::2].count(0)) > len(head) > 3 and 4 * head.count(0) < 3 * len(head):
        raise ValueError(
            "every other byte is zero, as in UTF-16 without a byte order mark: save it as UTF-8, or give "
            "encoding='bytes' (--encoding bytes)"
        )
    return "utf-8"


def notes_of(encoding: str) -> tuple[str, ...]:
    """What the user should know about a file in this encoding.

    >>> notes_of("utf-16"), notes_of("utf-8")
    (('decoded from UTF-16',), ())
    """
    if encoding == "utf-8-sig":
        return ("a byte order mark at the beginning was removed",)
    return () if encoding == "utf-8" else (f"decoded from {encoding.upper()}",)


def text_chunks(path: Path, size: int, progress: Progress | None = None) -> Iterator[str]:
    """The text of a file, `size` bytes at a time, with line endings as they are and without a byte order mark."""
    encoding = encoding_of(path)
    decoder = codecs.getincrementaldecoder(encoding)()
    read, total = 0, path.stat().st_size
    with path.open("rb") as file:
        while True:
            chunk = file.read(size)
            pending = len(decoder.getstate()[0])  # the beginning of a symbol that the last chunk cut
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                where = read - pending + error.start
                name = encoding.removesuffix("-sig").upper()
                raise ValueError(
                    f"not {name} at byte {where:,}: save it as UTF-8, or give encoding='bytes' (--encoding bytes)"
                ) from error
            if text:
                yield text
            if not chunk:
                return
            read += len(chunk)
            if progress is not None:
                progress(read, total)

"""Text files of any size."""

from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np

from dmb._core import checks
from dmb.data.base import DataSet
from dmb.data.cache import cached
from dmb.data.codecs import Bytes, Characters, Codec, Text, Tokenizer
from dmb.data.codecs.text import alphabet_of
from dmb.data.delimited import looks_delimited
from dmb.data.kinds import HeldOut
from dmb.data.reading import Progress, as_value_error, opened
from dmb.data.splits import most_places, split_stream

FORMAT = 2  # of the cache


def text(
    path: str | Path,
    length: int = 256,
    encoding: str = "characters",
    codec: Codec | None = None,
    held_out: HeldOut = "spread",
    progress: Progress | None = None,
) -> DataSet:
    """A text file, of which about 90 % train, 5 % validate and 5 % test; see `dmb.data.splits.split_stream`.

    The file is in UTF-8, or begins with the byte order mark of UTF-8, UTF-16 or UTF-32, which is no part of the text.
    It is read in chunks, and its tokens are cached in the data folder under a digest of the content and the codec; they
    are memory-mapped from there, so a text may be larger than memory.

    Args:
        path: of the file.
        length: tokens of a sequence.
        encoding: `characters` (the alphabet is what occurs), `bytes`, or the path of a `tokenizers` JSON file.
        codec: one that exists already, such as a trained model's; `encoding` is not read then, and symbols that it does
            not know are errors.
        held_out: where validation and test text come from: up to 50 places spread over the file (`spread`), or its last
            tenth (`end`), as that of a text too short to be spread.
        progress: called with the bytes read so far and in all, unless the tokens are cached.
    """
    path, digest = Path(path), sha256()
    file = opened(path)
    with as_value_error(f"{path}", ValueError):
        chunks = file.chunks(use=digest.update)
        codec = _codec(file.text(chunks), encoding) if codec is None else codec
        if not isinstance(codec, Text):
            raise ValueError(f"codec must be a text codec, got {type(codec).__name__}")
        deque(chunks, maxlen=0)  # nothing is left if the alphabet was looked for
        dtype, read = np.min_scalar_type(codec.num_states - 1).newbyteorder("<"), codec.read
        made_from = [FORMAT, digest.hexdigest(), codec.to_config()]
        tokens = cached("text", made_from, lambda: (chunk.astype(dtype) for chunk in read(file, progress)))
        checks.choice("held_out", held_out, get_args(HeldOut))
        places = most_places(len(tokens), length) if held_out == "spread" else 1
        splits = split_stream(tokens, codec.num_states, length, places)
        notes = [] if isinstance(codec, Bytes) else file.notes()
        notes.append(f"validation and test text {_whence(places)}")
        if looks_delimited(file):
            notes.append("read as text, though all lines have the same number of values; to read a table, name it .csv")
    return DataSet(
        name=path.name, source=str(path.absolute()), codec=codec, **splits._asdict(), notes=tuple(notes)
    )  # fmt: skip


def _whence(places: int) -> str:
    if places == 1:
        return "are the last tenth of the file"
    return f"come from {places} places spread over the file, with a gap of one sequence to training text"


def _codec(texts: Iterator[str], encoding: str) -> Text:
    """The codec of this encoding; only that of characters looks at the text."""
    if encoding == "characters":
        return Characters(alphabet_of(texts))
    if encoding == "bytes":
        return Bytes()
    if not Path(encoding).is_file():
        raise ValueError(f"encoding must be characters, bytes or the path of a tokenizer's JSON file, got {encoding!r}")
    return Tokenizer(Path(encoding).read_text(encoding="utf-8"))

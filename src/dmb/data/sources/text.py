"""Text files of any size."""

from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.cache import cached, digest_of
from dmb.data.codecs import Bytes, Characters, Codec, Text, Tokenizer
from dmb.data.codecs.text import alphabet_of
from dmb.data.delimited import looks_delimited
from dmb.data.home import Progress, existing, explained
from dmb.data.partition import split_stream
from dmb.data.unicode import encoding_of, notes_of

FORMAT = 2  # of the cache


def text(
    path: str | Path,
    length: int = 256,
    encoding: str = "characters",
    codec: Codec | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """A text file, cut into 90 % to train on, 5 % to validate and 5 % to test.

    The file is in UTF-8, or begins with the byte order mark of UTF-8, UTF-16 or UTF-32, which is no part of the text.
    It is read in chunks, and its tokens are cached in the data folder under a digest of the content and the codec; they
    are memory-mapped from there, so a text may be larger than memory.

    Args:
        path: of the file.
        length: tokens of a sequence.
        encoding: `characters` (the alphabet is what occurs), `bytes`, or the path of a `tokenizers` JSON file.
        codec: one that exists already, such as a trained model's; `encoding` is not read then, and symbols that it does
            not know are errors.
        progress: called with the bytes read so far and in all, unless the tokens are cached.
    """
    path = existing(Path(path))
    with explained(f"{path}", ValueError):
        codec = _codec(path, encoding) if codec is None else codec
        if not isinstance(codec, Text):
            raise ValueError(f"codec must be a text codec, got {type(codec).__name__}")
        tokens = _tokens(path, codec, progress)
        splits = split_stream(tokens, codec.num_states, length)
        notes = () if isinstance(codec, Bytes) else notes_of(encoding_of(path))
        if looks_delimited(path):
            notes += ("read as text, though all lines have the same number of values; to read a table, name it .csv",)
    return DataSet(
        name=path.name,
        source=str(path.absolute()),
        codec=codec,
        **splits._asdict(),
        notes=notes,
    )


def _codec(path: Path, encoding: str) -> Text:
    if encoding == "characters":
        return Characters(alphabet_of(path))
    if encoding == "bytes":
        return Bytes()
    if not Path(encoding).is_file():
        raise ValueError(f"encoding must be characters, bytes or the path of a tokenizer's JSON file, got {encoding!r}")
    return Tokenizer(Path(encoding).read_text(encoding="utf-8"))


def _tokens(path: Path, codec: Text, progress: Progress | None) -> np.ndarray:
    dtype = np.min_scalar_type(codec.num_states - 1).newbyteorder("<")
    made_from = [FORMAT, digest_of(path), codec.to_config()]
    return cached("text", made_from, lambda: (chunk.astype(dtype) for chunk in codec.read(path, progress)))

"""Text files of any size."""

import hashlib
import json
from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.codecs import Bytes, Characters, Codec, Text, Tokenizer
from dmb.data.codecs.text import alphabet_of
from dmb.data.home import data_home, existing, save_tokens
from dmb.data.partition import split_stream

FORMAT = 1  # of the cache


def text(path: str | Path, length: int = 256, encoding: str = "characters", codec: Codec | None = None) -> DataSet:
    """A text file, cut into 90 % to train on, 5 % to validate and 5 % to test.

    The file is read in chunks, and its tokens are cached in the data folder under a digest of the content and the
    codec; they are memory-mapped from there, so a text may be larger than memory.

    Args:
        path: of the file.
        length: tokens of a sequence.
        encoding: `characters` (UTF-8; the alphabet is what occurs), `bytes`, or the path of a `tokenizers` JSON file.
        codec: one that exists already, such as a trained model's; `encoding` is not read then, and symbols that it does
            not know are errors.
    """
    path = existing(Path(path))
    try:
        codec = _codec(path, encoding) if codec is None else codec
        tokens = _tokens(path, codec)
        train, validation, test = split_stream(tokens, codec.num_states, length)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return DataSet(
        name=path.name, source=str(path.absolute()), codec=codec, train=train, validation=validation, test=test
    )


def _codec(path: Path, encoding: str) -> Text:
    if encoding == "characters":
        return Characters(alphabet_of(path))
    if encoding == "bytes":
        return Bytes()
    if not Path(encoding).is_file():
        raise ValueError(f"encoding must be characters, bytes or the path of a tokenizer's JSON file, got {encoding!r}")
    return Tokenizer(Path(encoding).read_text(encoding="utf-8"))


def _tokens(path: Path, codec: Codec) -> np.ndarray:
    if not isinstance(codec, Text):
        raise ValueError(f"codec must be one of text, got {type(codec).__name__}")
    cached = data_home() / "cache" / f"{_digest(path, codec)}.npy"
    if not cached.exists():
        cached.parent.mkdir(exist_ok=True)
        save_tokens(cached, codec.read(path), codec.num_states)
    return np.load(cached, mmap_mode="r", allow_pickle=False)


def _digest(path: Path, codec: Codec) -> str:
    """Of everything the tokens depend on."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256")
    content.update(json.dumps([FORMAT, codec.to_config()], sort_keys=True).encode())
    return content.hexdigest()

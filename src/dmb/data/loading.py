"""Load a data set by name or from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from dmb.data.base import DataSet
from dmb.data.codecs import Codec, Columns, Picture, Records, Text
from dmb.data.kinds import BY_EXTENSION, Kind, kind_of
from dmb.data.kinds import is_name as is_name
from dmb.data.reading import Progress
from dmb.data.sources.array import MOST_STATES, array
from dmb.data.sources.cifar10 import cifar10
from dmb.data.sources.digits import digits
from dmb.data.sources.images import images
from dmb.data.sources.markov import markov
from dmb.data.sources.pydocs import pydocs
from dmb.data.sources.records import records
from dmb.data.sources.table import table
from dmb.data.sources.text import text
from dmb.data.sources.text8 import text8

BUILT_IN = {"cifar10": cifar10, "digits": digits, "markov": markov, "pydocs": pydocs, "text8": text8}


def load(
    source: str | Path,
    *,
    kind: Kind | None = None,
    length: int | None = None,
    encoding: str = "characters",
    levels: int | None = None,
    size: int | None = None,
    most_states: int | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
    codec: Codec | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """The built-in data set called `source`, or the file or folder of images at that path; see `kind_of`.

    `load(data.source, length=data.num_positions, codec=data.codec)` loads any data set again.

    Args:
        source: a name, or a path. A string that is a name means the data set; `./digits` or a `Path` mean the file.
        kind: read a file as this kind. Default: `kind_of(source)`.
        length: tokens per sequence, for text; default: the data set's own. Of records, the longest to keep. Other data
            have a fixed length.
        encoding: encoding of a text file; see `text`.
        levels: levels per channel of an image; default: 256.
        size: crop each image of a folder to a square, and resize it to `size` × `size` pixels; see `images`. Default:
            that of the codec, if its images were cropped; else they must have one size, and stay as they are.
        most_states: values of an array must lie below this; default: 65,536.
        kinds: kinds of columns of a table by name, where the rules are wrong; see `table`.
        bins: maximum number of states of a column of numbers; default: one for every 50 training rows, 64 to 1,024.
        codec: a model's codec, to read other data with its tokens.
        progress: called with the number of images, or bytes of text, read so far and in total, if reading takes long.

    >>> load("digits").name
    'digits'
    """
    kind, named = _kind(source, kind, encoding, codec), is_name(source)
    refuse_foreign(
        source, kind, encoding=encoding, levels=levels, size=size, most_states=most_states, kinds=kinds, bins=bins
    )
    sized = {} if length is None else {"length": length}
    if kind == "images":
        data = _images(source, levels, size, codec, progress)
    elif named:
        data = digits() if source == "digits" else BUILT_IN[str(source)](**sized)
    elif kind == "array":
        limit = MOST_STATES if most_states is None else most_states
        data = array(source, None if codec is None else codec.num_states, most_states=limit)
    elif kind == "table":
        own = codec if isinstance(codec, Columns) else None
        data = table(source, own, kinds=kinds, bins=bins, progress=progress)
    elif kind == "records":
        data = records(source, length, codec if isinstance(codec, Records) else None, progress=progress)
        length = None  # records may all be shorter
    else:
        data = text(source, encoding=encoding, codec=codec, progress=progress, **sized)
    refuse_unlike(data, length, codec)
    return data


def _kind(source: str | Path, kind: Kind | None, encoding: str, codec: Codec | None) -> Kind:
    found = kind_of(source)
    if kind not in (None, *get_args(Kind)):
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    if is_name(source) or Path(source).is_dir():
        if kind not in (None, found):
            raise ValueError(f"kind must be {found} for {source}, got {kind}")
        return found
    sniffed = Path(source).suffix.lower() not in BY_EXTENSION
    if kind is None and sniffed and (encoding != "characters" or isinstance(codec, Text)):
        return "text"
    return kind or found


def _images(
    source: str | Path, levels: int | None, size: int | None, codec: Codec | None, progress: Progress | None
) -> DataSet:
    model = codec if isinstance(codec, Picture) else None
    if levels is None:
        levels = 256 if model is None else model.levels
    if is_name(source):
        return cifar10(levels)
    if size is None and model is not None and model.cropped:
        size = model.shape[0]
    return images(source, levels, colour=model is not None and model.shape[2] == 3, size=size, progress=progress)


def refuse_foreign(
    source: str | Path,
    kind: str,
    *,
    encoding: str = "characters",
    levels: int | None = None,
    size: int | None = None,
    most_states: int | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
) -> None:
    """Raise a ValueError if an option of `load` is chosen that means nothing for data of this kind."""
    named = is_name(source)
    if encoding != "characters" and (kind != "text" or named):
        raise ValueError(f"encoding applies to text files only, got {encoding!r} for {source}")
    if levels is not None and kind != "images":
        raise ValueError(f"levels applies to images only, got {levels} for {source}")
    if size is not None and (kind != "images" or named):
        raise ValueError(f"size applies to folders of images only, got {size} for {source}")
    if most_states is not None and (kind != "array" or named):
        raise ValueError(f"most_states applies to array files only, got {most_states} for {source}")
    if (kinds or bins is not None) and kind != "table":
        raise ValueError(f"kinds and bins apply to tables only, got some for {source}")


def refuse_unlike(data: DataSet, length: int | None, codec: Codec | None) -> None:
    """Raise a ValueError if sequences have another length, or tokens have another meaning than for that codec."""
    if length is not None and data.num_positions != length:
        raise ValueError(
            f"length must be {data.num_positions} for {data.name}, got {length}: leave it out, except for text"
        )
    if codec is not None and codec.meaning() != data.codec.meaning():
        raise ValueError(f"{data.name} must be readable by {_brief(codec)}, got data for {_brief(data.codec)}")


def _brief(codec: Codec) -> str:
    described = ", ".join(f"{key}={value!r}" for key, value in codec.config().items())
    return f"{type(codec).__name__}({described if len(described) <= 60 else described[:60] + '…'})"

"""Any data set by its name or file."""

from pathlib import Path

from dmb.data.base import DataSet
from dmb.data.codecs import Codec, Columns, Picture
from dmb.data.home import existing
from dmb.data.sources.array import array
from dmb.data.sources.cifar10 import cifar10
from dmb.data.sources.digits import digits
from dmb.data.sources.images import images
from dmb.data.sources.markov import markov
from dmb.data.sources.pydocs import pydocs
from dmb.data.sources.table import table
from dmb.data.sources.text import text
from dmb.data.sources.text8 import text8

BUILT_IN = {"cifar10": cifar10, "digits": digits, "markov": markov, "pydocs": pydocs, "text8": text8}
ARRAYS = (".npy", ".npz")
TABLES = (".csv", ".parquet")


def load(
    source: str | Path,
    *,
    length: int | None = None,
    encoding: str = "characters",
    levels: int | None = None,
    codec: Codec | None = None,
) -> DataSet:
    """The data set called `source`, or what is there: a folder of images, or a file.

    Files are `.npy` and `.npz`, `.csv` and `.parquet`, else text.

    `load(data.source, length=data.num_positions, codec=data.codec)` gives any data set again.

    Args:
        source: a name, or a path. A string that is a name means the data set; `./digits` or a `Path` mean the file.
        length: tokens of a sequence of text; default: the data set's own. Other data have but one.
        encoding: of a text file; see `text`.
        levels: how many levels a channel of an image has; default: 256.
        codec: a model's codec, to read other data in its tokens.

    >>> load("digits").name
    'digits'
    """
    sized = {} if length is None else {"length": length}
    named = is_name(source)
    if not named and not Path(source).exists():
        raise ValueError(f"no data set or file called {str(source)!r}: built in are {', '.join(BUILT_IN)}")
    if source == "cifar10" if named else Path(source).is_dir():
        refuse_encoding(source, encoding)
        data = _of_images(source, levels, codec)
    else:
        refuse_levels(source, levels)
        if named:
            refuse_encoding(source, encoding)
            data = digits() if source == "digits" else BUILT_IN[str(source)](**sized)
        elif existing(Path(source)).suffix.lower() in (*ARRAYS, *TABLES):
            refuse_encoding(source, encoding)
            data = _of_fixed_length(Path(source), codec)
        else:
            data = text(source, encoding=encoding, codec=codec, **sized)
    refuse_unlike(data, length, codec)
    return data


def is_name(source: str | Path) -> bool:
    """Whether it is the name of a data set that is built in, and not a path."""
    return isinstance(source, str) and source in BUILT_IN


def _of_images(source: str | Path, levels: int | None, codec: Codec | None) -> DataSet:
    model = codec if isinstance(codec, Picture) else None
    if levels is None:
        levels = 256 if model is None else model.levels
    if source == "cifar10":
        return cifar10(levels)
    return images(source, levels, colour=model is not None and model.shape[2] == 3)


def _of_fixed_length(path: Path, codec: Codec | None) -> DataSet:
    if path.suffix.lower() in ARRAYS:
        return array(path, None if codec is None else codec.num_states)
    return table(path, codec if isinstance(codec, Columns) else None)


def refuse_encoding(source: str | Path, encoding: str) -> None:
    """A ValueError if an encoding is chosen for data that are no text."""
    if encoding != "characters":
        raise ValueError(f"encoding is read for text files only, got {encoding!r} for {source}")


def refuse_levels(source: str | Path, levels: int | None) -> None:
    """A ValueError if levels are chosen for data that are no images."""
    if levels is not None:
        raise ValueError(f"levels is read for images only, got {levels} for {source}")


def refuse_unlike(data: DataSet, length: int | None, codec: Codec | None) -> None:
    """A ValueError if sequences are not of that length, or tokens do not mean what they mean to that codec."""
    if length is not None and data.num_positions != length:
        raise ValueError(f"length must be {data.num_positions} for {data.name}, got {length}")
    if codec is not None and codec.meaning() != data.codec.meaning():
        raise ValueError(f"{data.name} must be readable by {_brief(codec)}, got data for {_brief(data.codec)}")


def _brief(codec: Codec) -> str:
    described = ", ".join(f"{key}={value!r}" for key, value in codec.config().items())
    return f"{type(codec).__name__}({described if len(described) <= 60 else described[:60] + '…'})"

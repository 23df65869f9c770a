"""The one door to data: what kind a name, a file or a folder is of, found without reading all of it; and loading it."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from dmb._core import checks
from dmb.data.base import DataSet
from dmb.data.codecs import Codec, Columns, Picture, Records, Text
from dmb.data.delimited import looks_delimited
from dmb.data.kinds import NAMES, HeldOut, Kind
from dmb.data.reading import PACKED, Progress, existing, opened, suffix_of
from dmb.data.sources.array import MOST_STATES, array
from dmb.data.sources.built_in import digits, markov, pydocs
from dmb.data.sources.cifar10 import cifar10
from dmb.data.sources.images import EXTENSIONS, images
from dmb.data.sources.records import records
from dmb.data.sources.table import table
from dmb.data.sources.text import text
from dmb.data.sources.text8 import text8

BY_EXTENSION: dict[str, Kind] = {
    ".npy": "array",
    ".npz": "array",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "table",
    ".fasta": "records",
    ".fa": "records",
    ".faa": "records",
    ".fna": "records",
    ".smi": "records",
    ".smiles": "records",
    ".jsonl": "records",
    ".txt": "text",
    ".md": "text",
}
COMPRESSED = (".7z", ".tar", ".tgz")
BUILT_IN = {"cifar10": cifar10, "digits": digits, "markov": markov, "pydocs": pydocs, "text8": text8}


def kind_of(source: str | Path) -> Kind:
    """The kind of data that `load` would read: a built-in data set, a folder of images, or a file.

    The extension of a file decides; if it is unknown, a file whose first lines all have the same number of values is a
    table, and any other is text.

    >>> kind_of("digits"), kind_of("text8")
    ('array', 'text')
    """
    if is_name(source):
        return NAMES[str(source)]
    path = Path(source)
    if not str(source):
        raise ValueError("source must be the name of a data set or a path, got an empty string")
    if not os.path.exists(path):  # unlike Path.exists, False of a name that is too long
        raise ValueError(f"no data set or file called {_shown(source)!r}: {_suggestion(source)}")
    if _shown(source) != str(source):  # run folders keep it as UTF-8
        raise ValueError(f"the name of {_shown(source)} must be UTF-8: rename it")
    if path.is_dir():
        return "images"
    existing(path)  # what is no file, such as a pipe, might keep its readers waiting
    suffix = suffix_of(path)
    compressed = suffix in COMPRESSED or path.suffix.lower() in PACKED
    if compressed and suffix in (*COMPRESSED, *EXTENSIONS, ".npy", ".npz", ".parquet"):
        raise ValueError(f"{path} is compressed: unpack it first")
    if suffix in EXTENSIONS:
        raise ValueError(f"{path} is a single image: give the folder that holds it and the others")
    if suffix in BY_EXTENSION:
        return BY_EXTENSION[suffix]
    return "table" if looks_delimited(opened(path)) else "text"


def is_name(source: str | Path) -> bool:
    """Whether it is the name of a built-in data set, and not a path."""
    return isinstance(source, str) and source in NAMES


def load(
    source: str | Path,
    *,
    kind: Kind | None = None,
    length: int | None = None,
    encoding: str = "characters",
    held_out: HeldOut = "spread",
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
        held_out: where validation and test text of a text file come from; see `text`.
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
    check_options(
        source, kind, encoding=encoding, held_out=held_out, levels=levels, size=size, most_states=most_states,
        kinds=kinds, bins=bins,
    )  # fmt: skip
    sized = {} if length is None else {"length": length}
    if kind == "images":
        data = _images(source, levels, size, codec, progress)
    elif named:
        data = digits() if source == "digits" else BUILT_IN[str(source)](**sized)
    elif kind == "array":
        limit = MOST_STATES if most_states is None else most_states
        data = array(source, None if codec is None else codec.num_states, most_states=limit)
    elif kind == "table":
        data = table(source, codec if isinstance(codec, Columns) else None, kinds=kinds, bins=bins, progress=progress)
    elif kind == "records":
        data = records(source, length, codec if isinstance(codec, Records) else None, progress=progress)
        length = None  # records may all be shorter
    else:
        data = text(source, encoding=encoding, codec=codec, held_out=held_out, progress=progress, **sized)
    check_codec(data, length, codec)
    return data


def _kind(source: str | Path, kind: Kind | None, encoding: str, codec: Codec | None) -> Kind:
    found = kind_of(source)
    checks.choice("kind", kind or found, get_args(Kind))
    if is_name(source) or Path(source).is_dir():
        if kind not in (None, found):
            raise ValueError(f"kind must be {found} for {source}, got {kind}")
        return found
    sniffed = suffix_of(Path(source)) not in BY_EXTENSION
    if kind is None and sniffed and (encoding != "characters" or isinstance(codec, Text)):
        return "text"
    return kind or found


def _images(
    source: str | Path, levels: int | None, size: int | None, codec: Codec | None, progress: Progress | None
) -> DataSet:
    model = codec if isinstance(codec, Picture) else Picture([1, 1, 1])  # grey, in 256 levels, as they are
    levels = model.levels if levels is None else levels
    if is_name(source):
        return cifar10(levels)
    if size is None and model.cropped:
        size = model.shape[0]
    return images(source, levels, colour=model.shape[2] == 3, size=size, progress=progress)


def check_options(
    source: str | Path,
    kind: str,
    *,
    encoding: str = "characters",
    held_out: HeldOut = "spread",
    levels: int | None = None,
    size: int | None = None,
    most_states: int | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
) -> None:
    """Raise a ValueError if an option of `load` is chosen that means nothing for data of this kind."""
    own = not is_name(source)
    rules = (
        (encoding != "characters", kind == "text" and own, f"encoding applies to text files only, got {encoding!r}"),
        (held_out != "spread", kind == "text" and own, f"held_out applies to text files only, got {held_out!r}"),
        (levels is not None, kind == "images", f"levels applies to images only, got {levels}"),
        (size is not None, kind == "images" and own, f"size applies to folders of images only, got {size}"),
        (
            most_states is not None,
            kind == "array" and own,
            f"most_states applies to array files only, got {most_states}",
        ),
        (bool(kinds) or bins is not None, kind == "table", "kinds and bins apply to tables only, got some"),
    )
    for given, meant, rule in rules:
        if given and not meant:
            raise ValueError(f"{rule} for {source}")


def check_codec(data: DataSet, length: int | None, codec: Codec | None) -> None:
    """Raise a ValueError if sequences have another length, or tokens have another meaning than for that codec."""
    if codec is not None and codec.meaning() != data.codec.meaning():
        raise ValueError(f"{data.name} must be readable by {_brief(codec)}, got data for {_brief(data.codec)}")
    if length is not None and data.num_positions != length:
        raise ValueError(
            f"length must be {data.num_positions} for {data.name}, got {length}: leave it out, except for text"
        )


def _brief(codec: Codec) -> str:
    described = ", ".join(f"{key}={value!r}" for key, value in codec.config().items())
    return f"{type(codec).__name__}({described if len(described) <= 60 else described[:60] + '…'})"


def _suggestion(source: str | Path) -> str:
    """A name that looks like what was asked for, else all names."""
    path = Path(source)
    names = list(NAMES) if isinstance(source, str) and path.name == source else []
    if path.parent.is_dir() and os.access(path.parent, os.R_OK):
        names += [name for name in os.listdir(path.parent) if not name.startswith(".")]
    names.sort(key=lambda name: difflib.SequenceMatcher(None, name.lower(), path.name.lower()).ratio())
    by_stem = {Path(name).stem.lower(): name for name in names}  # of one stem, the name that is most alike
    close = difflib.get_close_matches(path.stem.lower(), by_stem, n=1)  # files of one extension are not alike
    if not close:
        return f"give a path, or one of {', '.join(NAMES)}"
    found = by_stem[close[0]]
    return f"did you mean {_shown(found if path.name == str(source) else path.parent / found)!r}?"


def _shown(path: str | Path) -> str:
    """A path as text; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

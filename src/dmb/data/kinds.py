"""The kind of data of a name, a file or a folder, found without reading all of it."""

import difflib
import os
from pathlib import Path
from typing import Literal

from dmb.data.delimited import looks_delimited
from dmb.data.reading import opened
from dmb.data.sources.images import EXTENSIONS

Kind = Literal["text", "table", "array", "images", "records"]

NAMES: dict[str, Kind] = {
    "cifar10": "images",
    "digits": "array",
    "markov": "text",
    "pydocs": "text",
    "text8": "text",
}
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


COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z")


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
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        raise ValueError(f"{path} is compressed: unpack it first")
    if suffix in EXTENSIONS:
        raise ValueError(f"{path} is a single image: give the folder that holds it and the others")
    if suffix in BY_EXTENSION:
        return BY_EXTENSION[suffix]
    return "table" if looks_delimited(opened(path)) else "text"


def is_name(source: str | Path) -> bool:
    """Whether it is the name of a built-in data set, and not a path."""
    return isinstance(source, str) and source in NAMES


def _suggestion(source: str | Path) -> str:
    """A name that looks like what was asked for, else all names."""
    path = Path(source)
    names = list(NAMES) if isinstance(source, str) and path.name == source else []
    if path.parent.is_dir() and os.access(path.parent, os.R_OK):
        names += [name for name in os.listdir(path.parent) if not name.startswith(".")]
    by_folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(path.name.lower(), by_folded, n=1)
    if not close:
        return f"give a path, or one of {', '.join(NAMES)}"
    found = by_folded[close[0]]
    return f"did you mean {_shown(found if path.name == str(source) else path.parent / found)!r}?"


def _shown(path: str | Path) -> str:
    """A path as text; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

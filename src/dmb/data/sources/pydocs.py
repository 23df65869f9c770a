"""English that every Python brings along: its language reference and the documentation of its library."""

import ast
import hashlib
import importlib
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.cache import cached
from dmb.data.codecs import Characters
from dmb.data.splits import split_stream

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
FORMAT = 2  # of the cache: to be raised whenever the text below changes

# tests, bundled programs, and tables of character sets that repeat one sentence a hundred times
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "ensurepip", "pydoc_data"}
_SKIPPED |= {"site-packages", "dist-packages", "__pycache__"}


def pydocs(length: int = 64) -> DataSet:
    """Some two million letters of English in Text8's alphabet, without a download.

    Documents, which are the topics of `help()` and the docstrings of each module of the standard library, are put in an
    order that is random but fixed, and joined by spaces; so the three splits are of the same mix. The text is that of
    the running Python, and differs a little between versions.
    """
    codec = Characters(ALPHABET)

    def chunks() -> Iterator[np.ndarray]:
        documents = sorted(_documents().items(), key=lambda item: hashlib.sha256(item[0].encode()).digest())
        yield codec.encode(" ".join(text for _, text in documents)).astype(np.uint8)

    tokens = cached("pydocs", [FORMAT, platform.python_version()], chunks)
    splits = split_stream(tokens, codec.num_states, length)
    return DataSet(name="pydocs", source="pydocs", codec=codec, **splits._asdict())


def _documents() -> dict[str, str]:
    """Normalised text by the name of its document."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise ValueError("pydocs needs pydoc_data.topics, which this Python lacks: use another Python") from error
    library = Path(sysconfig.get_path("stdlib"))
    texts: dict[str, Iterable[str]] = {f"topic {name}": [text] for name, text in sorted(topics.items())}
    sources = {
        path.relative_to(library).as_posix(): _docstrings(path)
        for path in sorted(library.rglob("*.py"))
        if not _SKIPPED.intersection(path.relative_to(library).parts[:-1])
    }
    if not sources:
        raise ValueError(f"pydocs needs the sources of the standard library, which are not in {library}")
    documents, seen = {}, set()
    for name, parts in (texts | sources).items():
        # topics contain one another, and modules repeat each other's words: a paragraph must not be in two splits
        paragraphs = (_normalised(part) for text in parts for part in re.split(r"\n\s*\n", text))
        fresh = [text for text in dict.fromkeys(paragraphs) if text and text not in seen]
        seen.update(fresh)
        if fresh:
            documents[name] = " ".join(fresh)
    return documents


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules have invalid escapes, which are no business of ours
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # templates that end in .py
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def _normalised(text: str) -> str:
    """Text8's form: lower case, and everything that is not a letter one space.

    >>> _normalised("It's 3.11 -- nice!")
    'it s nice'
    """
    return re.sub("[^a-z]+", " ", text.lower()).strip()

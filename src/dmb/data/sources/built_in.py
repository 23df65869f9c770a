"""Data sets that need no file: digits, a language of known entropy, and the English that every Python brings along."""

import ast
import hashlib
import importlib.util
import math
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from dmb._core import checks
from dmb.data.base import DataSet
from dmb.data.cache import cached
from dmb.data.codecs import Characters, Grid
from dmb.data.splits import Rows, Splits, random_bits, split_rows, split_stream

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
PYDOCS_FORMAT = 2  # of the cache: to be raised whenever the text of `pydocs` changes

# tests, bundled programs, and tables of character sets that repeat one sentence a hundred times
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "ensurepip", "pydoc_data"}
_SKIPPED |= {"site-packages", "dist-packages", "__pycache__"}
_SENTENCES = (40_000, 4_000, 8_000)  # of `markov`: train, validation, test


def digits() -> DataSet:
    """1,797 images of 8 × 8 pixels in 17 shades, with the digit as label; they ship with scikit-learn.

    >>> data = digits()
    >>> data.num_positions, data.num_states, data.num_classes
    (64, 17, 10)
    >>> len(data.train), len(data.validation), len(data.test)
    (1437, 180, 180)
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError("digits ships with scikit-learn: pip install scikit-learn")
    table = _digits_table(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz")
    splits = split_rows(table[:, :-1].astype(np.uint8), 17, table[:, -1])
    codec = Grid([8, 8], 17)
    return DataSet(name="digits", source="digits", codec=codec, **splits._asdict(), num_classes=10)


@cache
def _digits_table(file: Path) -> np.ndarray:
    """The file itself: importing scikit-learn, with all that it imports, would take a second or more."""
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    table.setflags(write=False)
    return table


def markov(length: int = 32) -> DataSet:
    """Sentences of a first-order Markov chain over 27 letters, begun in its stationary distribution.

    >>> data = markov(length=8)
    >>> len(data.test), data.codec.decode(data.test[:1])
    (8000, ['bjztzilv'])
    """
    checks.at_least(1, length=length)
    start, transition = _chain()
    made = (_sentences(count, length, start, transition, index) for index, count in enumerate(_SENTENCES))
    splits = Splits(*(Rows(sentences, len(ALPHABET)) for sentences in made))
    return DataSet(name="markov", source="markov", codec=Characters(ALPHABET), **splits._asdict())


def markov_bits(length: int = 32) -> float:
    """The exact entropy of `markov(length)` in bits per token.

    `(H(π) + (length - 1) Σ_x π_x H(P_x)) / length`, with `P` the transition matrix and `π P = π`.
    """
    start, transition = _chain()
    nats = _entropy(start) + (length - 1) * float(start @ [_entropy(row) for row in transition])
    return nats / length / math.log(2)


def _chain() -> tuple[np.ndarray, np.ndarray]:
    """`π` and `P`: every letter has a few likely successors and many rare ones."""
    n = len(ALPHABET)
    weights = _uniform(n * n, 0).reshape(n, n) ** 12 + 1e-3
    transition = weights / weights.sum(1, keepdims=True)
    stationary = np.linalg.solve(transition.T - np.eye(n) + 1.0, np.ones(n))  # π (P - 1) = 0 and Σ π = 1 in one system
    return stationary / stationary.sum(), transition


def _sentences(count: int, length: int, start: np.ndarray, transition: np.ndarray, split: int) -> np.ndarray:
    uniform = _uniform(count * length, 1, split).reshape(count, length)
    first, following = start.cumsum(), transition.cumsum(1)
    tokens = np.empty((count, length), dtype=np.uint8)
    tokens[:, 0] = np.searchsorted(first / first[-1], uniform[:, 0], side="right")
    for position in range(1, length):
        cdf = following[tokens[:, position - 1]]
        tokens[:, position] = (uniform[:, position, None] * cdf[:, -1:] >= cdf).sum(1)
    return tokens


def _uniform(count: int, *seed: int) -> np.ndarray:
    return (random_bits(count, *seed) >> np.uint64(11)) * 2.0**-53


def _entropy(p: np.ndarray) -> float:
    return float(-(p * np.log(p)).sum())


def pydocs(length: int = 64) -> DataSet:
    """Some two million letters of English in Text8's alphabet, without a download.

    Documents, which are the topics of `help()` and the docstrings of each module of the standard library, are put in an
    order that is random but fixed, and joined by spaces; so the three splits are of the same mix. The text is that of
    the running Python, and differs a little between versions.
    """
    codec = Characters(ALPHABET)
    made_from = [PYDOCS_FORMAT, platform.python_version()]
    tokens = cached("pydocs", made_from, lambda: [codec.encode(_documents()).astype(np.uint8)])
    splits = split_stream(tokens, codec.num_states, length)
    notes = ("documents are in random order; validation and test text are the last tenth",)
    return DataSet(name="pydocs", source="pydocs", codec=codec, **splits._asdict(), notes=notes)


def _documents() -> str:
    """The normalised text of all documents, in an order that their names decide."""
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
    order = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
    return " ".join(documents[name] for name in order)


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

"""A language whose entropy is known exactly: what a bound may approach, and never honestly pass."""

import math

import numpy as np

from dmb.data.base import DataSet
from dmb.data.codecs import Characters
from dmb.data.splits import Rows, Splits, random_bits

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
_SENTENCES = (40_000, 4_000, 8_000)  # train, validation, test


def markov(length: int = 32) -> DataSet:
    """Sentences of a first-order Markov chain over 27 letters, begun in its stationary distribution.

    >>> data = markov(length=8)
    >>> len(data.test), data.codec.decode(data.test[:1])
    (8000, ['bjztzilv'])
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
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

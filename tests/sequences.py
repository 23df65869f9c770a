"""Sequences of different lengths, with structure, whose entropy is known."""

import math

import numpy as np

LETTERS = "ACDEFGHIKL"


def follow(stay=0.9):
    """A Markov chain on the letters: each is followed by the next one, or by any."""
    chain = np.full((len(LETTERS), len(LETTERS)), (1 - stay) / len(LETTERS))
    chain[np.arange(len(LETTERS)), (np.arange(len(LETTERS)) + 1) % len(LETTERS)] += stay
    return chain


def proteins(count, shortest=20, longest=200, seed=0):
    """Sequences of the chain; lengths are uniform on the multiples of 10."""
    random, chain = np.random.default_rng(seed), follow().cumsum(1)
    made = []
    for length in random.integers(shortest // 10, longest // 10 + 1, size=count) * 10:
        states = [random.integers(len(LETTERS))]
        for chance in random.random(length - 1):
            states.append(min(int(np.searchsorted(chain[states[-1]], chance)), len(LETTERS) - 1))
        made.append("".join(LETTERS[state] for state in states))
    return made


def bits(lengths):
    """The true bits of sequences of these lengths, all but those of the length itself."""
    chain = follow()
    step = -(chain[0] * np.log2(chain[0])).sum()
    return sum(math.log2(len(LETTERS)) + (length - 1) * step for length in lengths)


def fasta(path, sequences):
    """Written with lines of 50 letters."""
    lines = []
    for number, sequence in enumerate(sequences):
        lines += [f">protein_{number} of a test", *(sequence[i : i + 50] for i in range(0, len(sequence), 50))]
    path.write_text("\n".join(lines) + "\n")
    return path

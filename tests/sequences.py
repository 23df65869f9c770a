"""Sequences of different lengths, with structure, whose entropy is known."""

import math

import numpy as np

LETTERS, FAMILY = "ACDEFGHIKL", 2


def proteins(count, shortest=20, longest=200, seed=0):
    """Each sequence is of one family, and has its letters only; lengths are uniform on the multiples of 10."""
    random, made = np.random.default_rng(seed), []
    for length in random.integers(shortest // 10, longest // 10 + 1, size=count) * 10:
        first = FAMILY * random.integers(len(LETTERS) // FAMILY)
        made.append("".join(LETTERS[first + letter] for letter in random.integers(FAMILY, size=length)))
    return made


def bits(lengths):
    """The true bits of sequences of these lengths, all but those of the length itself."""
    return sum(math.log2(len(LETTERS) / FAMILY) + length * math.log2(FAMILY) for length in lengths)


def fasta(path, sequences):
    """Written with lines of 50 letters."""
    lines = []
    for number, sequence in enumerate(sequences):
        lines += [f">protein_{number} of a test", *(sequence[i : i + 50] for i in range(0, len(sequence), 50))]
    path.write_text("\n".join(lines) + "\n")
    return path

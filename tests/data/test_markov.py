import itertools
import math

import numpy as np
import pytest
import scipy.stats

import dmb
from dmb.data.sources import markov as module


def test_the_entropy_is_that_of_all_sentences_enumerated():
    start, transition = module._chain()
    nats = 0.0
    for sentence in itertools.product(range(27), repeat=3):
        p = start[sentence[0]] * math.prod(transition[a, b] for a, b in itertools.pairwise(sentence))
        nats -= p * math.log(p)
    assert dmb.data.markov_bits(3) == pytest.approx(nats / 3 / math.log(2), rel=1e-12)


def test_the_chain_is_one_and_its_start_is_stationary():
    start, transition = module._chain()
    np.testing.assert_allclose(transition.sum(1), 1)
    np.testing.assert_allclose(start @ np.linalg.matrix_power(transition, 50), start, rtol=1e-12)


def test_sentences_follow_the_chain():
    tokens = dmb.data.markov(length=4).train[:].numpy()
    start, transition = module._chain()
    for position in (0, 2):  # stationary: every pair of neighbours is distributed alike
        pairs = np.zeros((27, 27))
        np.add.at(pairs, (tokens[:, position], tokens[:, position + 1]), 1)
        expected = len(tokens) * start[:, None] * transition
        enough = expected > 5
        seen = np.append(pairs[enough], pairs[~enough].sum())
        wanted = np.append(expected[enough], expected[~enough].sum())
        assert scipy.stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-3


def test_splits_hold_different_sentences():
    data = dmb.data.markov(length=32)
    rows = [{tuple(row) for row in split[:1000].tolist()} for split in data.splits().values()]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(rows, 2))

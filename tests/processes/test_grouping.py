import itertools

import numpy as np
import pytest
import scipy.cluster.hierarchy
import torch

import dmb
from dmb.processes import grouping


def leaves(tree, m):
    """The leaves under every name, as sets."""
    groups = {}
    for leaf in range(m):
        node = leaf
        while tree.parent[0, node] != node:
            node = int(tree.parent[0, node])
            groups.setdefault(node, set()).add(leaf)
    return sorted(map(frozenset, groups.values()), key=lambda group: (len(group), sorted(group)))


def mutual_information(counts, label):
    """Between the cluster of a state and its neighbours on either side, in nats."""
    both = np.concatenate([counts, counts.T], axis=1)
    joint = np.stack([both[label == cluster].sum(0) for cluster in np.unique(label)])
    joint = joint / joint.sum()
    expected = joint.sum(1, keepdims=True) * joint.sum(0)
    kept = joint > 0
    return (joint[kept] * np.log(joint[kept] / expected[kept])).sum()


@pytest.mark.parametrize("seed", range(4))
def test_cooccurrence_merges_the_pair_that_loses_least_mutual_information(seed):
    m = 7
    counts = np.random.default_rng(seed).poisson(3.0, (m, m))
    label = np.arange(m)
    for left in range(m - 1, 1, -1):
        pairs = itertools.combinations(np.unique(label), 2)
        best = max(pairs, key=lambda pair: mutual_information(counts, np.where(label == pair[1], pair[0], label)))
        label = np.where(label == best[1], best[0], label)
        if left == 3:
            expected = {frozenset(np.flatnonzero(label == cluster).tolist()) for cluster in np.unique(label)}
    tree = grouping.by_cooccurrence(torch.tensor(counts), clusters=(3,))
    named = {group for group in leaves(tree, m) if len(group) < m}
    assert named == {group for group in expected if len(group) > 1}


@pytest.mark.parametrize("seed", range(4))
def test_vectors_are_clustered_as_scipy_does_by_wards_method(seed):
    vectors = np.random.default_rng(seed).normal(size=(20, 3))
    linkage = scipy.cluster.hierarchy.linkage(vectors, method="ward")
    expected = set()
    for size in (6, 3):
        label = scipy.cluster.hierarchy.fcluster(linkage, size, criterion="maxclust")
        expected |= {frozenset(np.flatnonzero(label == cluster).tolist()) for cluster in np.unique(label)}
    tree = grouping.by_vectors(torch.tensor(vectors), clusters=(6, 3))
    named = {group for group in leaves(tree, 20) if len(group) < 20}
    assert named == {group for group in expected if len(group) > 1}


@pytest.mark.parametrize("n", [2, 3, 5, 17, 64])
def test_a_tree_by_value_names_runs_of_neighbours_that_halve(n):
    tree = grouping.by_value(n)
    for group in leaves(tree, n):
        assert sorted(group) == list(range(min(group), max(group) + 1))
        assert len(group) == n or (len(group) & (len(group) - 1) == 0) or max(group) == n - 1
    assert tree.depth[0, :n].max() == (n - 1).bit_length()


def test_stages_by_frequency_gather_the_rare_first():
    p = torch.tensor([0.4, 0.05, 0.2, 0.05, 0.1, 0.2])
    groups = leaves(grouping.by_frequency(p, stages=3), 6)
    assert groups[-1] == frozenset(range(6))
    assert groups[-2] == frozenset(range(1, 6))  # all but the most frequent
    assert groups[0] < groups[1]
    assert 0 not in groups[0]


def test_every_level_is_faster_than_the_one_above_by_the_ratio():
    tree = grouping.by_value(8)
    rates = tree.level_rates(4.0)[0]
    for node in range(8, tree.num_states):
        assert rates[tree.clock_into[0, node] - 1] == 4.0 ** int(tree.depth[0, node])
    assert rates[-1] == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grouping.by_cooccurrence(torch.ones(3, 2)), "shape"),
        (lambda: grouping.by_cooccurrence(-torch.ones(3, 3)), "numbers ≥ 0"),
        (lambda: grouping.by_cooccurrence(torch.ones(3, 3), clusters=(2, 3)), "must decrease"),
        (lambda: grouping.by_vectors(torch.full((3, 1), torch.nan), clusters=(2,)), "finite"),
        (lambda: grouping.by_frequency(torch.ones(3) / 3, stages=0), "at least 1"),
        (lambda: grouping.from_groups([torch.tensor([0, 1])]), "one group"),
        (lambda: grouping.from_groups([torch.tensor(x) for x in ([0, 0, 1], [0, 1, 1], [0, 0, 0])]), "must nest"),
        (lambda: grouping.by_vectors(torch.rand(10, 2), clusters=(64, 8)), "fewer than the 10 states"),
        (lambda: grouping.star(1), "at least 2 states"),
        (lambda: grouping.star(3).level_rates(0.0), "positive"),
        (
            lambda: dmb.BridgeProcess.from_marginals(torch.ones(1, 3) / 3, tree=grouping.star(3), mask=True),
            "a tree does not use mask, only ratio: leave it out",
        ),
    ],
)
def test_what_cannot_be_grouped_is_refused(call, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.long
def test_a_tree_learns_from_text_of_which_it_is_made():
    """A chain that alternates between two clusters: after a few steps the bound is below the marginals'."""
    generator = np.random.default_rng(0)
    side = (np.arange(16) + generator.integers(2, size=(600, 1))) % 2
    rows = side * 3 + generator.integers(3, size=(600, 16))
    data = dmb.data.array(rows)
    tree = grouping.by_cooccurrence(data.train.bigrams(), clusters=(2,))
    assert leaves(tree, 6)[:2] == [frozenset({0, 1, 2}), frozenset({3, 4, 5})]
    process = dmb.BridgeProcess.from_marginals(data.marginals(), tree=tree, tied=True, schedule=dmb.Canonical())
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=64, blocks=1))
    *_, last = dmb.train(bridge, data, cycles=1, score_steps=150, matrix_steps=0, learning_rate=3e-3)
    entropy = np.log2(3) + 1 / 16
    assert entropy - 0.02 < last.bits < np.log2(6) - 0.5

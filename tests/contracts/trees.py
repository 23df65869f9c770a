"""Processes on trees, beside dense generators built by walking up from every node; and all cases of the contract."""

from dataclasses import dataclass

import numpy as np
import torch

import dmb
from dmb.processes import grouping

import oracles
from contracts import cases
from contracts.cases import RAGGED, Case, marginals


@dataclass(frozen=True)
class TreeCase(Case):
    def _dense(self, measure):
        process = self.built
        positions = range(process.num_positions)

        def rows(table):
            return table.detach().expand(process.num_positions, *table.shape[1:]).numpy()

        alpha, parent, clock = (
            rows(t) for t in (process.alpha, process.hierarchy.parent, process.hierarchy.clock_into)
        )
        clocks = alpha.astype(object) * measure(oracles.steady)
        if isinstance(process.clocks, dmb.Varying):
            profiles = [measure(profile) for profile in oracles.PROFILES]
            mixtures = [[oracles.softmax(logits) for logits in row.T] for row in rows(process.clocks.raw_profile)]
            clocks = alpha.astype(object) * np.dot(np.array(mixtures, dtype=object), profiles)
        return np.stack([oracles.tree_rates(clocks[i], parent[i], clock[i]) for i in positions])


def random_parents(n, rows=1, seed=0):
    """Trees in which every node but the root hangs under any that was placed before it: data visit all of them."""
    generator = np.random.default_rng(seed)
    parents = np.zeros((rows, n), dtype=np.int64)
    for row in parents:
        order = generator.permutation(n)
        row[order[0]] = order[0]
        for place in range(1, n):
            row[order[place]] = order[generator.integers(place)]
    return torch.tensor(parents)


def on_tree(tree, d=2, low=0.1, high=3.0, kind=dmb.Steady, seed=1, **options):
    """A process with log-uniform rates of its own at every position."""
    generator = torch.Generator().manual_seed(seed)
    span = torch.rand(d, tree.num_clocks, generator=generator, dtype=torch.float64)
    clocks = kind(low * (high / low) ** span)
    if kind is dmb.Varying:
        with torch.no_grad():
            clocks.raw_profile.normal_(std=2.0, generator=generator)
    p = torch.nn.functional.pad(marginals(d, tree.num_states - tree.names), (0, tree.names))
    return dmb.BridgeProcess(tree, clocks, num_positions=d, marginals=p, **options)


def two_names():
    """A line with two names on top of the data, of which only the topmost has a clock."""
    p = torch.nn.functional.pad(marginals(2, 3), (0, 2))
    rates = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    line = dmb.Line(torch.tensor([[1, 0, 2, 3, 4]]), names=2)
    return dmb.BridgeProcess(line, dmb.Steady(rates), num_positions=2, marginals=p)


def ragged_tree():
    p = marginals(3, 5, states=RAGGED)
    return dmb.BridgeProcess.from_marginals(
        p, tree=grouping.by_value(5), ratio=3.0, state_counts=torch.tensor(RAGGED), schedule=dmb.Canonical()
    )


CASES = [
    *cases.CASES,
    TreeCase("random tree, data on inner nodes", lambda: on_tree(dmb.Tree(random_parents(6)))),
    TreeCase("a random tree for each position", lambda: on_tree(dmb.Tree(random_parents(6, rows=2, seed=1)))),
    TreeCase("random tree with wild rates", lambda: on_tree(dmb.Tree(random_parents(6, seed=2)), low=1e-8, high=1e4)),
    TreeCase("random tree with slow rates", lambda: on_tree(dmb.Tree(random_parents(6, seed=3)), low=1e-8, high=1e-4)),
    TreeCase("tree with names", lambda: on_tree(grouping.by_value(5))),
    TreeCase(
        "tree with names, in canonical time", lambda: on_tree(grouping.by_value(4), schedule=dmb.Canonical())
    ),
    TreeCase("tree with varying clocks", lambda: on_tree(dmb.Tree(random_parents(5, seed=4)), kind=dmb.Varying)),
    TreeCase("star", lambda: on_tree(grouping.star(4))),
    TreeCase("path", lambda: on_tree(dmb.Tree(torch.tensor([[3, 0, 1, 4, 4]])))),
    TreeCase("ragged tree", ragged_tree, RAGGED),
    Case("line with two names, top clock only", two_names),
]  # fmt: skip

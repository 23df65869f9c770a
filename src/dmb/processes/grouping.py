"""Ways to make a tree: groups of states, groups of groups, and one root; each group has its own name.

In all of these trees the states of the data are leaves, and the names come after them, the root last. A group with a
single member gets no name.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.processes.hierarchies import Tree

MOST_STATES = 4096
"""Maximum number of states to cluster: the work grows with its third power."""


def star(num_states: int) -> Tree:
    """All states under one name: masked diffusion.

    >>> star(3).parent
    tensor([[3, 3, 3, 3]])
    """
    return from_groups([torch.zeros(num_states, dtype=torch.long)])


def by_frequency(marginals: Float[Tensor, " m"], stages: int = 3) -> Tree:
    """Groups by frequency, each inside the next: the rarest states, then those and less rare ones, and so on, then all.

    The most frequent state lies directly below the root; of the remaining mass every group takes half.

    >>> by_frequency(torch.tensor([0.5, 0.1, 0.2, 0.05, 0.15]), stages=2).parent
    tensor([[6, 5, 5, 5, 5, 6, 6]])
    """
    if stages < 1:
        raise ValueError(f"stages must be at least 1, got {stages}")
    left = marginals.argsort(descending=True, stable=True)
    labels: list[Tensor] = []
    for _ in range(stages - 1):
        mass = marginals[left].cumsum(0)
        half = 1 if not labels else int((mass < mass[-1] / 2).sum()) + 1
        left = left[half:]
        if len(left) < 2:
            break
        label = torch.arange(1, len(marginals) + 1)  # every other state is its own group
        label[left] = 0
        labels.append(label)
    return from_groups([*reversed(labels), torch.zeros(len(marginals), dtype=torch.long)])


def by_value(num_states: int) -> Tree:
    """Neighbouring values in pairs, pairs of pairs, and so on: for shades, and for binned numbers.

    >>> by_value(4).parent
    tensor([[4, 4, 5, 5, 6, 6, 6]])
    """
    value, halvings = torch.arange(num_states), range(1, max(1, num_states - 1).bit_length() + 1)
    return from_groups([value >> halving for halving in halvings])


def by_cooccurrence(counts: Float[Tensor, "m m"] | Int[Tensor, "m m"], clusters: Sequence[int] = (12, 5)) -> Tree:
    """Clusters of states with similar neighbours, by bigram counts: for text, and for codes.

    Clusters are merged in pairs, always the pair that loses least of the mutual information between a state and its
    neighbours on either side.

    Args:
        counts: how often state `y` comes right after state `x`, `counts[x, y]`.
        clusters: number of clusters on each level, from fine to coarse; the root comes on top of them.

    >>> counts = torch.tensor([[0, 0, 5, 5], [0, 0, 5, 5], [5, 5, 0, 0], [5, 5, 0, 0]])
    >>> by_cooccurrence(counts, clusters=(2,)).parent
    tensor([[4, 4, 5, 5, 6, 6, 6]])
    """
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or (counts < 0).any():
        raise ValueError(f"counts must be numbers ≥ 0 of shape [states, states], got shape {list(counts.shape)}")
    joint = torch.cat([counts, counts.T], dim=1).double()

    def lost(merged: Tensor, others: Tensor) -> Tensor:
        """`Σ n log n` of rows and of their totals: what mutual information is made of, up to terms that stay."""

        def known(rows: Tensor) -> Tensor:
            total = rows.sum(-1)
            return torch.xlogy(rows, rows).sum(-1) - torch.xlogy(total, total)

        return known(merged) + known(others) - known(merged + others)

    return from_groups(_agglomerate(joint, lost, clusters))


def by_vectors(vectors: Float[Tensor, "m k"], clusters: Sequence[int]) -> Tree:
    """Clusters of states whose vectors are close, by Ward's method: for the codes of a VQ-VAE.

    Args:
        vectors: one vector per state, such as a codebook.
        clusters: number of clusters on each level, from fine to coarse; the root comes on top of them.

    >>> by_vectors(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), clusters=(2,)).parent
    tensor([[4, 4, 5, 5, 6, 6, 6]])
    """
    if vectors.ndim != 2 or not vectors.isfinite().all():
        raise ValueError(f"vectors must be finite, of shape [states, features], got shape {list(vectors.shape)}")
    sums = torch.cat([vectors.double(), torch.ones(len(vectors), 1, dtype=torch.float64)], dim=1)  # and sizes

    def lost(merged: Tensor, others: Tensor) -> Tensor:
        sizes, own = others[:, -1], merged[..., -1]
        apart = (merged[..., :-1] / own[..., None] - others[:, :-1] / sizes[:, None]).square().sum(-1)
        return apart * own * sizes / (own + sizes)

    return from_groups(_agglomerate(sums, lost, clusters))


def from_groups(labels: Sequence[Int[Tensor, " m"]]) -> Tree:
    """A tree from the group of every state at each level, from fine to coarse; the last level has one group.

    >>> from_groups([torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])]).parent
    tensor([[3, 3, 4, 4, 4]])
    """
    num_states = len(labels[0])
    if num_states < 2:
        raise ValueError(f"grouping needs at least 2 states, got {num_states}")
    parent = list(range(num_states))
    leaves = [{state} for state in range(num_states)]  # the states of the data at or below each node
    free = set(range(num_states))  # nodes that have no parent yet
    for label in labels:
        for group in label.unique().tolist():
            members = set((label == group).nonzero().squeeze(-1).tolist())
            inside = [node for node in free if leaves[node] <= members]
            if sum(len(leaves[node]) for node in inside) != len(members):
                raise ValueError(
                    f"labels must nest: each group of one level must lie in one group of the next, got {label}"
                )
            if len(inside) < 2:
                continue
            name = len(parent)
            for node in inside:
                parent[node] = name
            parent.append(name)
            leaves.append(members)
            free = free - set(inside) | {name}
    if len(free) != 1:
        raise ValueError("labels must hold one group on the last level")
    return Tree(torch.tensor([parent]), names=len(parent) - num_states)


def _agglomerate(
    rows: Float[Tensor, "m k"], lost: Callable[[Tensor, Tensor], Tensor], clusters: Sequence[int]
) -> list[Int[Tensor, " m"]]:
    """Repeatedly merge the pair that loses least; labels at each number of `clusters`, and when one is left."""
    num_states = len(rows)
    if num_states > MOST_STATES:
        raise ValueError(f"at most {MOST_STATES:,} states can be clustered, got {num_states:,}")
    wanted = list(clusters)
    if any(size < 2 for size in wanted) or sorted(set(wanted), reverse=True) != wanted:
        raise ValueError(f"clusters must decrease, and be at least 2, got {tuple(clusters)}")
    if wanted and wanted[0] >= num_states:
        raise ValueError(f"clusters must be fewer than the {num_states} states, got {wanted[0]}")
    rows, label, levels = rows.clone(), torch.arange(num_states), []
    cost = torch.stack([lost(row, rows) for row in rows])
    cost.fill_diagonal_(torch.inf)
    for left in range(num_states - 1, 0, -1):
        kept, gone = divmod(int(cost.argmin()), num_states)
        kept, gone = min(kept, gone), max(kept, gone)
        rows[kept] += rows[gone]
        label[label == gone] = kept
        cost[gone], cost[:, gone] = torch.inf, torch.inf
        alive = cost[kept].isfinite()
        fresh = torch.where(alive, lost(rows[kept], rows), torch.inf)
        cost[kept], cost[:, kept] = fresh, fresh
        if left in wanted:
            levels.append(label.clone())
    return [*levels, torch.zeros(num_states, dtype=torch.long)]

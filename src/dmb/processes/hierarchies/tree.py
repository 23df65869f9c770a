"""Trees: sums and climbs, level by level."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from dmb._core import numerics
from dmb.processes.hierarchies.base import Hierarchy


class Tree(Hierarchy):
    """A rooted tree: every node lies below its ancestors. Only inner nodes have clocks.

    A tree without branches is a `Line`; a star whose centre is a name is masked diffusion; clusters of a vocabulary
    under one root make two levels. `dmb.processes.grouping` makes trees. Sampling takes O(depth) per token and needs no
    `[b, d, n]` tensor.

    Args:
        parent: token -> parent, `[d, n]`, or `[1, n]` if all positions share one tree; the root is its own parent.
        names: number of names, the last states, which data never visit.

    >>> tree = Tree(torch.tensor([[3, 3, 4, 4, 4]]), names=2)  # {{0, 1}, 2}: 3 is the name of {0, 1}, 4 of everything
    >>> tree.sum_below(torch.tensor([[0.5, 0.2, 0.3, 0.0, 0.0]]))
    tensor([[0.0000, 0.0000, 0.0000, 0.7000, 1.0000]])
    >>> tree.level_rates(5.0)  # of the clocks of 3 and of 4
    tensor([[5., 1.]])
    """

    parent: Int[Tensor, "h n"]
    path: Int[Tensor, "h n k"]
    depth: Int[Tensor, "h n"]
    slot: Int[Tensor, "h n"]
    first: Int[Tensor, "h n"]
    last: Int[Tensor, "h n"]
    nodes: Int[Tensor, " l"]
    parents: Int[Tensor, " l"]

    def __init__(self, parent: Int[Tensor, "h n"], names: int = 0):
        path, depth = _paths_up(parent)
        parent = parent.long()
        inner = torch.zeros_like(parent, dtype=torch.bool).scatter(-1, parent, True)
        super().__init__(parent.shape[-1], int(inner.sum(-1).max()), names)
        self.register_buffer("parent", parent.clone())
        place = torch.where(inner, depth, self.num_states).argsort(dim=-1, stable=True).argsort(dim=-1)
        nodes, parents, self._level_sizes = _levels(parent, depth)
        first, size = _depth_first(nodes.split(self._level_sizes), parents.split(self._level_sizes), parent)
        derived = {
            "path": path, "depth": depth, "slot": torch.where(inner, self.num_clocks - place, 0),
            "first": first, "last": first + size - 1, "nodes": nodes, "parents": parents,
        }  # fmt: skip
        for name, table in derived.items():
            self.register_buffer(name, table, persistent=False)
        self.register_load_state_dict_post_hook(_check_parent)

    @property
    def clock_into(self) -> Int[Tensor, "h n"]:
        return self.slot

    def level_rates(self, ratio: float) -> Float[Tensor, "h m"]:
        """Rates that lift in stages: 1 for the root; every level is `ratio` times as fast as the level above it."""
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio must be positive and finite, got {ratio}")
        by_clock = torch.zeros(len(self.slot), self.num_clocks + 1, device=self.slot.device)
        return by_clock.scatter(-1, self.slot, ratio ** self.depth.to(by_clock.dtype))[:, 1:]

    def sum_above(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        total: Tensor = _Sums.apply(values, self, True)
        return total

    def sum_below(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        total: Tensor = _Sums.apply(values, self, False)
        return total

    def from_cumulative(self, totals: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        totals = self._joined(totals)
        return self._split(totals.index_add(-1, self.parents, -totals[..., self.nodes]))

    def is_below(self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        place = numerics.pick(self.first[None], x)
        return (place > numerics.pick(self.first[None], y)) & (place <= numerics.pick(self.last[None], y))

    def mask_below(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        first, last = (numerics.pick(table[None], x)[..., None] for table in (self.first, self.last))
        return (self.first > first) & (self.first <= last)

    def mask_above(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        place = numerics.pick(self.first[None], x)[..., None]
        return (self.first < place) & (place <= self.last)

    def gather_path(self, values: Shaped[Tensor, "c g n"], x: Int[Tensor, "b d"]) -> Shaped[Tensor, "b d k"]:
        return numerics.pick(values, numerics.pick(self.path[None].clamp(max=self.num_states - 1), x))

    def path_mask(
        self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]
    ) -> tuple[Bool[Tensor, "b d k"], Bool[Tensor, " k"]]:
        steps = torch.arange(self.path.shape[-1], device=x.device)
        length = numerics.pick(self.depth[None], x) - numerics.pick(self.depth[None], y)
        return steps < length[..., None], steps == 0

    def climb(
        self, x: Int[Tensor, "b d"], rates: Float[Tensor, "c g m"], level: Float[Tensor, "b d"]
    ) -> Int[Tensor, "b d"]:
        above = self.spread(rates)[1]
        for _ in range(self.path.shape[-1] - 1):
            x = torch.where(numerics.pick(above, x) > level, numerics.pick(self.parent[None], x), x)
        return x

    def _joined(self, values: Tensor) -> Tensor:
        """Where positions have trees of their own, all of them as one forest on the last axis."""
        if len(self.parent) == 1:
            return values
        return values.expand(*values.shape[:-2], *self.parent.shape).flatten(-2)

    def _split(self, values: Tensor) -> Tensor:
        return values if len(self.parent) == 1 else values.unflatten(-1, self.parent.shape)


class _Sums(torch.autograd.Function):
    """Sums over all nodes above, or over all below, level by level: each the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, tree: Tree, above: bool) -> Tensor:
        ctx.tree, ctx.above, ctx.shape = tree, above, values.shape
        values = tree._joined(values)
        total = torch.zeros_like(values)
        pairs = torch.stack([tree.parents, tree.nodes] if above else [tree.nodes, tree.parents])
        levels = pairs.split(tree._level_sizes, dim=-1)  # the deepest first
        for pair in reversed(levels) if above else levels:
            source, target = (each.expand(*values.shape[:-1], -1) for each in pair)
            total.scatter_add_(-1, target, total.gather(-1, source) + values.gather(-1, source))
        return tree._split(total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        adjoint = ctx.tree.sum_below if ctx.above else ctx.tree.sum_above
        return adjoint(gradient).sum_to_size(ctx.shape), None, None


def _paths_up(parent: Tensor) -> tuple[Int[Tensor, "h n k"], Int[Tensor, "h n"]]:
    """Every node, its parent, and so on up to the root, then `n`; and how many nodes lie above it."""
    if parent.ndim != 2 or parent.is_floating_point():
        raise ValueError(f"parent must be an integer tensor [positions, states], got {parent.dtype} "
                         f"{list(parent.shape)}")  # fmt: skip
    num_states = parent.shape[-1]
    if parent.min() < 0 or parent.max() >= num_states:
        raise ValueError(f"parent must lie in [0, {num_states}), got {parent.min().item()} to {parent.max().item()}")
    node = torch.arange(num_states, device=parent.device).expand_as(parent)
    roots = (parent == node).sum(-1)
    if (roots != 1).any():
        raise ValueError(
            f"parent must have one root, a node that is its own parent, in every row, got {roots.tolist()}"
        )
    up = F.pad(torch.where(parent == node, num_states, parent.long()), (0, 1), value=num_states)
    steps = [node]
    while (steps[-1] < num_states).any():
        if len(steps) > num_states:
            raise ValueError("parent must lead from every node to the root, got a cycle")
        steps.append(up.gather(-1, steps[-1]))
    path = torch.stack(steps[:-1], dim=-1)
    return path, (path < num_states).sum(-1) - 1


def _levels(parent: Tensor, depth: Tensor) -> tuple[Int[Tensor, " l"], Int[Tensor, " l"], list[int]]:
    """Nodes other than roots, the deepest level first and siblings together; their parents; and the sizes of levels.

    All trees are one forest.
    """
    offset = parent.shape[-1] * torch.arange(len(parent), device=parent.device)[:, None]
    parents, depths = (parent + offset).flatten(), depth.flatten()
    by_parent = parents.argsort(stable=True)
    levels = [by_parent[depths[by_parent] == level] for level in range(int(depth.max()), 0, -1)]
    nodes = torch.cat(levels)
    return nodes, parents[nodes], [len(level) for level in levels]


def _depth_first(
    nodes: Sequence[Tensor], parents: Sequence[Tensor], like: Int[Tensor, "h n"]
) -> tuple[Int[Tensor, "h n"], Int[Tensor, "h n"]]:
    """The place of each node in depth-first order, and how many nodes are at or below it: these come right after it."""
    size, first = torch.ones_like(like).flatten(), torch.zeros_like(like).flatten()
    for level, above in zip(nodes, parents, strict=True):
        size.index_add_(0, above, size[level])
    for level, above in zip(reversed(nodes), reversed(parents), strict=True):
        before = size[level].cumsum(0) - size[level]
        first[level] = first[above] + 1 + before - before[torch.searchsorted(above, above)]
    return first.view_as(like), size.view_as(like)


def _check_parent(tree: Tree, _: object) -> None:
    up = tree.path[..., 1]  # beyond the root there is no node
    if (torch.where(up < tree.num_states, up, tree.parent) != tree.parent).any():
        raise ValueError("parent must equal that of the tree it is loaded into")

"""Is what a template gives believed? Conditionals counted in samples, against exact ones, for every given value.

Values are in two groups: those that noise takes as well (ambiguous ones), and all others.

python benchmarks/conditionals.py [RECIPE …] [--infill SHARE] [--steps N]
"""

import time
from functools import reduce

import numpy as np
import torch
import tyro
from torch import Tensor

from dmb import Bridge, data, theory, train
from dmb.app import recipes
from dmb.data import DataSet
from dmb.data.columns import Value
from dmb.data.sources.table import Table, as_data_set

ROWS, DRAWS, LEAST = 20_000, 2_000, 0.02
SHAPES: dict[str, tuple[int, ...] | None] = {
    "table": None, "array": (6,), "sequences": (6,), "text": (6,), "digits": (2, 3), "images": (2, 3)
}  # fmt: skip
"""Recipes, and the shape of the array that each learns; None: a table."""


def joint(positions: int, states: int, seed: int = 0) -> Tensor:
    """A mixture of two products: positions depend on each other, and every value says something about the others."""
    rng = np.random.default_rng(seed)
    parts = [rng.dirichlet(np.full(states, 0.4), positions) + 0.01 for _ in range(2)]
    one, other = (reduce(np.multiply.outer, part / part.sum(1, keepdims=True)) for part in parts)
    return torch.from_numpy(0.65 * one + 0.35 * other)


def drawn(mu: Tensor, shape: tuple[int, ...] | None) -> DataSet:
    """Rows as an array of this shape, or as a table."""
    flat = np.random.default_rng(1).choice(mu.numel(), ROWS, p=mu.flatten() / mu.sum())
    rows = np.stack(np.unravel_index(flat, mu.shape), axis=1).astype(np.uint8)
    if shape is None:
        values: list[list[Value]] = [list(range(states)) for states in mu.shape]
        return as_data_set(Table([f"column {k}" for k in range(mu.ndim)], rows.astype(np.uint32), values, []), "table")
    return data.array(rows.reshape(ROWS, *shape), num_states=len(mu))


def distances(bridge: Bridge, mu: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Total variation beyond the expected sampling error, for given values with a share of `LEAST`, by group."""
    positions, states = mu.ndim, len(mu)
    ambiguous = bridge.ambiguous_states.expand(positions, -1)
    given = (theory.position_marginals(mu) > LEAST).nonzero()
    position, value = given.T
    template = torch.full((len(given), positions), -1).scatter(1, position[:, None], value[:, None])
    generator = torch.Generator().manual_seed(seed)
    samples = bridge.sample(template=template.repeat_interleave(DRAWS, 0), calls=32, generator=generator)
    found: dict[str, list[Tensor]] = {"ambiguous": [], "others": []}
    for (i, v), rows in zip(given.tolist(), samples.view(len(given), DRAWS, positions), strict=True):
        on_condition = torch.zeros_like(mu).index_copy(i, torch.tensor([v]), mu.narrow(i, v, 1))
        exact = theory.position_marginals(on_condition / on_condition.sum())
        shares = torch.nn.functional.one_hot(rows, states).double().mean(0)
        # the expected distance of DRAWS exact samples: mean absolute errors of normal variables
        error = (2 / torch.pi * exact * (1 - exact) / DRAWS).sqrt().sum(-1) / 2
        beyond = ((shares - exact).abs().sum(-1) / 2 - error).clamp(min=0)
        found["ambiguous" if ambiguous[i, v] else "others"].append(beyond[torch.arange(positions) != i])
    return {group: torch.cat(values) for group, values in found.items() if values}


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = tuple(SHAPES), infill: float | None = None, steps: int = 400
) -> None:
    print(f"total variation beyond sampling error, {DRAWS:,} draws for each given value; mean, worst")
    mu = joint(6, 4)
    for name in names:
        began = time.process_time()
        rows = drawn(mu, SHAPES[name])
        recipe = recipes.recipe(name).changed(
            infill=infill, cycles=1, score_steps=steps, matrix_steps=0, batch_size=256, learning_rate=4e-3, width=64,
            blocks=2, dropout=0.0, weight_decay=0.01, patience=0, evaluate_every=steps, tied=False, placed=True,
        )  # fmt: skip
        bridge = recipe.build(rows)
        for _ in train(bridge, rows, recipe.training):
            pass
        bound = bridge.bound(rows.test, samples=4, generator=torch.Generator().manual_seed(0))
        parts = [f"{group} {x.mean():.3f} {x.max():.3f}" for group, x in distances(bridge, mu).items()]
        seconds = time.process_time() - began
        print(f"{name:10s} {'   '.join(parts)}   {bound.bits_per_token:.4f} bits   {seconds:.0f} CPU s", flush=True)


if __name__ == "__main__":
    tyro.cli(main)

"""How far the marginals of samples lie from those of the data, and how far they would by chance alone."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

REPETITIONS = 40
"""Of the simulation behind the floor; fewer for large tables."""


class Distance(NamedTuple):
    """A total-variation distance beside what the same number of draws from the marginals themselves would show."""

    value: float
    floor: float
    spread: float
    """Standard deviation of the floor from one simulation to the next."""


def frequencies(tokens: Int[Tensor, "b d"], num_states: int) -> Float[Tensor, "d n"]:
    """How often each state occurs at each position.

    >>> frequencies(torch.tensor([[0, 1], [0, 2]]), 3)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    """
    counts = torch.zeros(tokens.shape[1], num_states)
    return counts.scatter_add_(1, tokens.T, torch.ones(tokens.T.shape)) / len(tokens)


def total_variation(p: Float[Tensor, "d n"], q: Float[Tensor, "d n"]) -> float:
    """`½ Σ_x |p(x) - q(x)|`, averaged over positions."""
    return 0.5 * (p - q).abs().sum(-1).mean().item()


def distance(
    marginals: Float[Tensor, "d n"], tokens: Int[Tensor, "b d"], *, generator: torch.Generator | None = None
) -> Distance:
    """The distance of `tokens` from `marginals`, averaged over positions, with its floor by simulation."""
    states = marginals.shape[1]
    repetitions = max(2, min(REPETITIONS, int(2e7 / marginals.numel())))
    floors = []
    for _ in range(repetitions):
        drawn = torch.multinomial(marginals, len(tokens), replacement=True, generator=generator).T
        floors.append(total_variation(frequencies(drawn, states), marginals))
    floor = torch.tensor(floors)
    value = total_variation(frequencies(tokens, states), marginals)
    return Distance(value, floor.mean().item(), floor.std().item())

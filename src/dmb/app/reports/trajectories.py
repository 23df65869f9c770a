"""Paths between data and noise, both ways."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dmb.bridge import Bridge
from dmb.networks import Transformer
from dmb.processes import ForwardProcess
from dmb.samplers import State, time_grid

SHOWN = 8
"""States of a path that a report shows."""
BUDGET = 5e11
"""Floating-point operations that sampling for a report may take: some seconds on two cores."""
LONG, LARGE = 256, 20_000_000
"""More positions, or more parameters, than this and a report gets by with few samples."""


class Effort(NamedTuple):
    """How much sampling a report is worth."""

    samples: int
    steps: int


EFFORTS = (
    Effort(256, 64),
    Effort(64, 64),
    Effort(32, 32),
    Effort(16, 32),
    Effort(8, 16),
    Effort(4, 16),
)


def effort(bridge: Bridge) -> Effort:
    """The most samples and steps that the budget allows; a pure function of the model's size."""
    parameters = sum(parameter.numel() for parameter in bridge.network.parameters())
    big = bridge.num_positions > LONG or parameters > LARGE
    # a transformer uses its weights once per token, an MLP once per sequence
    calls = bridge.num_positions if isinstance(bridge.network, Transformer) else 1
    output = bridge.num_positions * bridge.num_states
    for choice in EFFORTS:
        cost = choice.samples * choice.steps * (2 * parameters * calls + 100 * output)
        if cost <= BUDGET and not (big and choice.samples > 16):
            return choice
    return EFFORTS[-1]


@torch.no_grad()
def forward_path(
    process: ForwardProcess, x_0: Int[Tensor, "b d"], *, count: int = SHOWN, generator: torch.Generator | None = None
) -> list[State]:
    """The same sequences at `count` times from 0 to 1, each drawn from the one before: one path, not many marginals.

    The times are such that equal shares of all changes fall between them.
    """
    times = time_grid(process, count - 1).flip(0).tolist()
    path = [State(0.0, x_0)]
    for start, t in pairwise(times):
        path.append(State(t, process.sample(path[-1].x, t, start=start, generator=generator)))
    return path


def reverse_path(
    bridge: Bridge,
    samples: int,
    steps: int,
    *,
    count: int = SHOWN,
    generator: torch.Generator | None = None,
    progress: Callable[[], None] | None = None,
) -> list[State]:
    """`samples` sequences on their way from noise to data: `count` of the `steps + 1` states, the first and the last.

    Args:
        bridge: the model.
        samples: how many sequences.
        steps: network calls.
        count: how many states to keep.
        generator: source of all randomness.
        progress: called after every network call.
    """
    kept = set(torch.linspace(0, steps, min(count, steps + 1)).round().int().tolist())
    path = []
    for index, state in enumerate(bridge.trajectory(samples, steps=steps, generator=generator)):
        if index in kept:
            path.append(State(state.t, state.x.cpu()))
        if progress is not None and index:
            progress()
    return path

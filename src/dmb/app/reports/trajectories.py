"""Paths between data and noise, both ways."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dmb.bridge import Bridge
from dmb.networks import OrderedNetwork, OrderedTransformer, Transformer
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
    """The most samples and steps that the budget allows; a pure function of the model's size.

    A network that knows one order only writes one position per step, however many steps one asks for.
    """
    parameters = sum(parameter.numel() for parameter in bridge.network.parameters())
    big = bridge.num_positions > LONG or parameters > LARGE
    one_by_one = bridge.ordered is not None and bridge.ordered.order is not None
    choices = [Effort(samples, bridge.num_positions if one_by_one else steps) for samples, steps in EFFORTS]
    for choice in choices:
        tokens, outputs = _work(bridge, choice.steps)
        cost = choice.samples * (2 * parameters * tokens + 100 * bridge.num_states * outputs)
        if cost <= BUDGET and not (big and choice.samples > 16):
            return choice
    return choices[-1]


def _work(bridge: Bridge, steps: int) -> tuple[int, int]:
    """How often a sample of so many steps uses the network's weights, and at how many positions it asks for states."""
    network, positions = bridge.ordered or bridge.network, bridge.num_positions
    if isinstance(network, OrderedTransformer) and network.order is None:
        return 2 * positions, positions  # every token is asked for once and read once
    # a transformer uses its weights once per token, an MLP once per sequence
    attends = isinstance(network, Transformer | OrderedNetwork)
    return steps * (positions if attends else 1), steps * positions


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
        steps: network calls; of a network that knows one order only, as many as there are positions.
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

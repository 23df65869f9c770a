"""Paths between data and noise, both ways, and how many of them a report is worth."""

import torch

from dmb.bridges import Bridge
from dmb.networks import OrderedNetwork, OrderedTransformer, Transformer
from dmb.sampling import State

SHOWN, SAMPLES = 8, (256, 64, 32, 16, 8, 4)
"""States of a path that a report shows, and how many samples it may have."""
BUDGET, LARGEST = 5e11, 2**22
"""Of all samples: floating-point operations, some seconds on two cores; and numbers in their posterior."""


def effort(bridge: Bridge) -> tuple[int, int]:
    """The most samples that the budget allows, and network calls for them; a pure function of the model's size."""
    parameters = sum(parameter.numel() for parameter in bridge.network.parameters())
    network, positions, states = bridge.network, bridge.num_positions, bridge.num_states
    for samples in SAMPLES:
        calls = bridge.calls_within(max(16, samples))
        # a transformer uses its weights once per token, an MLP once per sequence
        used = calls * (positions if isinstance(network, Transformer | OrderedNetwork) else 1)
        if isinstance(network, OrderedTransformer):
            used = 2 * positions  # every token is asked for once and read once
        cost = samples * (2 * parameters * used + 100 * states * calls * positions)
        if cost <= BUDGET and samples * positions * states <= LARGEST:
            break
    return samples, calls


def reverse_path(bridge: Bridge, samples: int, calls: int, *, generator: torch.Generator) -> list[State]:
    """Samples on their way from noise to data: of the `calls + 1` states some, the first and the last among them."""
    kept = set(torch.linspace(0, calls, min(SHOWN, calls + 1)).round().int().tolist())
    states = enumerate(bridge.trajectory(samples, calls=calls, generator=generator))
    return [State(state.t, state.x.cpu()) for index, state in states if index in kept]

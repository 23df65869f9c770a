"""A small table whose columns are written in turn, and a bridge over it."""

import torch

import dmb
from dmb._core.seeding import seeded


def rows_of_three_columns(count=1500):
    """The last column is rare where the first two differ."""
    first = torch.randint(0, 3, (count,), generator=seeded("first"))
    second = (first + (torch.rand(count, generator=seeded("second")) < 0.3)) % 3
    third = torch.where(torch.rand(count, generator=seeded("third")) < 0.1 + 0.5 * (first == second), 1, 0)
    return torch.stack([first, second, third], dim=-1)


def bridge_of_three_columns(order=(2, 0, 1)):
    """Columns in turn, by a network with random weights."""
    states = dmb.States.with_mask(3, 3, [3, 3, 2])
    torch.manual_seed(0)
    network = dmb.OrderedMLP(states, width=16)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.add_(0.5 * torch.randn(weight.shape, generator=seeded(name)))
    return dmb.OrderedBridge(dmb.orders.Fixed(order), network, states)

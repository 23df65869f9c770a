"""A model of the columns of a table: a network for each, written one after the other; or one network for very many."""

from collections.abc import Sequence

import torch

from dmb.data import Columns
from dmb.networks import MLP, Network, OrderedMLP
from dmb.processes import BridgeProcess, ForwardProcess
from dmb.training import TrainingSettings

_MOST_ALONE = 32  # columns that have a network each
_APART = 16.0  # neighbours in an order change places in one row of e^16, nine million

COLUMN_TRAINING = TrainingSettings(
    cycles=1, score_steps=2000, matrix_steps=0, batch_size=256, learning_rate=2e-3, decay="cosine", weight_decay=0.3,
    clip=0.0, patience=4, evaluate_every=100,
)  # fmt: skip
"""How such a model is trained. One norm for the gradients of all columns would let the hardest slow the others down."""


def is_narrow(columns: int) -> bool:
    """Whether so many columns have a network each, and an order in which they are written."""
    return columns <= _MOST_ALONE


@torch.no_grad()
def follow(process: BridgeProcess, order: Sequence[int]) -> None:
    """Give the positions of a process fixed speeds, so far apart that they are written in this order."""
    weights = process.clocks.speed_weights
    assert weights is not None
    weights[list(order)] = _APART * (torch.arange(len(order)).to(weights) - (len(order) - 1) / 2)
    process.requires_grad_(False)


def in_turn(process: ForwardProcess) -> bool:
    """Whether the positions of a process follow an order, see `follow`."""
    clocks = process.clocks if isinstance(process, BridgeProcess) else None
    return clocks is not None and clocks.speed_weights is not None and not clocks.speed_weights.requires_grad


def column_network(process: ForwardProcess, codec: Columns, *, width: int, blocks: int, dropout: float) -> Network:
    """A network for each column, or one for all if there are many, twice as wide and with one more block."""
    if is_narrow(process.num_positions):
        own = {"width": width, "blocks": blocks, "dropout": dropout}
        return OrderedMLP.for_process(process, ordered_from=codec.ordered_from, **own)
    network = MLP.for_process(process, width=2 * width, blocks=blocks + 1, dropout=dropout)
    network.follow_order(codec.ordered)
    return network


def column_steps(rows: int, columns: int, batch_size: int) -> int:
    """Training steps by default; a row of a network for each column teaches all columns at once, and costs as much."""
    of_a_pass = rows / batch_size
    if not is_narrow(columns):
        return int(min(max(90 * of_a_pass, 1000), 4000))
    return int(min(max(20 * of_a_pass, 400), 2000, 30_000 / columns))

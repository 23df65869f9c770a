"""A model of the columns of a table: a network for each, written one after the other; or one network for very many."""

import math

from dmb.data import Columns
from dmb.networks import MLP, Network, OrderedMLP
from dmb.processes.states import States
from dmb.training import TrainingSettings

_MOST_ALONE = 32  # columns that have a network each


def is_narrow(columns: int) -> bool:
    """Whether so many columns have a network each, and an order in which they are written."""
    return columns <= _MOST_ALONE


def fitting_width(rows: int) -> int:
    """The width of the network of each column that so many training rows can fill: more only learns them by heart.

    >>> [fitting_width(rows) for rows in (100, 1000, 2000, 100_000)]
    [16, 32, 64, 128]
    """
    return 1 << min(max(round(math.log2(rows / 32)), 4), 7)


def column_network(states: States, codec: Columns, *, width: int, blocks: int, dropout: float | None = None) -> Network:
    """A network for each column, or one for all if there are many, twice as wide and with one more block.

    Dropout is 0 by default, because shares of states that are learned with it are not those that are drawn without it;
    of one network for all columns, 0.1.
    """
    if is_narrow(states.num_positions):
        first = codec.ordered_from
        return OrderedMLP(states, width=width, blocks=blocks, dropout=dropout or 0.0, ordered_from=first)
    dropout = 0.1 if dropout is None else dropout
    network = MLP(states, width=2 * width, blocks=blocks + 1, dropout=dropout)
    network.init_ordinal_embeddings(codec.ordered)
    return network


def column_training(
    rows: int,
    columns: int,
    batch_size: int = 256,
    *,
    steps: int | None = None,
    learning_rate: float | None = None,
    patience: int = 4,
    seed: int = 0,
) -> TrainingSettings:
    """Training, with defaults for so many rows and columns.

    Of a network for each column the gradient is not clipped: one norm for all would let the hardest column slow down
    the others. One row trains every column there, at the cost of as many rows of one network for all columns.
    """
    of_a_pass = rows / batch_size
    if is_narrow(columns):
        usual, rate, clip = min(max(20 * of_a_pass, 400), 1500, 30_000 / columns), 4e-3, 0.0
    else:
        usual, rate, clip = min(max(90 * of_a_pass, 1000), 4000), 2e-3, 1.0
    steps = int(usual) if steps is None else steps
    return TrainingSettings(
        cycles=1, score_steps=steps, matrix_steps=0, batch_size=batch_size, decay="cosine", clip=clip,
        learning_rate=rate if learning_rate is None else learning_rate, patience=patience,
        evaluate_every=max(50, steps // 20), seed=seed,
    )  # fmt: skip

"""A model of the columns of a table: a network for each, written one after the other; or one network for very many."""

import torch

from dmb.bridge import Bridge
from dmb.data import Columns
from dmb.data.splits import Split
from dmb.networks import MLP, Network, OrderedMLP
from dmb.paths import turns_for
from dmb.processes import ForwardProcess
from dmb.seeding import seeded
from dmb.training import TrainingSettings

_MOST_ALONE = 32  # columns that have a network each
_ROUNDS, _CLOSE = 10, 1e-3  # of `calibrate`: rounds at most, and the error of a share that needs no other round
_ROWS, _AT_ONCE = 1 << 15, 512  # rows that it looks at, and rows per network call


def is_narrow(columns: int) -> bool:
    """Whether so many columns have a network each, and an order in which they are written."""
    return columns <= _MOST_ALONE


def column_network(
    process: ForwardProcess, codec: Columns, *, width: int, blocks: int, dropout: float | None = None
) -> Network:
    """A network for each column, or one for all if there are many, twice as wide and with one more block.

    Dropout is 0 by default, because shares of states that are learned with it are not those that are drawn without it;
    of one network for all columns, 0.1.
    """
    if is_narrow(process.num_positions):
        own = {"width": width, "blocks": blocks, "dropout": dropout or 0.0}
        return OrderedMLP.for_process(process, ordered_from=codec.ordered_from, **own)
    dropout = 0.1 if dropout is None else dropout
    network = MLP.for_process(process, width=2 * width, blocks=blocks + 1, dropout=dropout)
    network.follow_order(codec.ordered)
    return network


@torch.no_grad()
def calibrate(bridge: Bridge, split: Split) -> bool:
    r"""Make each state of each column as likely as it is frequent, on average over rows in the order of writing.

    Columns are written after one another, so small errors of their shares would add up. With all other weights fixed,
    the likelihood of rows is concave in the biases of the outputs; a round of proportional fitting goes uphill:

    `b_{ik} ← b_{ik} + log(n_{ik} / Σ_r p(x_i = k | x^r_j of earlier turns)),`

    where `n_{ik}` rows have state `k` in column `i`. States that no row has stay as they are.

    Returns:
        Whether the bridge has columns that are written in one order; others stay as they are.
    """
    network, process = bridge.eval().network, bridge.process
    if not (isinstance(network, OrderedMLP) and process.turns is not None):
        return False
    rows = split[split.spread(_ROWS)].to(bridge.device)
    turn = turns_for(bridge, 1, generator=seeded("calibrate", device=bridge.device))
    counts = torch.stack([column.bincount(minlength=process.num_states) for column in rows.T])
    for _ in range(_ROUNDS):
        expected = torch.zeros(counts.shape, dtype=torch.float64, device=rows.device)
        for part in rows.split(_AT_ONCE):
            logits = torch.where(process.data_states, network(part, turn=turn.expand(len(part), -1)), -torch.inf)
            expected += logits.softmax(-1).sum(0)
        if (counts - expected).abs().max() <= _CLOSE * len(rows):
            break
        network.add_to_biases(torch.where(counts > 0, (counts / expected).log(), 0.0))
    return True


def column_training(rows: int, columns: int, batch_size: int = 256) -> TrainingSettings:
    """Training by default; a row of a network for each column teaches all columns at once, and costs as much.

    There, the gradient is not clipped: one norm for all columns would let the hardest slow down the others.
    """
    of_a_pass = rows / batch_size
    if is_narrow(columns):
        steps, rate, clip = min(max(20 * of_a_pass, 400), 1500, 30_000 / columns), 4e-3, 0.0
    else:
        steps, rate, clip = min(max(90 * of_a_pass, 1000), 4000), 2e-3, 1.0
    return TrainingSettings(
        cycles=1, score_steps=int(steps), matrix_steps=0, batch_size=batch_size, learning_rate=rate, decay="cosine",
        clip=clip, patience=4, evaluate_every=max(50, int(steps) // 20),
    )  # fmt: skip

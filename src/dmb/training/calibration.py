"""Calibration, the last phase of training columns in turn: each state as likely as it is frequent."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.bridges import Bridge
from dmb.data.splits import Split
from dmb.networks import OrderedMLP
from dmb.orders import Fixed
from dmb.training.devices import Engine, averaged

_ROUNDS, _CLOSE = 10, 1e-3  # rounds at most, and the error of a share that needs no other round
_ROWS, _AT_ONCE = 1 << 15, 512  # rows to look at, and rows per network call


def can_be_calibrated(bridge: Bridge) -> bool:
    """Whether a bridge has a network for each column, written in one order."""
    return isinstance(bridge.network, OrderedMLP) and isinstance(bridge.corruption, Fixed)


@torch.no_grad()
def calibration(bridge: Bridge, data: Split, fabric: Engine) -> Iterator[float]:
    r"""Make each state of each column as likely as it is frequent, on average over rows in the order of writing.

    Columns are written after one another, so small errors of their shares would add up. With all other weights fixed,
    the likelihood of rows is concave in the biases of the outputs; a round of proportional fitting goes uphill:

    `b_{ik} ← b_{ik} + log(n_{ik} / Σ_r p(x_i = k | x^r_j of earlier turns)),`

    where `n_{ik}` rows have state `k` in column `i`. States that no row has stay as they are. Yields the largest error
    of a share before each round, the last of which changes nothing unless there were ten.
    """
    network = bridge.eval().network
    assert isinstance(network, OrderedMLP)
    rows = data[data.spread(_ROWS)].to(bridge.device)
    counts = torch.stack([column.bincount(minlength=bridge.num_states) for column in rows.T])
    for _ in range(_ROUNDS):
        mine = rows.split(_AT_ONCE)[fabric.global_rank :: fabric.world_size]
        zeros = torch.zeros(counts.shape, dtype=torch.float64, device=rows.device)
        expected = averaged(fabric, sum((_expected(bridge, part) for part in mine), zeros)) * fabric.world_size
        error = (counts - expected).abs().max().item() / len(rows)
        yield error
        if error <= _CLOSE:
            return
        network.add_to_biases(torch.where(counts > 0, (counts / expected).log(), 0.0))


def _expected(bridge: Bridge, rows: Int[Tensor, "b d"]) -> Float[Tensor, "d n"]:
    """The sum over rows of `p(x_i = k | x_j of earlier turns)`."""
    logits = bridge.network(rows, turn=bridge.corruption.turns(len(rows)))
    return torch.where(bridge.states.data_states, logits, -torch.inf).softmax(-1).sum(0)

"""Names: the states of a process that data never visit, and which states of the data lie below each of them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool

from dmb.processes import BridgeProcess, ForwardProcess


class Names(NamedTuple):
    """Of every name; `g` is `d`, or 1 where positions are alike."""

    below: Bool[np.ndarray, "k g m"]
    """The states of the data below it."""
    coarse: Bool[np.ndarray, "k g"]
    """Whether other names lie below it."""


def names_of(process: ForwardProcess) -> Names | None:
    """The names of `process`, in the order of its states; None if it has none.

    >>> from dmb import Steady, grouping
    >>> tree = grouping.by_value(4)
    >>> names = names_of(BridgeProcess(tree, Steady(tree.level_rates(5.0)), num_positions=1))
    >>> names.below[:, 0].astype(int).tolist(), names.coarse[:, 0].tolist()
    ([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], [False, False, True])
    """
    if not process.names:
        return None
    first = process.num_states - process.names
    data = process.data_states[..., :first]
    below, coarse = data.expand(process.names, *data.shape), torch.zeros(process.names, 1, dtype=torch.bool)
    if isinstance(process, BridgeProcess):
        name = torch.arange(first, process.num_states, device=process.device)[:, None]
        under = process.hierarchy.under(name.expand(-1, len(process.hierarchy.clock_into)))
        below, coarse = under[..., :first] & data, under[..., first:].any(-1)
    return Names(below.cpu().numpy(), coarse.cpu().numpy())

"""The part of a report that shows what the forward process destroys when."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.app.reports import curves, markup, pictures
from dmb.app.reports.contents import Contents
from dmb.app.reports.symbols import short
from dmb.data import Columns
from dmb.processes import ForwardProcess

TIMES = 51
MOST_LINES = 400
"""Of more states, the most frequent are shown."""
ALIKE = 0.01
"""Chances that differ by less are one line."""
AT_ONCE = 2**22
"""States of all positions and times for which clock times are found at once; in canonical time that is a search."""


class ByState(NamedTuple):
    """The chance to be unchanged, one row per state; the most frequent states first."""

    states: Int[np.ndarray, " k"]
    chance: Float[np.ndarray, "k t"]


def survival(process: ForwardProcess, times: Float[np.ndarray, " t"]) -> Iterator[Float[Tensor, "g n"]]:
    """`exp(-S_x(u(t)))`: the chance that a token in state `x` is still unchanged, one time after the other.

    One by one, as all at once would not fit where there are many positions and states. `g` is 1 if positions are alike.
    """
    for intensity in _intensities(process, times):
        yield torch.exp(-intensity)


def survival_by_state(
    process: ForwardProcess, times: Float[np.ndarray, " t"], *, pooled: bool = True, most: int = MOST_LINES
) -> ByState:
    """The survival of every state that is ever left, averaged over the positions that have it.

    Args:
        process: any.
        times: at which to look.
        pooled: one line per state; otherwise one per state of each position, state `x` of position `i` being `i n + x`.
        most: how many states at most.
    """
    has, leaves, p_0 = _tables(process)
    if pooled:
        shares = has.double() / has.sum(0).clamp(min=1)
        left, frequency = leaves.any(0), p_0.mean(0)
    else:
        left, frequency = leaves.flatten(), p_0.flatten()
    order = frequency.argsort(descending=True, stable=True)
    order = order[left[order]][:most]
    rows = []
    for chance in survival(process, times):
        each = chance.expand_as(has)
        rows.append(((shares * each).sum(0) if pooled else each.flatten())[order])
    return ByState(order.numpy(), torch.stack(rows, dim=1).numpy())


def survival_by_position(process: ForwardProcess, times: Float[np.ndarray, " t"]) -> Float[np.ndarray, "d t"] | None:
    """The mean survival at each position over the states that it can leave, weighted by `p_0`; nan if there are none.

    None if all positions share their clocks.
    """
    _, leaves, p_0 = _tables(process)
    if len(next(survival(process, times))) == 1:
        return None
    weights = torch.where(leaves, p_0, 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    return torch.stack([(weights * chance).sum(1) for chance in survival(process, times)], dim=1).numpy()


def destroyed_when(contents: Contents) -> str:
    """The figure: chances of all states, and of all positions if these are not alike."""
    process, symbols, codec = contents.process, contents.symbols, contents.run.codec
    times = np.linspace(0, 1, TIMES)
    states, chance = survival_by_state(process, times, pooled=symbols.shared)
    if not len(states):
        return ""
    caption = ["What is destroyed when: the chance that a token is still unchanged at time t."]
    if contents.whole_paths:
        caption.append("Time is the expected share of masked tokens.")
    named = min(len(states), curves.MOST_NAMES)
    by_position = survival_by_position(process, times)
    averaged = symbols.shared and by_position is not None
    if np.ptp(chance, axis=0).max() < ALIKE:
        names, chance = ["every state"], chance[:1]
        caption.append(f"{'Averaged over positions, all' if averaged else 'All'} states that are left are left alike.")
    else:
        names = [_name(contents, int(state)) for state in states[:named]]
        lines = ", averaged over positions" if averaged else "" if symbols.shared else " of each column"
        caption.append(f"One line per state{lines}; the lower the line, the earlier the state is destroyed.")
        if named < len(states):
            others = f"{len(states) - named:,} others"
            if len(states) == MOST_LINES:
                others = f"the {len(states) - named:,} that follow; rarer ones are left out"
            caption.append(f"In colour the {named} most frequent, in grey {others}.")
        if chance[:, -1].max() > 0.1:
            caption.append("A line that ends far above 0 is of a state that is often left as it is.")
    if by_position is not None and np.isfinite(by_position).any():
        if np.nanmax(np.nanmax(by_position, axis=0) - np.nanmin(by_position, axis=0)) < ALIKE:
            by_position = None
            caption.append("Averaged over states, all positions are alike.")
        else:
            caption.append("Below, the mean over the states that a position can leave, weighted by their frequency.")
    drawn = curves.survival(
        times, chance, names,
        by_position=by_position,
        positions=[short(name) for name in codec.names] if isinstance(codec, Columns) else None,
        across=pictures.across(codec),
    )  # fmt: skip
    return markup.figure(drawn, "survival", " ".join(caption))


def _intensities(process: ForwardProcess, times: Float[np.ndarray, " t"]) -> Iterator[Float[Tensor, "g n"]]:
    """`S_x(u(t))`, one time after the other."""
    at_once = max(1, AT_ONCE // (process.num_positions * process.num_states))
    with torch.no_grad():
        for part in torch.from_numpy(times).split(at_once):
            for sigma_bar in process.clock(part, len(part)).sigma_bar:
                yield process.exits(sigma_bar[None]).intensity[0].cpu()


def _tables(process: ForwardProcess) -> tuple[Tensor, Tensor, Float[Tensor, "d n"]]:
    """Which states of the data each position has, which of them it ever leaves, and how frequent they are."""
    shape = (process.num_positions, process.num_states)
    has = process.data_states.expand(shape).cpu()
    leaves = has & (next(_intensities(process, np.ones(1))) > 0)  # be it so small that the survival rounds to 1
    return has, leaves, process.p_0.double().expand(shape).cpu()


def _name(contents: Contents, state: int) -> str:
    if contents.symbols.shared:
        return contents.symbols.labels(0)[state]
    position, state = divmod(state, contents.bridge.process.num_states)
    codec = contents.run.codec
    column = codec.names[position] if isinstance(codec, Columns) else f"position {position}"
    return f"{short(column)} = {contents.symbols.labels(position)[state]}"

"""What the forward process destroys when, and what was learned of it, if it was learned and has moved."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.app.records import Record
from dmb.app.report import figures
from dmb.app.report.contents import MOVED, Block, Contents
from dmb.bridges import OrderedBridge
from dmb.data.codecs import Images
from dmb.processes import BridgeProcess, ForwardProcess
from dmb.training.reporting import AWAKE

TIMES, MOST_LINES, MOST_NAMES = np.linspace(0, 1, 41), 200, 8
ALIKE = 0.01  # chances that differ by less are alike


def learned(contents: Contents) -> list[Block]:
    """Figures, of which those that would say nothing are left out."""
    makers = {
        "cycles": _cycles, "rates": _by_clock, "survival": _survival, "speeds": _speeds, "clocks": _over_training,
        "groups": _groups,
    }  # fmt: skip
    return [block for name in contents.bridge.figures if (block := makers[name](contents)) is not None]


@torch.no_grad()
def survival_by_state(
    process: ForwardProcess, times: Float[np.ndarray, " t"], *, pooled: bool = True, most: int = MOST_LINES
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, "k t"]]:
    """The most frequent states among those that are ever left, and their survival.

    `exp(-S_x(u(t)))` is the chance that a token in state `x` is still unchanged. It is computed one time after the
    other: states may be many.

    Args:
        process: any.
        times: at which to look.
        pooled: one line per state, averaged over the positions that have it; otherwise one per state of each position,
            state `x` of position `i` being `i n + x`.
        most: how many states at most.
    """

    def table(values: Tensor) -> Tensor:
        return values.cpu() if pooled else values.cpu().expand(process.num_positions, -1).reshape(1, -1)

    has, clocks = table(process.data_states), [process.solve(t).sigma_bar for t in (1.0, *times.tolist())]
    left = (has & (table(process.exits(clocks[0]).intensity[0]) > 0)).any(0)  # be it hardly ever
    order = torch.where(left, table(process.p_0).mean(0), -1.0).argsort(descending=True, stable=True)[:most]
    order, rows = order[left[order]], []
    for sigma_bar in clocks[1:]:
        chance = torch.exp(-table(process.exits(sigma_bar).intensity[0])[:, order])
        own = has[:, order].expand(max(len(has), len(chance)), -1)
        rows.append((own * chance).sum(0) / own.sum(0))
    return order.numpy(), torch.stack(rows, dim=1).numpy()


def _matrix_records(contents: Contents) -> list[list[Record]]:
    """The records of Matrix-learning, by cycles: before the first step, in between, after the last."""
    records = [r for r in contents.records if r.phase == "matrix" and r.alpha and np.isfinite(r.alpha).all()]
    return [[r for r in records if r.cycle == cycle] for cycle in sorted({r.cycle for r in records})]


def _cycles(contents: Contents) -> Block | None:
    """Algorithm 1 in figures: what each cycle has done to the rates, the estimate of the marginals, and the bound."""
    cycles, rows = _matrix_records(contents), []
    for records in cycles:
        first, last, bounds = records[0], records[-1], [r for r in contents.records if r.cycle == records[0].cycle]
        rates, bits = np.array(last.alpha), min((r.bits for r in bounds if math.isfinite(r.bits)), default=math.nan)
        awake = f"{int((rates > AWAKE * rates.max()).sum()):,} of {len(rates):,}"
        values = (first.marginal_bits, first.prior_bits, last.prior_bits, bits)
        kl, before, after, bound = (f"{value:.4g}" if math.isfinite(value) else "–" for value in values)
        rows.append([f"{first.cycle + 1}", kl, before, after, awake, bound])
    if not rows:
        return None
    header = ["cycle", "KL(μ || p_0)", "J_Q before", "J_Q after", "clocks awake", "lowest bound on validation data"]
    note = (
        "In bits per token. KL: how far the estimate p_0 is from the marginals μ of the training data (Eq. 10). "
        "J_Q: before and after Matrix-learning. Awake: a rate above a thousandth of the highest."
    )
    return Block(kind="table", title="Algorithm 1, cycle by cycle", body=(header, rows), note=note)


def _by_clock(contents: Contents) -> Block | None:
    """The rates before Matrix-learning and after that of the first and of the last cycle."""
    cycles = _matrix_records(contents)
    if not cycles or len({len(r.alpha) for records in cycles for r in records}) > 1:
        return None
    seen = {"before": cycles[0][0]} | {f"after cycle {records[0].cycle + 1}": records[-1] for records in cycles}
    if len(seen) > 4:  # the first and the last
        seen = {name: record for i, (name, record) in enumerate(seen.items()) if i < 2 or i == len(seen) - 1}
    drawn = figures.rates({name: np.array(record.alpha) for name, record in seen.items()})
    note = (
        "The rate into each rank of the states, averaged over positions, before and after Matrix-learning. "
        "Rates below a thousandth of the highest are drawn as high as that."
    )
    return figures.as_block(drawn, "rates", "Learned rates", note)


def _survival(contents: Contents) -> Block | None:
    process, columns = contents.bridge.corruption, contents.columns
    states, chance = survival_by_state(process, TIMES, pooled=columns is None)
    if not len(states) or np.ptp(chance, axis=0).max() < ALIKE:
        return None
    order = np.argsort(chance.sum(1), kind="stable")  # from the first to be destroyed to the last
    some = order[np.unique(np.linspace(0, len(order) - 1, MOST_NAMES).round().astype(int))].tolist()
    names = {}
    for line in some:
        position, state = divmod(int(states[line]), process.num_states)
        label = contents.symbols.label(state, position)
        names[line] = label if columns is None else f"{columns[position][:18]} = {label}"
    note = "The chance that a token is still unchanged, one line per state: the lower, the earlier it is destroyed."
    note += f" Only the {MOST_LINES} most frequent states are shown." if len(states) == MOST_LINES else ""
    return figures.as_block(figures.survival(TIMES, chance, names), "survival", "What is destroyed when", note)


def _speeds(contents: Contents) -> Block | None:
    if contents.change("log_speeds").max(initial=0.0) <= MOVED:
        return None
    rows = [np.array(r.log_speeds) for r in contents.records if r.log_speeds]
    done = "masked" if contents.bridge.states.names == 1 else "destroyed"
    note = f"The logarithm of each speed: the larger, the earlier a position is {done}, and the later it is written."
    first, last, title = rows[0], rows[-1], "Learned speeds of positions"
    if contents.columns is None:
        grid = contents.view.grid if isinstance(contents.view, Images) else (1, len(first))
        return figures.as_block(figures.speeds(first, last, grid), "speeds", title, note)
    cells = [[contents.columns[i], f"{first[i]:.2f}", f"{last[i]:.2f}"] for i in np.argsort(last, kind="stable")]
    return Block(kind="table", title=title, body=(["column", "log speed at first", "at last"], cells), note=note)


def _groups(contents: Contents) -> Block | None:
    bridge = contents.bridge
    assert isinstance(bridge, OrderedBridge)
    if not bridge.order.budgets:
        return None
    drawn = {}
    for calls in bridge.order.budgets:
        turn = bridge.turns(1, calls=calls, generator=torch.Generator().manual_seed(0))
        call = bridge.call_of(turn, calls)
        drawn[calls] = (turn if call is None else call)[0].cpu().numpy()
    grid = contents.view.grid if isinstance(contents.view, Images) else (1, bridge.num_positions)
    note = "Of one sample: dark positions are written first, bright ones last; those of one colour in the same call."
    return figures.as_block(figures.groups(drawn, grid), "groups", "Which call writes what", note)


def _over_training(contents: Contents) -> Block | None:
    """Rates or exponents of the clocks that moved most."""
    process, records = contents.bridge.corruption, [r for r in contents.records if r.alpha]
    if not records or _matrix_records(contents):  # `_by_clock` shows these
        return None
    if process.only_masks and process.names == 1:
        return None
    change = contents.change("alpha")
    most = [int(k) for k in np.argsort(-change, kind="stable")[:MOST_NAMES] if change[k] > MOVED]
    if not most:
        return None
    step = np.array([r.step for r in records], dtype=float)
    lines = [figures.Line(_clock(contents, k), step, np.array([r.alpha[k] for r in records])) for k in most]
    note = f"Averaged over positions; {int((change > MOVED).sum()):,} of {len(change):,} changed by more than 5 %."
    what = "rates" if isinstance(process, BridgeProcess) else "exponents"
    note += "" if what == "rates" else " The larger an exponent, the later its state is masked."
    drawn = figures.over_steps(lines, f"mean {what[:-1]}")
    return figures.as_block(drawn, "learned", f"Learned {what} that moved most", note)


def _clock(contents: Contents, k: int) -> str:
    """The state that a clock leads into or an exponent belongs to, where that is the same at all positions."""
    process = contents.bridge.corruption
    into = process.hierarchy.clock_into if isinstance(process, BridgeProcess) else None
    if contents.columns is not None or (into is not None and not (into == into[:1]).all()):
        return f"{'state' if into is None else 'clock'} {k + 1}"
    return contents.symbols.label(k if into is None else int((into[0] == k + 1).nonzero()[0]))

"""The part of a report that shows what was learned of the forward process."""

import copy

import numpy as np
import torch
from jaxtyping import Float, Int

from dmb.app.reports import curves, figures, markup, pictures
from dmb.app.reports.contents import Contents
from dmb.app.reports.figures import MOST_LABELS
from dmb.app.reports.markup import text
from dmb.app.reports.scales import Values
from dmb.app.reports.survival import destroyed_when
from dmb.app.reports.symbols import short
from dmb.clocks import Varying
from dmb.data import Columns, Text
from dmb.hierarchies import Line, Tree
from dmb.processes import BridgeProcess, ForwardProcess, TokenwiseMasking

LARGEST_MATRIX = 512
LARGEST_MAP = 512
"""States of a heat map; of more, the fastest or the most frequent are shown."""
MOST_BARS = 4 * MOST_LABELS
MOST_NAMED_COLUMNS = 12


def learned_rates(contents: Contents) -> str:
    """What the final process destroys when, the rates or exponents behind that, and how they came about."""
    process = contents.bridge.process
    first = destroyed_when(contents)
    if isinstance(process, BridgeProcess):
        even = at_one_speed(process)
        return first + _clocks(contents, even) + _matrix(contents, even) + _rates_over_training(contents, process)
    if isinstance(process, TokenwiseMasking):
        return first + _exponents(contents, process) + _exponents_over_training(contents, process)
    return markup.paragraph(text(f"The forward process, {type(process).__name__}, has no rates to learn.")) + first


def at_one_speed(process: BridgeProcess) -> BridgeProcess:
    """The same process, but with positions of one speed, if they have speeds: these have a section of their own."""
    if process.clocks.log_speeds is None:
        return process
    even = copy.deepcopy(process)
    even.clocks.speed_weights = None
    return even


@torch.no_grad()
def clock_intensities(process: BridgeProcess) -> Float[np.ndarray, "d n"]:
    """`A(1)` of the clock that leads into each token; nan where there is none.

    A state with nothing below it has no clock: the lowest rank on a line, a leaf of a tree. Neither has a state that a
    position lacks.
    """
    shape = (process.num_positions, process.num_states)
    lifts = process.hierarchy.below(process.data_states.double()) > 0
    into = torch.where(lifts & process.legal, process.intensities(1.0), torch.nan)
    return into.expand(shape).cpu().numpy()


@torch.no_grad()
def rate_matrix(process: BridgeProcess, position: int) -> tuple[Float[np.ndarray, "m m"], list[int]]:
    """`Q` of one position, and the tokens of its rows, every one before those above it; only states that it has.

    On a line they are in rank order. Of clocks that vary in time, the mean over clock time, so that `exp(σ̄(1) Q)` is
    the transition matrix nonetheless.
    """
    hierarchy, legal = process.hierarchy, process.legal.expand(process.num_positions, -1)[position]
    row = min(position, len(hierarchy.clock_into) - 1)
    order = _upwards(process)[row]
    order = order[legal[order]]
    into = process.intensities(1.0).expand(process.num_positions, -1)[position, order]
    below = hierarchy.under(order[:, None].expand(-1, len(hierarchy.clock_into)))[:, row, order].T
    Q = torch.where(below, into / process.clock(1.0, 1).sigma_bar, 0.0)
    return (Q - torch.diag(Q.sum(-1))).cpu().numpy(), order.tolist()


def _upwards(process: BridgeProcess) -> Int[torch.Tensor, "h n"]:
    """Tokens in an order in which every one comes before those above it: by rank, or the tree in postorder."""
    hierarchy = process.hierarchy
    if isinstance(hierarchy, Tree):
        return (hierarchy.last - hierarchy.depth).argsort(dim=-1)
    return hierarchy.clock_into.argsort(dim=-1)


def _clocks(contents: Contents, process: BridgeProcess) -> str:
    values, tokens, line = clock_intensities(process), np.arange(process.num_states), _on_line(process)
    about = "Intensity A(1) of the clock that leads into each token: how often it is expected to ring by t = 1."
    about += _if_even(contents)
    without = "the lowest rank" if line else "a state with nothing below it"
    if not line:  # of which only names have clocks, as a rule
        tokens = np.sort(_by_clock(process))
    if _alike(process) and contents.symbols.shared:
        few, labels = len(tokens) <= MOST_LABELS, contents.symbols.labels(0)
        shown = tokens if few else _by_clock(process)
        names = [labels[token] for token in shown] if few else None
        drawn = figures.tied_intensities(values[0][shown], names, "rank" if line else "clock, the root's last")
        caption = f"{about} All positions share the clocks. {without.capitalize()} has none."
        return markup.figure(drawn, "clocks", caption)
    caption = f"{about} Empty: {without}, which has no clock. Grey: a clock that is off."
    if len(tokens) > LARGEST_MAP:
        caption += f" The {LARGEST_MAP} fastest of {len(tokens):,} clocks, the fastest on top."
        fastest = np.argsort(-np.nan_to_num(values[:, tokens]).mean(0), kind="stable")[:LARGEST_MAP]
        tokens = tokens[fastest]
    return _map(contents, values[:, tokens], tokens, "clocks", caption, "intensity A(1), expected rings")


def _matrix(contents: Contents, process: BridgeProcess) -> str:
    spread = torch.special.entr(process.p_0).sum(-1).expand(process.num_positions)
    position = int(spread.argmax())
    Q, order = rate_matrix(process, position)
    if len(order) > LARGEST_MATRIX:
        return markup.paragraph(f"The rate matrix is left out: it has {len(order):,} × {len(order):,} entries.", "note")
    labels = contents.symbols.labels(position)
    codec = contents.run.codec
    where = f"column “{codec.names[position]}”" if isinstance(codec, Columns) else f"position {position}"
    if _alike(process):
        where = "every position"
    line = _on_line(process)
    drawn = figures.rate_matrix(
        Q, [labels[token] for token in order] if len(order) <= MOST_LABELS else None, "rank" if line else "state"
    )
    how = "in rank order" if line else "every state before those above it"
    averaged = " Its clocks vary in time: shown is the mean over clock time."
    return markup.figure(
        drawn, "matrix",
        f"The rate matrix Q of {where}, {how}: from the state of the row to that of the column, always "
        "upwards. The diagonal shows the rate at which a state is left, of which Q holds the negative."
        + averaged * isinstance(process.clocks, Varying) + _if_even(contents),
    )  # fmt: skip


def _exponents(contents: Contents, process: TokenwiseMasking) -> str:
    """Bars, sorted unless states have an order of their own; a heat map if positions differ."""
    values, n = process.learned().detach().double().cpu().numpy(), process.mask_token
    frequent = np.argsort(-_frequency(process), kind="stable")
    about = (
        "Exponent w of each state's masking schedule: when a token of exponent 1 is masked with chance s, this one is "
        "masked with chance s to the power of w. A large exponent means masked late, a small one masked early."
    )
    if len(process.exponents) == 1 and contents.symbols.shared:
        shown = np.sort(frequent[:MOST_BARS])
        if isinstance(contents.run.codec, Text):
            shown = shown[np.argsort(-values[0, shown], kind="stable")]
            about += " Sorted: what is masked last comes first."
        labels = contents.symbols.labels(0)
        drawn = figures.exponents(values[0, shown], [labels[state] for state in shown])
        caption = f"{about} All positions share the exponents."
        if n > MOST_BARS:
            caption += f" The {MOST_BARS} most frequent of {n:,} states."
        return markup.figure(drawn, "exponents", caption)
    has, tokens = process.data_states[:, :n].cpu().numpy(), np.arange(n)
    values = np.where(has, values, np.nan)
    if not has.all():
        about += " Empty: a state that the position lacks."
    if n > LARGEST_MAP:
        tokens = frequent[:LARGEST_MAP]
        about += f" The {LARGEST_MAP} most frequent of {n:,} states, the most frequent on top."
    return _map(contents, values[:, tokens], tokens, "exponents", about, "exponent w: large is late")


def _rates_over_training(contents: Contents, process: BridgeProcess) -> str:
    records = _learned_over_training(contents, process)
    if records is None or (_has_speeds(process) and process.log_speeds is not None):
        return ""  # one clock per position, whose rate means nothing beside its speed
    symbols, clocks = contents.symbols, range(1, process.hierarchy.num_clocks + 1)
    what, top, others = ("rank", "top rank", "rank") if _on_line(process) else ("clock", "root", "number")
    names, lines = [f"{what} {clock}" for clock in clocks], f"one line per {what}"
    if symbols.shared and _one_hierarchy(process):
        labels = symbols.labels(0)
        names = [labels[token] for token in _by_clock(process)[-len(clocks) :]]
        top, lines = f"{top}: {names[-1]}", "one line per state, of the clock that leads into it"
    drawn = curves.rates_over_training(
        *records, names=names, top=top, others=f"{others} of the other clocks", stepwise=not _jointly(contents)
    )
    how = ", each times its speed" if _has_speeds(process) else ""
    caption = f"Rates α over training, averaged over positions{how}, {lines}. {_when_learned(contents)}"
    if isinstance(process.clocks, Varying):
        caption += " How the speed of a clock varies in time is learned besides; α multiplies it."
    return markup.figure(drawn, "learning", caption)


def _exponents_over_training(contents: Contents, process: TokenwiseMasking) -> str:
    records = _learned_over_training(contents, process)
    if records is None:
        return ""
    labels = contents.symbols.labels(0)
    names = [labels[state] if contents.symbols.shared else f"state {state}" for state in range(process.mask_token)]
    drawn = curves.exponents_over_training(*records, _frequency(process), names=names, stepwise=not _jointly(contents))
    return markup.figure(
        drawn, "learning",
        "Exponents w over training, averaged over positions, one line per state: the higher, the later it is masked. "
        + _when_learned(contents),
    )  # fmt: skip


def _learned_over_training(
    contents: Contents, process: ForwardProcess
) -> tuple[Values, Float[np.ndarray, "r k"]] | None:
    """Steps, and what had been learned by then; None if that was not reported twice."""
    learned = process.learned()
    count = 0 if learned is None else learned.shape[1]
    records = [
        record
        for record in contents.metrics
        if isinstance(record.get("alpha"), list) and len(record["alpha"]) == count and "step" in record
    ]
    if len(records) < 2:
        return None
    values = [[np.nan if value is None else value for value in record["alpha"]] for record in records]
    return np.array([float(record["step"]) for record in records]), np.array(values, dtype=float)


def _jointly(contents: Contents) -> bool:
    return contents.run.recipe.training.matrix_objective == "joint"


def _when_learned(contents: Contents) -> str:
    when = "They change in Matrix-learning, at the beginning of each cycle, and rest in between."
    if _jointly(contents):
        when = "They are learned along with the network, in every step."
    best, last = contents.run.best().get("step"), contents.metrics[-1].get("step")
    return when if best in (None, last) else f"{when} The other figures show the best model, that of step {best:,}."


def _has_speeds(process: ForwardProcess) -> bool:
    return isinstance(process, BridgeProcess) and process.clocks.log_speeds is not None


def _if_even(contents: Contents) -> str:
    return " Shown as if all positions had one speed." if _has_speeds(contents.bridge.process) else ""


def _alike(process: BridgeProcess) -> bool:
    """Whether all positions share their hierarchy and their clocks."""
    values = process.intensities(1.0)
    return _one_hierarchy(process) and bool((values == values[:1]).all())


def _one_hierarchy(process: BridgeProcess) -> bool:
    """Whether the same states lie below each other at all positions."""
    tables = process.hierarchy.state_dict().values()  # ranks, or parents
    return all(bool((table == table[:1]).all()) for table in tables)


def _on_line(process: BridgeProcess) -> bool:
    return isinstance(process.hierarchy, Line)


def _by_clock(process: BridgeProcess) -> Int[np.ndarray, " k"]:
    """Tokens in the order of the clocks that lead into them at the first position: by rank on a line, all of it.

    On a tree, which has clocks for its inner nodes only, the leaves are left out; the root comes last.
    """
    clock = process.hierarchy.clock_into[0]
    tokens = clock.argsort(stable=True)
    return (tokens if _on_line(process) else tokens[clock[tokens] > 0]).cpu().numpy()


def _frequency(process: TokenwiseMasking) -> Float[np.ndarray, " k"]:
    return process.p_0[:, : process.mask_token].double().mean(0).cpu().numpy()


def _map(
    contents: Contents,
    values: Float[np.ndarray, "d m"],
    tokens: Int[np.ndarray, " m"],
    name: str,
    caption: str,
    quantity: str,
) -> str:
    """What differs from position to position, as a heat map."""
    codec, few = contents.run.codec, len(tokens) <= MOST_LABELS
    columns = isinstance(codec, Columns) and len(codec.names) <= MOST_NAMED_COLUMNS
    labels = contents.symbols.labels(0)
    drawn = figures.intensities(
        values.T,
        states=[labels[token] for token in tokens] if contents.symbols.shared and few else None,
        positions=[short(name) for name in codec.names] if isinstance(codec, Columns) and columns else None,
        cells=_cells(contents, tokens) if columns and few else None,
        across=pictures.across(codec),
        quantity=quantity,
    )
    return markup.figure(drawn, name, caption)


def _cells(contents: Contents, tokens: Int[np.ndarray, " m"]) -> list[list[str]]:
    process = contents.bridge.process
    legal = process.legal.expand(process.num_positions, -1)
    columns = []
    for position in range(process.num_positions):
        labels = contents.symbols.labels(position)
        columns.append([
            short(labels[state]) if state < len(labels) and legal[position, state] else "" for state in tokens
        ])  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]

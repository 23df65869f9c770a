"""The part of a report that shows what was learned of the forward process."""

import numpy as np
import torch
from jaxtyping import Float

from dmb.app.reports import curves, figures, markup, pictures
from dmb.app.reports.contents import Contents
from dmb.app.reports.figures import MOST_LABELS
from dmb.app.reports.markup import text
from dmb.app.reports.scales import Values
from dmb.app.reports.survival import destroyed_when
from dmb.app.reports.symbols import short
from dmb.data import Columns, Text
from dmb.processes import BridgeProcess, ForwardProcess, TokenwiseMasking, VaryingBridgeProcess

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
        return first + _clocks(contents, process) + _matrix(contents, process) + _rates_over_training(contents, process)
    if isinstance(process, TokenwiseMasking):
        return first + _exponents(contents, process) + _exponents_over_training(contents, process)
    return markup.paragraph(text(f"The forward process, {type(process).__name__}, has no rates to learn.")) + first


@torch.no_grad()
def clock_intensities(process: BridgeProcess) -> Float[np.ndarray, "d n"]:
    """`A_k(1)` of the clock that leads into each token; nan where there is none.

    The lowest rank of a position has no clock, and neither has a state that the position lacks.
    """
    shape = (process.num_positions, process.num_states)
    lowest = process.num_states - process.legal.sum(-1, keepdim=True)  # lower still are states that a position lacks
    into = torch.where(process.rank > lowest, process.intensities(1.0), torch.nan)
    return into.expand(shape).cpu().numpy()


@torch.no_grad()
def rate_matrix(process: BridgeProcess, position: int) -> tuple[Float[np.ndarray, "m m"], list[int]]:
    """`Q` of one position in rank order, and the tokens of its ranks; only states that the position has.

    Of clocks that vary in time, the mean over clock time, so that `exp(σ̄(1) Q)` is the transition matrix nonetheless.
    """
    legal = process.legal.expand(process.num_positions, -1)[position]
    order = process.token.expand(process.num_positions, -1)[position]
    order = order[legal[order]]
    clock = process.schedule(torch.ones(1, dtype=torch.float64, device=process.device), process.exits)
    into = process.intensities(1.0).expand(process.num_positions, -1)[position, order] / clock.sigma_bar
    Q = torch.triu(into.expand(len(order), -1), diagonal=1)
    return (Q - torch.diag(Q.sum(-1))).cpu().numpy(), order.tolist()


def _clocks(contents: Contents, process: BridgeProcess) -> str:
    values, n = clock_intensities(process), process.num_states
    about = "Intensity A(1) of the clock that leads into each token: how often it is expected to ring by t = 1."
    if _alike(process) and contents.symbols.shared:
        few = n <= MOST_LABELS
        row = values[0] if few else values[0][process.token[0].cpu().numpy()]
        drawn = figures.tied_intensities(row, contents.symbols.labels(0) if few else None)
        return markup.figure(drawn, "clocks", f"{about} All positions share the clocks. The lowest rank has none.")
    caption = f"{about} Empty: the lowest rank, which has no clock. Grey: a clock that is off."
    if n > LARGEST_MAP:
        fastest = np.argsort(-np.nan_to_num(values).mean(0), kind="stable")[:LARGEST_MAP]
        values = values[:, fastest]
        caption += f" The {LARGEST_MAP} fastest of {n:,} clocks, the fastest on top."
    return _map(contents, values, "clocks", caption, "intensity A(1), expected rings")


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
    drawn = figures.rate_matrix(Q, [labels[token] for token in order] if len(order) <= MOST_LABELS else None)
    averaged = " Its clocks vary in time: shown is the mean over clock time."
    return markup.figure(
        drawn, "matrix",
        f"The rate matrix Q of {where}, in rank order: from the state of the row to that of the column, always "
        "upwards. The diagonal shows the rate at which a state is left, of which Q holds the negative."
        + averaged * isinstance(process, VaryingBridgeProcess),
    )  # fmt: skip


def _exponents(contents: Contents, process: TokenwiseMasking) -> str:
    """Bars, sorted unless states have an order of their own; a heat map if positions differ."""
    values, n = process.learned().detach().double().cpu().numpy(), process.num_states - 1
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
    legal = process.legal[:, :-1].cpu().numpy()
    values = np.where(legal, values, np.nan)
    if not legal.all():
        about += " Empty: a state that the position lacks."
    if n > LARGEST_MAP:
        values = values[:, frequent[:LARGEST_MAP]]
        about += f" The {LARGEST_MAP} most frequent of {n:,} states, the most frequent on top."
    return _map(contents, values, "exponents", about, "exponent w: large is late")


def _rates_over_training(contents: Contents, process: BridgeProcess) -> str:
    records = _learned_over_training(contents, process)
    if records is None:
        return ""
    symbols, ranks = contents.symbols, range(1, process.num_states)
    names, top, lines = [f"rank {rank}" for rank in ranks], "top rank", "one line a rank"
    if symbols.shared and bool((process.rank == process.rank[:1]).all()):
        labels, token = symbols.labels(0), process.token[0].tolist()
        names = [labels[token[rank]] for rank in ranks]
        top, lines = f"top rank: {names[-1]}", "one line a state, of the clock that leads into it"
    drawn = curves.rates_over_training(*records, names=names, top=top, stepwise=not _jointly(contents))
    caption = f"Rates α over training, averaged over positions, {lines}. {_when_learned(contents)}"
    if isinstance(process, VaryingBridgeProcess):
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
        "Exponents w over training, averaged over positions, one line a state: the higher, the later it is masked. "
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


def _alike(process: BridgeProcess) -> bool:
    """Whether all positions share their order and their clocks."""
    shared_order = bool((process.rank == process.rank[:1]).all())
    values = process.intensities(1.0)
    return shared_order and bool((values == values[:1]).all())


def _frequency(process: TokenwiseMasking) -> Float[np.ndarray, " k"]:
    return process.p_0[:, :-1].double().mean(0).cpu().numpy()


def _map(contents: Contents, values: Float[np.ndarray, "d m"], name: str, caption: str, quantity: str) -> str:
    """What differs from position to position, as a heat map."""
    codec, few = contents.run.codec, values.shape[1] <= MOST_LABELS
    columns = isinstance(codec, Columns) and len(codec.names) <= MOST_NAMED_COLUMNS
    drawn = figures.intensities(
        values.T,
        states=contents.symbols.labels(0)[: values.shape[1]] if contents.symbols.shared and few else None,
        positions=[short(name) for name in codec.names] if isinstance(codec, Columns) and columns else None,
        cells=_cells(contents, values.shape[1]) if columns and few else None,
        across=pictures.across(codec),
        quantity=quantity,
    )
    return markup.figure(drawn, name, caption)


def _cells(contents: Contents, states: int) -> list[list[str]]:
    process = contents.bridge.process
    legal = process.legal.expand(process.num_positions, -1)
    columns = []
    for position in range(process.num_positions):
        labels = contents.symbols.labels(position)
        columns.append([
            short(labels[state]) if state < len(labels) and legal[position, state] else "" for state in range(states)
        ])  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]

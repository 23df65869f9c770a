"""The part of a report that shows what Matrix-learning has learned."""

import numpy as np
import torch
from jaxtyping import Float

from dmb.data import Columns, Grid
from dmb.processes import BridgeProcess
from dmb.reports import figures, markup
from dmb.reports.contents import Contents
from dmb.reports.figures import MOST_LABELS
from dmb.reports.markup import text

LARGEST_MATRIX = 512
LARGEST_MAP = 512
"""States of a heat map; of more, the fastest are shown."""
MOST_NAMED_COLUMNS = 12


def learned_rates(contents: Contents) -> str:
    """The clocks of the final process, its rate matrix, and how rates came to be what they are."""
    process = contents.bridge.process
    if not isinstance(process, BridgeProcess):
        return markup.paragraph(text(f"The forward process, {type(process).__name__}, has no rates to learn."))
    return _clocks(contents, process) + _matrix(contents, process) + _over_training(contents, process)


@torch.no_grad()
def clock_intensities(process: BridgeProcess) -> Float[np.ndarray, "d n"]:
    """`A_k(1) = σ̄(1) α_k` of the clock that leads into each token; nan where there is none.

    The lowest rank of a position has no clock, and neither has a state that the position lacks.
    """
    clock = process.schedule(torch.ones(1, dtype=torch.float64, device=process.device), process.exits)
    alpha = process.alpha.double()
    into_rank = torch.cat([torch.full_like(alpha[:, :1], torch.nan), clock.sigma_bar.to(alpha) * alpha], dim=1)
    rank = process.rank.expand(process.num_positions, -1)
    legal = process.legal.expand(process.num_positions, -1)
    lowest = process.num_states - legal.sum(-1, keepdim=True)  # states that a position lacks have its lowest ranks
    return torch.where(rank > lowest, into_rank.gather(1, rank), torch.nan).cpu().numpy()


@torch.no_grad()
def rate_matrix(process: BridgeProcess, position: int) -> tuple[Float[np.ndarray, "m m"], list[int]]:
    """`Q` of one position in rank order, and the tokens of its ranks; only states that the position has."""
    legal = process.legal.expand(process.num_positions, -1)[position]
    order = process.token.expand(process.num_positions, -1)[position]
    order = order[legal[order]]
    # states that a position lacks have its lowest ranks, so that the clocks of the others are the last
    into = process.alpha[position].double()[process.num_states - len(order) :]
    Q = torch.triu(torch.nn.functional.pad(into, (1, 0)).expand(len(order), -1), diagonal=1)
    return (Q - torch.diag(Q.sum(-1))).cpu().numpy(), order.tolist()


def _clocks(contents: Contents, process: BridgeProcess) -> str:
    values, n = clock_intensities(process), process.num_states
    about = (
        "Intensity A(1) = σ̄(1) α of the clock that leads into each token: how often it is expected to ring by t = 1."
    )
    if (
        (process.rank == process.rank[:1]).all()
        and (process.alpha == process.alpha[:1]).all()
        and contents.symbols.shared
    ):
        few = n <= MOST_LABELS
        row = values[0] if few else values[0][process.token[0].cpu().numpy()]
        drawn = figures.tied_intensities(row, contents.symbols.labels(0) if few else None)
        return markup.figure(drawn, "clocks", f"{about} All positions share the clocks. The lowest rank has none.")
    table, codec = values.T, contents.run.codec
    caption = f"{about} Empty: the lowest rank, which has no clock. Grey: a clock that is off."
    if n > LARGEST_MAP:
        fastest = np.argsort(-np.nan_to_num(values).mean(0), kind="stable")[:LARGEST_MAP]
        table = table[fastest]
        caption += f" The {LARGEST_MAP} fastest of {n:,} clocks, the fastest on top."
    columns = isinstance(codec, Columns) and len(codec.names) <= MOST_NAMED_COLUMNS
    drawn = figures.intensities(
        table,
        states=contents.symbols.labels(0) if contents.symbols.shared and n <= MOST_LABELS else None,
        positions=[_short(name) for name in codec.names] if isinstance(codec, Columns) and columns else None,
        cells=_cells(contents, process) if columns and n <= MOST_LABELS else None,
        across=codec.shape[-1] if isinstance(codec, Grid) and len(codec.shape) == 2 else None,
    )
    return markup.figure(drawn, "clocks", caption)


def _matrix(contents: Contents, process: BridgeProcess) -> str:
    spread = torch.special.entr(process.p_0).sum(-1).expand(process.num_positions)
    position = int(spread.argmax())
    Q, order = rate_matrix(process, position)
    if len(order) > LARGEST_MATRIX:
        return markup.paragraph(f"The rate matrix is left out: it has {len(order):,} × {len(order):,} entries.", "note")
    labels = contents.symbols.labels(position)
    codec = contents.run.codec
    where = f"column “{codec.names[position]}”" if isinstance(codec, Columns) else f"position {position}"
    if (process.rank == process.rank[:1]).all() and (process.alpha == process.alpha[:1]).all():
        where = "every position"
    drawn = figures.rate_matrix(Q, [labels[token] for token in order] if len(order) <= MOST_LABELS else None)
    return markup.figure(
        drawn, "matrix",
        f"The rate matrix Q of {where}, in rank order: from the state of the row to that of the column, always "
        "upwards. The diagonal shows the rate at which a state is left, of which Q holds the negative.",
    )  # fmt: skip


def _over_training(contents: Contents, process: BridgeProcess) -> str:
    ranks = process.num_states - 1
    records = [
        record
        for record in contents.metrics
        if isinstance(record.get("alpha"), list) and len(record["alpha"]) == ranks and "step" in record
    ]
    if len(records) < 2:
        return ""
    alpha = np.array(
        [[np.nan if rate is None else rate for rate in record["alpha"]] for record in records], dtype=float
    )
    drawn = figures.rates_over_training(np.array([float(record["step"]) for record in records]), alpha)
    return markup.figure(
        drawn, "learning",
        "Rates over training, averaged over positions, one line a rank. They change in Matrix-learning, at the "
        "beginning of each cycle, and rest in between.",
    )  # fmt: skip


def _cells(contents: Contents, process: BridgeProcess) -> list[list[str]]:
    legal = process.legal.expand(process.num_positions, -1)
    columns = []
    for position in range(process.num_positions):
        labels = contents.symbols.labels(position)
        columns.append([
            _short(labels[state]) if state < len(labels) and legal[position, state] else ""
            for state in range(process.num_states)
        ])  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


def _short(name: str, most: int = 12) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"

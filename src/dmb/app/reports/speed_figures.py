"""Figures of the speeds of positions: lines along a sequence, maps of a grid, bars of columns."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dmb.app.reports.drawing import BLUE, INK, ORANGE, WIDTH, gridlines, styled
from dmb.app.reports.scales import Values

PALEST = 0.25
"""How opaque the first of several lines is: opacity reads as early and late on a light page and on a dark one."""
DIVERGING = "RdBu_r"


@styled
def lines(names: list[str], log_speeds: Float[np.ndarray, "r d"], meaning: str) -> Figure:
    """Log speed against position, one line per validation: pale ones came first, the last is bold.

    Args:
        names: of the lines.
        log_speeds: at each of the validations.
        meaning: what it means if a log speed is large.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=0.7, alpha=0.5)
    position, last = np.arange(log_speeds.shape[1]), len(log_speeds) - 1
    few: dict[str, Any] = {"marker": "o", "markersize": 3} if len(position) <= 32 else {}
    drawn: list[Line2D] = []
    for index, (name, row) in enumerate(zip(names, log_speeds, strict=True)):
        opacity = 1.0 if index == last else PALEST + 0.45 * index / last
        drawn += axes.plot(
            position, row, color=BLUE, alpha=opacity, linewidth=2.6 if index == last else 1.1, label=name, **few
        )
    axes.set_xlim(-0.5, len(position) - 0.5)
    axes.set_xlabel("position")
    axes.set_ylabel(f"log speed\n({meaning})")
    gridlines(axes)
    ends = drawn[:: max(1, last)]  # the first and the last: with two names the eye orders those in between
    axes.legend(handles=ends, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=len(ends))
    return figure


@styled
def maps(names: list[str], log_speeds: Float[np.ndarray, "r h w"], meaning: str) -> Figure:
    """Log speeds on the grid of positions, one map per validation, all on one scale that is white at 0.

    Args:
        names: of the maps.
        log_speeds: at each of the validations.
        meaning: what it means if a log speed is large.
    """
    count, height, width = log_speeds.shape
    across = WIDTH / 3
    tall = min(2.0, max(0.3, height / width)) * across
    figure = Figure(figsize=(max(across * count, 3.6), tall + 1.2), layout="constrained")
    panels = list(figure.subplots(1, count, sharey=True, squeeze=False).flat)
    scale = ScalarMappable(Normalize(-_largest(log_speeds), _largest(log_speeds)), DIVERGING)
    for axes, name, values in zip(panels, names, log_speeds, strict=True):
        axes.imshow(values, cmap=scale.cmap, norm=scale.norm, aspect="equal" if 0.3 <= height / width <= 2 else "auto")
        axes.set_title(name, loc="center")
        axes.spines[["top", "right"]].set_visible(True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        axes.set_xlabel("column")
    panels[0].set_ylabel("row")
    # below the maps, where its label has room however low they are
    figure.colorbar(scale, ax=panels, label=f"log speed ({meaning})", location="bottom", aspect=40, fraction=0.08)
    return figure


@styled
def bars(columns: list[str], log_speeds: Values, first: tuple[str, Values] | None, meaning: str) -> Figure:
    """Log speeds of columns, from top to bottom, with orange marks for where they started.

    Args:
        columns: their names.
        log_speeds: at the end.
        first: the name of the first validation, and log speeds then; None if there was no other.
        meaning: what it means if a log speed is large.
    """
    figure = Figure(figsize=(WIDTH, 0.2 * len(columns) + 0.9), layout="constrained")
    axes, where = figure.subplots(), np.arange(len(columns))
    axes.barh(where, log_speeds, 0.7, color=BLUE)
    axes.axvline(0, color=INK, linewidth=0.7)
    if first is not None:
        name, values = first
        marks = axes.vlines(values, where - 0.4, where + 0.4, color=ORANGE, linewidth=1.6, label=f"at {name}")
        axes.legend(handles=[marks], loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.set_yticks(where, columns, parse_math=False)
    axes.set_ylim(len(columns) - 0.4, -0.6)
    axes.set_xlabel(f"log speed ({meaning})")
    gridlines(axes, "x")
    return figure


def _largest(values: Float[np.ndarray, "r h w"]) -> float:
    return float(np.abs(values).max()) or 1.0

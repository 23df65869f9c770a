"""Figures of training, of what was learned, and of marginals: one function each, plain numbers in, a figure out."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmb.app.reports.drawing import BLUE, GREY, INK, ORANGE, WIDTH, gridlines, styled
from dmb.app.reports.scales import (
    Values,
    around_one,
    colour_bar,
    heat,
    limit,
    logarithmic,
    positive,
    row_ticks,
    slow_and_fast,
    span,
)

MOST_LABELS = 40


class Curve(NamedTuple):
    """A quantity over steps of Score-learning."""

    step: Values
    value: Values


class Group(NamedTuple):
    """The marginals of one position: of the data and of samples."""

    name: str
    labels: list[str]
    data: Float[np.ndarray, " n"]
    samples: Float[np.ndarray, " n"]


@styled
def bound(
    *,
    score: Curve,
    validation: Curve,
    stderr: Values,
    prior: Curve,
    validation_prior: Curve,
    cycles: Sequence[float],
    unigram: float | None = None,
) -> Figure:
    """The bound over time by part: training loss and validation above, the small `J_Q` on a scale of its own below.

    Args:
        score: `J_score` of training batches.
        validation: the bound on validation data.
        stderr: its standard error.
        prior: `J_Q` under the estimate `p_0`, as Matrix-learning sees it.
        validation_prior: `J_Q` on validation data.
        cycles: the steps at which cycles begin.
        unigram: what the marginals alone need.
    """
    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.25]})
    top.plot(*score, color=GREY, linewidth=1.1, label="training: score part J_score")
    band = np.nan_to_num(2 * stderr)
    top.fill_between(
        validation.step, validation.value - band, validation.value + band, color=BLUE, alpha=0.22, linewidth=0
    )
    top.plot(*validation, color=BLUE, marker="o", markersize=3.5, label="validation: bound ± 2 s.e.")
    if unigram is not None:
        top.axhline(unigram, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1.2, label="marginals alone (validation)")
    limit(top, score.value, np.concatenate([validation.value - band, validation.value + band, [unigram or np.nan]]))
    top.set_ylabel("bits per token")
    top.legend(loc="upper right", ncols=3 if unigram is not None else 2, bbox_to_anchor=(1, 1.13), borderaxespad=0)

    for curve, colour, marker, name in ((prior, GREY, "", "estimate"), (validation_prior, BLUE, "o", "validation")):
        style: Any = (
            {"drawstyle": "steps-post"} if not marker else {"marker": marker, "markersize": 3, "linewidth": 0.9}
        )
        bottom.plot(curve.step, positive(curve.value), color=colour, label=name, **style)
    logarithmic(bottom, positive(np.concatenate([prior.value, validation_prior.value])))
    bottom.set_ylabel("J_Q, bits per token")
    bottom.set_xlabel("steps of Score-learning")
    last = max(np.nanmax(np.concatenate([curve.step, [0.0]])) for curve in (score, validation, prior))
    bottom.set_xlim(-0.02 * last, 1.02 * last or 1.0)  # not those of the values: all of them may be missing
    for axes in (top, bottom):
        gridlines(axes)
        for step in cycles[1:]:
            axes.axvline(step, color=INK, linewidth=0.8, linestyle=":", alpha=0.6)
    if 1 < len(cycles) <= 12:
        for number, step in enumerate(cycles, 1):
            bottom.annotate(f"cycle {number}", (step, 1), (3, -1), xycoords=("data", "axes fraction"),
                            textcoords="offset points", fontsize=7, va="top", alpha=0.8)  # fmt: skip
    return figure


@styled
def intensities(
    values: Float[np.ndarray, "n d"],
    *,
    states: list[str] | None = None,
    positions: list[str] | None = None,
    cells: list[list[str]] | None = None,
    across: int | None = None,
    quantity: str = "intensity A(1), expected rings",
) -> Figure:
    """What is learned of every state, states down and positions across, on a logarithmic colour scale.

    Args:
        values: nan where there is none, 0 for a clock that is off.
        states: labels of the vertical axis.
        positions: labels of the horizontal axis.
        cells: a label for every cell.
        across: positions in a row of an image, if they are of one.
        quantity: what is shown.
    """
    n, d = values.shape
    height = min(7.5, max(2.2, 0.16 * n if states else 0.24 * n if cells else 3.0) + 0.8)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    picture = heat(axes, values, aspect="auto")
    colour_bar(figure, axes, picture, quantity)
    axes.set_ylabel("token" if cells is None else "state")
    axes.set_xlabel("position" if positions is None else "column")
    if states is not None:
        axes.set_yticks(range(n), states, parse_math=False)
    if positions is not None:
        axes.set_xticks(range(d), positions, parse_math=False)
    elif across is not None:
        axes.set_xticks(row_ticks(d, across))
    for state, row in enumerate(cells or []):
        for position, label in enumerate(row):
            value = values[state, position]
            dark = 0 < value < picture.norm.inverse(0.6)
            colour = "white" if dark else "black" if value > 0 else INK
            axes.text(position, state, label, ha="center", va="center", fontsize=7, color=colour, parse_math=False)
    return figure


@styled
def tied_intensities(values: Values, labels: list[str] | None = None, order: str = "rank") -> Figure:
    """Cumulative intensities of the clocks that all positions share: one bar per state; a curve if there are many.

    Fast clocks that lie far above all others get an axis of their own.

    Args:
        values: nan where there is no clock, 0 where it is off.
        labels: of the states. Default: none, and the axis says `order`.
        order: what `values` are in the order of.
    """
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    where = np.arange(len(values))
    parts = [part for part in slow_and_fast(values)[::-1] if part.size] or [values[:0]]
    panels = figure.subplots(
        len(parts), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [1, 2][-len(parts) :]}
    )
    for axes, part in zip(panels.flat, parts, strict=True):
        shown = np.where(np.isin(values, part), values, np.nan)
        if labels is not None:
            axes.bar(where, shown, color=BLUE, width=0.8)
        else:
            axes.plot(where, shown, color=BLUE, linewidth=1, marker=".", markersize=4 if len(part) < 100 else 1)
        span(axes, part, zero=True)
        gridlines(axes)
    axes = panels.flat[-1]
    axes.set_xlim(-0.7, len(values) - 0.3)
    if labels is not None:
        axes.set_xticks(where, labels, parse_math=False, rotation=90 if max(map(len, labels)) > 3 else 0)
    axes.set_xlabel(order if labels is None else "token")
    figure.supylabel("intensity A(1), expected rings", fontsize=9)
    return figure


@styled
def exponents(values: Values, labels: list[str]) -> Figure:
    """Exponents of states that all positions share: bars up and down from 1, in as many rows as they need."""
    down = math.ceil(len(values) / MOST_LABELS)
    across = math.ceil(len(values) / down)
    figure = Figure(figsize=(WIDTH, 1.5 * down + 1.2), layout="constrained")
    panels = list(figure.subplots(down, 1, sharey=True, squeeze=False).flat)
    long = max(map(len, labels)) > 3
    for row, axes in enumerate(panels):
        part = slice(row * across, (row + 1) * across)
        where = np.arange(len(values[part]))
        colours = [BLUE if value >= 1 else ORANGE for value in values[part]]
        axes.bar(where, values[part] - 1, bottom=1, color=colours, width=0.8)
        axes.axhline(1, color=INK, linewidth=0.7)
        axes.set_xticks(where, labels[part], parse_math=False, rotation=90 if long else 0)
        axes.set_xlim(-0.7, across - 0.3)
        gridlines(axes)
    around_one(panels[0], values)
    panels[-1].set_xlabel("token")
    figure.supylabel("exponent w", fontsize=9)
    return figure


@styled
def rate_matrix(Q: Float[np.ndarray, "n n"], labels: list[str] | None = None, order: str = "rank") -> Figure:
    """`|Q|` of one position, from the state of the row to that of the column: their `labels`, or numbers by `order`."""
    side = min(5.4, max(3.0, 0.19 * len(Q) + 1.0)) if labels else 4.2
    figure = Figure(figsize=(side + 1.1, side), layout="constrained")
    axes = figure.subplots()
    picture = heat(axes, np.where(np.abs(Q) > 0, np.abs(Q), np.nan), aspect="equal")
    colour_bar(figure, axes, picture, "rate, per unit of clock time")
    axes.set_xlabel("to" if labels else f"to {order}")
    axes.set_ylabel("from" if labels else f"from {order}")
    if labels is not None:
        axes.set_yticks(range(len(Q)), labels, parse_math=False)
        long = max(map(len, labels)) > 2
        axes.set_xticks(range(len(Q)), labels, parse_math=False, rotation=90 if long else 0)
    return figure


@styled
def marginal_bars(groups: list[Group], count: int, unit: str = "samples") -> Figure:
    """Frequencies in the data and in `count` samples, side by side; whiskers of ± 2 standard errors."""
    if len(groups) == 1:
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        grid = [figure.subplots()]
    else:
        across = min(3, len(groups))
        down = math.ceil(len(groups) / across)
        tallest = [max(len(group.labels) for group in groups[row * across : (row + 1) * across]) for row in range(down)]
        figure = Figure(figsize=(WIDTH, sum(0.24 * most + 0.5 for most in tallest) + 0.3), layout="constrained")
        grid = list(figure.subplots(down, across, squeeze=False, gridspec_kw={"height_ratios": tallest}).flat)
    for axes, group in zip(grid, groups, strict=False):
        (_upright if len(groups) == 1 else _sideways)(axes, group, count)
    for axes in grid[len(groups) :]:
        axes.set_axis_off()
    handles, _ = grid[0].get_legend_handles_labels()
    figure.legend(handles, ["data", f"{count:,} {unit}"], loc="outside upper right", ncols=2)
    return figure


@styled
def marginal_scatter(data: Values, samples: Values, count: int) -> Figure:
    """Every state of every position: its frequency in the data against that in `count` samples.

    Both axes are square roots, on which sampling noise is equally wide everywhere.
    """
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    most = min(1.0, 1.1 * float(max(data.max(), samples.max(), 1e-3)))  # of many states all are rare
    p = np.linspace(0, most, 400)
    noise = 2 * np.sqrt(p * (1 - p) / count)
    axes.fill_between(p, np.clip(p - noise, 0, 1), np.clip(p + noise, 0, 1), color=ORANGE, alpha=0.2, linewidth=0,
                      label="± 2 s.e. of sampling")  # fmt: skip
    axes.plot(p, p, color=ORANGE, linewidth=1)
    axes.scatter(data, samples, s=7, color=BLUE, alpha=0.45, linewidths=0, rasterized=len(data) > 1000)
    for scale, bounds in ((axes.set_xscale, axes.set_xlim), (axes.set_yscale, axes.set_ylim)):
        scale("function", functions=(lambda v: np.sqrt(np.clip(v, 0, None)), np.square))
        bounds(0, most)
    ticks = _apart([0.0, 1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0], most)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("frequency in the data")
    axes.set_ylabel("frequency in samples")
    axes.set_aspect("equal")
    axes.legend(loc="upper left")
    gridlines(axes, "both")
    return figure


def _apart(ticks: list[float], most: float) -> list[float]:
    """Those up to `most` that do not crowd each other on an axis of square roots.

    >>> _apart([0.0, 0.001, 0.01, 0.05, 0.1, 0.2], most=0.15)
    [0.0, 0.01, 0.05, 0.1]
    """
    kept: list[float] = []
    for tick in ticks:
        if tick <= most and (not kept or math.sqrt(tick) - math.sqrt(kept[-1]) > 0.09 * math.sqrt(most)):
            kept.append(tick)
    return kept


def _upright(axes: Axes, group: Group, count: int) -> None:
    where = np.arange(len(group.labels))
    axes.bar(where - 0.2, group.data, 0.4, color=GREY, label="data")
    axes.bar(where + 0.2, group.samples, 0.4, color=BLUE, label="samples",
             yerr=_noise(group.samples, count), error_kw=_WHISKERS)  # fmt: skip
    if len(where) <= 2 * MOST_LABELS:
        long = max(map(len, group.labels)) > 2
        axes.set_xticks(where, group.labels, parse_math=False, rotation=90 if long else 0)
    axes.set_xlim(-0.7, len(where) - 0.3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("frequency")
    axes.set_xlabel("token")
    gridlines(axes)


def _sideways(axes: Axes, group: Group, count: int) -> None:
    where = np.arange(len(group.labels))
    axes.barh(where - 0.2, group.data, 0.4, color=GREY, label="data")
    axes.barh(where + 0.2, group.samples, 0.4, color=BLUE, label="samples",
              xerr=_noise(group.samples, count), error_kw=_WHISKERS)  # fmt: skip
    axes.set_yticks(where, group.labels, parse_math=False)
    axes.set_ylim(len(where) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_title(group.name, parse_math=False)
    axes.set_xlabel("frequency")
    gridlines(axes, "x")


_WHISKERS: dict[str, Any] = {"ecolor": INK, "elinewidth": 0.8, "alpha": 0.6}


def _noise(p: Values, count: int) -> Float[np.ndarray, "2 k"]:
    spread = 2 * np.sqrt(p * (1 - p) / count)
    return np.stack([np.minimum(spread, p), spread])

"""Figures of many lines, of which a few are named: over the time of the process, and over training."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from dmb.app.reports.drawing import BLUE, GREEN, GREY, INK, ORANGE, WIDTH, gridlines, styled
from dmb.app.reports.scales import COLOURS, GAP, Values, few_ticks, positive, row_ticks, span

NAMED = (BLUE, ORANGE, GREEN, "#9a6fc4", "#b8921f", "#cf5b94", "#2fa3a3", "#6c7ba8")  # as legible as the first
MOST_NAMES = len(NAMED)
MOST_CHANGES = 6
"""Lines over training that are named: those that changed most."""
MOST_POSITIONS = 12
"""Positions that are lines; more are an image."""


@styled
def survival(
    t: Values,
    chance: Float[np.ndarray, "k t"],
    names: Sequence[str],
    *,
    by_position: Float[np.ndarray, "d t"] | None = None,
    positions: Sequence[str] | None = None,
    across: int | None = None,
) -> Figure:
    """The chance that a token is unchanged, one line per state, the first of them named; and its mean at each position.

    Args:
        t: times.
        chance: at these times.
        names: of the first states, which are drawn in colour.
        by_position: nan where a position leaves no state.
        positions: what to call them.
        across: positions in a row of an image, if they are of one.
    """
    figure = Figure(figsize=(WIDTH, 3.1 if by_position is None else 5.2), layout="constrained")
    panels = list(figure.subplots(1 if by_position is None else 2, 1, sharex=True, squeeze=False).flat)
    axes, named = panels[0], len(names)
    grey = [np.column_stack([t, row]) for row in chance[named:]]
    axes.add_collection(LineCollection(grey, colors=GREY, linewidths=0.6, alpha=0.5, rasterized=len(grey) > 100))
    # in the order of the lines from top to bottom, so that the eye finds its way from a line to its name
    for state in sorted(range(named), key=lambda state: -chance[state].sum()):
        axes.plot(t, chance[state], color=NAMED[state], linewidth=1.8, label=names[state])
    _chance_axis(axes)
    _legend(axes)
    if by_position is not None:
        if len(by_position) <= MOST_POSITIONS:
            shades = mpl.colormaps[COLOURS](np.linspace(0, 0.9, len(by_position)))
            for position, row in enumerate(by_position):
                name = str(position) if positions is None else positions[position]
                panels[1].plot(t, row, color=shades[position], label=name)
            _chance_axis(panels[1])
            _legend(panels[1], "position" if positions is None else "column")
        else:
            _position_image(figure, panels[1], t, by_position, across)
    panels[-1].set_xlim(t[0], t[-1])
    panels[-1].set_xlabel("time t")
    return figure


@styled
def rates_over_training(
    step: Values,
    alpha: Float[np.ndarray, "k r"],
    *,
    names: Sequence[str] | None = None,
    top: str = "top rank",
    others: str = "rank of the other clocks",
    stepwise: bool = True,
) -> Figure:
    """Rates averaged over positions, one line per clock, the top one in orange; those that changed most are named.

    Args:
        step: of Score-learning.
        alpha: rates at each of the steps, the clock of the top node last.
        names: of the clocks.
        top: what to call the last.
        others: what to call the numbers of the others.
        stepwise: whether rates stay as they are from one report to the next.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    fast, slow = positive(alpha[:, -1]), positive(alpha[:, :-1])
    apart = np.isfinite(fast).any() and np.isfinite(slow).any() and np.nanmin(fast) > GAP * np.nanmax(slow)
    panels = figure.subplots(2 if apart else 1, 1, sharex=True, squeeze=False,
                             gridspec_kw={"height_ratios": [1, 2] if apart else [1]})  # fmt: skip
    first, axes = panels.flat[0], panels.flat[-1]
    first.plot(*_corners(step, fast, stepwise), color=ORANGE, linewidth=2, label=top)
    first.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    count = slow.shape[1]
    if np.isfinite(slow).any():
        shades = ScalarMappable(Normalize(1, max(count, 2)), COLOURS)
        _shaded(axes, step, slow, shades.to_rgba(np.arange(1, count + 1)), stepwise)
        figure.colorbar(shades, ax=list(panels.flat), label=others, pad=0.015, fraction=0.05)
    if apart:
        span(first, fast)
    span(axes, slow if apart else alpha)
    _steps_axis(axes, step)
    _name_ends(axes, slow, [] if names is None else names[:count])
    figure.supylabel("mean rate α, per unit of clock time", fontsize=9)
    for part in panels.flat:
        gridlines(part)
    return figure


@styled
def exponents_over_training(
    step: Values,
    exponents: Float[np.ndarray, "k s"],
    frequency: Float[np.ndarray, " s"],
    *,
    names: Sequence[str],
    stepwise: bool = False,
) -> Figure:
    """Exponents averaged over positions, one line per state, coloured by its frequency, those that changed most named.

    Args:
        step: of Score-learning.
        exponents: at each of the steps, in token order.
        frequency: of the states.
        names: of the states.
        stepwise: whether exponents stay as they are from one report to the next.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    high = float(frequency.max())
    low = max(float(frequency[frequency > 0].min()), 1e-6 * high)
    if high < 1.05 * low:
        low, high = low / 2, high * 2
    shades = ScalarMappable(LogNorm(low, high), COLOURS)
    _shaded(axes, step, exponents, shades.to_rgba(np.maximum(frequency, low)), stepwise)
    bar = figure.colorbar(shades, ax=axes, label="frequency of the state", pad=0.015, fraction=0.05)
    few_ticks(bar.ax.yaxis, low, high)
    span(axes, exponents)
    _steps_axis(axes, step)
    _name_ends(axes, exponents, names)
    axes.set_ylabel("mean exponent w")
    gridlines(axes)
    return figure


def _chance_axis(axes: Axes) -> None:
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("chance to be unchanged")
    gridlines(axes, "both")


def _legend(axes: Axes, title: str | None = None) -> None:
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, title=title, title_fontsize=8)
    for entry in legend.get_texts():
        entry.set_parse_math(False)


def _position_image(
    figure: Figure, axes: Axes, t: Values, chance: Float[np.ndarray, "d t"], across: int | None
) -> None:
    half = (t[1] - t[0]) / 2
    extent = (t[0] - half, t[-1] + half, len(chance) - 0.5, -0.5)
    picture = axes.imshow(chance, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", extent=extent)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_ylabel("position")
    if across is not None:
        axes.set_yticks(row_ticks(len(chance), across))
    # beside the image, where the panel above has its legend
    figure.colorbar(picture, cax=axes.inset_axes((1.015, 0, 0.03, 1)), label="chance to be unchanged")


def _corners(step: Values, values: Values, stepwise: bool) -> tuple[Values, Values]:
    """The points of a line, or of stairs."""
    return (np.repeat(step, 2)[1:], np.repeat(values, 2)[:-1]) if stepwise else (step, values)


def _shaded(
    axes: Axes, step: Values, values: Float[np.ndarray, "k s"], colours: Float[np.ndarray, "s 4"], stepwise: bool
) -> None:
    lines = [np.column_stack(_corners(step, line, stepwise)) for line in values.T]
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=1.2, rasterized=len(lines) > 100))


def _steps_axis(axes: Axes, step: Values) -> None:
    if step[0] < step[-1]:
        axes.set_xlim(step[0], step[-1])
    axes.set_xlabel("steps of Score-learning")


def most_changed(values: Float[np.ndarray, "k s"], most: int = MOST_CHANGES) -> Bool[np.ndarray, " s"]:
    """Which lines changed by the largest factor from the first to the last; none that changed by less than 1 %.

    >>> most_changed(np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 0.1, 1.5]]), most=2)
    array([ True, False,  True, False])
    """
    change = np.abs(np.log(positive(values[-1])) - np.log(positive(values[0])))
    change = np.where(change > 0.01, change, 0.0)  # nan, of clocks that are off, is not either
    chosen = np.zeros(len(change), dtype=bool)
    chosen[np.argsort(-change, kind="stable")[:most]] = True
    return chosen & (change > 0)


def _name_ends(axes: Axes, values: Float[np.ndarray, "k s"], names: Sequence[str]) -> None:
    """Names of the lines that changed most, where they end; moved apart where they would cover each other."""
    if not names:
        return
    chosen = np.flatnonzero(most_changed(values))
    chosen = chosen[np.argsort(values[-1, chosen], kind="stable")]
    scale = axes.transScale + axes.transLimits
    place = [float(scale.transform((axes.get_xlim()[1], values[-1, line]))[1]) for line in chosen]
    for line, wanted, height in zip(chosen, place, _apart(place), strict=True):
        axes.annotate(
            names[int(line)], (1, wanted), (1.025, height), xycoords="axes fraction", textcoords="axes fraction",
            fontsize=8, va="center", annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.5, "alpha": 0.5, "shrinkA": 1, "shrinkB": 0},
        )  # fmt: skip


def _apart(heights: Sequence[float], gap: float = 0.075) -> list[float]:
    """Ascending heights moved so that neighbours are `gap` apart, by as little as keeps each group at its centre.

    >>> [round(height, 2) for height in _apart([0.1, 0.5, 0.5, 0.9], gap=0.2)]
    [0.1, 0.4, 0.6, 0.9]
    """
    groups: list[tuple[float, int]] = []  # of a group: its centre, and how many it has
    for height in heights:
        centre, count = height, 1
        while groups and centre - gap * (count - 1) / 2 < groups[-1][0] + gap * ((groups[-1][1] - 1) / 2 + 1):
            before, others = groups.pop()
            centre, count = (centre * count + before * others) / (count + others), count + others
        groups.append((centre, count))
    return [centre + gap * (place - (count - 1) / 2) for centre, count in groups for place in range(count)]

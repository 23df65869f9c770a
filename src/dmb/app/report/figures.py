"""Figures: plain numbers in, a figure out; our style, and how a figure gets into a page."""

import io
import math
import re
import warnings
from itertools import cycle, product
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dmb.app.report.contents import Block

INK = "#0b0c0e"  # becomes the colour of the page's own text, so that one figure serves light and dark
BLUE, ORANGE, GREEN, GREY = "#2e86c8", "#d9662b", "#3f9a62", "#8a929b"  # legible on white and on black
COLOURS = (BLUE, ORANGE, GREEN, "#9a6fc4", "#b8921f", "#cf5b94", "#2fa3a3", "#6c7ba8")
WIDTH = 6.4  # inches

STYLE: dict[Any, Any] = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.labelsize": 9, "axes.titlesize": 9.5,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6,
    "axes.axisbelow": True,  # the grid lies behind the data
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlelocation": "left",
    "lines.linewidth": 1.4, "axes.unicode_minus": True, "axes.formatter.use_mathtext": False,
    "svg.fonttype": "none",  # text stays text: small, sharp, searchable, and in any script the reader's fonts know
    "svg.hashsalt": "dmb", "image.composite_image": False, "image.interpolation": "none",
}  # fmt: skip
# decorates what draws a figure, so that it has our style and global settings stay as they are
styled = mpl.rc_context(STYLE)

Values = Float[np.ndarray, " _"]


class Line(NamedTuple):
    """A quantity over steps, or over numbers of calls."""

    name: str
    step: Values
    value: Values
    error: Values | None = None
    colour: str | None = None


@styled
def over_steps(lines: list[Line], quantity: str, *, level: float = math.nan, loss: bool = False) -> Figure:
    """Quantities over steps of Score-learning, with a dashed line at what the marginals alone need, the `level`."""
    figure, axes = _panel()
    for usual, line in zip(COLOURS, lines, strict=False):
        colour, marker = line.colour or usual, "o" if len(line.step) <= 30 else ""
        axes.plot(line.step, line.value, color=colour, label=line.name, marker=marker, markersize=3.5)
        if line.error is not None:
            band = 2 * np.nan_to_num(line.error)
            axes.fill_between(line.step, line.value - band, line.value + band, color=colour, alpha=0.2, linewidth=0)
    values = np.concatenate([line.value[np.isfinite(line.value)] for line in lines])
    if math.isfinite(level):
        axes.axhline(level, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1.2, label="marginals alone")
    elif loss and len(values) > 20:  # whose first steps may run out of the picture
        margin = 0.06 * float(np.quantile(values, 0.95) - values.min()) or 0.1
        axes.set_ylim(values.min() - margin, np.quantile(values, 0.95) + margin)
    elif values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale("log")
    axes.set(xlabel="steps of Score-learning", ylabel=quantity)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return _with_legend(figure, beside=len(lines) > 2)


@styled
def over_calls(lines: list[Line], per: str, quantity: str, *, level: float = math.nan) -> Figure:
    """Quantities over network calls, or tokens per call; a dashed line at what the model itself needs, the `level`."""
    figure, axes = _panel()
    for (style, colour), line in zip(cycle(product(("-", "--", ":"), COLOURS)), lines, strict=False):
        look: dict[str, Any] = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3.5}
        axes.errorbar(line.step, line.value, line.error, label=line.name, **look)
    if math.isfinite(level):
        axes.axhline(level, color=GREY, linestyle=(0, (5, 3)), linewidth=1.2, label="the model's own bound")
    axes.set(xlabel=per, ylabel=quantity)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    return _with_legend(figure, beside=True)


@styled
def against(
    data: Values, samples: Values, low: Values, high: Values, quantity: str, *, logarithmic: bool = False
) -> Figure:
    """A quantity of samples against the same of the data, a dot each; in grey where chance alone would put it."""
    figure, axes = _panel()
    axes.errorbar(data, data, [data - low, high - data], fmt="none", ecolor=GREY, alpha=0.6, linewidth=1.5)
    axes.plot(data, samples, color=BLUE, linestyle="none", marker="o", markersize=3.5)
    ends = [min(data.min(), samples.min()), max(data.max(), samples.max())]
    if logarithmic:
        ends[0] = min(data[data > 0].min(), samples[samples > 0].min(initial=1.0)) / 2
        axes.set(xscale="log", yscale="log", ylim=(ends[0], 2 * ends[1]))
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    axes.set(xlabel=f"{quantity} data", ylabel=f"{quantity} samples")
    return figure


@styled
def survival(t: Values, chance: Float[np.ndarray, "k t"], named: dict[int, str]) -> Figure:
    """The chance that a token is unchanged, one line per state: some of them named, the others grey."""
    figure, axes = _panel()
    grey = [np.column_stack([t, row]) for index, row in enumerate(chance) if index not in named]
    axes.add_collection(LineCollection(grey, colors=GREY, linewidths=0.6, alpha=0.5, rasterized=len(grey) > 100))
    # in the order of the lines from top to bottom, so that the eye finds its way from a line to its name
    for colour, state in zip(COLOURS, sorted(named, key=lambda state: -chance[state].sum()), strict=False):
        axes.plot(t, chance[state], color=colour, linewidth=1.8, label=named[state])
    axes.set(xlim=(t[0], t[-1]), ylim=(-0.02, 1.02), xlabel="time t", ylabel="chance to be unchanged")
    return _with_legend(figure, beside=True)


@styled
def rates(lines: dict[str, Values]) -> Figure:
    """Rates by clock, the clock of the top state last, on a logarithmic axis; rates near 0 lie on its floor."""
    figure, axes = _panel()
    floor = 1e-3 * max(values.max() for values in lines.values())
    for colour, (name, values) in zip((GREY, *COLOURS), lines.items(), strict=False):
        axes.plot(1 + np.arange(len(values)), values.clip(floor), color=colour, label=name, marker="o", markersize=3.5)
    axes.set(xlabel="rank that a clock leads into", ylabel="rate", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return _with_legend(figure)


@styled
def speeds(first: Values, last: Values, grid: tuple[int, int]) -> Figure:
    """Log speeds along a sequence, a grid of one row; or the last ones as a map of an image, channels averaged."""
    before, after = (values.reshape(*grid, -1).mean(-1) for values in (first, last))
    figure, axes = _panel()
    if grid[0] > 1:
        figure.colorbar(axes.imshow(after, cmap="viridis"), ax=axes, label="log speed", pad=0.02)
        axes.set_axis_off()
        return figure
    axes.plot(before[0], color=GREY, linewidth=1.1, label="at the first evaluation")
    axes.plot(after[0], color=BLUE, linewidth=2, label="at the last")
    axes.set(xlabel="position", ylabel="log speed")
    return _with_legend(figure)


@styled
def groups(calls: dict[int, Int[np.ndarray, " _"]], grid: tuple[int, int]) -> Figure:
    """For each number of calls, which of them writes each position: along a sequence, or as a map of an image."""
    text, count = grid[0] == 1, len(calls)
    figure = Figure(figsize=(WIDTH, 0.5 * count + 0.6 if text else 1.7), layout="constrained")
    rows, across = (count, 1) if text else (1, count)
    for axes, (number, call) in zip(figure.subplots(rows, across, squeeze=False).flat, calls.items(), strict=True):
        cells = call.reshape(*grid, -1).mean(-1)
        axes.imshow(cells, cmap="viridis", aspect="auto" if text else "equal", vmin=0, vmax=max(1, number - 1))
        axes.set(title=f"{number} calls", xticks=[], yticks=[])
        axes.grid(visible=False)
    return figure


def as_block(figure: Figure, name: str, title: str, note: str = "") -> Block:
    """The figure as a piece of a page, see `to_svg`."""
    return Block(kind="figure", title=title, body=to_svg(figure, name), note=note)


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element: no prolog, no addresses of schemas, ids that begin with `name`."""
    svg = _rendered(figure, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def tag(match: re.Match[str]) -> str:
        text = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", match[0])
        text = re.sub(r'((?<=\s)id="|url\(#|href="#)', rf"\g<1>{name}-", text)
        text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)  # the family is the page's
        text = re.sub(r" font-family: [^;\"]*;", "", text)
        return text.replace(INK, "currentColor")

    return re.sub(r"<[^>]+>", tag, svg).strip()  # within tags only: what the data say stays as it is


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a picture on white."""
    return _rendered(figure, "png", dpi=dpi, facecolor="white")


@styled
def _rendered(figure: Figure, kind: str, dpi: int | str = "figure", facecolor: str = "none") -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # the browser has other fonts than the one that measures
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not support .* natively")
        figure.savefig(file, format=kind, dpi=dpi, facecolor=facecolor, bbox_inches="tight", pad_inches=0.04)
    return file.getvalue()


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    return figure, figure.subplots()


def _with_legend(figure: Figure, beside: bool = False) -> Figure:
    options: dict[str, Any] = {"loc": "upper left"} if beside else {"loc": "lower right", "ncols": 3}
    legend = figure.axes[0].legend(bbox_to_anchor=(1.01 if beside else 1, 1), borderaxespad=0, **options)
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    return figure

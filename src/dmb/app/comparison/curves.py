"""The figure of a comparison: the bound on validation data as training goes on, one line per row."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dmb.app.comparison.results import Results, RowResult
from dmb.app.records import Record
from dmb.app.reports.drawing import BLUE, GREEN, GREY, ORANGE, WIDTH, gridlines, styled

COLOURS = (BLUE, ORANGE, GREEN, "#8a5cc2", "#c4346b", "#a8820a", "#17a2a8", "#7a5230")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
FAR = 2
"""A row that ends at so many times the bits of the median row may leave the figure."""


@styled
def curves(results: Results) -> Figure:
    """Means over seeds, in a band from the least to the greatest: over training tokens, and over processor time.

    The rows are named once, the best first; the second panel also marks the equal time of the table.
    """
    figure = Figure(figsize=(WIDTH * 1.9, 4.2), layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    drawn = sorted((row for row in results.rows if row.runs), key=_last)
    for row in drawn:
        place = [each.name for each in results.plan.rows].index(row.name)  # a row keeps its colour
        dashes = DASHES[place // len(COLOURS) % len(DASHES)]
        look = {"color": COLOURS[place % len(COLOURS)], "linestyle": dashes, "label": f"{row.name}  {_last(row):.4f}"}
        _draw(by_tokens, row, lambda record: record.tokens, look)
        _draw(by_time, row, lambda record: record.cpu_seconds / 60, look | {"label": None})
    low, high = _range(drawn)
    by_tokens.set_ylim(low, high)
    thin: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
    if low < results.unigram_bits < high:
        by_tokens.axhline(results.unigram_bits, label=f"marginals  {results.unigram_bits:.4f}", **thin)
        by_time.axhline(results.unigram_bits, **thin)
    minutes = results.least_cpu_minutes
    if np.isfinite(minutes):
        by_time.axvline(minutes, linestyle=":", label=f"equal CPU time  {minutes:.1f} min", **thin)
    by_tokens.set(xlabel="training tokens", ylabel="validation bound, bits per token")
    by_tokens.xaxis.set_major_formatter(EngFormatter())
    unknown = drawn and not np.isfinite(minutes)
    by_time.set_xlabel("CPU minutes of training" + (": not recorded" if unknown else ""))
    for axes in (by_tokens, by_time):
        gridlines(axes)
    if drawn:
        title = "at the end, mean over seeds"
        figure.legend(loc="outside right upper", title=title, alignment="left", title_fontsize=8)
    return figure


def _draw(axes: Axes, row: RowResult, place: Callable[[Record], float], look: dict[str, Any]) -> None:
    """Over all places between the first and the last that the runs share, interpolated; nothing if one is unknown."""
    places = [[float(place(record)) for record in run.curve] for run in row.runs]
    grid = np.unique(np.concatenate(places))
    shared = (grid >= max(each[0] for each in places)) & (grid <= min(each[-1] for each in places))
    grid = grid[shared & np.isfinite(grid).all()]
    bits = [
        np.interp(grid, each, [record.bits for record in run.curve]) for each, run in zip(places, row.runs, strict=True)
    ]
    axes.fill_between(grid, np.min(bits, 0), np.max(bits, 0), color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(grid, np.mean(bits, 0), **look)


def _range(rows: list[RowResult]) -> tuple[float, float]:
    """A range of bits in which the last half of training can be read."""
    middle = np.nanmedian([_last(row) for row in rows]) if rows else np.nan
    runs = [run for row in rows if _last(row) < FAR * middle for run in row.runs]
    late = [record.bits for run in runs for record in run.curve if 2 * record.tokens >= run.last.tokens]
    late = [bits for bits in late if np.isfinite(bits)]
    if not late:
        return 0.0, 1.0
    margin = 0.05 * (max(late) - min(late)) or 0.1
    return min(late) - margin, max(late) + margin


def _last(row: RowResult) -> float:
    return float(np.mean([run.curve[-1].bits for run in row.runs]))

"""Figures of a comparison: the bound on validation data as training goes on, and that of what few calls sample."""

import math
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dmb.app.compare.results import Results, RowResult
from dmb.app.records import Record
from dmb.app.report.figures import BLUE, GREEN, GREY, ORANGE, WIDTH, Line, over_calls, styled

COLOURS = (BLUE, ORANGE, GREEN, "#8a5cc2", "#c4346b", "#a8820a", "#17a2a8", "#7a5230")
LOOKS = [{"color": colour, "linestyle": dash} for dash in ("-", "--", ":") for colour in COLOURS]


@styled
def curves(results: Results) -> Figure:
    """Means over seeds, in a band from the least to the greatest: over training tokens, and over processor time."""
    figure = Figure(figsize=(WIDTH * 1.9, 4.2), layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    drawn = sorted((row for row in results.rows if row.runs), key=lambda row: row.validation_at_end)
    for row in drawn:
        look = LOOKS[[each.name for each in results.plan.rows].index(row.name) % len(LOOKS)]  # a row keeps its own
        _draw(by_tokens, row, lambda record: record.tokens, look, f"{row.name}  {row.validation_at_end:.4f}")
        _draw(by_time, row, lambda record: record.cpu_seconds / 60, look)
    low, high = _range(drawn)
    thin: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
    if low < results.unigram_bits < high:
        by_tokens.axhline(results.unigram_bits, label=f"marginals  {results.unigram_bits:.4f}", **thin)
        by_time.axhline(results.unigram_bits, **thin)
    minutes = results.least_cpu_minutes
    if np.isfinite(minutes):
        by_time.axvline(minutes, linestyle=":", label=f"equal CPU time  {minutes:.1f} min", **thin)
    by_tokens.set(ylim=(low, high), xlabel="training tokens", ylabel="validation bound, bits per token")
    by_tokens.xaxis.set_major_formatter(EngFormatter())
    by_time.set_xlabel("CPU minutes of training" + (": not recorded" if drawn and np.isnan(minutes) else ""))
    if drawn:
        figure.legend(loc="outside right upper", title="at the end, mean of seeds", alignment="left", title_fontsize=8)
    return figure


def bits_over_calls(results: Results) -> Figure:
    """The bits of what is sampled, over the tokens that a network call writes; one line per row and sampler."""
    lines, positions = list[Line](), results.plan.data.num_positions
    for row in results.rows:
        for how, same in groupby(row.calls, attrgetter("how")):
            found = [(positions / each.calls, each.bits, each.stderr) for each in same if math.isfinite(each.bits)]
            lines.append(Line(f"{row.name}, {how}", *np.array(found).reshape(-1, 3).T))
    return over_calls(lines, "tokens per network call", "test bound of what is sampled, bits per token")


def _draw(axes: Axes, row: RowResult, place: Callable[[Record], float], look: dict[str, Any], name: str = "") -> None:
    """Over all places between the first and the last that the runs share, interpolated; nothing if one is unknown."""
    places = [[float(place(record)) for record in run.curve] for run in row.runs]
    grid = np.unique(np.concatenate(places))
    shared = (grid >= max(each[0] for each in places)) & (grid <= min(each[-1] for each in places))
    grid = grid[shared & np.isfinite(grid).all()]
    bits = [np.interp(grid, x, [record.bits for record in run.curve]) for x, run in zip(places, row.runs, strict=True)]
    axes.fill_between(grid, np.min(bits, 0), np.max(bits, 0), color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(grid, np.mean(bits, 0), label=name or None, marker="." if len(grid) == 1 else None, **look)


def _range(rows: list[RowResult]) -> tuple[float, float]:
    """A range of bits in which the last half of training can be read."""
    far = 2 * np.nanmedian([row.validation_at_end for row in rows]) if rows else np.nan  # out of the figure
    runs = [run for row in rows if row.validation_at_end < far for run in row.runs]
    late = [record.bits for run in runs for record in run.curve if 2 * record.tokens >= run.last.tokens]
    late = [bits for bits in late if np.isfinite(bits)] or [0.1, 0.9]
    margin = 0.05 * (max(late) - min(late)) or 0.1
    return min(late) - margin, max(late) + margin

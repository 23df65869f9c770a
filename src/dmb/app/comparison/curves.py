"""The figure of a comparison: the bound on validation data as training goes on, one line per row."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dmb.app.comparison.results import Results, RowResult
from dmb.app.reports.drawing import BLUE, GREEN, GREY, ORANGE, WIDTH, gridlines, styled

COLOURS = (BLUE, ORANGE, GREEN, "#8a5cc2", "#c4346b", "#a8820a", "#17a2a8", "#7a5230")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
FAR = 2
"""A row that ends at so many times the bits of the middle one is left to run out of the picture."""


@styled
def curves(results: Results) -> Figure:
    """Mean over seeds, in a band from the least to the greatest: against training tokens, and against processor time.

    The rows are named once, the best first; the second panel also marks the equal time of the table.
    """
    figure = Figure(figsize=(WIDTH * 1.9, 4.2), layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    places = {row.name: place for place, row in enumerate(results.plan.rows)}  # a row keeps its colour
    drawn = sorted((row for row in results.rows if row.runs), key=_last)
    for row in drawn:
        place = places[row.row.name]
        colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        look: dict[str, Any] = {"color": colour, "linestyle": dashes}
        _draw(by_tokens, *over_tokens(row), **look, label=f"{row.row.name}  {_last(row):.4f}")
        _draw(by_time, *over_cpu_minutes(row), **look)
    low, high = bits_shown(drawn)
    by_tokens.set_ylim(low, high)
    if low < results.unigram_bits < high:
        label = f"marginals  {results.unigram_bits:.4f}"
        by_tokens.axhline(results.unigram_bits, color=GREY, linewidth=0.8, label=label)
        by_time.axhline(results.unigram_bits, color=GREY, linewidth=0.8)
    known = np.isfinite(results.least_cpu_minutes)
    if known:
        label = f"equal CPU time  {results.least_cpu_minutes:.1f} min"
        by_time.axvline(results.least_cpu_minutes, color=GREY, linewidth=0.8, linestyle=":", label=label)
    by_tokens.set_xlabel("training tokens")
    by_tokens.xaxis.set_major_formatter(EngFormatter())
    by_tokens.set_ylabel("validation bound, bits per token")
    by_time.set_xlabel("CPU minutes of training" if known or not drawn else "CPU minutes of training: not recorded")
    for axes in (by_tokens, by_time):
        gridlines(axes)
    if drawn:
        title = "at the end, mean over seeds"
        figure.legend(loc="outside right upper", title=title, alignment="left", title_fontsize=8)
    return figure


def over_tokens(row: RowResult) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "s k"]]:
    """Token counts at which all runs were evaluated, and the bound of each run there."""
    found = [{point.tokens: point.bits for point in run.curve} for run in row.runs]
    common = sorted(set.intersection(*(set(curve) for curve in found)))
    return np.array(common, dtype=float), np.array(
        [[curve[tokens] for tokens in common] for curve in found], dtype=float
    )


def over_cpu_minutes(row: RowResult) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "s k"]]:
    """Times at which any run was evaluated, and the bound of each run there, interpolated linearly.

    Only times between the first and the last evaluation of every run count; there are none if a run's are unknown.
    """
    times = [np.array([point.cpu_seconds for point in run.curve]) / 60 for run in row.runs]
    bits = [[point.bits for point in run.curve] for run in row.runs]
    begin, end = max(time[0] for time in times), min(time[-1] for time in times)
    grid = np.unique(np.concatenate(times))
    if not np.isfinite(grid).all():
        return np.zeros(0), np.zeros((len(times), 0))
    grid = grid[(grid >= begin) & (grid <= end)]
    return grid, np.array([np.interp(grid, *run) for run in zip(times, bits, strict=True)])


def bits_shown(rows: list[RowResult]) -> tuple[float, float]:
    """A range in which the last half of training can be read."""
    middle = np.nanmedian([_last(row) for row in rows]) if rows else np.nan
    values = [np.zeros(0)]
    for row in rows:
        tokens, bits = over_tokens(row)
        if _last(row) < FAR * middle:
            values.append(bits[:, tokens >= tokens[-1] / 2].ravel())
    kept = np.concatenate(values)
    kept = kept[np.isfinite(kept)]
    if not kept.size:
        return 0.0, 1.0
    margin = 0.05 * float(np.ptp(kept)) or 0.1
    return float(kept.min()) - margin, float(kept.max()) + margin


def _draw(axes: Axes, x: Float[np.ndarray, " k"], bits: Float[np.ndarray, "s k"], **look: Any) -> None:
    axes.fill_between(x, bits.min(0), bits.max(0), color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(x, bits.mean(0), **look)


def _last(row: RowResult) -> float:
    return float(np.mean([run.curve[-1].bits for run in row.runs]))

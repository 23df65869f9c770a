"""The figure of a comparison: the bound on validation data as training goes on, one line per row."""

import numpy as np
from jaxtyping import Float
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
    """Mean over seeds against training tokens, in a band from the least to the greatest; the best is named first."""
    figure = Figure(figsize=(WIDTH * 1.25, 4.2), layout="constrained")
    axes = figure.subplots()
    places = {row.name: place for place, row in enumerate(results.plan.rows)}  # a row keeps its colour
    drawn = sorted((row for row in results.rows if row.runs), key=_last)
    for row in drawn:
        place = places[row.row.name]
        colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        tokens, bits = over_tokens(row)
        axes.fill_between(tokens, bits.min(0), bits.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(tokens, bits.mean(0), color=colour, linestyle=dashes, label=f"{row.row.name}  {_last(row):.4f}")
    low, high = bits_shown(drawn)
    axes.set_ylim(low, high)
    if low < results.unigram_bits < high:
        axes.axhline(results.unigram_bits, color=GREY, linewidth=0.8, label=f"marginals  {results.unigram_bits:.4f}")
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_ylabel("validation bound, bits per token")
    gridlines(axes)
    if drawn:
        title = "at the end, mean over seeds"
        figure.legend(loc="outside right upper", title=title, alignment="left", title_fontsize=8)
    return figure


def over_tokens(row: RowResult) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "s k"]]:
    """Token counts at which all runs were evaluated, and the bound of each run there."""
    found = [dict(run.curve) for run in row.runs]
    common = sorted(set.intersection(*(set(curve) for curve in found)))
    return np.array(common, dtype=float), np.array(
        [[curve[tokens] for tokens in common] for curve in found], dtype=float
    )


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


def _last(row: RowResult) -> float:
    return float(np.mean([run.curve[-1][1] for run in row.runs]))

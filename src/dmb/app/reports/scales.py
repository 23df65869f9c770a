"""Axes and colours for values that differ by orders of magnitude."""

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dmb.app.reports.drawing import ORANGE

COLOURS = "viridis"
DECADES = 10
"""Of a logarithmic scale; what lies below is drawn as its lowest value."""
GAP = 30
"""Values so many times apart do not share a scale."""
ROUND = (1, 2, 2.5, 5, 10)
"""Distances of ticks, up to powers of ten."""

Values = Float[np.ndarray, " _"]


def heat(axes: Axes, values: Float[np.ndarray, "r c"], aspect: str) -> Any:
    """An image on a logarithmic colour scale; what has no value is left out, what is 0 is grey.

    Fast clocks that lie far above all others are orange, and the scale is that of the others.
    """
    slow, _ = slow_and_fast(values)
    high = slow.max() if slow.size else 1.0
    low = max(slow.min() if slow.size else 0.1, high * 10.0**-DECADES)
    if high < 1.05 * low:
        low, high = low / 2, high * 2
    colours = mpl.colormaps[COLOURS].with_extremes(bad=(0, 0, 0, 0), under="#8a929b60", over=ORANGE)
    # zero becomes a value below the scale, or LogNorm would leave it out as well
    shown = np.where(values > 0, np.maximum(values, low), np.where(values == 0, low / 2, np.nan))
    axes.spines[["top", "right"]].set_visible(True)
    return axes.imshow(shown, cmap=colours, norm=LogNorm(low, high), aspect=aspect)  # type: ignore[arg-type]


def colour_bar(figure: Figure, axes: Axes, picture: Any, label: str) -> None:
    """The scale of a `heat` map, with a word on what lies above it."""
    fast = picture.get_array().compressed()
    fast = fast[fast > picture.norm.vmax]
    if fast.size:
        label += f"\norange: {_range(fast.min(), fast.max())}"
    bar = figure.colorbar(
        picture, ax=axes, label=label, pad=0.015, fraction=0.05, extend="max" if fast.size else "neither"
    )
    few_ticks(bar.ax.yaxis, picture.norm.vmin, picture.norm.vmax)


def slow_and_fast(values: Float[np.ndarray, "*s"]) -> tuple[Values, Values]:
    """Positive values below and above the widest gap, if it is so wide that a common scale would show neither well.

    The fast are never more than the slow: one clock that has come to a stop is no reason to set the others apart.
    """
    ordered = np.sort(values[np.isfinite(values) & (values > 0)], axis=None)
    ratios = ordered[1:] / ordered[:-1]
    if not ratios.size or ratios.max() < GAP:
        return ordered, ordered[:0]
    cut = int(ratios.argmax()) + 1
    if len(ordered) - cut > cut:
        return ordered, ordered[:0]
    return ordered[:cut], ordered[cut:]


def span(axes: Axes, values: Float[np.ndarray, "*s"], zero: bool = False) -> None:
    """An axis for positive values: logarithmic if they differ in size, else linear, if asked for from zero."""
    finite = values[np.isfinite(values) & (values > 0)]
    if not finite.size:
        return
    low, high = float(finite.min()), float(finite.max())
    if high > 10 * low:
        logarithmic(axes, finite)
        return
    margin = 0.1 * (high - low) or 0.1 * high
    axes.set_ylim(0 if zero else low - margin, 1.08 * high if zero else high + margin)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value, 2)))


def logarithmic(axes: Axes, values: Float[np.ndarray, "*s"]) -> None:
    """A logarithmic axis over one decade at the least; linear if no value has a logarithm."""
    finite = values[np.isfinite(values) & (values > 0)]
    if not finite.size:
        return
    low, high = float(finite.min()) / 1.6, float(finite.max()) * 1.6
    if high < 10 * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    low = max(low, high * 10.0**-DECADES)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    few_ticks(axes.yaxis, low, high)


def around_one(axes: Axes, factors: Float[np.ndarray, "*s"]) -> None:
    """A logarithmic axis for positive factors, with 1 in sight."""
    finite = np.append(factors[np.isfinite(factors) & (factors > 0)], 1.0)
    low, high = float(finite.min()) / 1.05, float(finite.max()) * 1.05
    low = max(low, high * 10.0**-DECADES)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    few_ticks(axes.yaxis, low, high)


def limit(axes: Axes, loss: Values, others: Values) -> None:
    """Let the first steps, whose loss is of another size, run out of the picture."""
    kept = loss[np.isfinite(loss)]
    values = np.concatenate([others[np.isfinite(others)], [np.quantile(kept, 0.9), kept.min()] if kept.size else []])
    if values.size:
        margin = 0.08 * float(np.ptp(values)) or 0.1
        axes.set_ylim(values.min() - margin, values.max() + margin)


def positive(values: Float[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """Values that a logarithm has."""
    return np.where(values > 0, values, np.nan)


def few_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis: powers of ten; with 1, 2 and 5 if they are few; round numbers within a decade."""
    if high < 10 * low:
        ticks = MaxNLocator(5, steps=ROUND).tick_values(low, high)
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axis.set_minor_locator(FixedLocator([]))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value, 2)))
    axis.set_minor_formatter(NullFormatter())


def row_ticks(positions: int, across: int, most: int = 16) -> range:
    """Where the rows of an image begin among its positions; every second, third, … if there are too many for an axis.

    >>> list(row_ticks(12, across=4)), list(row_ticks(12, across=4, most=2))
    ([0, 4, 8], [0, 8])
    """
    return range(0, positions, across * math.ceil(positions / across / most))


def _power(value: float, places: int = 0) -> str:
    """A number as a power of ten, in plain characters; `places` after the point of its first factor at most.

    >>> _power(0.02), _power(2e-5), _power(1e-10), _power(0.0)
    ('0.02', '2·10⁻⁵', '10⁻¹⁰', '0')
    """
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:g}"
    digits, exponent = f"{value:.{places}e}".split("e")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1" else f"{digits}·{power}"


def _range(low: float, high: float) -> str:
    shown = dict.fromkeys(f"{value:.3g}" for value in (low, high))
    return " to ".join(shown)

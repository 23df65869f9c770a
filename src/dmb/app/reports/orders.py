"""The order in which positions are written, in words: the slowest to be masked comes first."""

import math

import numpy as np
from jaxtyping import Float

from dmb.app.reports.scales import Values
from dmb.app.reports.symbols import short

NAMED_COLUMNS = 3
LONGEST_NAME = 28
ORDERED = 0.5
"""A weaker rank correlation is none worth naming."""
MOST_COMPARED = 512
"""Positions of which all pairs are compared; of more, some that are evenly spaced."""


def rank_correlation(a: Values, b: Values) -> float:
    """Spearman's ρ; 0 if either does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([0.1, 7.0, 300.0]))
    1.0
    """
    ranks = np.stack([_ranks(a), _ranks(b)])
    ranks -= ranks.mean(1, keepdims=True)
    (first, mixed), (_, second) = (ranks @ ranks.T).tolist()
    return mixed / math.sqrt(first * second) if first and second else 0.0


def order_along(log_speeds: Values, what: str = "text") -> str:
    """The order in which the positions of one axis are written, in words.

    >>> order_along(np.array([-2.0, 0.1, 0.2, 300.0]))
    'from left to right (rank correlation of log speed with position: +1.00)'
    """
    place = np.arange(len(log_speeds), dtype=float)
    rho, from_middle = (rank_correlation(each, log_speeds) for each in (place, np.abs(place - place.mean())))
    if abs(rho) < ORDERED <= abs(from_middle):
        order = "from the middle outwards" if from_middle > 0 else "from both ends to the middle"
        return f"{order} (rank correlation of log speed with distance from the middle: {_signed(from_middle)})"
    order = f"in no order along the {what}"
    if abs(rho) >= ORDERED:
        order = "from left to right" if rho > 0 else "from right to left"
    return f"{order} (rank correlation of log speed with position: {_signed(rho)})"


def order_on_grid(log_speeds: Float[np.ndarray, "h w"]) -> str:
    """The order in which the positions of a grid are written, in words.

    >>> order_on_grid(np.array([[0.0, -1.0], [300.0, 200.0]]))
    'from top to bottom (rank correlation of log speed with row: +0.89, with column: −0.45)'
    """
    row, column = np.indices(log_speeds.shape, dtype=float)
    from_middle = np.hypot(row - row.mean(), column - column.mean())
    down, across, outwards = (rank_correlation(each.ravel(), log_speeds.ravel()) for each in (row, column, from_middle))
    found = f"rank correlation of log speed with row: {_signed(down)}, with column: {_signed(across)}"
    words = []
    if abs(down) >= ORDERED:
        words.append("from top to bottom" if down > 0 else "from bottom to top")
    if abs(across) >= ORDERED:
        words.append("from left to right" if across > 0 else "from right to left")
    if not words and abs(outwards) >= ORDERED:
        words.append("from the middle outwards" if outwards > 0 else "from the edges inwards")
        found += f", with distance from the middle: {_signed(outwards)}"
    return f"{' and '.join(words) or 'in no order along rows or columns'} ({found})"


def order_of_columns(names: list[str], log_speeds: Values) -> str:
    """The columns that are written first and last, or all of them if they are few.

    >>> order_of_columns(["a", "b", "c"], np.array([1.0, -300.0, 7.0]))
    'in the order “b”, “a”, “c”'
    """
    quoted = [f"“{short(names[column], LONGEST_NAME)}”" for column in np.argsort(log_speeds, kind="stable")]
    if len(quoted) <= 2 * NAMED_COLUMNS:
        return f"in the order {', '.join(quoted)}"
    first, last = _listed(quoted[:NAMED_COLUMNS]), _listed(quoted[-NAMED_COLUMNS:])
    return f"in an order that begins with {first} and ends with {last}"


def firmness(log_speeds: Values) -> float:
    """The chance that of two positions the slower is written first, averaged over pairs: 1/2 if all are alike.

    >>> firmness(np.array([0.0, math.log(3)]))
    0.75
    """
    some = log_speeds[:: math.ceil(len(log_speeds) / MOST_COMPARED)]
    first, second = np.triu_indices(len(some), 1)
    return float((1 / (1 + np.exp(-np.abs(some[first] - some[second])))).mean()) if len(first) else 0.5


def _ranks(values: Values) -> Values:
    """From 0 up; values that are equal share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"

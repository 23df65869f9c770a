"""How often something occurs in data and in samples: values of a column by groups, with what chance alone allows."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.ticker import MaxNLocator

from dmb.data.columns import Column, Date, Number

# of a column: values that are all shown, of more the most frequent ones, and bars of a histogram
ALL, MOST, BARS = 20, 12, 12
DRAWS = 64  # values of each state of a number, to see where in its bin they lie
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.ASCII)


class Bar(NamedTuple):
    """A share of the data and of samples; that of a perfect model's samples lies in `range`, 19 times of 20."""

    label: str
    data: float
    samples: float
    range: tuple[float, float] | None = None


class Groups(NamedTuple):
    """What is counted together: names, and of each state the share that belongs to each of them."""

    names: list[str]
    share: Float[np.ndarray, "n g"]

    def bars(
        self,
        p: Float[np.ndarray, " n"],
        q: Float[np.ndarray, " n"],
        count: int | None = None,
        learned: float = np.inf,
    ) -> list[Bar]:
        """The shares of `learned` data with the law `p`, beside those of `count` samples; None: of the law `q`."""
        data, samples = (law @ self.share for law in (p, q))
        ranges: list[tuple[float, float] | None] = [None] * len(data)
        if count is not None:
            ranges = [*by_chance(data, data * (1 - data) * (1 / count + 1 / learned), count)]
        return [Bar(*each) for each in zip(self.names, data.tolist(), samples.tolist(), ranges, strict=True)]


def by_chance(
    share: Float[np.ndarray, " g"], variance: Float[np.ndarray, " g"], count: int
) -> list[tuple[float, float]]:
    """Two standard deviations around each share, and half of one of `count`: so it also holds for what is rare."""
    half = 2 * np.sqrt(variance) + 0.5 / count
    return [*zip((share - half).clip(0).tolist(), (share + half).clip(max=1).tolist(), strict=True)]


def groups_of(column: Column, p: Float[np.ndarray, " n"]) -> Groups:
    """The groups of a column whose data have the law `p`: they do not depend on samples, or these would look worse.

    All values if they are few; numbers and dates in equally wide bins; otherwise the most frequent, and the others.
    """
    if isinstance(column, Number | Date) and len(column) > MOST:
        return _histogram(column, p)
    names = names_of(column)
    chosen = most_frequent(p, ALL if len(column) <= ALL else MOST)
    order = by_name([names[state] for state in chosen])
    return some([names[chosen[k]] for k in order], [chosen[k] for k in order], len(column))


def names_of(column: Column) -> list[str]:
    """What states are called where an empty text cannot be seen."""
    return [column.display_name(state) or "(empty)" for state in range(len(column))]


def mean_of(column: Column, p: Float[np.ndarray, " n"]) -> str:
    """The mean of numbers or dates in words; of other values nothing."""
    given = p if column.missing is None else np.where(np.arange(len(p)) == column.missing, 0, p)
    if not isinstance(column, Number | Date) or not given.sum():
        return ""
    [mean] = column.expected(given[None] / given.sum(), real=True)
    return f"mean {mean:.4g}" if isinstance(mean, float) else f"mean {mean}"


def some(names: list[str], states: Sequence[int], count: int) -> Groups:
    """Each of these states for itself, and the others of `count` together, if there are any."""
    share = np.zeros((count, len(states) + 1))
    share[:, -1] = 1
    share[states] = np.eye(len(states), len(states) + 1)
    more = f"{count - len(states):,} others"
    return Groups([*names, more], share) if len(states) < count else Groups(names, share[:, :-1])


def most_frequent(p: Float[np.ndarray, " n"], most: int) -> list[int]:
    """At most so many states, the most frequent ones first."""
    return np.argsort(-p, kind="stable")[:most].tolist()


def by_name(names: Sequence[str]) -> list[int]:
    """Numbers by size, 10 after 9, where names begin with them; then all else as it stands."""
    found = [NUMBER.match(name) for name in names]
    return sorted(range(len(names)), key=lambda k: float(number[0]) if (number := found[k]) else np.inf)


def _histogram(column: Number | Date, p: Float[np.ndarray, " n"]) -> Groups:
    """Bins with round ends, of which the first and the last have all that is far away; and what is missing."""
    states = np.repeat(np.arange(len(column)), DRAWS)
    places = column.axis(states, np.random.default_rng(0))
    there = ~np.isnan(places)
    order = np.argsort(places[there])
    weights = p[states[there]][order].cumsum()
    low, high = np.interp([0.005, 0.995], weights / weights[-1], places[there][order])
    whole = bool((places[there] == places[there].round()).all())
    edges = MaxNLocator(BARS, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    inner = edges[1:-1]
    bins = np.where(there, np.searchsorted(inner, places, side="right"), len(inner) + 1)
    share = np.zeros((len(column), len(inner) + 2))
    np.add.at(share, (states, bins), 1 / DRAWS)
    names = [f"{column.at(a)} to {column.at(b)}" for a, b in pairwise(inner)]
    names = [f"below {column.at(inner[0])}", *names, f"{column.at(inner[-1])} or more", "missing"]
    used = [k for k in range(len(names)) if k <= len(inner) or column.missing is not None]
    return Groups([names[k] for k in used], share[:, used])

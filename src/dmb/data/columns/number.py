"""Columns of numbers: bins that hold about equally many values, and a histogram inside each."""

from collections.abc import Sequence
from math import log, log10
from typing import Any

import numpy as np
from jaxtyping import Float

from dmb._core import checks
from dmb.data.columns.base import MISSING, Column, Value, as_numbers

_FINE = 8  # cells of the histogram inside a bin
_FEWEST = 20  # values in a bin
_FEW, _SHARED = 64, 5  # so few different values are all states; beyond that, those that so many rows share
_DECIMALS = 6  # more than that: the numbers are taken to be real


class Number(Column):
    r"""A state is a bin of values, one value that many rows share, or a missing value.

    The values inside a bin are a histogram of the training data, `p(v | bin) = w_j / (W \Delta_j)` in cell `j` of
    weight `w_j` and width `\Delta_j`, with `W` the weight of the bin. Drawing one is a look at the piecewise linear
    inverse of the distribution function. Beyond the first and the last cell there is an exponential tail of mass
    `1 / (N + 1)`, as Laplace's rule has it, so that a new value has a density; samples are never drawn from there.
    Where there are no bins, a new value has the state of the nearest known one, which leaves the same mass to values on
    either side of it, up to halfway to the next.

    Args:
        edges: of the cells, increasing.
        weights: number of training values in each cell.
        firsts: the first cell of each bin.
        atoms: values that are states of their own, increasing.
        step: all values are multiples of this power of ten; 0 for real numbers.
        integer: values are whole numbers.
        missing: there are missing values; state 0 stands for them.
        rows: number of training values, where there are no bins; by default, new values are not known there.
        grid: what all values of bins lie apart, as 25 of masses to the nearest 25: values are drawn on it. Others are
            known, but have the mass of a new value between them. Default: `step`.

    >>> number = Number.of(np.arange(1000), np.ones(1000), bins=4)
    >>> len(number), number.labels[0], number.states([3, 400, 5000, 1.5])
    (4, '0 to 249', array([ 0,  1,  3, -1]))
    """

    kind = "number"

    def __init__(
        self,
        edges: Sequence[float] | np.ndarray,
        weights: Sequence[float] | np.ndarray,
        firsts: Sequence[int] | np.ndarray,
        atoms: Sequence[float] | np.ndarray,
        step: float = 0.0,
        integer: bool = False,
        missing: bool = False,
        rows: float | None = None,
        grid: float | None = None,
    ):
        self.edges, self.weights = np.asarray(edges, dtype=float), np.asarray(weights, dtype=float)
        self.firsts, self.atoms = np.asarray(firsts, dtype=np.int64), np.asarray(atoms, dtype=float)
        if len(self.edges) != len(self.weights) + bool(len(self.weights)) or (np.diff(self.edges) <= 0).any():
            raise ValueError("edges must increase and be one more than the weights")
        if not len(self.atoms) and not len(self.weights):
            raise ValueError("a column of numbers must have at least one, got none")
        self.step, self.integer, self._has_missing = step, integer, missing
        self.grid = grid or step
        self.rows = None if len(self.weights) else rows
        self._cumulative = np.concatenate([[0.0], self.weights.cumsum()])
        self._lasts = np.append(self.firsts[1:], len(self.weights))[: len(self.firsts)]
        # atoms and then bins, with the least and the greatest value of each; a rank is their place by these values
        low, high = self.edges[self.firsts], self.edges[self._lasts]
        self._of_rank = np.argsort(np.concatenate([self.atoms, low]), kind="stable")
        self._rank = np.argsort(self._of_rank) + missing
        least = map(self._text, np.concatenate([self.atoms, low + step / 2])[self._of_rank])
        greatest = map(self._text, np.concatenate([self.atoms, high + step / 2 - self.grid])[self._of_rank])
        spans = (a if a == b else f"{a} to {b}" for a, b in zip(least, greatest, strict=True))
        self.labels = [""] * missing + [*spans]

    @classmethod
    def of(
        cls, values: np.ndarray, counts: np.ndarray, *, bins: int = 64, integer: bool = False, missing: bool = False
    ) -> "Number":
        """The column of these distinct `values`, increasing, with how often the training data have each."""
        checks.at_least(2, bins=bins)
        values, counts = np.asarray(values, dtype=float), np.asarray(counts, dtype=float)
        rows = float(counts.sum())
        if len(values) <= min(bins, _FEW):
            heavy = np.ones(len(values), dtype=bool)
        else:
            values, counts = values[counts > 0], counts[counts > 0]
            heavy = _shared(counts, bins)
        step, grid = step_of(values), None
        if (~heavy).sum() == 1:
            heavy[:] = True
        rest, own = values[~heavy], counts[~heavy]
        edges, weights, firsts = np.empty(0), np.empty(0), np.empty(0, dtype=np.int64)
        if len(rest):
            count = int(max(1, min(bins - heavy.sum(), own.sum() // _FEWEST)))
            cells = _cuts(own, count * _FINE)
            between = rest[cells] - step / 2 if step else (rest[cells] + rest[cells - 1]) / 2
            grid = step and step * float(np.gcd.reduce(np.round((rest - rest[0]) / step).astype(np.int64)))
            edges = np.concatenate([[rest[0] - step / 2], between, [rest[-1] - step / 2 + grid]])
            weights = np.add.reduceat(own, np.concatenate([[0], cells]))
            firsts = np.concatenate([[0], _cuts(weights, count)])
        return cls(edges, weights, firsts, values[heavy], step, integer, missing, rows, grid)

    def states(self, values: Sequence[Value], nearest: bool = False) -> np.ndarray:
        numbers = as_numbers(values)
        states = np.full(len(numbers), -1)
        inside = np.isfinite(numbers)
        if len(self.weights):
            fits = inside
            if self.step and not nearest:
                steps = (numbers - self.edges[0]) / self.step - 0.5
                fits = inside & np.isclose(steps, np.round(steps), rtol=0, atol=1e-3)
            cells, bins = self._place(numbers)
            states[fits] = self._rank[len(self.atoms) + bins[fits]]
        if len(self.atoms):
            close, match = self._closest(numbers)
            if nearest:
                match = inside & (match | self._between(numbers, cells) if len(self.weights) else inside)
            elif self.rows is not None:
                match = inside & (np.round(numbers) == numbers if self.integer else True)
            states[match] = self._rank[close[match]]
        if self._has_missing:
            states[[value is None or value != value or str(value).strip() in MISSING for value in values]] = 0
        return states

    def values(self, states: np.ndarray, rng: np.random.Generator) -> list[Value]:
        states = np.asarray(states)
        which = self._of_rank[np.maximum(states - self._has_missing, 0)]
        atom = which < len(self.atoms)
        numbers = np.append(self.atoms, np.zeros(len(self.firsts)))[which]
        bins = which[~atom] - len(self.atoms)
        low, high = self._cumulative[self.firsts[bins]], self._cumulative[self._lasts[bins]]
        drawn = low + (high - low) * rng.random(len(bins))
        numbers[~atom] = self._rounded(np.interp(drawn, self._cumulative, self.edges)) if len(bins) else []
        gone = states < self._has_missing
        return [None if none else self._typed(v) for none, v in zip(gone.tolist(), numbers.tolist(), strict=True)]

    def axis(self, states: np.ndarray, rng: np.random.Generator) -> Float[np.ndarray, " k"]:
        """Where a value of each state lies; nan for a missing one."""
        return as_numbers(self.values(states, rng))

    def at(self, place: float) -> str:
        """What is written there."""
        return f"{place:.{_DECIMALS}g}"

    def means(self) -> list[Value]:
        middles = (self.edges[1:] + self.edges[:-1] + self.step - self.grid) / 2
        means: list[Value] = [self._typed(atom) for atom in self.atoms]
        for cells in map(slice, self.firsts, self._lasts):
            means.append(float(np.average(middles[cells], weights=self.weights[cells])))
        missing: list[Value] = [None] * self._has_missing
        return missing + [means[which] for which in self._of_rank]

    def expected(self, p: Float[np.ndarray, "b n"], real: bool | None = None) -> list[Value]:
        sizes = np.array([0.0 if mean is None else mean for mean in self.means()], dtype=float)
        means = p @ sizes
        if not self.integer or real:
            return [round(mean, decimals_of(0.0 if self.integer else self.step)) for mean in means.tolist()]
        if not len(self.weights):
            means = self.atoms[self._closest(means)[0]]
        return [round(mean) for mean in means.tolist()]

    def in_type(self, value: Value) -> Value:
        return self._typed(as_numbers([value])[0])

    def log_density(self, values: Sequence[Value]) -> np.ndarray:
        numbers = as_numbers(values)
        found = np.zeros(len(numbers))
        if not len(self.weights):
            there = np.isfinite(numbers)
            found[there] = self._log_near_atoms(numbers[there])
            return found
        binned = np.isfinite(numbers)
        if len(self.atoms):
            binned &= ~self._closest(numbers)[1]
        number = numbers[binned]
        cell, bins = self._place(number)
        mass = self._cumulative[self._lasts] - self._cumulative[self.firsts]
        density = np.log(self.weights[cell] / mass[bins] / np.diff(self.edges)[cell])
        tail, scale = 1 / (self._cumulative[-1] + 1), self.edges[-1] - self.edges[0]
        density += np.log1p(-tail * ((bins == 0).astype(float) + (bins == len(self.firsts) - 1)))
        for beyond in (self.edges[0] - number, number - self.edges[-1]):
            density = np.where(beyond > 0, log(tail / scale) - beyond / scale, density)
        if self.integer and self.grid > self.step:
            steps, sparse = np.round((number - self.edges[0]) / self.step - 0.5), 1 - self.step / self.grid
            off = (steps * self.step) % self.grid > self.step / 2
            density += np.where(off, log(tail * self.step / sparse), log(self.grid * (1 - tail)))
        found[binned] = density  # of whole numbers, one apart, also the mass
        return found

    def describe(self) -> str:
        if not len(self.weights):
            return f"{len(self.atoms):,} numbers from {self._text(self.atoms[0])} to {self._text(self.atoms[-1])}"
        what = "whole numbers" if self.integer else "numbers"
        ends = self.edges[[0, -1]] + np.array([self.step / 2, self.step / 2 - self.grid])
        low, high = map(self._text, ends)
        alone = f"{len(self.atoms):,} {'value' if len(self.atoms) == 1 else 'values'} that many rows share"
        shared = f" and {alone}" if len(self.atoms) else ""
        return f"{what} from {low} to {high}, in {len(self.firsts):,} bins{shared}"

    def config(self) -> dict[str, Any]:
        return {
            "edges": self.edges.tolist(), "weights": self.weights.tolist(), "firsts": self.firsts.tolist(),
            "atoms": self.atoms.tolist(), "step": self.step, "integer": self.integer, "missing": self._has_missing,
        } | {k: v for k, v in {"rows": self.rows, "grid": self.grid}.items() if v not in (None, self.step)}  # fmt: skip

    def _log_near_atoms(self, numbers: np.ndarray) -> np.ndarray:
        """`log p(number | its state)` where there are no bins: most of the mass is on the atom itself."""
        if self.rows is None:
            return np.zeros(len(numbers))
        close, known = self._closest(numbers)
        between = (self.atoms[1:] + self.atoms[:-1]) / 2
        low, high = np.append(-np.inf, between), np.append(between, np.inf)
        if self.integer:
            low, high = np.floor(low) + 1, np.floor(high)
        room = np.stack([self.atoms - low, high - self.atoms])  # on each side: of whole numbers, how many
        sides, new = (room > 0).sum(0), 1 / (self.rows + 1)
        found = np.log1p(-new * (sides > 0))[close]
        close, number = close[~known], numbers[~known]
        away, room = np.abs(number - self.atoms[close]), np.where(number < self.atoms[close], *room[:, close])
        scale = max(np.ptp(self.atoms), 1.0)
        tail = log(np.expm1(1 / scale)) if self.integer else -log(scale)  # geometric, or exponential
        found[~known] = np.log(new / sides[close]) + np.where(np.isinf(room), tail - away / scale, -np.log(room))
        return found

    def _closest(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The atom nearest to each number, and whether it is that number."""
        close = np.searchsorted((self.atoms[1:] + self.atoms[:-1]) / 2, numbers)
        return close, self.atoms[close] == numbers

    def _place(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cell and the bin of each number; what lies beyond belongs to the first or the last."""
        cell = np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, len(self.weights) - 1)
        return cell, np.searchsorted(self.firsts, cell, side="right") - 1

    def _between(self, numbers: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Whether the atoms next to a number are nearer than the ends of its cell, on both sides."""
        above = np.searchsorted(self.atoms, numbers)
        low, high = np.append(-np.inf, self.atoms)[above], np.append(self.atoms, np.inf)[above]
        return (low >= self.edges[cells]) & (high <= self.edges[cells + 1])

    def _rounded(self, numbers: np.ndarray) -> np.ndarray:
        """The value of the grid that each number lies at, or above."""
        if not self.step:
            return numbers
        last = round((self.edges[-1] - self.edges[0]) / self.grid) - 1
        places = np.clip(np.floor((numbers - self.edges[0]) / self.grid), 0, last)
        return self.edges[0] + self.step / 2 + places * self.grid

    def _typed(self, number: float) -> Value:
        if self.integer:
            return round(number)
        return round(float(number), _DECIMALS) if self.step else float(number)

    def _text(self, number: float) -> str:
        return f"{number:.{_DECIMALS}g}" if not self.integer else str(round(number))


def step_of(values: np.ndarray) -> float:
    """The power of ten, 1 or below, of which all values are multiples; 0 if there is none.

    >>> step_of(np.array([1.0, 2.5, 7.25])), step_of(np.array([0.1, 2 / 3]))
    (0.01, 0.0)
    """
    largest = np.abs(values).max(initial=0.0)
    for decimals in range(_DECIMALS + 1):
        if largest < 1e15 / 10**decimals and (values == np.round(values, decimals)).all():
            return float(f"1e-{decimals}")
    return 0.0


def decimals_of(step: float) -> int:
    """To how many places a mean of numbers with this step is told: theirs, or all of a float."""
    return 15 if not step else max(0, -round(log10(step)))


def _shared(counts: np.ndarray, bins: int) -> np.ndarray:
    """Which values are states of their own: those that `least` rows share, the lowest number that leaves enough bins.

    There are enough if a bin of the other values need not hold more than `least` rows, or `_FEWEST`. From the mean
    number of rows per state on there always are.
    """
    for least in range(_SHARED, int(counts.sum() / bins) + 1):
        heavy = counts >= least
        if counts[~heavy].sum() <= (bins - heavy.sum()) * max(least, _FEWEST):
            return heavy
    return counts > counts.sum() / bins


def _cuts(weights: np.ndarray, parts: int) -> np.ndarray:
    """Where to cut a list into at most `parts` of about equal weight: the first index of each but the first."""
    total = weights.cumsum()
    cuts = np.unique(np.searchsorted(total, total[-1] * np.arange(1, parts) / parts) + 1)
    return cuts[cuts < len(weights)]

"""Columns of categories."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from dmb.data.columns.base import MISSING, Column, Value, as_numbers, numeric, shown, whole


class Category(Column):
    """One state a value.

    Args:
        values: state `k` stands for the `k`-th.
        nominal: numbers are only names here, and have no mean.

    >>> Category(["blue", "green", "red"]).states(["red", "pink"])
    array([ 2, -1])
    """

    kind = "category"

    def __init__(self, values: Sequence[Value], nominal: bool = False):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"values must be distinct and not empty, got {list(values[:8])}")
        self.known = list(values)
        self.labels = [shown(value) for value in values]
        self.nominal = nominal
        self._missing = next((state for state, value in enumerate(values) if value is None or value == ""), None)
        if self._missing is None:  # numbers, and a word that says there is none
            words = [state for state, value in enumerate(values) if isinstance(value, str) and value.strip() in MISSING]
            if len(words) == 1 and len(values) > 1 and numeric([v for k, v in enumerate(values) if k != words[0]]):
                [self._missing] = words
        self._states = {value: state for state, value in enumerate(values)}

    def states(self, values: Sequence[Value], nearest: bool = False) -> np.ndarray:
        return np.array([self._states.get(value, -1) for value in values], dtype=np.int64)

    def values(self, states: np.ndarray, rng: np.random.Generator) -> list[Value]:
        return [self.known[state] for state in states.tolist()]

    def means(self) -> list[Value]:
        return list(self.known)

    def expected(self, p: Float[np.ndarray, "b n"], real: bool | None = None) -> list[Value]:
        given = [state for state in range(len(self)) if state != self.missing]
        values = [self.known[state] for state in given]
        if self.nominal or not values or not numeric(values):
            return [self.known[state] for state in p.argmax(-1).tolist()]
        numbers = as_numbers(values)
        means = p[:, given] @ numbers
        if real or (real is None and not whole(values)):
            return means.tolist()
        return [values[nearest] for nearest in np.abs(means[:, None] - numbers).argmin(-1).tolist()]

    @property
    def missing(self) -> int | None:
        return self._missing

    def display_name(self, state: int) -> str:
        return "missing" if self.known[state] is None else self.labels[state]

    def describe(self) -> str:
        first = ", ".join(repr(label) for label in self.labels[:5])
        more = f" and {len(self) - 5:,} more" if len(self) > 5 else ""
        return f"{len(self):,} values: {first}{more}" if len(self) > 1 else f"always {first}"

    def config(self) -> dict[str, Any]:
        return {"values": self.known} | ({"nominal": True} if self.nominal else {})

"""How like real rows synthetic rows are."""

from itertools import combinations
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors

from dmb.data.frames import is_missing

_FOLDS = 5
_BINS = 10  # of numbers in a table of counts
_MOST = 20_000  # rows of each side that a classifier sees


class Quality(NamedTuple):
    """Rows compared with real ones that the model has not seen."""

    shapes: float
    """Likeness of single columns, 1 at best: `1 - sup |F - F'|` of numbers, `1 - TV` of categories; their mean."""
    pairs: float
    """Likeness of pairs of columns, 1 at best: `1 - |ρ - ρ'| / 2` of two numbers, else `1 - TV`; their mean."""
    auc: float
    """How well gradient boosting tells them apart; 0.5: not at all."""
    auc_error: float
    """Standard error of `auc` over five folds."""
    copies: float
    """Share of rows that are nearer to a row of the training data than to one that was set apart; 0.5 at best."""

    def __str__(self) -> str:
        return (
            f"shapes {self.shapes:.3f}, pairs {self.pairs:.3f}, "
            f"AUC {self.auc:.3f} ± {self.auc_error:.3f}, nearer to training rows {self.copies:.3f}"
        )


def quality(synthetic: Any, real: Any, training: Any, seed: int = 0) -> Quality:
    """Compare synthetic rows with real ones.

    Column shapes and pair trends are defined as in SDMetrics, except that two rows which lack a value are alike there.

    Args:
        synthetic: a data frame.
        real: rows with the same columns that no model has seen.
        training: the rows that the model learned.
        seed: of folds and subsets.

    >>> import pandas
    >>> rows = pandas.DataFrame({"a": range(100), "b": ["x", "y"] * 50})
    >>> quality(rows, rows, rows).shapes
    1.0
    """
    frames = [nw.from_native(frame, eager_only=True) for frame in (synthetic, real, training)]
    names = frames[0].columns  # without those that a model leaves out
    columns = [_Codes(*(frame[name].to_list() for frame in frames)) for name in names]
    shapes = [column.likeness() for column in columns]
    pairs = [_pair(one, other) for one, other in combinations(columns, 2)]
    rng = np.random.default_rng(seed)
    tables = [np.stack([column.parts[part] for column in columns], axis=1) for part in range(3)]
    kinds = np.array([not column.numeric for column in columns])
    auc, error = _auc(_some(tables[0], _MOST, rng), _some(tables[1], _MOST, rng), kinds, seed)
    return Quality(
        float(np.mean(shapes)), float(np.mean(pairs)) if pairs else 1.0, auc, error, _copies(tables, kinds, rng)
    )


def anchors(real: Any, training: Any, seed: int = 0) -> dict[str, Quality]:
    """What to compare a `quality` with: columns independent of one another, and the training rows themselves."""
    frame = nw.from_native(training, eager_only=True)
    rng = np.random.default_rng(seed)
    shuffled = [frame[name].gather_every(1)[rng.permutation(len(frame)).tolist()] for name in frame.columns]
    independent = nw.concat([series.to_frame() for series in shuffled], how="horizontal").to_native()
    return {
        "independent columns": quality(independent, real, training, seed),
        "training rows": quality(training, real, training, seed),
    }


class _Codes:
    """A column of all three frames as numbers: its own, nan where missing, or one for each category."""

    def __init__(self, *parts: list[Any]):
        given = [value for part in parts for value in part if not is_missing(value)]
        self.numeric = bool(given) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
        if self.numeric:
            self.parts = [
                np.array([np.nan if is_missing(value) else value for value in part], dtype=float) for part in parts
            ]
        else:
            names = sorted({str(value) for part in parts for value in part})
            known = {name: code for code, name in enumerate(names)}
            self.parts = [np.array([known[str(value)] for value in part], dtype=float) for part in parts]

    def likeness(self) -> float:
        one, other = self.parts[:2]
        if not self.numeric:
            return 1 - _variation(_shares(one), _shares(other))
        gap = abs(np.isnan(one).mean() - np.isnan(other).mean())
        one, other = np.sort(one[~np.isnan(one)]), np.sort(other[~np.isnan(other)])
        if not len(one) or not len(other):
            return 1 - float(gap)
        at = np.concatenate([one, other])
        distance = np.abs(
            np.searchsorted(one, at, "right") / len(one) - np.searchsorted(other, at, "right") / len(other)
        ).max()
        return 1 - max(float(distance), float(gap))

    def binned(self) -> list[np.ndarray]:
        if not self.numeric:
            return self.parts[:2]
        real = self.parts[1]
        given = real[~np.isnan(real)]
        edges = np.unique(np.quantile(given, np.linspace(0, 1, _BINS + 1)[1:-1])) if len(given) else given
        return [np.where(np.isnan(part), -1.0, np.searchsorted(edges, part)) for part in self.parts[:2]]


def _pair(one: _Codes, other: _Codes) -> float:
    if one.numeric and other.numeric:
        found = []
        for x, y in zip(one.parts[:2], other.parts[:2], strict=True):
            here = ~(np.isnan(x) | np.isnan(y))
            spread = here.sum() > 1 and x[here].std() > 0 and y[here].std() > 0
            found.append(np.corrcoef(x[here], y[here])[0, 1] if spread else 0.0)
        return 1 - abs(found[0] - found[1]) / 2
    tables = [a * 1e6 + b for a, b in zip(one.binned(), other.binned(), strict=True)]
    return 1 - _variation(*map(_shares, tables))


def _auc(synthetic: np.ndarray, real: np.ndarray, categories: np.ndarray, seed: int) -> tuple[float, float]:
    x = np.concatenate([synthetic, real])
    y = np.concatenate([np.ones(len(synthetic)), np.zeros(len(real))])
    few = categories & (np.nanmax(x, axis=0, initial=0.0) < 255)
    found = []
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(x, y):
        classifier = HistGradientBoostingClassifier(
            categorical_features=few, class_weight="balanced", random_state=seed
        ).fit(x[train], y[train])
        found.append(roc_auc_score(y[test], classifier.predict_proba(x[test])[:, 1]))
    return float(np.mean(found)), float(np.std(found, ddof=1) / _FOLDS**0.5)


def _copies(tables: list[np.ndarray], categories: np.ndarray, rng: np.random.Generator) -> float:
    """As many training as real rows; the distance of two categories is 0 or 1, that of two numbers of their ranks."""
    size = min(len(tables[1]), len(tables[2]), 2000)
    synthetic, real, training = (_some(table, size, rng) for table in tables)
    parts = []
    for column, category in enumerate(categories):
        values = [np.nan_to_num(table[:, column], nan=-1.0) for table in (synthetic, real, training)]
        together = np.concatenate(values)
        if category:
            codes = np.unique(together)
            parts.append([(value[:, None] == codes) / 2 for value in values])
        else:
            ordered = np.sort(together)
            parts.append([np.searchsorted(ordered, value)[:, None] / len(ordered) for value in values])
    synthetic, real, training = (np.concatenate([part[k] for part in parts], axis=1) for k in range(3))
    near, far = (
        NearestNeighbors(n_neighbors=1, metric="manhattan").fit(rows).kneighbors(synthetic)[0][:, 0]
        for rows in (training, real)
    )
    return float((near < far).mean() + (near == far).mean() / 2)


def _some(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]


def _shares(values: np.ndarray) -> dict[float, float]:
    distinct, counts = np.unique(values, return_counts=True)
    return dict(zip(distinct.tolist(), (counts / len(values)).tolist(), strict=True))


def _variation(one: dict[float, float], other: dict[float, float]) -> float:
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys()) / 2

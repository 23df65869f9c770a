"""How like real rows synthetic rows are."""

import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
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
_MOST = 20_000  # rows of each kind that are looked at
_TARGETS, _CLASSES = 3, 20  # columns that are predicted, and the values that they may have

Rows = Any
"""A data frame, or a dictionary of columns: lists of values, of which None is missing."""


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
    accuracy: float
    """Of gradient boosting that learned these rows, on real rows: the mean over the last three columns that have 2 to
    20 values; nan if there is none."""
    copies: float
    """Share of rows that are nearer to a row of the training data than to one that was set apart; 0.5 at best."""

    def __str__(self) -> str:
        return (
            f"shapes {self.shapes:.3f}, pairs {self.pairs:.3f}, AUC {self.auc:.3f} ± {self.auc_error:.3f}, "
            f"accuracy {self.accuracy:.3f}, nearer to training rows {self.copies:.3f}"
        )


def quality(
    synthetic: Rows,
    real: Rows,
    training: Rows,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Quality:
    """Compare synthetic rows with real ones.

    Column shapes and pair trends are defined as in SDMetrics, except that two rows which lack a value are alike there.
    Of each kind, 20,000 rows are looked at, chosen at random if there are more. `anchors` says what to expect.

    Args:
        synthetic: a data frame, or a dictionary of columns.
        real: rows with the same columns that no model has seen.
        training: the rows that the model learned.
        seed: of folds and subsets.
        progress: called with the number of steps done, and of all.

    >>> import pandas
    >>> rows = pandas.DataFrame({"a": range(100), "b": ["x", "y"] * 50})
    >>> quality(rows, rows, rows).shapes
    1.0
    """
    rng = np.random.default_rng(seed)
    names = _names(synthetic)  # without those that a model leaves out
    parts = [_columns(rows, names, rng) for rows in (synthetic, real, training)]
    for name, part in zip(("synthetic", "real", "training"), parts, strict=True):
        if len(part[names[0]]) < 2 * _FOLDS:
            raise ValueError(f"{name} must have at least {2 * _FOLDS} rows to compare, got {len(part[names[0]])}")
    columns = [_Codes(*(part[name] for part in parts)) for name in names]
    tables = [np.stack([column.parts[part] for column in columns], axis=1) for part in range(3)]
    kinds = np.array([not column.numeric for column in columns])
    distinct = [len(np.unique(np.concatenate(column.parts[1:]))) for column in columns]  # of real rows
    targets = [i for i, number in enumerate(distinct) if 2 <= number <= _CLASSES][-_TARGETS:]
    steps = itertools.count(1)

    def advance() -> None:
        if progress is not None:
            progress(next(steps), 2 + _FOLDS + len(targets))

    shapes = [column.likeness() for column in columns]
    pairs = [_pair(one, other) for one, other in itertools.combinations(columns, 2)]
    advance()
    auc, error = _auc(tables[0], tables[1], kinds, seed, advance)
    found = [_accuracy(tables[0], tables[1], target, kinds, seed, advance) for target in targets]
    copies = _copies(tables, kinds, rng)
    advance()
    return Quality(
        shapes=float(np.mean(shapes)),
        pairs=float(np.mean(pairs)) if pairs else 1.0,
        auc=auc,
        auc_error=error,
        accuracy=float(np.mean(found)) if found else float("nan"),
        copies=copies,
    )


def anchors(training: Rows, count: int, seed: int = 0) -> dict[str, dict[str, list[Any]]]:
    """Rows that say what a `quality` is worth: columns independent of one another, and the training rows themselves.

    The first has perfect shapes and nothing else; the second is what a perfect model would reach, but for copies.

    Args:
        training: the rows that the model learned.
        count: how many rows, at most; as many as synthetic rows, because more of them teach more.
        seed: of the choice.
    """
    rng = np.random.default_rng(seed)
    rows = _columns(training, _names(training), rng, count)
    shuffled = {name: [values[k] for k in rng.permutation(len(values))] for name, values in rows.items()}
    return {"independent columns": shuffled, "training rows": rows}


def _names(rows: Rows) -> list[str]:
    return list(rows if isinstance(rows, Mapping) else nw.from_native(rows, eager_only=True).columns)


def _columns(rows: Rows, names: list[str], rng: np.random.Generator, most: int = _MOST) -> dict[str, list[Any]]:
    """Columns as lists: all rows, or `most` of them at random."""
    if not isinstance(rows, Mapping):
        frame = nw.from_native(rows, eager_only=True)
        rows = {name: frame[name].to_list() for name in names}
    size = len(rows[names[0]])
    chosen = np.sort(rng.choice(size, most, replace=False)).tolist() if size > most else range(size)
    return {name: [rows[name][k] for k in chosen] for name in names}


class _Codes:
    """A column of all three kinds of rows as numbers: its own, nan where missing, or one for each category."""

    def __init__(self, *parts: list[Any]):
        parts = tuple([_moment(value) for value in part] for part in parts)
        given = [value for part in parts for value in part if not is_missing(value)]
        self.numeric = bool(given) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
        if self.numeric:
            values = [[np.nan if is_missing(value) else value for value in part] for part in parts]
        else:
            codes = {name: code for code, name in enumerate(sorted({str(v) for part in parts for v in part}))}
            values = [[codes[str(value)] for value in part] for part in parts]
        self.parts = [np.array(part, dtype=float) for part in values]

    def likeness(self) -> float:
        one, other = self.parts[:2]
        if not self.numeric:
            return 1 - _variation(one, other)
        gap = abs(np.isnan(one).mean() - np.isnan(other).mean())
        one, other = np.sort(one[~np.isnan(one)]), np.sort(other[~np.isnan(other)])
        if not len(one) or not len(other):
            return 1 - float(gap)
        at = np.concatenate([one, other])
        below, others = (np.searchsorted(values, at, "right") / len(values) for values in (one, other))
        return 1 - max(float(np.abs(below - others).max()), float(gap))

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
    return 1 - _variation(*(a * 1e6 + b for a, b in zip(one.binned(), other.binned(), strict=True)))


def _auc(
    synthetic: np.ndarray, real: np.ndarray, categories: np.ndarray, seed: int, advance: Callable[[], None]
) -> tuple[float, float]:
    x = np.concatenate([synthetic, real])
    y = np.concatenate([np.ones(len(synthetic)), np.zeros(len(real))])
    found = []
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(x, y):
        classifier = _classifier(x, categories, seed, class_weight="balanced").fit(x[train], y[train])
        found.append(roc_auc_score(y[test], classifier.predict_proba(x[test])[:, 1]))
        advance()
    return float(np.mean(found)), float(np.std(found, ddof=1) / _FOLDS**0.5)


def _accuracy(
    synthetic: np.ndarray,
    real: np.ndarray,
    target: int,
    categories: np.ndarray,
    seed: int,
    advance: Callable[[], None],
) -> float:
    """How often a column of real rows is predicted by what gradient boosting learned of synthetic rows."""
    x, x_real = (np.delete(rows, target, axis=1) for rows in (synthetic, real))
    y, y_real = (np.nan_to_num(rows[:, target], nan=-1.0).astype(str) for rows in (synthetic, real))
    predicted = y[:1]
    if len(np.unique(y)) > 1 and x.shape[1]:
        classifier = _classifier(np.concatenate([x, x_real]), np.delete(categories, target), seed)
        predicted = classifier.fit(x, y).predict(x_real)
    advance()
    return float((predicted == y_real).mean())


def _classifier(x: np.ndarray, categories: np.ndarray, seed: int, **options: Any) -> HistGradientBoostingClassifier:
    few = categories & (np.nanmax(x, axis=0, initial=0.0) < 255)  # what it can take for categories
    return HistGradientBoostingClassifier(categorical_features=few, random_state=seed, **options)


def _copies(tables: list[np.ndarray], categories: np.ndarray, rng: np.random.Generator) -> float:
    """As many training as real rows; the distance of two categories is 0 or 1, that of two numbers of their ranks.

    Distances are multiplied by the number of all rows: sums of whole numbers are exact, so that a tie is one.
    """
    size = min(len(tables[1]), len(tables[2]), 2000)
    synthetic, real, training = (
        table if len(table) <= size else table[rng.choice(len(table), size, replace=False)] for table in tables
    )
    parts = []
    for column, category in enumerate(categories):
        values = [np.nan_to_num(table[:, column], nan=-1.0) for table in (synthetic, real, training)]
        together = np.concatenate(values)
        if category:
            codes = np.unique(together)
            parts.append([(value[:, None] == codes) * len(together) / 2 for value in values])
        else:
            ordered = np.sort(together)
            parts.append([np.searchsorted(ordered, value)[:, None] for value in values])
    synthetic, real, training = (np.concatenate([part[k] for part in parts], axis=1) for k in range(3))
    near, far = (
        NearestNeighbors(n_neighbors=1, metric="manhattan").fit(rows).kneighbors(synthetic)[0][:, 0]
        for rows in (training, real)
    )
    return float((near < far).mean() + (near == far).mean() / 2)


def _moment(value: Any) -> Any:
    """A date as seconds, and any other value as it is."""
    if not isinstance(value, date) or is_missing(value):
        return value
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return moment.replace(tzinfo=UTC).timestamp()


def _variation(one: np.ndarray, other: np.ndarray) -> float:
    """The total variation between the values of two samples."""
    distinct, codes = np.unique(np.concatenate([one, other]), return_inverse=True)
    shares = [np.bincount(part, minlength=len(distinct)) / len(part) for part in np.split(codes, [len(one)])]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)

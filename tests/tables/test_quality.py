"""How like real rows synthetic ones are, against scipy, pandas and by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.tree import DecisionTreeClassifier

from dmb.tables import quality as measures
from dmb.tables.quality import quality

RNG = np.random.default_rng(0)


def table(count, slope=1.0):
    x, kind = RNG.normal(size=count), RNG.choice(["a", "b"], count, p=[0.3, 0.7])
    y = slope * x + RNG.normal(size=count)
    return pd.DataFrame({"x": x, "y": y, "kind": kind, "copy": np.where(kind == "a", "c", "d")})


SYNTHETIC, REAL, TRAINING = table(300, slope=-0.5), table(200), table(200)


@pytest.fixture(autouse=True)
def _one_tree(monkeypatch):
    """In place of many, which take seconds."""
    monkeypatch.setattr(measures, "_classifier", lambda *_, **__: DecisionTreeClassifier(random_state=0))


def variation(one, other):
    counts = pd.DataFrame({"one": one.value_counts(normalize=True), "other": other.value_counts(normalize=True)})
    return counts.fillna(0).diff(axis=1)["other"].abs().sum() / 2


def test_columns_and_pairs_are_as_alike_as_statistics_say():
    found = quality(SYNTHETIC, REAL, TRAINING)
    shapes = [1 - stats.ks_2samp(SYNTHETIC[name], REAL[name]).statistic for name in "xy"]
    shapes += [1 - variation(SYNTHETIC[name], REAL[name]) for name in ("kind", "copy")]
    assert found.shapes == pytest.approx(np.mean(shapes))
    one, other = (stats.pearsonr(rows["x"], rows["y"]).statistic for rows in (SYNTHETIC, REAL))
    pairs, binned = [1 - abs(one - other) / 2], []
    for rows in (SYNTHETIC, REAL):  # numbers in tenths of the real rows
        ends = {name: [-np.inf, *REAL[name].quantile(np.arange(1, 10) / 10), np.inf] for name in "xy"}
        binned.append(rows.assign(**{name: pd.cut(rows[name], ends[name]).astype(str) for name in "xy"}))
    for names in itertools.combinations(REAL, 2):
        if names != ("x", "y"):
            pairs.append(1 - variation(*(rows[list(names)].agg("|".join, axis=1) for rows in binned)))
    assert found.pairs == pytest.approx(np.mean(pairs))


def test_a_column_that_lacks_other_shares_of_its_values_is_as_unlike():
    def lacking(count):
        return {"x": [None] * count + [1.0] * (100 - count)}

    assert quality(lacking(30), lacking(10), lacking(10)).shapes == pytest.approx(0.8)


def test_the_error_of_how_well_rows_are_told_apart_is_that_of_a_mean_over_folds(monkeypatch):
    folds = [0.5, 0.55, 0.71, 0.6, 0.58]
    answers = iter(folds)
    monkeypatch.setattr(measures, "roc_auc_score", lambda *_: next(answers))
    found = quality(SYNTHETIC, REAL, TRAINING)
    assert found.auc == pytest.approx(np.mean(folds))
    assert found.auc_error == pytest.approx(stats.sem(folds))


def test_a_copy_is_nearer_to_a_training_row_than_to_any_real_one():
    """Numbers differ by their ranks among all rows, categories by 0 or 1; a tie counts half."""
    new = table(50)
    every = pd.concat([new, TRAINING, REAL]).reset_index(drop=True)
    ranks = every[["x", "y"]].rank(method="min").to_numpy()
    kinds = len(every) * every[["kind", "copy"]].isin(["a", "c"]).to_numpy()
    gap = sum(abs(column[:50, None] - column) for column in (*ranks.T, *kinds.T))
    ahead = np.sign(gap[:, 250:].min(1) - gap[:, 50:250].min(1))
    found = [quality(each, REAL, TRAINING).copies for each in (TRAINING, REAL, new)]
    assert found == [1, 0, pytest.approx((1 + ahead.mean()) / 2)]


def test_what_synthetic_rows_teach_is_measured_on_real_rows():
    """One of the two columns is a copy of the other, or says nothing of it."""
    blind = SYNTHETIC.assign(copy="d")
    assert quality(SYNTHETIC, REAL, TRAINING).accuracy == 1
    assert quality(blind, REAL, TRAINING).accuracy == pytest.approx((REAL["kind"] == "b").mean(), abs=0.35)

"""Synthetic tables beside their rivals: rows that a classifier cannot tell from real ones, at how many minutes.

    python benchmarks/tables.py TABLE.csv [TABLE.csv …] [--seed 0] [--rows N] [--imputation] [--networks EPOCHS]

A fifth of the rows is held out; all methods learn the rest. Beside `dmb.TableModel`: decision trees that synthesise one
column after another (as the R package synthpop does), CTGAN and TVAE (package `ctgan`, with `--networks`), independent
columns, and the training rows themselves. Columns that `TableModel` leaves out (names, prose) are left out for all.
With `--rivals` only the others are trained, so that the parts of a long comparison can run apart.
"""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from pandas.api.types import is_numeric_dtype
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import dmb
from dmb.tables.quality import anchors, quality

ROUNDS, FITTED = 5, 5000
"""Rounds of the iterative imputer, and rows that it is fitted to."""


def coded(frame: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers, and gaps as -1, for scikit-learn."""

    def numbers(name: str) -> Any:
        if is_numeric_dtype(like[name]):
            return frame[name].astype(float).fillna(-1.0)
        return pd.Categorical(frame[name], like[name].dropna().unique()).codes.astype(float)

    return pd.DataFrame({name: numbers(name) for name in frame})


def trees(training: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Column after column: a decision tree on those before, whose leaves give their values to draw from."""
    rng = np.random.default_rng(seed)
    first, *others = training.columns
    made = pd.DataFrame({first: training[first].to_numpy()[rng.integers(len(training), size=count)]})
    for name in others:
        before = list(made.columns)
        real = coded(training[before], training)
        numeric = is_numeric_dtype(training[name])
        tree = (DecisionTreeRegressor if numeric else DecisionTreeClassifier)(min_samples_leaf=5, random_state=seed)
        tree.fit(real, coded(training[[name]], training)[name])
        leaves = pd.Series(np.arange(len(training))).groupby(tree.apply(real)).apply(np.array)
        drawn = [rng.choice(leaves[leaf]) for leaf in tree.apply(coded(made, training))]
        made[name] = training[name].to_numpy()[drawn]
    return made


def iterative(estimator: Any, known: pd.DataFrame, gaps: pd.DataFrame, numeric: list[str], seed: int) -> pd.DataFrame:
    """Gaps filled by scikit-learn's iterative imputer on scaled numbers and one-hot categories; all frames are `coded`.

    The first level of each category has no column of its own: it has what the others leave of 1. The largest wins.
    """
    mean, scale = known[numeric].mean(), known[numeric].std(ddof=0).replace(0, 1)
    encoders = {
        name: OneHotEncoder(drop="first", sparse_output=False).fit(known[[name]].dropna())
        for name in known.columns.difference(numeric)
    }

    def encoded(frame: pd.DataFrame) -> np.ndarray:
        parts = [((frame[numeric] - mean) / scale).to_numpy()]
        for name, encoder in encoders.items():
            levels = encoder.categories_[0]
            column = frame[[name]].where(frame[[name]].isin(levels))  # a level that is new says nothing
            parts.append(np.where(column.isna(), np.nan, encoder.transform(column.fillna(levels[0]))))
        return np.hstack(parts)

    numbers, *shares = np.split(
        imputer_of(estimator, pd.DataFrame(encoded(known)), seed).transform(encoded(gaps)),
        np.cumsum([len(numeric), *(len(encoder.categories_[0]) - 1 for encoder in encoders.values())])[:-1],
        axis=1,
    )
    filled = pd.DataFrame(numbers, columns=numeric) * scale + mean
    for (name, encoder), share in zip(encoders.items(), shares, strict=True):
        first = 1 - share.sum(1, keepdims=True)
        filled[name] = encoder.categories_[0][np.hstack([first, share]).argmax(1)]
    return filled


def imputer_of(estimator: Any, known: pd.DataFrame, seed: int) -> IterativeImputer:
    """An imputer that takes all of its rounds: fitted to rows without gaps, it would stop after the first one."""
    imputer = IterativeImputer(estimator, max_iter=ROUNDS, tol=0, random_state=seed)
    return imputer.fit(known.sample(min(len(known), FITTED), random_state=seed).to_numpy())


def impute(model: dmb.TableModel | None, training: pd.DataFrame, real: pd.DataFrame, seed: int) -> None:
    """A fifth of all cells hidden: accuracy of categories, and error of numbers in standard deviations."""
    rng = np.random.default_rng(seed)
    real = real.reset_index(drop=True)
    hidden = pd.DataFrame(rng.random(real.shape) < 0.2, columns=real.columns) & real.notna()
    holes = real.mask(hidden)
    numeric = [name for name in real if is_numeric_dtype(real[name])]
    codes, gaps = coded(training, training), coded(holes, training).mask(hidden | real.isna())
    known, boosting = codes.mask(training.isna()), HistGradientBoostingRegressor(random_state=seed)
    with_gaps = known.mask(rng.random(known.shape) < 0.2)
    on_codes = imputer_of(boosting, known, seed).transform(gaps.to_numpy())
    ways = {
        **({} if model is None else {"TableModel": coded(model.impute(holes), training)}),
        "iterative, linear, one-hot": iterative(BayesianRidge(), known, gaps, numeric, seed),
        "iterative, boosting, one-hot": iterative(boosting, known, gaps, numeric, seed),
        "the same, fitted to gaps": iterative(boosting, with_gaps, gaps, numeric, seed),
        "iterative, boosting, codes": pd.DataFrame(on_codes, columns=real.columns),
        "mean or mode": codes.agg(lambda column: column.mean() if column.name in numeric else column.mode()[0])
        .to_frame().T.loc[[0] * len(real)].reset_index(drop=True),
    }  # fmt: skip
    truth = coded(real, training)
    for way, filled in ways.items():
        right = [(filled[n].round() == truth[n])[hidden[n]].mean() for n in real if n not in numeric]
        wrong = [((filled[n] - truth[n])[hidden[n]] ** 2).mean() ** 0.5 / codes[n].std() for n in numeric]
        accuracy = f"accuracy {np.mean(right):.3f}" if right else ""
        error = f"RMSE {np.mean(wrong):.3f} s.d." if wrong else ""
        print(f"  imputation, {way:30}  {accuracy}  {error}", flush=True)


def with_known_values(model: dmb.TableModel, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose values the model knows; others have no probability."""
    codec = model.codec_
    content = dmb.data.frames.read(rows)
    states = [column.states(content.cells(name)) for name, column in zip(codec.names, codec.columns, strict=True)]
    return rows[(np.stack(states) >= 0).all(0)]


def drawn_by(name: str, training: pd.DataFrame, count: int, seed: int, epochs: int) -> pd.DataFrame:
    """Rows of CTGAN or TVAE (package `ctgan`); a gap of a number is filled with the mean, because they take none."""
    try:
        ctgan = import_module("ctgan")
    except ImportError as error:
        raise SystemExit(f"{name} needs the package ctgan: pip install ctgan, or leave out --networks") from error
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what ctgan draws from
    numbers = [column for column in training if is_numeric_dtype(training[column])]
    full = training.fillna({column: training[column].mean() for column in numbers}).fillna("missing")
    few = [column for column in training if column not in numbers or training[column].nunique() <= 20]
    model = getattr(ctgan, name)(epochs=epochs, enable_gpu=False)
    model.fit(full, few)
    rows = model.sample(count)
    return rows.assign(**{c: rows[c].where(rows[c] != "missing", None) for c in rows if c not in numbers})


def main(
    tables: tyro.conf.Positional[tuple[str, ...]],
    *,
    seed: int = 0,
    imputation: bool = False,
    rows: int | None = None,
    bins: int | None = None,
    rivals: bool = False,
    networks: int | None = None,
) -> None:
    """Compare the rows of all methods.

    Args:
        tables: paths of CSV files.
        seed: of the split, and of all methods.
        imputation: also fill hidden cells.
        rows: draw and compare so many; default: as many as are held out.
        bins: of TableModel.
        rivals: leave out TableModel.
        networks: also train CTGAN and TVAE so many epochs.
    """
    for path in tables:
        frame = pd.read_csv(path)
        order = np.random.default_rng(seed).permutation(len(frame))
        codec = dmb.data.load(path).codec
        assert isinstance(codec, dmb.data.Columns)
        parts = np.split(order, [len(frame) * 4 // 5])
        training, real = (frame[codec.names].iloc[part].reset_index(drop=True) for part in parts)
        print(
            f"{path}: {len(training):,} rows to learn, {len(real[:rows]):,} to compare with, {frame.shape[1]} columns"
        )
        model = None if rivals else dmb.TableModel(bins=bins, random_state=seed)
        compare(model, training, real[:rows], seed, imputation, networks)


def compare(
    model: dmb.TableModel | None,
    training: pd.DataFrame,
    real: pd.DataFrame,
    seed: int,
    imputation: bool,
    epochs: int | None,
) -> None:
    """Print how good the rows of all methods are."""

    def tell(name: str, draw: Callable[[], Any]) -> None:
        start = time.process_time()
        rows = draw()
        minutes = (time.process_time() - start) / 60
        print(f"  {name:22}  {quality(rows, real, training, seed)}  {minutes:.1f} CPU minutes", flush=True)

    if model is not None:
        tell("TableModel", lambda: model.fit(training).sample(len(real), random_state=seed))
        known = with_known_values(model, real[:2000])
        bits = -model.log_prob(known).value / np.log(2)
        states = zip(model.codec_.names, map(len, model.codec_.columns), strict=True)
        print("  states:", ", ".join(f"{name} {count}" for name, count in states))
        print(f"  at most {bits.mean():.2f} ± {bits.std() / len(bits) ** 0.5:.2f} bits per row", end="")
        print(f"; {len(real[:2000]) - len(known)} of {len(real[:2000]):,} rows have a value that is new", flush=True)
    if imputation:
        impute(model, training, real, seed)
    tell("trees in sequence", lambda: trees(training, len(real), seed))
    if epochs is not None:
        for name in ("CTGAN", "TVAE"):
            tell(name, partial(drawn_by, name, training, len(real), seed, epochs))
    for name, anchor in anchors(training, len(real), seed).items():
        tell(name, partial(dict, anchor))


if __name__ == "__main__":
    tyro.cli(main)

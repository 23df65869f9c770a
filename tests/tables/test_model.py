"""A data frame in, a data frame out: conditionals by counting, types, gaps, probabilities, files."""

import json
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dmb
from commands import dmb_, flags
from dmb.app.records import read_tables
from dmb.data.columns import Category, Date, Number
from dmb.data.sources.table import default_bins
from dmb.tables import rows as rows_of

ROWS = 3000
SMALL = {"steps": 500, "width": 64, "blocks": 2, "batch_size": 128, "dropout": 0.0, "learning_rate": 4e-3, "bins": 16}


def survey(rows=ROWS, seed=0):
    """A table whose commonest values say much about the other columns."""
    rng = np.random.default_rng(seed)
    smokes = rng.choice(["no", "yes"], rows, p=[0.8, 0.2])
    region = rng.choice(["north", "south", "west"], rows, p=[0.7, 0.2, 0.1])
    ill = np.where(rng.random(rows) < np.where(smokes == "yes", 0.6, 0.05), "ill", "well")
    age = np.clip(rng.normal(np.where(ill == "ill", 60, 35), 8), 18, 90).round().astype(int)
    income = np.where(rng.random(rows) < 0.3, 0.0, rng.lognormal(np.where(region == "south", 3.5, 2.5), 0.4))
    income[rng.random(rows) < 0.1] = np.nan
    start = np.array([datetime(2024, 1, 1) + timedelta(days=int(day)) for day in rng.integers(0, 200, rows)])
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "smokes": pd.Categorical(smokes, categories=["no", "yes"]),
            "region": region,
            "ill": ill,
            "age": age,
            "income": income,
            "start": start,
            "country": "here",
        }
    )


@pytest.fixture(scope="module")
def frame():
    return survey()


@pytest.fixture(scope="module")
def model(frame):
    return dmb.TableModel(**SMALL).fit(frame)


@pytest.mark.long
def test_conditionals_are_those_of_the_data_for_every_value_the_commonest_included(model, frame):
    """Conditioned on a column's commonest value, the model once took what was given for noise."""
    columns, draws = ["smokes", "region", "ill"], 4000
    checked = 0
    for given in columns:
        for value, rows in frame.groupby(given, observed=True):
            if len(rows) < 200:
                continue
            sample = model.sample(draws, given={given: value}, random_state=0)
            assert (sample[given] == value).all()
            for other in columns:
                if other == given:
                    continue
                real = rows[other].astype(str).value_counts(normalize=True)
                drawn = sample[other].astype(str).value_counts(normalize=True)
                distance = real.sub(drawn, fill_value=0).abs().sum() / 2
                error = sum((p * (1 - p) * (1 / len(rows) + 1 / draws)) ** 0.5 for p in real) / 2
                assert distance < 3 * error + 0.03, (given, value, other)
                checked += 1
    assert checked == 14


def test_the_frame_comes_back_with_its_types(model, frame):
    sample = model.sample(500, random_state=0)
    assert list(sample.columns) == [name for name in frame.columns if name != "id"]
    assert model.notes_[0] == "'id' numbers the rows: left out"
    for name in sample.columns:
        assert sample[name].dtype == frame[name].dtype, name
    assert (sample["country"] == "here").all()
    assert sample["age"].between(18, 90).all()
    assert sample["income"].isna().mean() == pytest.approx(frame["income"].isna().mean(), abs=0.05)
    assert (sample["income"] == 0).mean() == pytest.approx((frame["income"] == 0).mean(), abs=0.07)
    assert set(sample["smokes"].cat.categories) == {"no", "yes"}


def test_numbers_and_dates_can_be_given_and_missing_can_be_asked_for(model):
    sample = model.sample(300, given={"age": 62, "income": None, "start": datetime(2024, 3, 1)}, random_state=0)
    assert (sample["age"] == 62).all()
    assert sample["income"].isna().all()
    assert (sample["start"] == datetime(2024, 3, 1)).all()
    assert (model.sample(300, given={"age": 62}, random_state=0)["ill"] == "ill").mean() > 0.8


def test_values_can_be_restricted_and_rules_are_kept(model):
    sample = model.sample(200, legal={"region": ["south", "west"]}, rule=lambda rows: rows["age"] > 40, random_state=0)
    assert set(sample["region"]) <= {"south", "west"}
    assert sample["age"].min() > 40
    assert 0 < model.acceptance_ < 1
    with pytest.raises(ValueError, match=r"rule must keep one row in 100, kept 0 of"):
        model.sample(2, rule=lambda rows: rows["age"] > 1000)
    with pytest.raises(ValueError, match=r"legal must allow a value of column 'region', got none"):
        model.sample(2, legal={"region": []})


def test_gaps_are_filled_and_nothing_else_changes(model, frame):
    holes = frame[:400].copy()
    rng = np.random.default_rng(1)
    hidden = rng.random(len(holes)) < 0.3
    holes.loc[hidden, "ill"] = None
    for draw in (False, True):
        full = model.impute(holes, draw=draw, random_state=0)
        assert list(full.columns) == list(holes.columns)
        assert full[["ill", "income"]].notna().all().all()
        kept = holes["income"].notna()
        assert (full.loc[kept, "income"] == holes.loc[kept, "income"]).all()
        assert (full.loc[~hidden, "ill"] == holes.loc[~hidden, "ill"]).all()
        right = (full.loc[hidden, "ill"] == frame[:400].loc[hidden, "ill"]).mean()
        most = (frame["ill"] == "well").mean()
        assert right > (most if not draw else most - 0.1)
    assert model.impute(frame[["age"]][:3])["smokes"].notna().all()
    whole = frame[:9].dropna()
    pd.testing.assert_frame_equal(model.impute(whole).reset_index(drop=True), whole.reset_index(drop=True))


def test_one_columns_distribution_given_others_is_that_of_counting(model, frame):
    p = model.predict_proba(pd.DataFrame({"smokes": ["no", "yes"]}), "ill")
    assert model.classes("ill") == ["ill", "well"]
    np.testing.assert_allclose(p.sum(-1), 1)
    for row, value in zip(p, ("no", "yes"), strict=True):
        share = (frame.loc[frame["smokes"] == value, "ill"] == "ill").mean()
        assert row[0] == pytest.approx(share, abs=0.06)
    blind = frame[:5].assign(ill=None)
    np.testing.assert_allclose(model.predict_proba(frame[:5], "ill"), model.predict_proba(blind, "ill"))


@pytest.mark.long
def test_probabilities_of_all_rows_add_up_to_at_most_one():
    """A table that can be enumerated: its rows' bounds, and the entropy that their mean cannot pass."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, 1500)
    b = np.where(rng.random(1500) < 0.8, a, rng.integers(0, 3, 1500))
    frame = pd.DataFrame({"a": a.astype(str), "b": b.astype(str)})
    model = dmb.TableModel(**SMALL | {"steps": 250}).fit(frame)
    every = pd.DataFrame([(x, y) for x in "012" for y in "012"], columns=["a", "b"])
    log_p = model.log_prob(every, draws=40)
    assert np.exp(log_p.value).sum() <= 1 + 1e-6
    assert np.exp(log_p.value).sum() > 0.97
    shares = frame.value_counts(normalize=True).reindex(pd.MultiIndex.from_frame(every)).to_numpy()
    entropy = -(shares * np.log(shares)).sum()
    assert -(shares * log_p.value).sum() > entropy
    assert -(shares * log_p.value).sum() < entropy + 0.05
    assert (log_p.stderr < 0.1).all()


def test_a_row_has_one_probability_where_columns_have_one_order(model, frame, monkeypatch):
    calls, forward = [], dmb.OrderedMLP.forward

    def counted(self, x_t, *arguments, **options):
        calls.append(len(x_t))
        return forward(self, x_t, *arguments, **options)

    monkeypatch.setattr(dmb.OrderedMLP, "forward", counted)
    log_p = model.log_prob(frame[:30])
    assert calls == [30]
    assert (log_p.stderr == 0).all()
    np.testing.assert_array_equal(log_p.value, model.log_prob(frame[:30], random_state=5).value)
    assert model.bridge_.order.order.tolist() == list(range(7))


def test_the_order_of_columns_can_be_chosen():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 3, 300), "b": rng.integers(0, 2, 300), "name": np.arange(300)})
    options = SMALL | {"steps": 2, "order": ["b", "name", "a"]}
    model = dmb.TableModel(**options).fit(frame)
    assert model.bridge_.order.order.tolist() == [1, 0]  # "name" numbers the rows
    with pytest.raises(ValueError, match=r"order must name all columns once, a, b, got b, b"):
        dmb.TableModel(**options | {"order": ["b", "b"]}).fit(frame)


def test_many_columns_share_a_network_and_have_no_order(tmp_path):
    """As all tables did before: models saved then are read, and are what they were."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{k}": rng.integers(0, 3, 200).astype(str) for k in range(33)})
    model = dmb.TableModel(**SMALL | {"steps": 5}).fit(frame)
    assert isinstance(model.bridge_.network, dmb.MLP)
    log_p, generator = model.log_prob(frame[:5], draws=3, random_state=0), model._generator(0)
    states = torch.from_numpy(frame[:5].to_numpy().astype(int))
    each = np.stack([rows_of.log_prob(model.bridge_, states, generator) for _ in range(3)])
    np.testing.assert_allclose(log_p.value, each.mean(0))
    np.testing.assert_allclose(log_p.stderr, stats.sem(each))
    model.save(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "table.json").read_text())
    del about["settings"]["order"]  # unknown to earlier versions
    (tmp_path / "model" / "table.json").write_text(json.dumps(about))
    again = dmb.TableModel.load(tmp_path / "model")
    pd.testing.assert_frame_equal(
        again.sample(5, given={"c3": "1"}, random_state=0), model.sample(5, given={"c3": "1"}, random_state=0)
    )


def test_a_code_that_was_never_seen_is_unlikely_not_refused():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"code": rng.integers(0, 25, 300) * 4, "b": rng.integers(0, 2, 300)})
    model = dmb.TableModel(**SMALL | {"steps": 2, "bins": 64}).fit(frame)
    probed = pd.DataFrame({"code": [40, 41, 1000], "b": [1, 1, 1]})
    seen, new, far = model.log_prob(probed).value
    assert seen > new + 5 > far
    with pytest.raises(ValueError, match=r"column 'code' must be 25 numbers from 0 to 96, got 41.5 in row 1"):
        model.log_prob(pd.DataFrame({"code": [41.5], "b": [1]}))


@pytest.mark.long
def test_a_density_follows_the_unit_of_a_real_column(frame):
    one = frame[["income", "region"]].dropna()[:1500]
    cents = one.assign(income=one["income"] * 100)
    both = [dmb.TableModel(**SMALL | {"steps": 60}).fit(data).score(data[:200]) for data in (one, cents)]
    share = (one["income"][:200] > 0).mean()  # the others are 0 in any unit
    assert both[0] - both[1] == pytest.approx(share * np.log(100), abs=0.15)


def test_polars_frames_give_polars_frames(frame):
    polars = pl.DataFrame(
        {
            name: frame[name].astype(str).tolist() if name == "smokes" else frame[name].tolist()
            for name in ("smokes", "age", "start")
        }
    )
    model = dmb.TableModel(**SMALL | {"steps": 60}).fit(polars)
    sample = model.sample(20, given={"age": 30}, random_state=0)
    assert isinstance(sample, pl.DataFrame)
    assert sample.schema == polars.schema
    assert sample["age"].to_list() == [30] * 20


def columns_of_all_types(library):
    n, rng = 120, np.random.default_rng(0)
    days = [date(2024, 1, 1) + timedelta(days=int(k)) for k in rng.integers(0, 9, n)]
    moments = [datetime(2024, 1, 1) + timedelta(minutes=int(k)) for k in rng.integers(0, 10**6, n)]
    gaps = [None if k % 7 == 0 else k % 50 for k in range(n)]
    if library == "polars":
        zoned = pl.Series(moments).dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
        return pl.DataFrame(
            {
                "small": pl.Series(gaps, dtype=pl.Int8),
                "enum": pl.Series(["lo", "hi"] * 60, dtype=pl.Enum(["lo", "mid", "hi"])),
                "category": pl.Series(["lo", "hi"] * 60, dtype=pl.Categorical),
                "day": days,
                "moment": pl.Series(moments).cast(pl.Datetime("ms")),
                "zoned": zoned,
                "money": pl.Series(rng.integers(0, 500, n)).cast(pl.Decimal(10, 2)),
                "flag": [True, False, None] * 40,
            }
        )
    return pd.DataFrame(
        {
            "small": pd.array(gaps, dtype="Int8"),
            "grade": pd.Categorical(["lo", "hi"] * 60, ["lo", "mid", "hi"], ordered=True),
            "code": pd.Categorical([10, 20] * 60),
            "day": pd.to_datetime(pd.Series(days)),
            "plain": pd.Series(days, dtype=object),
            "zoned": pd.to_datetime(pd.Series(moments)).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
            "text": pd.array(["x", "y", None] * 40, dtype="string"),
            "object": pd.Series(["x", "y"] * 60, dtype=object),
            "flag": pd.array([True, False, None] * 40, dtype="boolean"),
        }
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_all_types_come_back_also_from_a_saved_model(library, tmp_path):
    frame = columns_of_all_types(library)
    model = dmb.TableModel(**SMALL | {"steps": 2}).fit(frame)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    model.save(tmp_path / "model")
    again = dmb.TableModel.load(tmp_path / "model")
    sample, other = model.sample(60, random_state=0), again.sample(60, random_state=0)
    for each in (sample, other, model.impute(frame)):
        assert dict(zip(each.columns, each.dtypes, strict=True)) == dict(zip(frame.columns, frame.dtypes, strict=True))
    assert sample.equals(other)
    if library == "pandas":
        assert all(type(day) is date for day in sample["plain"])
    assert np.isfinite(again.log_prob(frame).value).all()


def test_a_model_saved_by_an_earlier_version_has_the_types_it_told(tmp_path):
    frame = columns_of_all_types("pandas")[["day", "object"]]
    model = dmb.TableModel(**SMALL | {"steps": 2}).fit(frame)
    model.save(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "table.json").read_text())
    about["types"] = {"day": "Datetime(time_unit='us', time_zone=None)", "object": "String"}
    (tmp_path / "model" / "table.json").write_text(json.dumps(about))
    sample = dmb.TableModel.load(tmp_path / "model").sample(20, random_state=0)
    assert sample["day"].tolist() == model.sample(20, random_state=0)["day"].tolist()
    assert sample["day"].dtype.kind == "M"


@pytest.mark.parametrize(
    "values", [[timedelta(days=1), timedelta(days=2)] * 30, [[1], [2]] * 30, [(1,), (2,)] * 30], ids=str
)
def test_what_no_column_can_hold_is_named(values):
    frame = pd.DataFrame({"x": values, "y": ["a", "b", "c"] * 20})
    with pytest.raises(ValueError, match="column 'x' must hold numbers, booleans, dates or strings, got "):
        dmb.TableModel(**SMALL).fit(frame)


def test_a_saved_model_is_the_same(model, frame, tmp_path):
    model.save(tmp_path / "model")
    again = dmb.TableModel.load(tmp_path / "model")
    pd.testing.assert_frame_equal(
        again.sample(50, random_state=0), model.sample(50, random_state=0), check_dtype=False, check_categorical=False
    )
    np.testing.assert_array_equal(again.log_prob(frame[:20]).value, model.log_prob(frame[:20]).value)
    assert again.get_params() == model.get_params()


def test_nullable_integers_of_pandas_come_back_as_such():
    frame = pd.DataFrame({"a": pd.array([1, None, 3] * 40, dtype="Int64"), "b": ["x", "y", "z"] * 40})
    model = dmb.TableModel(**SMALL | {"steps": 30}).fit(frame)
    sample = model.sample(60, random_state=0)
    assert sample["a"].dtype == frame["a"].dtype
    assert sample["a"].isna().any()
    assert model.impute(frame)["a"].notna().all()


def test_the_model_of_a_run_samples_frames_of_pandas(model):
    sample = dmb.TableModel.of(model.bridge_, model.codec_).sample(5, given={"region": "west"}, random_state=0)
    assert list(sample["region"]) == ["west"] * 5
    assert list(sample.columns) == list(model.feature_names_in_)


def test_rows_are_new_each_time_unless_a_seed_is_given(model, frame):
    assert not model.sample(30).equals(model.sample(30))
    pd.testing.assert_frame_equal(model.sample(30, random_state=3), model.sample(30, random_state=3))
    assert not model.sample(30, random_state=3).equals(model.sample(30, random_state=4))
    gaps = frame[["region"]][:50]
    assert not model.impute(gaps, draw=True).equals(model.impute(gaps, draw=True))
    one, other = (model.impute(gaps, draw=True, random_state=3) for _ in range(2))
    pd.testing.assert_frame_equal(one, other)


def test_it_has_the_manners_of_scikit_learn(model):
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert fresh.set_params(width=7).width == 7
    assert model.n_features_in_ == len(model.feature_names_in_) == 7
    with pytest.raises(NotFittedError, match="call fit first"):
        fresh.sample(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, f: m.sample(0), "n must be at least 1, got 0"),
        (lambda m, f: m.sample(1, given={"colour": 1}), r"column must be one of smokes, .* got 'colour'"),
        (lambda m, f: m.sample(1, given={"region": "east"}), r"column 'region' has 3 values: .* got 'east'"),
        (lambda m, f: m.predict_proba(f, "x"), r"column must be one of .* got 'x'"),
        (lambda m, f: m.log_prob(f[["age"]]), r"columns must be 'smokes', .* got 'age'"),
        (lambda m, f: m.impute(f.assign(region="east")), r"column 'region' must be one of .* got 'east' in row 1"),
        (lambda m, f: m.log_prob(f, draws=1), "draws must be at least 2, got 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(model, frame, call, message):
    with pytest.raises(ValueError, match=message):
        call(model, frame)


def test_something_that_is_no_frame_is_refused():
    with pytest.raises(TypeError, match="a data frame of pandas or Polars is needed, got a list"):
        dmb.TableModel().fit([[1, 2]])


def test_the_command_fills_gaps_and_leaves_the_rest_as_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people = survey(600).drop(columns=["income", "start"])
    people.to_csv("people.csv", index=False)
    gaps = people.assign(age=people["age"].where(people.index % 3 != 0), ill=people["ill"].where(people.index % 2 == 0))
    gaps.astype({"age": "Int64"}).to_csv("gaps.csv", index=False)
    settings = flags(cycles=1, score_steps=20, evaluate_every=20, width=16, blocks=1, log_every=20)
    assert dmb_("train", "people.csv", "--out", "run", "--accelerator", "cpu", *settings) == 0
    assert dmb_("impute", "run", "gaps.csv", "--out", "filled.csv") == 0
    filled = pd.read_csv("filled.csv")
    assert list(filled.columns) == list(people.columns)
    assert filled.notna().all().all()
    assert (filled["age"] == people["age"])[people.index % 3 != 0].all()
    assert (filled["ill"] == people["ill"])[people.index % 2 == 0].all()
    capsys.readouterr()
    assert dmb_("impute", "run", "none.csv", "--out", "filled.csv") == 2
    assert capsys.readouterr().err == "dmb: no file called 'none.csv'\n"
    Path("novel.txt").write_text("Once upon a time\nthere was a file.\n" * 9)
    assert dmb_("impute", "run", "novel.txt", "--out", "novel.csv") == 2
    assert "novel.txt: the table must have one of the columns '" in capsys.readouterr().err
    assert not Path("novel.csv").exists()

    assert dmb_("evaluate", "run", "--quality") == 0
    told = capsys.readouterr().out.splitlines()
    assert "bits per token on test" in told[0]
    assert all("beside 60 rows of test: shapes " in line for line in told[1:])
    assert [line[:19].strip() for line in told[1:]] == ["samples", "independent columns", "training rows"]
    results = {result.what: result for result in read_tables(Path("run"))}
    assert 0.3 < results["training rows"].auc < 0.7
    assert results["training rows"].accuracy > results["independent columns"].accuracy
    assert dmb_("report", "run") == 0
    page = Path("run/report.html").read_text()
    assert "Samples beside real rows" in page
    assert f"{results['samples'].auc:.3f} ± {results['samples'].auc_error:.3f}" in page
    capsys.readouterr()
    assert dmb_("evaluate", "run", "--quality", "--data", "gaps.csv") == 2
    assert capsys.readouterr().err.startswith("dmb: --quality compares with the run's own training rows")


def test_a_run_with_other_noise_than_a_mask_fills_no_gaps(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    survey(100)[["smokes", "ill"]].to_csv("people.csv", index=False)
    other = flags(network="mlp", write_order=None, floor=0.5, cycles=1, score_steps=2, width=8, blocks=1)
    assert dmb_("train", "people.csv", "--out", "run", "--accelerator", "cpu", *other) == 0
    capsys.readouterr()
    assert dmb_("impute", "run", "people.csv", "--out", "filled.csv") == 2
    assert capsys.readouterr().err.startswith("dmb: the bridge must have a mask as its only noise")
    assert not Path("filled.csv").exists()


@pytest.mark.long
def test_codes_decide_other_columns_and_tight_relations_of_numbers_survive():
    """200 codes with a place each, known from a table, and a number that differs from another by at most 1."""
    rng = np.random.default_rng(0)
    codes = np.sort(rng.choice(10_000, 200, replace=False))
    places = dict(zip(codes.tolist(), rng.choice(["a", "b", "c", "d"], 200).tolist(), strict=True))
    code, x = rng.choice(codes, 6000), rng.integers(0, 150, 6000)
    frame = pd.DataFrame({"code": code, "place": [places[c] for c in code], "x": x, "y": x + rng.integers(-1, 2, 6000)})

    def right(rows):
        known = rows["code"].map(places)
        return (known == rows["place"]).mean(), ((rows["x"] - rows["y"]).abs() <= 1).mean()

    many = {**SMALL, "batch_size": 256, "steps": 300, "bins": 256, "learning_rate": 8e-3}
    fine, coarse = (dmb.TableModel(**options).fit(frame) for options in (many, SMALL | {"steps": 60}))
    assert right(frame) == (1, 1)
    known, near = right(fine.sample(1000, random_state=0))
    assert known > 0.95
    assert near > 0.85
    assert max(right(coarse.sample(1000, random_state=0))) < 0.4  # 16 bins, inside which values are independent
    y = fine.impute(pd.DataFrame({"x": [20, 75, 130], "y": np.nan}))["y"]
    np.testing.assert_allclose(y, [20, 75, 130], atol=1.5)


def test_states_follow_the_rows():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=10_000)})
    assert len(dmb.TableModel(steps=1).fit(frame).codec_.columns[0]) == default_bins(9_000) == 180


def test_the_mean_is_filled_in_where_numbers_are_real_and_a_legal_value_where_they_are_whole():
    """By hand, from probabilities of the states."""
    p = np.array([[0.0, 0.5, 0.2, 0.3]])
    real = Category([None, 1.0, 2.0, 5.5])
    assert real.expected(p) == [pytest.approx(0.5 + 0.4 + 1.65)]
    whole = Category([None, 1, 2, 5])
    assert whole.expected(p) == [2]
    assert whole.expected(p, real=True) == [pytest.approx(2.4)]
    assert Category([None, 1, 2, 5], nominal=True).expected(p) == [1]
    assert Category(["", "1", "2", "5"]).expected(p) == ["2"]
    assert Category(["NA", "1", "2", "5"]).expected(p) == ["2"]
    assert Category(["NA", "a", "b", "c"]).missing is None
    assert Category([None, "a", "b", "c"]).expected(p) == ["a"]
    assert Category([None, "001", "002", "005"]).expected(p) == ["001"]
    binned = Number.of(np.arange(1000.0), np.ones(1000), bins=2, integer=True)
    [filled] = binned.expected(np.array([[0.25, 0.75]]))
    assert isinstance(filled, int)
    assert filled == round(0.25 * 249.5 + 0.75 * 749.5)
    date = Date.of(["2024-01-01", "2024-01-03"], np.array([5.0, 2.0]))
    assert date.expected(np.array([[0.5, 0.5]])) == ["2024-01-02"]


def test_a_column_keeps_its_type_and_the_mean_has_less_error_than_the_likeliest_value():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, 1200)
    y = np.where(rng.random(1200) < 0.6, 3 * x, rng.integers(0, 8, 1200))  # its mode is far from its mean
    model = dmb.TableModel(**SMALL | {"steps": 200, "width": 32}).fit(pd.DataFrame({"x": x.astype(str), "y": y}))
    mean = model.impute(pd.DataFrame({"x": ["0", "1"], "y": [np.nan, np.nan]}))["y"]
    by_counting = [y[x == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(mean, by_counting, atol=0.35)
    whole = model.impute(pd.DataFrame({"x": ["0", "1"], "y": pd.array([None, None], dtype="Int64")}))["y"]
    assert whole.tolist() == [round(value) for value in mean]
    codes = pd.DataFrame({"x": x.astype(str), "y": pd.Categorical(y)})
    named = dmb.TableModel(**SMALL | {"steps": 1}).fit(codes)
    assert named.impute(codes.assign(y=None))["y"].isin(y).all()
    assert named.codec_.columns[1].nominal

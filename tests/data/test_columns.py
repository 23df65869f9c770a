"""Kinds of columns: what is found, what goes there and back, and that densities are densities."""

import json
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import pytest
from scipy import integrate

from dmb._core.configuration import Configurable
from dmb.data.columns import Category, Date, Number, column_of

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=2000)
CENTS = np.round(RNG.lognormal(3, 1, size=2000), 2)
WAGES = np.where(RNG.random(3000) < 0.3, 0, RNG.integers(1000, 9000, 3000))


def fitted(values, bins=16, **options):
    distinct, counts = np.unique(values, return_counts=True)
    return Number.of(distinct, counts, bins=bins, **options)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"] * 20, "category"),
        ([1, 2, 3] * 20, "category"),
        (["1", "2", "NA"] * 20, "category"),
        (list(np.arange(40) / 7), "number"),
        ([f"{i / 7:.3f}" for i in range(40)] + ["?"], "number"),
        ([f"{i},5" for i in range(40)], "number"),
        ([f"{i % 25:04}" for i in range(400)], "category"),
        ([f"2024-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(60)], "date"),
        ([datetime(2024, 1, 1, i % 24, i) for i in range(60)], "date"),
        ([True, False] * 10, "category"),
        ([7] * 30, "category"),
        ([None] * 30, "category"),
    ],
)
def test_the_kind_is_found(values, kind):
    distinct = list(dict.fromkeys(values))
    found = column_of("x", distinct, [values.count(value) for value in distinct]).column
    assert found.kind == kind
    assert (found.states(distinct) >= 0).all()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([f"user {i}" for i in range(300)], "'x' is a name, with 300 values in 300 rows: left out"),
        ([f"it was a dark and stormy night {i}" for i in range(300)], "'x' is prose"),
        (list(range(1000, 1300)), "'x' numbers the rows: left out"),
        ([str(i) for i in range(0, 900, 3)][::-1], None),
    ],
)
def test_what_can_teach_nothing_is_left_out_and_said(values, why):
    found, note = column_of("x", values, [1] * len(values))
    assert (found is None) is (why is not None)
    assert note.startswith(why or "")


def test_a_kind_can_be_said():
    values = [str(i) for i in range(300)]
    assert column_of("x", values, [1] * 300, "category").column.kind == "category"
    assert column_of("x", values, [1] * 300, "number").column.kind == "number"
    assert column_of("x", values, [1] * 300, "drop") == (None, "")
    with pytest.raises(ValueError, match=r"column 'x' must hold finite numbers, got 'a': it may be a category"):
        column_of("x", ["1", "a"], [1, 1], "number")
    with pytest.raises(ValueError, match=r"column 'x' must hold dates such as 2024-02-29, got '29.2.2024'"):
        column_of("x", ["29.2.2024"], [1], "date")
    with pytest.raises(ValueError, match=r"must be one of category, number, date, drop, got 'text'"):
        column_of("x", ["a"], [1], "text")


@pytest.mark.parametrize("values", [REAL, CENTS, WAGES, np.repeat(np.arange(9), 3)])
def test_drawn_values_have_the_state_they_were_drawn_for(values):
    column = fitted(values)
    states = np.repeat(np.arange(len(column)), 50)
    assert (column.states(column.values(states, np.random.default_rng(1))) == states).all()


@pytest.mark.parametrize("values", [REAL, CENTS, WAGES])
def test_drawn_values_have_the_distribution_of_the_data(values):
    column = fitted(values)
    drawn = np.array(column.values(column.states(values.tolist()), np.random.default_rng(1)), dtype=float)
    at = np.quantile(values, np.linspace(0, 1, 200))
    distance = np.abs((np.sort(drawn).searchsorted(at, "right") - np.sort(values).searchsorted(at, "right")) / len(at))
    assert distance.max() * len(at) / len(values) < 0.01
    assert drawn.min() >= values.min()
    assert drawn.max() <= values.max()


def test_bins_hold_about_equally_many_and_a_value_that_many_share_is_a_state():
    column = fitted(WAGES)
    counts = np.bincount(column.states(WAGES.tolist()), minlength=len(column))
    assert column.labels[0] == "0"
    assert counts[0] == (WAGES == 0).sum()
    assert counts[1:].max() < 1.3 * counts[1:].min()


def test_values_that_rows_share_stay_apart_and_a_new_value_is_known():
    codes = np.unique(RNG.integers(10, 10_000, 300))
    rows = np.concatenate([np.repeat(codes, 15), [11, 5001, 9999]])  # three that one row has
    column = fitted(rows, bins=512, integer=True)
    states = column.states(codes.tolist())
    assert len(np.unique(states)) == len(codes)
    assert column.values(states, RNG) == codes.tolist()
    assert np.all(np.diff(states) > 0)  # in the order of their values
    [new] = column.states([7003])
    assert new >= 0
    assert new not in states
    assert column.log_density([7003])[0] < 0
    [near] = column.states([codes[100] + 0.1], nearest=True)  # what is given is taken for the nearest code
    assert near == states[100]
    few = fitted(rows, bins=16, integer=True)
    assert len(few) <= 16


def test_values_are_states_of_their_own_only_if_that_leaves_enough_bins_for_the_rest():
    rows = np.concatenate([np.repeat(np.arange(200), 5), 1000 + RNG.permutation(9000)])
    column = fitted(rows, bins=256, integer=True)
    counts = np.bincount(column.states(rows.tolist()), minlength=len(column))
    assert counts.max() < 1.5 * len(rows) / 256


def test_a_density_integrates_to_one_with_its_tails():
    column = fitted(REAL, bins=4)
    shares = np.bincount(column.states(REAL.tolist()), minlength=4) / len(REAL)

    def density(x):
        return shares[column.states([x])[0]] * np.exp(column.log_density([x])[0])

    inside = sum(
        integrate.quad(density, a, b)[0]
        for a, b in zip(column.edges[:-1] + 1e-12, column.edges[1:] - 1e-12, strict=True)
    )
    tails = integrate.quad(density, -60, column.edges[0])[0] + integrate.quad(density, column.edges[-1], 60)[0]
    assert inside + tails == pytest.approx(1, abs=1e-4)
    assert tails == pytest.approx(shares[[0, -1]].sum() / (len(REAL) + 1), rel=1e-3)


def test_masses_of_whole_numbers_add_up_to_one():
    values = RNG.integers(0, 400, 3000)
    column = fitted(values, bins=8, integer=True)
    shares = np.bincount(column.states(values.tolist()), minlength=len(column)) / len(values)
    every = np.arange(-4000, 4400)
    mass = shares[column.states(every.tolist())] * np.exp(column.log_density(every.tolist()))
    assert mass.sum() == pytest.approx(1, abs=1e-3)


def test_masses_of_moments_a_microsecond_apart_add_up_to_one():
    """Since 1970 that is more microseconds than numbers of 15 digits can count."""
    values = [datetime(2024, 1, 1) + timedelta(microseconds=int(late)) for late in RNG.integers(0, 4000, 3000)]
    distinct, counts = np.unique(values, return_counts=True)
    column = Date.of(distinct.tolist(), counts, bins=8)
    shares = np.bincount(column.states(values), minlength=len(column)) / len(values)
    every = [datetime(2024, 1, 1) + timedelta(microseconds=late) for late in range(-2000, 6000)]
    mass = shares[column.states(every)] * np.exp(column.log_density(every))
    assert mass.sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("atoms", [[1, 2, 3, 7, 20], [1, 2, 3], [0, 400], [5]], ids=str)
def test_a_new_whole_number_among_codes_has_a_mass_and_masses_add_up_to_one(atoms):
    codes = fitted(np.repeat(atoms, 9), integer=True)
    assert codes.labels == [str(atom) for atom in atoms]
    values = list(range(-10_000, 10_001))
    states, mass = codes.states(values), np.exp(codes.log_density(values))
    totals = np.bincount(states, weights=mass)
    np.testing.assert_allclose(totals, 1, rtol=1e-9)
    here = mass[np.isin(values, atoms)]
    assert (here > 1 - 1.01 / (9 * len(atoms) + 1)).all()
    assert codes.states([atoms[0] + 0.5]) == -1


def test_a_new_number_among_a_few_has_a_density_that_integrates_to_one():
    few = fitted(np.repeat([0.25, 0.5, 3.0], 9))
    ends = [-np.inf, 0.25, 0.375, 0.5, 1.75, 3.0, np.inf]
    parts = [integrate.quad(lambda x: np.exp(few.log_density([x])[0]), *span)[0] for span in pairwise(ends)]
    for state, atom in enumerate((0.25, 0.5, 3.0)):
        assert few.states([atom, atom + 0.1]).tolist() == [state] * 2
        assert sum(parts[2 * state : 2 * state + 2]) + np.exp(few.log_density([atom])[0]) == pytest.approx(1, abs=1e-7)


def test_columns_of_earlier_versions_know_no_new_codes():
    old = {
        name: value for name, value in fitted(np.repeat([1, 5], 9), integer=True).to_config().items() if name != "rows"
    }
    codes = Configurable.from_config(old)
    assert codes.states([1, 3, 5]).tolist() == [0, -1, 1]
    assert codes.log_density([1, 5]).tolist() == [0, 0]


def test_whole_numbers_stay_whole_cents_stay_cents_and_missing_stays_missing():
    whole = fitted(RNG.integers(0, 500, 900), integer=True, missing=True)
    assert whole.states([None, "", "NA"]).tolist() == [0, 0, 0]
    drawn = whole.values(np.arange(len(whole)), np.random.default_rng(0))
    assert drawn[0] is None
    assert all(isinstance(value, int) for value in drawn[1:])
    cents = fitted(CENTS)
    drawn = cents.values(np.arange(len(cents)).repeat(20), np.random.default_rng(0))
    assert drawn == [round(value, 2) for value in drawn]
    assert cents.states([0.001]).tolist() == [-1]
    assert cents.states([0.001], nearest=True).tolist() == [0]


def test_tiny_numbers_are_real_numbers():
    tiny = fitted(REAL * 1e-14, bins=4)
    assert tiny.step == 0
    assert np.bincount(tiny.states((REAL * 1e-14).tolist())).min() > len(REAL) / 8


def test_dates_stay_dates():
    days = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(400)]
    distinct = list(dict.fromkeys(days))
    column = column_of("x", [*distinct, ""], [days.count(day) for day in distinct] + [5], bins=8).column
    assert column.values(np.zeros(1, dtype=int), RNG) == [None]
    states = np.repeat(np.arange(1, len(column)), 5)
    drawn = column.values(states, np.random.default_rng(0))
    assert all(datetime.fromisoformat(day) and len(day) == 10 for day in drawn)
    assert (column.states(drawn) == states).all()
    assert " to 2024-12-" in column.describe()
    times = [datetime(2024, 1, 1, i % 24, i % 60, i % 60) for i in range(200)]
    typed = Date.of(sorted(set(times)), np.ones(len(set(times))), bins=4)
    assert all(isinstance(moment, datetime) for moment in typed.values(np.arange(4), RNG))


BERLIN = ZoneInfo("Europe/Berlin")
EAST = timezone(timedelta(hours=3))


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([f"2024-01-{1 + i:02} 00:00:00" for i in range(28)], "day"),
        ([f"2024-01-{1 + i:02}T{i % 24:02}:00:00" for i in range(28)], "hour"),
        ([f"2024-01-{1 + i:02}T12:{i:02}:00+02:00" for i in range(28)], "minute"),
        ([f"2024-01-{1 + i:02} 12:{i:02}:{i:02}Z" for i in range(28)], "second"),
        ([date(2024, 1, 1) + timedelta(days=i) for i in range(9)], "day"),
        ([datetime(2024, 1, 1) + timedelta(days=i) for i in range(9)], "day"),
        ([datetime(2024, 1, 1, tzinfo=BERLIN) + timedelta(days=7 * i) for i in range(40)], "day"),
        ([datetime(2024, 1, 1, 5, tzinfo=EAST) + timedelta(days=i) for i in range(9)], "hour"),
    ],
    ids=lambda values: str(values[0]),
)
def test_dates_come_back_as_they_were_with_time_and_zone(values, unit):
    column = column_of("x", [*values, None], [1] * len(values) + [2]).column
    assert (column.kind, column.unit) == ("date", unit)
    states = column.states(values)
    for known in (column, Configurable.from_config(json.loads(json.dumps(column.to_config())))):
        drawn = known.values(states, np.random.default_rng(0))
        assert drawn == values
        assert [type(value) for value in drawn] == [type(value) for value in values]
    assert column.describe().startswith("dates from 2024-01-01")


def test_the_last_moment_that_databases_know_is_a_date():
    """It was a traceback: as a float it is rounded up, into the year 10000."""
    values = ["9999-12-31T23:59:59.999999", *(f"2024-01-01T00:00:00.0000{i:02}" for i in range(40))]
    column = column_of("x", values, [20] + [1] * 40).column
    assert column.labels[-1] == values[0]
    assert column.values(column.states(values[:1]), RNG) == values[:1]


def test_dates_that_no_clock_can_show_and_nanoseconds_are_named():
    """Both were tracebacks."""
    early = [f"0001-01-01T00:00:{i:02}+14:00" for i in range(40)]  # in UTC before the year 1
    assert column_of("x", early, [2] * 40).column.kind == "category"
    with pytest.raises(ValueError, match=r"column 'x' must hold dates such as 2024-02-29, got '0001-01-01T00:00:00"):
        column_of("x", early, [1] * 40, "date")
    times = [pandas.Timestamp("2024-01-01") + pandas.Timedelta(nanoseconds=i) for i in range(40)]
    with pytest.raises(ValueError, match="column 'x': dates must be whole microseconds, got nanoseconds: round them"):
        column_of("x", times, [1] * 40)


def test_moments_are_told_by_one_clock():
    values = [f"2024-01-{1 + i:02}T12:00:00+0{1 + (i > 20)}:00" for i in range(28)]  # most are an hour east
    column = column_of("x", values, [1] * 28).column
    assert column.values(column.states(values[-1:]), RNG) == ["2024-01-28T11:00:00+01:00"]
    assert column.states(["2024-01-28T10:00:00Z"]) == column.states(values[-1:])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([f"{i * 1234:,}" for i in range(30)], "column 'x' must have no commas between thousands, got '1,234'"),
        (["1,234.5", *(f"{i}" for i in range(30))], "column 'x' must have no commas between thousands, got '1,234.5'"),
        (["inf", *(f"{i / 7}" for i in range(30))], "column 'x' must hold finite numbers, got 'inf'"),
        (
            [datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=BERLIN)],
            "column 'x' must not hold dates to be a category",
        ),
    ],
)
def test_numbers_that_would_be_read_as_something_else_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        column_of("x", values, [1] * len(values))


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([f"{i},{200 + i}" for i in range(100, 140)], "'x' has decimal commas: '100,300' is read as 100.3"),
        ([f"0,{200 + i}" for i in range(40)] + ["1"], "'x' has decimal commas: '0,200' is read as 0.2"),
        ([10**18 + 10**7 * i for i in range(40)], "'x' has whole numbers of more than 15 digits, which are rounded; "),
        ([10**30 + i for i in range(40)], "'x' has whole numbers of more than 15 digits, which are rounded; "),
        ([i / 7 for i in range(40)], ""),
    ],
)
def test_how_numbers_were_read_is_said(values, note):
    found = column_of("x", values, [1] * len(values))
    assert found.column.kind == "number"
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)


@pytest.mark.parametrize(
    "column", [Category(["a", None]), fitted(WAGES, integer=True), fitted(REAL, missing=True),
               Date.of(["2024-01-01 10:30", "2025-01-01 00:00"], np.ones(2))],
)  # fmt: skip
def test_a_column_is_rebuilt_from_its_description(column):
    again = Configurable.from_config(column.to_config())
    assert again.labels == column.labels
    states = np.arange(len(column))
    assert again.values(states, np.random.default_rng(0)) == column.values(states, np.random.default_rng(0))


def test_numbers_are_drawn_on_the_grid_of_the_data_and_others_stay_known():
    rng = np.random.default_rng(0)
    masses = 2700 + 25 * rng.integers(0, 140, 4000)
    column = fitted(masses, bins=16, integer=True)
    states = np.repeat(np.arange(len(column)), 200)
    drawn = np.array(column.values(states, rng))
    assert set(drawn) <= set(masses)
    assert (column.states(drawn.tolist()) == states).all()
    assert column.states([3191]).item() >= 0  # a new value
    assert Configurable.from_config(column.to_config()).grid == 25
    own = column.log_density(np.unique(masses).tolist())
    every = column.log_density(list(range(masses.min(), masses.max() + 1)))
    weights = np.bincount(column.states(masses.tolist())) / len(masses)
    of = weights[column.states(list(range(masses.min(), masses.max() + 1)))]
    assert (of * np.exp(every)).sum() == pytest.approx(1, abs=2e-3)  # the rest lies beyond
    assert (weights[column.states(np.unique(masses).tolist())] * np.exp(own)).sum() > 0.999
    assert column.log_density([3191]).item() < own.min() - 5


def test_means_are_told_to_as_many_places_as_the_data_have():
    rng = np.random.default_rng(0)
    lengths = fitted(np.round(rng.normal(45, 5, 2000), 1))
    p = rng.dirichlet(np.ones(len(lengths)), 5)
    assert all(mean == round(mean, 1) for mean in lengths.expected(p))

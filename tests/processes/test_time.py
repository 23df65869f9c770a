import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import torch
from hypothesis import given, strategies as st

import dmb
from dmb.processes.time import steady_exits

RATES = torch.tensor([[0.5, 2.0, 0.0, 30.0]], dtype=torch.float64)
MU = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
SCHEDULES = [
    dmb.LogLinear(),
    dmb.LogLinear(1e-5),
    dmb.processes.time.Geometric(),
    dmb.Linear(),
    dmb.Linear(2.0, 2.0),
    dmb.Canonical().bind(MU),
]

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)


def clock(schedule, t):
    return schedule(torch.as_tensor(t, dtype=torch.float64).reshape(-1), lambda u: steady_exits(RATES, u))


@every_schedule
def test_clock_time_starts_at_exactly_zero_and_increases(schedule):
    sigma_bar = clock(schedule, torch.linspace(0, 1, 1001)).sigma_bar
    assert sigma_bar[0] == 0
    assert (sigma_bar.diff() > 0).all()
    assert sigma_bar.isfinite().all()


@every_schedule
@pytest.mark.parametrize("t", [1e-9, 1e-3, 0.5, 1.0])
def test_clock_time_is_the_integral_of_the_speed(schedule, t):
    integral, _ = scipy.integrate.quad(
        lambda s: clock(schedule, s).sigma.item(), 0, t, epsabs=0, epsrel=1e-11, limit=200
    )
    assert clock(schedule, t).sigma_bar.item() == pytest.approx(integral, rel=1e-9)


def test_loglinear_makes_the_chance_of_change_linear_in_time():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(-torch.expm1(-clock(dmb.LogLinear(0.01), t).sigma_bar), 0.99 * t)


@given(
    rates=st.lists(st.floats(1e-8, 1e4), min_size=1, max_size=12),
    weights=st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12),
    t=st.floats(1e-12, 1.0),
    still=st.booleans(),
)
def test_canonical_time_is_the_fraction_of_changeable_tokens_that_have_changed(rates, weights, t, still):
    rates = np.array(rates + ([0.0] if still else []))
    mu = np.array((weights * 2)[: len(rates)])
    mu = mu / mu.sum()
    schedule = dmb.Canonical().bind(torch.tensor(mu)[None])
    clock_time = schedule(torch.tensor([t], dtype=torch.float64), lambda u: steady_exits(torch.tensor(rates)[None], u))
    u, speed = clock_time.sigma_bar.item(), clock_time.sigma.item()
    leaves = rates > 0
    mass = mu[leaves].sum()
    changed = (mu[leaves] * -np.expm1(-u * rates[leaves])).sum() / mass
    assert changed == pytest.approx((1 - 1e-3) * t, rel=1e-10)
    # the speed against an implicit derivative taken by scipy
    target = (1 - 1e-3) * t
    if 1e-6 < t < 0.999:
        solve = lambda x: scipy.optimize.brentq(  # noqa: E731
            lambda log_u: (mu[leaves] * -np.expm1(-np.exp(log_u) * rates[leaves])).sum() / mass - x,
            np.log(1e-16), np.log(1e12), xtol=1e-14, rtol=8.9e-16,
        )  # fmt: skip
        assert u == pytest.approx(np.exp(solve(target)), rel=1e-6)
    density = (mu[leaves] * rates[leaves] * np.exp(-u * rates[leaves])).sum() / mass
    assert speed == pytest.approx((1 - 1e-3) / density, rel=1e-9)


def test_canonical_time_is_loglinear_when_every_state_leaves_at_one_rate():
    t = torch.tensor([0.0, 1e-9, 0.2, 0.9, 1.0], dtype=torch.float64)
    gather = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    canonical, loglinear = dmb.Canonical().bind(MU)(t, lambda u: steady_exits(gather, u)), dmb.LogLinear()(t)
    torch.testing.assert_close(canonical.sigma_bar, loglinear.sigma_bar, rtol=1e-12, atol=0)
    torch.testing.assert_close(canonical.sigma, loglinear.sigma, rtol=1e-12, atol=0)


def test_canonical_time_does_not_see_the_common_speed_of_the_clocks():
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    schedule = dmb.Canonical().bind(MU)
    slow, fast = schedule(t, lambda u: steady_exits(RATES, u)), schedule(t, lambda u: steady_exits(1e5 * RATES, u))
    torch.testing.assert_close(slow.sigma_bar, 1e5 * fast.sigma_bar, rtol=1e-11, atol=0)


def test_canonical_time_pools_all_positions():
    one = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    rates = torch.tensor([[1.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    u = dmb.Canonical().bind(one)(torch.tensor([0.5], dtype=torch.float64), lambda u: steady_exits(rates, u)).sigma_bar
    assert (torch.exp(-u) + torch.exp(-9 * u)).item() / 2 == pytest.approx(1 - 0.999 * 0.5, rel=1e-12)


def varying_clocks(alpha, raw_profile, mu=(0.4, 0.3, 0.2, 0.1)):
    """A bridge of four states in canonical time, and by hand the chance that a token has changed by a clock time."""
    alpha, marginals = torch.tensor([alpha], dtype=torch.float64), torch.tensor([mu], dtype=torch.float64)
    line, clocks = dmb.Line(torch.arange(4)[None]), dmb.Varying(alpha)
    process = dmb.BridgeProcess(line, clocks, schedule=dmb.Canonical(), marginals=marginals)
    with torch.no_grad():
        process.clocks.raw_profile.copy_(torch.tensor(raw_profile).T)
    mixture = scipy.special.softmax(np.array(raw_profile).T, axis=0)

    def changed(u):
        s = -np.expm1(-u)
        late = [u - np.log(p) if u > 40 else -np.log1p(-(s**p)) for p in (2, 4)]
        clocks = alpha[0].numpy() * (np.array([u, *late, s]) @ mixture)
        exits = np.array([clocks.sum(), clocks[1:].sum(), clocks[2]])
        return (np.array(mu[:3]) * -np.expm1(-exits)).sum() / sum(mu[:3])

    return process, changed, 1e-40


def clocks_that_start_late():
    return varying_clocks([0.2, 30.0, 2.0], [[0.0, 0, 20, 0], [0, 0, 30, 0], [0, 0, 40, 0]])


def a_rare_state_that_outlasts_all_others():
    return varying_clocks(
        [6.0, 600.0, 3.0], [[0.0, -9, -9, -9], [-9, 0, -9, -9], [-9, -9, -9, 0]], (0.3, 0.4, 4e-8, 0.3)
    )


def clocks_that_stop_long_before_others_start():
    return varying_clocks([0.1, 1e-4, 1e-4], [[0.0, 0, 0, 20], [0, 0, 20, 0], [0, 0, 30, 0]])


def states_masked_at_very_different_times():
    exponents = torch.tensor([[0.2, 1.0, 3.0, 8.0]], dtype=torch.float64)
    marginals = torch.nn.functional.pad(MU, (0, 1))
    process = dmb.TokenwiseMasking(exponents, schedule=dmb.Canonical(), marginals=marginals)
    return process, lambda u: (MU[0].numpy() * (-np.expm1(-u)) ** exponents[0].numpy()).sum(), 1e-170


def states_that_are_all_masked_late():
    exponents = torch.tensor([[8.0, 60.0]], dtype=torch.float64)
    mu = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    process = dmb.TokenwiseMasking(exponents, schedule=dmb.Canonical(), marginals=mu)
    return process, lambda u: ((-np.expm1(-u)) ** exponents[0].numpy()).mean(), 1e-5


@pytest.mark.parametrize(
    "build",
    [
        clocks_that_start_late,
        a_rare_state_that_outlasts_all_others,
        clocks_that_stop_long_before_others_start,
        states_masked_at_very_different_times,
        states_that_are_all_masked_late,
    ],
)
def test_canonical_time_solves_its_equation_where_clocks_vary(build):
    process, changed, low = build()
    t = torch.tensor([0.0, 1e-30, 1e-12, 1e-9, 1e-6, 1e-3, 0.03, 0.05, 0.1, 0.5, 0.9, 0.999, 1.0], dtype=torch.float64)
    calls = []
    _, u, speed, _ = process.schedule(t, lambda elapsed: calls.append(1) or process.exits(elapsed))
    assert u[0] == 0
    assert len(calls) < 30

    def solve(time):
        equation = lambda log_u: np.log(changed(np.exp(log_u)) / (0.999 * time))  # noqa: E731
        return np.exp(scipy.optimize.brentq(equation, np.log(low), np.log(1e6), xtol=1e-15, rtol=8.9e-16))

    for time, mine, slope in list(zip(t.tolist(), u.tolist(), speed.tolist(), strict=True))[1:]:
        assert changed(mine) == pytest.approx(0.999 * time, rel=1e-10)
        assert mine == pytest.approx(solve(time), rel=1e-10)
        difference = (solve(time * (1 + 1e-5)) - solve(time * (1 - 1e-5))) / (2e-5 * time)
        assert slope == pytest.approx(difference, rel=1e-5 if time < 0.9 else 1e-3)
    back = process.schedule.inverse(u, process.exits)
    torch.testing.assert_close(back, t, rtol=1e-10, atol=0)


def test_canonical_time_keeps_float64_when_its_process_becomes_float32():
    schedule = dmb.Canonical().bind(MU)
    before = clock(schedule, 0.3).sigma_bar
    assert clock(schedule.float(), 0.3).sigma_bar == before


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dmb.LogLinear(0.0), "survival must lie strictly between 0 and 1, got 0.0"),
        (lambda: dmb.processes.time.Geometric(2.0, 1.0), "0 < low < high, got low=2.0, high=1.0"),
        (lambda: dmb.Linear(-1.0, 1.0), "start ≥ 0 and end > 0, got start=-1.0"),
        (lambda: dmb.Canonical().bind(torch.tensor([[0.5, -0.1]])), "marginals must be finite and at least 0"),
        (lambda: dmb.Canonical().bind(torch.tensor([[0.5, torch.nan]])), "marginals must be finite and at least 0"),
        (lambda: dmb.Canonical().bind(MU)(torch.zeros(1)), "bind it to marginals, and give its exits"),
        (lambda: dmb.Canonical()(torch.zeros(1), lambda u: steady_exits(RATES, u)), "bind it to marginals"),
        (
            lambda: dmb.Canonical().bind(MU)(torch.zeros(1), lambda u: steady_exits(torch.zeros(1, 4), u)),
            "got only rates of 0",
        ),
        (
            lambda: dmb.Canonical().bind(MU)(torch.zeros(1), lambda u: steady_exits(torch.ones(1, 5), u)),
            "must cover the 5 states",
        ),
    ],
)
def test_a_schedule_refuses_what_it_cannot_run_on(build, message):
    with pytest.raises(ValueError, match=message):
        build()

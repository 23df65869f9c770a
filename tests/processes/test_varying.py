import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

import dmb
from dmb import theory
from dmb.processes.clocks import profiles

import oracles
from contracts.cases import bridge, marginals, rates_by_loops, varying

X_0, X_T = torch.tensor([[0, 1], [2, 2], [3, 0]]), torch.tensor([[3, 1], [2, 3], [3, 3]])


def made_of(profile, **options):
    """A varying bridge all of whose clocks are one profile."""
    process = varying(n=4, **options)
    with torch.no_grad():
        process.clocks.raw_profile.zero_()[:, profile] = 1000.0
    return process


@pytest.mark.parametrize("u", [1e-300, 1e-12, 1e-6, 0.1, 1.0, 5.0, 40.0, 49.9, 50.1, 100.0])
def test_profiles_and_their_slopes_have_twelve_right_digits(u):
    values, slopes = profiles(torch.tensor([u], dtype=torch.float64))
    with mpmath.workdps(50):
        exact = [float(profile(mpmath.mpf(u))) for profile in oracles.PROFILES]
        derivative = [float(oracles.slope(profile, mpmath.mpf(u))) for profile in oracles.PROFILES]
    if u == 1e-300:  # too small for u^2, and for the oracle's digits
        exact[1:3] = derivative[1:3] = 0, 0
        slopes[:, 1:3] *= slopes[:, 1:3] > 1e-299
    np.testing.assert_allclose(values[0], exact, rtol=1e-12)
    np.testing.assert_allclose(slopes[0], derivative, rtol=1e-12, atol=1e-320)


def test_profiles_start_at_zero_and_run_evenly_in_the_end():
    values, slopes = profiles(torch.tensor([0.0, 1e9], dtype=torch.float64))
    assert values[0].tolist() == [0, 0, 0, 0]
    assert slopes.tolist() == [[1, 0, 0, 1], [1, 1, 1, 0]]
    expected = torch.tensor([1e9, 1e9 - np.log(2), 1e9 - np.log(4), 1], dtype=torch.float64)
    torch.testing.assert_close(values[1], expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("schedule", [dmb.LogLinear, dmb.Canonical], ids=["plain", "canonical"])
def test_with_all_weight_on_the_steady_profile_it_is_the_bridge(schedule):
    process = made_of(0, schedule=schedule())
    line, clocks = dmb.Line(process.rank), dmb.Steady(process.alpha.detach())
    bridge = dmb.BridgeProcess(line, clocks, schedule=schedule(), marginals=process.p_0)
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    for t in (1e-12, 1e-6, 0.3, 1.0):
        for one, other in [
            (process.to_dense(t), bridge.to_dense(t)),
            (process.to_dense(1.0, start=t), bridge.to_dense(1.0, start=t)),
            (process.rates_into(X_T, t), bridge.rates_into(X_T, t)),
            (process.integrand_from_logits(logits, X_T, X_0, t), bridge.integrand_from_logits(logits, X_T, X_0, t)),
            (process.integrand_from_score(logits, X_T, X_0, t), bridge.integrand_from_score(logits, X_T, X_0, t)),
        ]:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-300, equal_nan=True)
    torch.testing.assert_close(process.p_T, bridge.p_T, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        process.prior_kl_table(process.p_T), bridge.prior_kl_table(bridge.p_T), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"tied": True}],
    ids=["untied", "tied"],
)
@pytest.mark.parametrize("make", [bridge, varying], ids=["steady", "varying"])
def test_jumps_back_happen_when_the_clock_rang_and_lead_where_lower_clocks_had_led(make, options):
    """Given that clock k rang by t, at u it had rung with chance (1 - exp(-A_k(u))) / (1 - exp(-A_k(t)))."""
    process = make(n=4, order="natural", **options)
    count, t, top = 4000, 0.8, 3
    x_t = torch.full((count, 2), top)
    log_posterior = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf]).double().expand(count, 2, 4)
    when, where = process.next_jump(log_posterior, x_t, t, generator=torch.Generator().manual_seed(0))
    alpha, mixtures = rates_by_loops(process).astype(float), np.broadcast_to([[1], [0], [0], [0]], (2, 4, 3))
    if isinstance(process.clocks, dmb.Varying):
        mixtures = process.clocks.raw_profile.detach().expand(2, -1, -1).softmax(1).numpy()

    def clocks(u, position):
        s = 1 - np.exp(-u)
        profile = np.stack([u, -np.log(1 - s**2), -np.log(1 - s**4), s], axis=-1)
        return alpha[position] * (profile @ mixtures[position])

    for position in range(2):
        rang = -np.log1p(-0.999 * when[:, position].numpy())
        total = clocks(np.array(oracles.loglinear(t)[0]), position)[top - 1]

        def chance(u, position=position, total=total):
            return np.expm1(-clocks(u, position)[..., top - 1]) / np.expm1(-total)

        assert scipy.stats.kstest(rang, chance).pvalue > 1e-3
        lower = clocks(rang, position)[:, :2]
        stays_low, to_one = np.exp(-lower.sum(-1)), np.exp(-lower[:, 1]) * -np.expm1(-lower[:, 0])
        for landing, probability in [(0, stays_low), (1, to_one), (2, 1 - stays_low - to_one)]:
            hits = (where[:, position] == landing).numpy()
            assert abs((hits - probability).sum()) < 4 * np.sqrt((probability * (1 - probability)).sum())


def reached(clocks, clock, u):
    """How far each clock, counted from 1, has run by a time of its own; there is no clock 0."""
    scale, rates = clocks.intensity(None, u, torch.float64)
    return scale * torch.nn.functional.pad(rates, (1, 0))[:, 0].gather(-1, clock)


@pytest.mark.parametrize("spread", [0.0, 2.0, 10.0, 40.0])
@pytest.mark.parametrize("latest", [1e-6, 0.5, 6.9, 200.0])
def test_by_the_time_that_is_found_a_clock_has_run_as_far_as_was_asked(spread, latest):
    """However unevenly it runs: the first stands still for long, and there Newton's method alone goes round in circles."""
    clocks, clock = varying(d=1, n=8, low=1e-3, high=30.0).clocks, torch.arange(8).repeat(100)[:, None]
    share = torch.logspace(-9, 0, 100, dtype=torch.float64).repeat_interleave(8)[:, None]
    share[:8] = 0
    end = torch.full_like(share, latest)
    with torch.no_grad():
        clocks.raw_profile.normal_(std=spread, generator=torch.Generator().manual_seed(3))
        clocks.raw_profile[:, :, 0] = torch.tensor([2.7e-11, 1.4e-13, 1.9e-3, 6.2e-8]).log()
        asked = share * reached(clocks, clock, end)
        found = clocks.inverse_intensity(clock, asked, end)
        torch.testing.assert_close(reached(clocks, clock, found), asked, rtol=1e-12, atol=0)
    assert ((found >= 0) & (found <= end)).all()
    assert (found[asked == 0] == 0).all()


def test_a_position_whose_posterior_is_itself_does_not_jump():
    process = varying(n=4)
    log_posterior = torch.where(torch.nn.functional.one_hot(X_T, 4).bool(), 0.0, -torch.inf).double()
    when, where = process.next_jump(log_posterior, X_T, 0.8, generator=torch.Generator().manual_seed(0))
    assert (when == 0).all()
    assert torch.equal(where, X_T)


@pytest.mark.parametrize("rates_are_fixed", [False, True])
def test_the_gradient_of_the_profiles_equals_finite_differences(rates_are_fixed):
    process = varying(n=4)
    process.clocks.log_rates.requires_grad_(not rates_are_fixed)
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    x_0, t = torch.tensor([[0, 1], [1, 0], [0, 0]]), torch.tensor([1e-3, 0.3, 1.0], dtype=torch.float64)
    x_t = process.sample(x_0, 0.9, generator=torch.Generator().manual_seed(1))

    def loss():
        return process.integrand_from_logits(logits, x_t, x_0, t).sum() + process.prior_kl_table(process.p_T).sum()

    loss().backward()
    gradient, raw = process.clocks.raw_profile.grad, process.clocks.raw_profile.data
    assert gradient.isfinite().all()
    assert (gradient != 0).all()
    for index in np.ndindex(*raw.shape):
        ends = []
        for step in (1e-5, -2e-5):
            raw[index] += step
            ends.append(loss().item())
        raw[index] += 1e-5
        assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("t", [1e-12, 1e-6, 0.3])
def test_clocks_that_start_late_are_no_obstacle_to_float32(t):
    """At t = 1e-12 they have intensities of 1e-48, which float32 does not know."""
    process = made_of(2)
    log_posterior = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    exact = process.integrand_from_posterior(log_posterior, X_0, X_0, t).detach()
    single = process.float().integrand_from_posterior(log_posterior.float(), X_0, X_0, t).detach()
    torch.testing.assert_close(single.double(), exact, rtol=3e-5, atol=0)


def test_matching_takes_into_account_how_the_clocks_run():
    process = dmb.BridgeProcess.from_marginals(marginals(2, 4), init="match", clocks=dmb.Varying)
    torch.testing.assert_close(process.p_T, torch.full((2, 4), 0.25).double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"mask": True}, {"schedule": dmb.Canonical()}],
    ids=["plain", "mask", "canonical"],
)
def test_with_the_exact_score_the_bound_is_the_entropy(options):
    mu = marginals(1, 4)[0]
    process = varying(d=1, n=4, **options)
    with torch.no_grad():
        bound = theory.exact_bound(torch.nn.functional.pad(mu, (0, process.num_states - 4)), process)
    assert bound.total == pytest.approx(scipy.stats.entropy(mu), abs=1e-8)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_saved_bridge_has_the_same_clocks(tied, tmp_path):
    process = varying(n=4, tied=tied, schedule=dmb.Canonical()).float()
    dmb.MarkovBridge(process, dmb.MLP(4, 2, width=8, blocks=1)).save_pretrained(tmp_path)
    restored = dmb.Bridge.from_pretrained(tmp_path).process
    assert isinstance(restored.clocks, dmb.Varying)
    assert torch.equal(restored.clocks.raw_profile, process.clocks.raw_profile)
    for t in (1e-6, 0.3, 1.0):
        assert torch.equal(restored.to_dense(t), process.to_dense(t))


def test_normalising_leaves_the_rates_alone_since_profiles_have_a_time_scale_of_their_own():
    process = varying(n=4, schedule=dmb.Canonical())
    before = process.to_dense(0.3)
    process.normalise()
    assert torch.equal(process.to_dense(0.3), before)

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn.functional import pad

import dmb
from dmb import theory
from dmb.processes.clocks import delayed

import oracles
from contracts.cases import RAGGED, marginals, tokenwise

MU = marginals(2, 3)
MASK = 3
X_0, X_T = torch.tensor([[0, 1], [2, 2], [1, 0]]), torch.tensor([[MASK, 1], [2, MASK], [MASK, MASK]])


def canonical(**options):
    return tokenwise(n=3, schedule=dmb.Canonical(), **options)


@pytest.mark.parametrize("u", [1e-40, 1e-12, 0.1, 1.0, 40.0, 60.0])
@pytest.mark.parametrize("power", [0.2, 1.0, 3.7, 8.0])
def test_delayed_clocks_and_their_slopes_have_twelve_right_digits(power, u):
    value, slope = delayed(torch.tensor([u], dtype=torch.float64), torch.tensor([power], dtype=torch.float64))
    with mpmath.workdps(50):
        intensity = oracles.delayed(mpmath.mpf(power))
        assert value.item() == pytest.approx(float(intensity(mpmath.mpf(u))), rel=1e-12, abs=1e-310)
        assert slope.item() == pytest.approx(float(oracles.slope(intensity, mpmath.mpf(u))), rel=1e-12, abs=1e-310)


def test_at_time_zero_a_small_exponent_is_infinitely_fast_and_a_large_one_stands_still():
    value, slope = delayed(torch.zeros(1), torch.tensor([0.5, 1.0, 2.0]))
    assert value.tolist() == [0, 0, 0]
    assert slope.tolist() == [torch.inf, 1, 0]


@pytest.mark.parametrize("in_canonical_time", [False, True], ids=["plain", "canonical"])
def test_with_all_exponents_one_it_is_masked_diffusion(in_canonical_time):
    schedule = dmb.Canonical() if in_canonical_time else dmb.LogLinear()
    process = dmb.TokenwiseMasking.from_marginals(MU, schedule=schedule)
    masked = dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0, schedule=schedule)
    assert process.mask_token == masked.num_states - 1 == MASK
    assert process.names == masked.names == 1
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    for t in (1e-9, 0.3, 1.0):
        for one, other in [
            (process.to_dense(t), masked.to_dense(t)),
            (process.to_dense(1.0, start=t), masked.to_dense(1.0, start=t)),
            (process.log_likelihood(X_T, t), masked.log_likelihood(X_T, t)),
            (process.rates_into(X_T, t), masked.rates_into(X_T, t)),
            (process.integrand_from_score(logits, X_T, X_0, t), masked.integrand_from_score(logits, X_T, X_0, t)),
            (process.integrand_from_logits(logits, X_T, X_0, t), masked.integrand_from_logits(logits, X_T, X_0, t)),
        ]:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
    p_T = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(process.p_T, masked.p_T, rtol=1e-10, atol=0)
    torch.testing.assert_close(process.prior_kl_table(p_T), masked.prior_kl_table(p_T), rtol=1e-10, atol=1e-14)


def test_a_state_of_twice_the_exponent_is_masked_with_the_square_of_the_chance():
    process = dmb.TokenwiseMasking(torch.tensor([[1.5, 3.0]], dtype=torch.float64))
    kernel = process.to_dense(0.4)[0]
    assert kernel[1, 2].item() == pytest.approx(kernel[0, 2].item() ** 2, rel=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dmb.TokenwiseMasking(torch.tensor([[1.0, 0.0]])), "exponents must be finite, positive and of shape"),
        (lambda: dmb.TokenwiseMasking(torch.tensor([[1.0, -2.0]])), "exponents must be finite, positive and of shape"),
        (lambda: dmb.TokenwiseMasking(torch.tensor([[1.0, torch.inf]])), "exponents must be finite, positive"),
        (lambda: dmb.TokenwiseMasking(torch.tensor([[1.0, torch.nan]])), "exponents must be finite, positive"),
        (lambda: dmb.TokenwiseMasking(torch.ones(3)), r"of shape \[positions, states\]"),
        (lambda: dmb.TokenwiseMasking(torch.ones(2, 3), num_positions=5), r"must have 5 rows or 1, got \[2\]"),
        (lambda: dmb.TokenwiseMasking(torch.ones(1, 2), legal=torch.tensor([[True, True, False]])), "hold the mask"),
        (lambda: dmb.TokenwiseMasking.from_marginals(MU[0]), r"marginals must have shape \[positions, states\]"),
        (lambda: dmb.TokenwiseMasking.from_marginals(MU, state_counts=torch.tensor([3])), "must be 2 whole numbers"),
        (lambda: dmb.TokenwiseMasking.from_marginals(MU, state_counts=torch.tensor([3, 2])), "0 on states beyond"),
        (
            lambda: dmb.TokenwiseMasking.from_marginals(
                marginals(2, 3, states=(3, 2)), state_counts=torch.tensor([3, 2]), tied=True
            ),
            r"the same number of states, got \[3, 2\]",
        ),
        (lambda: tokenwise(n=3).log_transition(X_0, 0.3, start=0.5), "start must not come after t"),
        (lambda: tokenwise(n=3).log_likelihood(X_0, 0.3, start=0.5), "start must not come after t"),
        (lambda: tokenwise(d=3, n=5, states=RAGGED).log_transition(torch.tensor([[2, 0, 0]]), 0.3), "one of the 3 states"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_type_checks")
def test_what_makes_no_sense_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_in_canonical_time_a_common_factor_of_the_exponents_means_nothing():
    process, stretched = canonical(), canonical()
    with torch.no_grad():
        stretched.log_exponents.add_(1.0)
    normal = canonical()
    normal.normalise()
    assert normal.log_exponents.mean().item() == pytest.approx(0, abs=1e-15)
    for t in (1e-6, 0.3, 1.0):
        kernel, rates = process.to_dense(t), process.rates_into(X_T, t)
        for other in (stretched, normal):
            torch.testing.assert_close(other.to_dense(t), kernel, rtol=1e-10, atol=0)
            torch.testing.assert_close(other.rates_into(X_T, t), rates, rtol=1e-10, atol=0)


def test_in_any_other_time_normalising_changes_nothing():
    process = tokenwise(n=3)
    before = process.log_exponents.detach().clone()
    process.normalise()
    assert torch.equal(process.log_exponents, before)


@pytest.mark.parametrize("options", [{}, {"tied": True}], ids=["untied", "tied"])
def test_a_saved_bridge_has_the_same_exponents(options, tmp_path):
    process = canonical(**options).float()
    dmb.MarkovBridge(process, dmb.MLP(4, 2, width=8, blocks=1)).save_pretrained(tmp_path)
    restored = dmb.Bridge.from_pretrained(tmp_path).process
    assert isinstance(restored, dmb.TokenwiseMasking)
    assert restored.mask_token == MASK
    assert torch.equal(restored.p_0, process.p_0)
    for t in (1e-6, 0.3, 1.0):
        assert torch.equal(restored.to_dense(t), process.to_dense(t))


def test_a_saved_ragged_process_remembers_which_states_a_position_has(tmp_path):
    process = tokenwise(d=3, n=5, states=RAGGED).float()
    dmb.MarkovBridge(process, dmb.MLP(6, 3, width=8, blocks=1)).save_pretrained(tmp_path)
    restored = dmb.Bridge.from_pretrained(tmp_path).process
    assert torch.equal(restored.legal, process.legal)
    assert torch.equal(restored.to_dense(0.4), process.to_dense(0.4))


def test_with_the_exact_score_the_bound_is_the_entropy():
    mu = marginals(1, 4)[0]
    with torch.no_grad():
        bound = theory.exact_bound(pad(mu, (0, 1)), tokenwise(d=1))
    assert bound.total == pytest.approx(scipy.stats.entropy(mu), abs=1e-8)


def test_the_gradient_of_the_exponents_equals_finite_differences():
    process = tokenwise(n=3)
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    t = torch.tensor([1e-3, 0.3, 1.0], dtype=torch.float64)

    def loss():
        return process.integrand_from_logits(logits, X_T, X_0, t).sum() + process.prior_kl_table(process.p_T).sum()

    loss().backward()
    gradient, raw = process.log_exponents.grad, process.log_exponents.data
    assert (gradient != 0).all()
    for index in np.ndindex(*raw.shape):
        ends = []
        for step in (1e-5, -2e-5):
            raw[index] += step
            ends.append(loss().item())
        raw[index] += 1e-5
        assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8)

import mpmath
import numpy as np
import pytest
import torch

from dmb._core import numerics

import oracles


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_log1mexp_has_all_its_digits_over_the_whole_range(dtype):
    x = torch.logspace(-30, 2, 500, dtype=dtype)
    with mpmath.workdps(60):
        exact = [float(mpmath.log(1 - mpmath.exp(-mpmath.mpf(v)))) for v in x.double().tolist()]
    np.testing.assert_allclose(numerics.log1mexp(x).double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=1e-43)


def test_log_x_over_1mexp_has_all_its_digits_over_the_whole_range():
    x = torch.logspace(-12, 2, 300, dtype=torch.float64)
    with mpmath.workdps(60):
        exact = [float(mpmath.log(mpmath.mpf(v) / (1 - mpmath.exp(-mpmath.mpf(v))))) for v in x.tolist()]
    np.testing.assert_allclose(numerics.log_x_over_1mexp(x), exact, rtol=1e-12, atol=1e-14)


def test_a_clock_that_is_off_gives_a_zero_gradient_and_no_nan():
    x = torch.tensor([0.0, 1e-30, 1.0, 200.0], requires_grad=True)
    for function in (numerics.log1mexp, numerics.log_x_over_1mexp):
        (gradient,) = torch.autograd.grad(function(x).exp().sum(), x)
        assert torch.isfinite(gradient).all()
        assert gradient[0] == 0


def test_suffix_sums_keep_a_small_tail_beside_a_huge_head():
    x = torch.tensor([1e30, 1.0, 1e-30])
    assert numerics.suffix_sum(x)[0] == 1.0
    assert numerics.suffix_sum(x)[1] == torch.tensor(1e-30)  # a difference of totals would say 0
    assert numerics.prefix_sum(x.flip(0))[1] == torch.tensor(1e-30)


def test_categorical_draws_have_the_given_distribution_and_never_hit_a_state_of_weight_zero():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 1e-4, 0.0])
    draws = numerics.categorical(weights.expand(200_000, -1), generator=torch.Generator().manual_seed(0))
    assert oracles.chi_square_p_value(torch.bincount(draws, minlength=6), weights / weights.sum()) > 1e-4


def test_exponential_draws_reach_events_that_float32_uniforms_cannot():
    draws = numerics.exponential((2_000_000,), generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert 0 < draws[draws > 0].min() < 1e-5
    assert (draws < 1e-3).sum().item() == pytest.approx(2000, abs=4 * 2000**0.5)
    steps = draws[draws < 1e-4] * 2**24
    assert (steps - steps.round()).abs().max() > 0.4  # not on float32's grid


def test_stratified_times_put_one_time_in_every_stratum():
    t = numerics.stratified_times(1000, generator=torch.Generator().manual_seed(0))
    assert t.min() > 0
    assert t.max() <= 1
    assert sorted(torch.ceil(t * 1000).int().tolist()) == list(range(1, 1001))
    assert not torch.equal(t, t.sort().values)


def test_stratified_times_estimate_an_integral_without_bias_and_with_less_variance():
    generator = torch.Generator().manual_seed(0)
    stratified = torch.stack([numerics.stratified_times(16, generator=generator).exp().mean() for _ in range(2000)])
    plain = torch.rand(2000, 16, generator=generator, dtype=torch.float64).exp().mean(-1)
    assert stratified.mean().item() == pytest.approx(np.e - 1, abs=4 * stratified.std().item() / 2000**0.5)
    assert stratified.var() < plain.var() / 100

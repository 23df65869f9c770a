"""Uniform noise on a vocabulary of 50,257 states in float32, against 30 digits and against float64 by hand."""

import mpmath
import numpy as np
import pytest
import torch

import dmb

N = 50_257
CLOCK_TIMES = [1e-6, 7.0, 10.0, 14.0, 20.0]
every_time = pytest.mark.parametrize("sigma_bar", CLOCK_TIMES)


def process_and_time(sigma_bar):
    """Clock time runs to 20 evenly."""
    return dmb.UniformProcess(1, N, schedule=dmb.Linear(20.0, 20.0)), sigma_bar / 20


def entries(sigma_bar):
    """`u` and `u + e`, worked out to 30 digits and rounded once."""
    with mpmath.workdps(30):
        e = mpmath.exp(-mpmath.mpf(sigma_bar))
        return float((1 - e) / N), float((1 - e) / N + e)


@every_time
def test_the_chances_to_move_and_to_stay_have_all_their_digits(sigma_bar):
    process, t = process_and_time(sigma_bar)
    log_prob = process.log_prob(torch.tensor([[4], [5]]), torch.tensor([[5], [5]]), t)
    assert log_prob.dtype == torch.float32
    np.testing.assert_allclose(log_prob[:, 0], np.log(entries(sigma_bar)), rtol=3e-7)
    for table in (process.log_transition, process.log_likelihood):
        row = table(torch.tensor([[5]]), t)[0, 0]
        np.testing.assert_allclose(row[4:6], np.log(entries(sigma_bar)), rtol=3e-7)
        assert row.double().exp().sum().item() == pytest.approx(1, abs=1e-5)


@every_time
def test_the_score_of_a_posterior_has_six_digits(sigma_bar):
    """`Σ_x π_x p(y|x) / p(x_t|x)` by hand, where half of the posterior says that nothing has moved."""
    process, t = process_and_time(sigma_bar)
    u, stays = entries(sigma_bar)
    pi = np.random.default_rng(0).dirichlet(np.ones(N)) / 2
    pi[5] += 0.5
    log_posterior = torch.tensor(np.log(pi), dtype=torch.float32)[None, None]
    score = process.log_score(log_posterior, torch.tensor([[5]]), t)[0, 0].double().exp().numpy()
    expected = pi[5] * u / stays + (1 - pi[5]) + pi * np.exp(-sigma_bar) / u
    others = np.arange(N) != 5
    np.testing.assert_allclose(score[others], expected[others], rtol=1e-5)
    assert score[5] == 0


@every_time
def test_the_integrand_at_a_token_that_has_not_moved_has_its_digits(sigma_bar):
    """`σ/n Σ_y (s - r + r log(r / s))`, one score `s` for all states and the ratio `r = u / (u + e)`."""
    process, t = process_and_time(sigma_bar)
    u, stays = entries(sigma_bar)
    x = torch.tensor([[5]])
    value = process.integrand_from_score(torch.full((1, 1, N), 0.25), x, x, t).item()
    with mpmath.workdps(30):
        s, r = mpmath.exp(0.25), mpmath.mpf(u) / mpmath.mpf(stays)
        expected = 20 * mpmath.mpf(N - 1) / N * (s - r + r * (mpmath.log(r) - 0.25))
    assert value == pytest.approx(float(expected), rel=1e-5)

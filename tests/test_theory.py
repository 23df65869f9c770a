from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings, strategies as st

import dmb
from dmb import theory

import oracles


def random_distribution(*shape, seed=0):
    p = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2
    return p / p.sum()


def random_bridge(mu, seed=0, **options):
    process = dmb.BridgeProcess.from_marginals(mu, **options)
    with torch.no_grad():
        raw = process.clocks.log_rates
        raw.copy_(torch.randn(raw.shape, generator=torch.Generator().manual_seed(seed)))
    return process


def entropy_by_numpy(mu):
    mu = mu.numpy().ravel()
    return -(mu[mu > 0] * np.log(mu[mu > 0])).sum()


PROCESSES = {
    "bridge, ascending": lambda mu, seed: random_bridge(mu[None], seed, order="ascending"),
    "bridge, descending": lambda mu, seed: random_bridge(mu[None], seed, order="descending"),
    "bridge, ascending, mask": lambda mu, seed: random_bridge(mu[None], seed, order="ascending", mask=True),
    "bridge, descending, mask": lambda mu, seed: random_bridge(mu[None], seed, order="descending", mask=True),
    "bridge, canonical time": lambda mu, seed: random_bridge(mu[None], seed, schedule=dmb.Canonical()),
    "masked diffusion": lambda mu, seed: dmb.BridgeProcess.from_marginals(mu[None], mask=True, floor=0.0),
    "uniform": lambda mu, seed: dmb.UniformProcess(1, len(mu)).double(),
}


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("name", PROCESSES)
def test_exact_score_makes_the_bound_equal_the_entropy(name, n):
    mu = random_distribution(n, seed=n)
    process = PROCESSES[name](mu, n)
    mu = torch.nn.functional.pad(mu, (0, process.num_states - n))
    with torch.no_grad():
        bound = theory.exact_bound(mu, process)
    assert bound.total == pytest.approx(entropy_by_numpy(mu), abs=1e-8)


def test_in_several_positions_the_bound_exceeds_the_entropy_by_what_the_prior_misses():
    mu = random_distribution(3, 3, seed=1)
    process = random_bridge(theory.position_marginals(mu), init="uniform")
    with torch.no_grad():
        bound = theory.exact_bound(mu, process)
    kernel = [scipy.linalg.expm(oracles.loglinear(1.0)[0] * oracles.bridge_rates(*row)) for row in zip(
        process.alpha.detach().numpy(), process.rank.numpy(), strict=True)]  # fmt: skip
    p_T = np.einsum("ab,ai,bj->ij", mu.numpy(), *kernel)
    product = np.outer(p_T.sum(1), p_T.sum(0))
    missed = (p_T * np.log(p_T / product)).sum()
    assert bound.total == pytest.approx(entropy_by_numpy(mu) + missed, abs=1e-8)


def test_the_optimal_score_is_the_ratio_of_marginals():
    mu = random_distribution(3, 4, 2, seed=2)
    mu = torch.nn.functional.pad(mu, (0, 2, 0, 0, 0, 1))
    mu = mu / mu.sum()
    process = dmb.UniformProcess(3, 4).double()
    P = scipy.linalg.expm(oracles.loglinear(0.4)[0] * oracles.uniform_rates(4, 4))
    p_t = np.einsum("abc,ai,bj,ck->ijk", mu.numpy(), P, P, P)
    x_t = theory.all_sequences(4, 3)
    score = theory.optimal_log_score(mu, process, x_t, 0.4).exp()
    for row, (a, b, c) in enumerate(x_t.tolist()):
        for y in range(4):
            assert score[row, 0, y].item() == pytest.approx(p_t[y, b, c] / p_t[a, b, c] if y != a else 0)
            assert score[row, 1, y].item() == pytest.approx(p_t[a, y, c] / p_t[a, b, c] if y != b else 0)
            assert score[row, 2, y].item() == pytest.approx(p_t[a, b, y] / p_t[a, b, c] if y != c else 0)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.integers(2, 200), st.integers(0, 2**32 - 1), st.floats(0.1, 8.0))
def test_accessibility_carries_any_distribution_to_any_other(n, seed, spread):
    rng = np.random.default_rng(seed)
    p, q = (np.exp(spread * rng.standard_normal(n)) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    alpha, rank = theory.accessibility(torch.tensor(p), torch.tensor(q))
    assert (alpha >= 0).all()
    kernel = scipy.linalg.expm(oracles.bridge_rates(alpha.numpy(), rank.numpy()))
    assert np.abs(q @ kernel - p).max() < 1e-9


def test_accessibility_fills_empty_states_and_leaves_unused_ones_alone():
    p, q = torch.tensor([0.5, 0.0, 0.3, 0.2]).double(), torch.tensor([0.6, 0.0, 0.4, 0.0]).double()
    alpha, rank = theory.accessibility(p, q)
    kernel = scipy.linalg.expm(oracles.bridge_rates(alpha.numpy(), rank.numpy()))
    np.testing.assert_allclose(q.numpy() @ kernel, p, atol=1e-12)
    assert rank[1] == 0  # unused: below everything
    assert rank[3] == 3  # filled from all others


def test_accessibility_refuses_to_empty_a_state_in_finite_time():
    with pytest.raises(ValueError, match=r"p must be positive wherever q is, got p = 0 and q = 0.5 at state 1"):
        theory.accessibility(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))


def test_match_init_carries_the_marginals_to_the_target_by_the_end_of_time():
    marginals = torch.stack([random_distribution(6, seed=s) for s in range(3)])
    target = torch.stack([random_distribution(6, seed=s) for s in range(10, 13)])
    for schedule in (dmb.LogLinear(), dmb.Linear(0.5, 3.0), dmb.Canonical(end=6.9)):
        process = dmb.BridgeProcess.from_marginals(marginals, init="match", target=target, schedule=schedule)
        torch.testing.assert_close(process.evolve(marginals, 1.0), target, rtol=0, atol=1e-12, check_dtype=True)


def test_the_diagonalisation_holds_and_its_eigenvectors_do_not_depend_on_the_rates():
    alpha = random_distribution(6)
    U, eigenvalues, inverse = theory.diagonalisation(alpha)
    H = oracles.bridge_rates(alpha.numpy(), np.arange(7))
    np.testing.assert_allclose(theory.rate_matrix(alpha), H, atol=1e-15)
    np.testing.assert_allclose(U @ torch.diag(eigenvalues) @ inverse, H, atol=1e-15)
    np.testing.assert_allclose(U @ torch.diag(eigenvalues.exp()) @ inverse, scipy.linalg.expm(H), atol=1e-14)
    assert torch.equal(U, theory.diagonalisation(2 * alpha)[0])


def test_the_sum_of_any_vector_is_conserved():
    vector = torch.tensor([3.0, -7.0, 0.5, 2.0], dtype=torch.float64)
    before, after = theory.conservation(vector, theory.rate_matrix(torch.tensor([0.3, 2.0, 0.7]).double()))
    assert before == pytest.approx(-1.5)
    assert after == pytest.approx(before, abs=1e-14)


@pytest.mark.parametrize("seed", range(10))
def test_the_exact_bridge_never_moves_away_from_the_data(seed):
    mu, p_0 = random_distribution(6, seed=seed), random_distribution(6, seed=100 + seed)
    process = random_bridge(mu[None], seed)
    with torch.no_grad():
        process.clocks.log_rates.sub_(3)
    trace = list(theory.exact_bridge(mu, process, p_0, cycles=8, matrix_steps=4))
    kl = np.array([cycle.kl for cycle in trace])
    assert kl[0] == pytest.approx((mu * (mu / p_0).log()).sum().item())
    assert (np.diff(kl) <= 1e-15).all()
    assert kl[-1] < kl[0] / 2
    entropy = entropy_by_numpy(mu)
    for early, late in pairwise(trace):
        # E[-log p_0(x)] ≤ J_score + J_Q, with p_0 the estimate that the cycle ends with
        assert entropy + late.kl <= late.score + late.prior + 1e-9
        # Lemma: noise cannot increase KL, so the bound is no looser than the estimate it started from
        assert late.score + late.prior <= entropy + early.kl + 1e-9


def test_kl_divergence_keeps_its_sign_and_digits_for_close_distributions():
    p = torch.tensor([0.3, 0.7], dtype=torch.float64)
    q = p + torch.tensor([1e-9, -1e-9], dtype=torch.float64)
    assert theory.kl_divergence(p, q) == pytest.approx(1e-18 / 2 / 0.21, rel=1e-6)
    assert theory.kl_divergence(p, p) == 0
    assert theory.kl_divergence(p, torch.tensor([1.0, 0.0]).double()) == np.inf

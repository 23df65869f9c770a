"""One suite that every forward process passes, against dense matrices built by loops and exponentiated by scipy."""

from functools import cache

import numpy as np
import pytest
import torch

import dmb
from dmb.processes import ForwardProcess

import oracles
from contracts.cases import marginals
from contracts.trees import CASES

TIMES = (1e-12, 1e-6, 0.3, 1.0)
DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-13}, torch.float32: {"rtol": 5e-5, "atol": 1e-7}}

# of the module's scope, so that all tests of a case run one after the other and share its dense matrices
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name, scope="module")


def everywhere(case, times=TIMES, dtypes=DTYPES):
    """The process of a case in each dtype, at each time; and what a failure says of where it was."""
    for dtype in dtypes:
        process = case.process(dtype)
        for t in times:
            yield process, t, dtype, f"at t = {t} in {dtype}"


def clock(process, t):
    """σ̄ and σ: by hand for LogLinear, otherwise as the schedule (which has tests of its own) says."""
    if isinstance(process.schedule, dmb.LogLinear):
        return oracles.loglinear(t)
    time = process.schedule(torch.tensor([t], dtype=torch.float64), process.exits)
    return time.sigma_bar.item(), time.sigma.item()


@cache
def integrated(case, t, start=0.0):
    process = case.process()
    return shared(case.integrated(clock(process, start)[0], clock(process, t)[0]))


@cache
def dense_kernels(case, t, start=0.0):
    return shared(np.stack([oracles.transition(each) for each in integrated(case, t, start)]))


@cache
def dense_rates(case, t):
    """`Q` per unit of `t`."""
    u, sigma = clock(case.process(), t)
    return shared(sigma * case.generator(u))


def shared(array):
    """Many tests compare with it, and none may write to it."""
    array.setflags(write=False)
    return array


def every_state(case):
    """A row for each state, which is at all positions that have it; 0 is at the others."""
    legal = torch.tensor(case.legal())
    return torch.where(legal, torch.arange(legal.shape[1]), 0).T.contiguous()


def legal_rows(case, matrices):
    return matrices[case.legal()]


@every_case
def test_transition_rows_equal_the_dense_matrix_exponential(case):
    for process, t, dtype, where in everywhere(case):
        rows = process.to_dense(t).detach().numpy()
        assert rows.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        exact = legal_rows(case, dense_kernels(case, t))
        np.testing.assert_allclose(legal_rows(case, rows), exact, **TOLERANCE[dtype], err_msg=where)


@every_case
def test_even_the_smallest_transitions_have_nine_right_digits(case):
    for process, t, _, where in everywhere(case, dtypes=[torch.float64]):
        rows = legal_rows(case, process.to_dense(t).detach().numpy())
        exact = legal_rows(case, np.stack([oracles.transition_to_50_digits(each) for each in integrated(case, t)]))
        kept = exact > 1e-290
        np.testing.assert_allclose(rows[kept], exact[kept], rtol=1e-9, err_msg=where)


@every_case
def test_transition_rows_sum_to_one_and_never_enter_a_state_the_position_lacks(case):
    legal = torch.tensor(case.legal())
    for process, t, dtype, where in everywhere(case):
        rows = process.to_dense(t).detach()
        tolerance = 1e-12 if dtype == torch.float64 else 2e-6
        assert (rows >= 0).all(), where
        assert (rows.sum(-1) - 1).abs().max() <= tolerance, where
        assert (rows * legal[..., None] * ~legal[:, None]).sum() == 0, where


@every_case
def test_transitions_compose(case):
    process = case.process()
    two_steps = process.to_dense(0.3) @ process.to_dense(0.9, start=0.3)
    legal = torch.tensor(case.legal())
    torch.testing.assert_close(two_steps[legal], process.to_dense(0.9)[legal], rtol=1e-9, atol=1e-13)


@every_case
def test_entries_and_columns_are_those_of_the_dense_matrix(case):
    x_0, x_t = case.pairs()
    for process, t, dtype, where in everywhere(case):
        kernels, positions = dense_kernels(case, t), np.arange(process.num_positions)
        entries = process.log_prob(x_t, x_0, t).detach().exp().numpy()
        np.testing.assert_allclose(entries, kernels[positions, x_0, x_t], **TOLERANCE[dtype], err_msg=where)
        columns = process.log_likelihood(x_t, t).detach().exp().numpy()
        expected = kernels.transpose(0, 2, 1)[positions, x_t] * case.legal()
        np.testing.assert_allclose(columns, expected, **TOLERANCE[dtype], err_msg=where)


@every_case
def test_rates_into_a_state_are_a_column_of_the_dense_matrix(case):
    _, x_t = case.pairs()
    for process, t, dtype, where in everywhere(case):
        expected = dense_rates(case, t).transpose(0, 2, 1)[np.arange(process.num_positions), x_t]
        np.put_along_axis(expected, x_t[..., None].numpy(), 0.0, axis=-1)
        found, tiny = process.rates_into(x_t, t).detach(), torch.finfo(dtype).tiny  # what the dtype cannot hold is 0
        np.testing.assert_allclose(found, expected * case.legal(), rtol=1e-5, atol=tiny, err_msg=where)


@every_case
def test_exits_are_the_diagonal_of_the_dense_matrix(case):
    process, legal = case.process(), case.legal()
    for t in TIMES[1:]:
        u = clock(process, t)[0]
        exits = process.exits(torch.tensor([u], dtype=torch.float64))
        for found, dense in ((exits.intensity, integrated(case, t)), (exits.rate, case.generator(u))):
            expected = -dense.diagonal(axis1=1, axis2=2).astype(float)
            found = found[0].detach().expand(len(legal), -1).numpy()
            np.testing.assert_allclose(found[legal], expected[legal], rtol=1e-9, atol=1e-13, err_msg=f"at t = {t}")


@every_case
def test_evolve_is_the_row_vector_times_the_dense_matrix(case):
    p_0 = torch.tensor(case.legal() * np.random.default_rng(0).random(case.legal().shape))
    p_0 = p_0 / p_0.sum(-1, keepdim=True)
    for process, t, dtype, where in everywhere(case):
        expected = np.einsum("dx,dxy->dy", p_0.numpy(), dense_kernels(case, t))
        found = process.evolve(p_0.to(dtype), t).detach()
        np.testing.assert_allclose(found, expected, **TOLERANCE[dtype], err_msg=where)


@every_case
def test_samples_have_the_distribution_of_the_transition_rows(case):
    draws = 20_000
    x_0 = every_state(case).repeat_interleave(draws, 0)
    for process, t, _, where in everywhere(case, times=(1e-3, 0.3, 1.0), dtypes=[torch.float32]):
        x_t = process.sample(x_0, t, generator=torch.Generator().manual_seed(0)).view(-1, draws, process.num_positions)
        for i, state in np.argwhere(case.legal()):
            counts = torch.bincount(x_t[state, :, i], minlength=process.num_states)
            assert oracles.chi_square_p_value(counts, dense_kernels(case, t)[i, state]) > 1e-5, where


@every_case
def test_samples_taken_in_two_steps_have_the_distribution_of_one(case):
    process, kernels = case.process(), dense_kernels(case, 0.8)
    generator = torch.Generator().manual_seed(1)
    x_0 = torch.zeros(20_000, process.num_positions, dtype=torch.long)
    x_s = process.sample(x_0, 0.4, generator=generator)
    x_t = process.sample(x_s, 0.8, start=0.4, generator=generator)
    for i in range(process.num_positions):
        counts = torch.bincount(x_t[:, i], minlength=process.num_states)
        assert oracles.chi_square_p_value(counts, kernels[i, 0]) > 1e-5


@every_case
def test_prior_kl_equals_brute_force(case):
    kernels = dense_kernels(case, 1.0)
    p_T = torch.tensor(case.legal() * np.random.default_rng(1).random(case.legal().shape))
    p_T = p_T / p_T.sum(-1, keepdim=True)
    x_0, _ = case.pairs()
    expected = np.zeros(x_0.shape)
    for row, i in np.ndindex(*x_0.shape):
        for y, p in enumerate(kernels[i, x_0[row, i]]):
            expected[row, i] += p * np.log(p / p_T[i, y].item()) if p > 1e-300 else 0
    for process, _, dtype, where in everywhere(case, times=[1.0]):
        tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
        found = process.prior_kl(x_0, p_T.to(dtype)).detach()
        np.testing.assert_allclose(found, expected, **tolerance, err_msg=where)


@every_case
def test_a_prior_that_forbids_a_state_costs_infinitely_much_and_nothing_becomes_nan(case):
    process, legal = case.process(), torch.tensor(case.legal())
    p_T = legal.double()
    p_T[:, 0] = 0
    table = process.prior_kl_table(p_T / p_T.sum(-1, keepdim=True)).detach()
    reaches = torch.tensor(dense_kernels(case, 1.0)[:, :, 0] > 1e-300) & legal
    assert not table.isnan().any()
    assert (table.isinf() == reaches).all()


@every_case
def test_the_true_posterior_implies_the_true_score(case):
    legal = case.legal()
    mu = torch.tensor(legal * np.random.default_rng(2).random(legal.shape))
    mu = mu / mu.sum(-1, keepdim=True)
    _, x_t = case.pairs()
    i = np.arange(len(legal))
    for process, t, _, where in everywhere(case, times=TIMES[1:], dtypes=[torch.float64]):
        log_posterior = (mu.log() + process.log_likelihood(x_t, t)).log_softmax(-1).detach()
        score = process.log_score(log_posterior, x_t, t).detach().exp().numpy()
        p_t = np.einsum("dx,dxy->dy", mu.numpy(), dense_kernels(case, t))
        used = process.rates_into(x_t, t).detach().numpy() > 0
        likely = p_t[i, x_t] > 1e-9  # below that scipy's own rounding shows
        expected = p_t[i] / np.where(likely, p_t[i, x_t], 1.0)[..., None]
        shown = used & likely[..., None]
        np.testing.assert_allclose(score[shown], expected[shown], rtol=1e-7, atol=1e-12, err_msg=where)
        assert (score[~used] == 0).all(), where


@every_case
def test_the_score_known_without_data_is_that_of_all_data_states_alike(case):
    _, x_t = case.pairs()
    i = np.arange(len(case.legal()))
    for process, t, _, where in everywhere(case, times=TIMES[1:], dtypes=[torch.float64]):
        found = process._log_score_without_data(x_t, process.solve(t, len(x_t))).detach()
        assert found.isfinite().all(), where
        data = process.data_states.expand(process.num_positions, -1).double().numpy()
        alike = np.einsum("dx,dxy->dy", data, dense_kernels(case, t))
        here = alike[i, x_t][..., None]  # below 1e-9 scipy's own rounding shows
        shown = (process.rates_into(x_t, t).detach().numpy() > 0) & (here > 1e-9) & (alike[i] > 1e-9)
        expected = np.where(shown, alike[i] / np.where(here > 0, here, 1.0), 1.0)
        found = np.where(shown, found.exp().expand(expected.shape).numpy(), 1.0)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=where)


@every_case
def test_the_integrand_of_a_score_equals_a_loop_over_states(case):
    x_0, x_t = case.pairs()
    for process, t, _, where in everywhere(case, times=TIMES[1:], dtypes=[torch.float64]):
        log_score = torch.randn(*x_t.shape, process.num_states, generator=torch.Generator().manual_seed(0)).double()
        kernels, Q = dense_kernels(case, t), dense_rates(case, t) * case.legal()[:, :, None]
        found = process.integrand_from_score(log_score, x_t, x_0, t).detach().numpy()
        expected = found.copy()  # where scipy's own rounding shows
        for row, i in np.ndindex(*x_t.shape):
            start, end = x_0[row, i].item(), x_t[row, i].item()
            if kernels[i, start, end] >= 1e-9:
                expected[row, i] = oracles.score_entropy(Q[i], kernels[i], start, end, log_score[row, i].numpy())
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, err_msg=where)


@every_case
def test_closed_forms_of_the_integrand_equal_the_generic_one_with_their_gradients(case):
    for process, t, _, _ in everywhere(case, times=TIMES[1:], dtypes=[torch.float64]):
        assert_closed_forms_equal_the_generic_one(case, process, t)


def assert_closed_forms_equal_the_generic_one(case, process, t):
    x_0, x_t = case.pairs()
    likeliest = process.log_transition(x_0, t).argmax(-1)
    x_t = torch.where(process.log_prob(x_t, x_0, t).exp() > 1e-30, x_t, likeliest)
    logits = torch.randn(*x_t.shape, process.num_states, generator=torch.Generator().manual_seed(0)).double()
    legal = torch.tensor(case.legal())

    def value_and_gradients(integrand, prepare):
        process.zero_grad()
        leaf = logits.clone().requires_grad_()
        value = integrand(prepare(leaf), x_t, x_0, t)
        value.sum().backward()
        return value.detach(), leaf.grad, [p.grad.clone() for p in process.parameters() if p.grad is not None]

    def posterior(leaf):
        return (leaf + process.log_likelihood(x_t, t)).log_softmax(-1)

    def generic_posterior(log_posterior, *rest):
        return ForwardProcess.integrand_from_score(process, process.log_score(log_posterior, *rest[::2]), *rest)

    def generic_score(log_score, *rest):
        return ForwardProcess.integrand_from_score(process, log_score, *rest)

    for closed, generic, prepare in [
        (process.integrand_from_score, generic_score, lambda leaf: leaf.masked_fill(~legal, -torch.inf)),
        (process.integrand_from_posterior, generic_posterior, posterior),
    ]:
        one, other = value_and_gradients(closed, prepare), value_and_gradients(generic, prepare)
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
        assert all(torch.isfinite(g).all() for g in one[2])


@every_case
def test_a_network_that_gives_nan_costs_nan_wherever_its_answer_matters(case):
    process = case.process()
    x_0, x_t = case.pairs()
    x_t = torch.where(process.log_prob(x_t, x_0, 0.3).exp() > 1e-30, x_t, x_0)
    unknown = torch.full((*x_t.shape, process.num_states), torch.nan, dtype=torch.float64)
    matters = (process.rates_into(x_t, 0.3) > 0).any(-1)
    assert matters.any()
    for integrand in (process.integrand_from_score, process.integrand_from_posterior, process.integrand_from_logits):
        assert integrand(unknown, x_t, x_0, 0.3)[matters].isnan().all()
        with process.fixed():
            assert integrand(unknown, x_t, x_0, 0.3)[matters].isnan().all()


@every_case
def test_a_step_back_follows_bayes_rule_at_any_step_size(case):
    process, legal = case.process(torch.float32), case.legal()
    mu = legal * np.random.default_rng(3).random(legal.shape)
    mu[:, process.num_states - process.names :] = 0
    mu = mu / mu.sum(-1, keepdims=True)
    draws = 5_000
    x_t = every_state(case)
    for t, s in [(1.0, 0.0), (1.0, 0.5), (0.6, 0.5), (0.3, 0.3)]:
        to_s, s_to_t, to_t = dense_kernels(case, s), dense_kernels(case, t, s), dense_kernels(case, t)
        log_posterior = torch.tensor(mu).log() + process.log_likelihood(x_t, t).detach()
        log_posterior = log_posterior.log_softmax(-1).float().nan_to_num(nan=0.0).repeat_interleave(draws, 0)
        generator = torch.Generator().manual_seed(2)
        x_s = process.step_back(log_posterior, x_t.repeat_interleave(draws, 0), t, s, generator=generator)
        x_s = x_s.view(-1, draws, process.num_positions)
        for i, state in np.argwhere(legal):
            p_t = (mu[i] @ to_t[i])[state]
            if p_t < 1e-6:
                continue
            exact = (mu[i] @ to_s[i]) * s_to_t[i, :, state] / p_t
            counts = torch.bincount(x_s[state, :, i], minlength=process.num_states)
            assert oracles.chi_square_p_value(counts, exact / exact.sum()) > 1e-5, f"from {t} to {s}"


def integrated_generator(process, u):
    """`∫ Q` up to clock time `u`, as formulas that torch differentiates: not for small `u`."""
    log_s = np.log1p(-np.exp(-u))
    if type(process).rate_matrix is not dmb.ForwardProcess.rate_matrix:
        return u * process.rate_matrix().expand(process.num_positions, -1, -1)
    if isinstance(process, dmb.TokenwiseMasking):
        intensity = -torch.log(-torch.expm1(process.exponents * log_s)).expand(process.num_positions, -1)
        Q = torch.diag_embed(torch.nn.functional.pad(-intensity, (0, 1)))
        return torch.cat([Q[..., :-1], -Q.sum(-1, keepdim=True)], -1)
    alpha = torch.where(process.clocks.running, process.clocks.log_rates.exp(), 0.0).expand(process.num_positions, -1)
    clocks = u * alpha
    if isinstance(process.clocks, dmb.Varying):
        profiles = torch.tensor([u, -np.log(-np.expm1(2 * log_s)), -np.log(-np.expm1(4 * log_s)), np.exp(log_s)])
        clocks = alpha * torch.einsum("gmk,m->gk", process.clocks.raw_profile.softmax(1), profiles)
    clock_into = process.hierarchy.clock_into.expand(process.num_positions, -1)
    into = torch.nn.functional.pad(clocks, (1, 0)).gather(-1, clock_into)
    Q = torch.where(lies_above(process), into[:, None, :], 0.0)
    return Q - torch.diag_embed(Q.sum(-1))


def lies_above(process):
    """Whether `y` lies above `x`, `[d, x, y]`: by ranks, or up from every node of a tree."""
    if isinstance(process.hierarchy, dmb.Line):
        rank = process.rank.expand(process.num_positions, -1)
        return rank[:, None, :] > rank[:, :, None]
    above = torch.zeros(process.num_positions, process.num_states, process.num_states, dtype=torch.bool)
    for i, parent in enumerate(process.hierarchy.parent.expand(process.num_positions, -1).tolist()):
        for x, v in enumerate(range(process.num_states)):
            while parent[v] != v:
                v = parent[v]
                above[i, x, v] = True
    return above


@every_case
def test_gradients_of_the_parameters_equal_those_of_a_dense_computation(case):
    process = case.process()
    parameters = list(process.parameters())
    if not parameters:
        assert isinstance(process, dmb.UniformProcess)
        return
    x_0, x_t = case.pairs()
    p_T = torch.tensor(case.legal() / case.legal().sum(-1, keepdims=True))
    mu = marginals(*p_T.shape, seed=5) * p_T
    mu = mu / mu.sum(-1, keepdim=True)
    weights = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(0)).double()
    elapsed = clock(process, 0.3)[0], clock(process, 1.0)[0]
    reachable = process.log_prob(x_t, x_0, 0.3).exp() > 1e-30

    def functional(prob, evolved, prior):
        smooth = (evolved * torch.arange(evolved.shape[-1])).sum() + (mu * prior).sum()
        return smooth + (weights * prob)[reachable].sum()

    ours = functional(process.log_prob(x_t, x_0, 0.3).exp(), process.evolve(mu, 0.3), process.prior_kl_table(p_T))
    early, late = (torch.linalg.matrix_exp(integrated_generator(process, u)) for u in elapsed)
    i = torch.arange(process.num_positions)
    ratio = torch.where(late > 1e-300, late / p_T.clamp(min=1e-300)[:, None], 1.0)
    prior = torch.where(torch.tensor(case.legal()), (late * ratio.log()).sum(-1), 0.0)
    dense = functional(early[i, x_0, x_t], torch.einsum("dx,dxy->dy", mu, early), prior)
    for mine, theirs in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(dense, parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)

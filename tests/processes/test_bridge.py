import copy
import math

import numpy as np
import pytest
import torch

import dmb

MU = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]], dtype=torch.float64)


def test_only_the_mask_clock_running_is_absorbing_diffusion():
    """Against the formulas of SEDD-absorb and MDLM: stay with 1 - t', else mask; loss weight 1/t' on masked tokens."""
    process = dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0)
    mask, n = 3, 4
    assert process.names == 1
    assert process.data_states.tolist() == [[True, True, True, False]]
    for t in (1e-6, 0.3, 1.0):
        masked = 0.999 * t
        expected = torch.eye(n).double() * (1 - masked)
        expected[:, mask] += masked
        torch.testing.assert_close(process.to_dense(t), expected.expand(2, -1, -1), rtol=1e-12, atol=1e-15)

        x_0, x_t = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[mask, 1], [mask, mask]])
        logits = torch.randn(2, 2, n, generator=torch.Generator().manual_seed(0)).double()
        logits[..., mask] = -torch.inf  # data are never the mask
        log_posterior = torch.where((x_t == mask)[..., None], logits.log_softmax(-1), -torch.inf)
        log_posterior[0, 1, 1] = 0.0  # what is not masked is known
        # score of a masked token: p(x_0) (1 - t') / t'
        score = process.log_score(log_posterior, x_t, t).exp()
        torch.testing.assert_close(score[1, :, :mask], log_posterior[1, :, :mask].exp() * (1 - masked) / masked)
        # negative cross-entropy weighted by α'/(1-α) = 0.999 / t' on masked tokens, nothing elsewhere
        cross_entropy = -log_posterior.gather(-1, x_0[..., None]).squeeze(-1)
        expected_loss = torch.where(x_t == mask, 0.999 / masked * cross_entropy, 0.0)
        loss = process.integrand_from_posterior(log_posterior, x_t, x_0, t)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-9, atol=1e-12)


def test_only_the_top_clock_running_is_absorption_into_the_top_state():
    process = dmb.BridgeProcess.from_marginals(MU, floor=0.0)
    kernel = process.to_dense(0.7)
    for position, top in enumerate([0, 1]):
        expected = torch.eye(3).double() * (1 - 0.6993)
        expected[:, top] += 0.6993
        torch.testing.assert_close(kernel[position], expected)


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [("ascending", [2, 0, 1], [0, 2, 1]), ("descending", [0, 2, 1], [2, 0, 1]), ("natural", [0, 1, 2], [0, 1, 2])],
)
def test_orders(order, first, second):
    assert dmb.BridgeProcess.from_marginals(MU, order=order).rank.tolist() == [first, second]
    # the mask goes on top of any order
    assert dmb.BridgeProcess.from_marginals(MU, order=order, mask=True).rank.tolist() == [[*first, 3], [*second, 3]]


def test_tied_positions_share_the_order_and_rates_of_the_pooled_marginals():
    process = dmb.BridgeProcess.from_marginals(MU, tied=True)
    assert process.rank.tolist() == [[0, 2, 1]]  # pooled marginals: 0.3, 0.4, 0.3
    assert process.clocks.log_rates.shape == (1, 2)
    assert process.alpha.shape == (2, 2)


def test_states_a_position_lacks_get_its_lowest_ranks_and_no_clock():
    mu = torch.tensor([[0.3, 0.7, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    process = dmb.BridgeProcess.from_marginals(mu, state_counts=torch.tensor([2, 4]), init="uniform")
    assert process.rank.tolist() == [[2, 3, 0, 1], [0, 1, 2, 3]]
    torch.testing.assert_close(process.alpha, torch.tensor([[0, 0, 1.0], [1 / 3, 1 / 3, 1 / 3]]))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_gather_rare_states_first_and_the_most_frequent_last(stages, mask):
    counts = [2, 4, 7, 9]
    marginals = torch.zeros(4, 9)
    for row, count in enumerate(counts):
        marginals[row, :count] = torch.from_numpy(np.random.default_rng(row).dirichlet(np.ones(count)))
    process = dmb.BridgeProcess.from_marginals(
        marginals, init="nested", stages=stages, floor=0.0, mask=mask, state_counts=torch.tensor(counts)
    )
    transition = process.to_dense(0.3).detach().double()
    for row, count in enumerate(counts):
        rarest_first = ([9] if mask else []) + marginals[row, :count].argsort().tolist()
        made = min(stages, len(rarest_first) // 2)
        names, others = rarest_first[:made], rarest_first[made:]
        # nothing is ever led anywhere but to a name
        leaving = transition[row].clone()
        leaving[:, names] = 0
        leaving.fill_diagonal_(0)
        assert leaving[: count + mask].sum() == 0
        # what is rarer is not kept longer, the most frequent is kept longest, and there are as many groups as stages
        kept = transition[row].diagonal()[others]
        assert (kept.diff() >= 0).all()
        assert len(kept.unique()) == made
        assert made == 1 or kept[-1] > kept[-2]
        # and in the end there is one name for everything
        assert process.to_dense(1.0)[row, [*others, *names], names[0]].min() > 0.99


def test_stages_after_the_first_have_half_of_what_is_left():
    p = torch.tensor([[0.3, 0.2, 0.15, 0.11, 0.09, 0.08, 0.04, 0.02, 0.01]])
    process = dmb.BridgeProcess.from_marginals(p, init="nested", stages=3, floor=0.0)
    # 0 alone; of 1 to 5, with 0.63 in all, 1 and 2 are the first to have half; 8, 7 and 6 are the names
    assert process.rank.tolist() == [[7, 5, 4, 2, 1, 0, 3, 6, 8]]
    assert process.alpha[0].tolist() == pytest.approx([0, 0, 400, 0, 0, 20, 0, 1])


@pytest.mark.parametrize("clocks", [dmb.Steady, dmb.Varying])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stages_keep_the_precision_of_the_marginals(dtype, clocks):
    mu = torch.tensor([[0.4, 0.1, 0.3, 0.2]], dtype=dtype)
    process = dmb.BridgeProcess.from_marginals(mu, init="nested", floor=0.0, clocks=clocks)
    assert {each.dtype for each in process.parameters()} == {process.dtype} == {dtype}
    assert process.p_0.dtype == process.to_dense(0.3).dtype == dtype
    # rates of 20 and 1, to the last digits of the type: none of them went through a coarser one
    stages = process.alpha[process.alpha > 0].detach().double()
    torch.testing.assert_close(stages, torch.tensor([20.0, 1.0]).double(), rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_stages_bring_their_own_order():
    with pytest.raises(ValueError, match="init='nested' does not use order"):
        dmb.BridgeProcess.from_marginals(torch.tensor([[0.2, 0.8]]), init="nested", order="natural")


def test_a_clock_of_rate_zero_stays_off_under_any_optimiser():
    process = dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0)
    for optimiser in (torch.optim.AdamW(process.parameters(), lr=0.1), torch.optim.SGD(process.parameters(), lr=0.1)):
        optimiser.zero_grad()
        p_T = torch.full((2, 4), 0.25, dtype=torch.float64)
        process.prior_kl_table(p_T).sum().backward()
        optimiser.step()
    assert (process.alpha[:, :-1] == 0).all()
    assert (process.alpha[:, -1] != 1).all()


@pytest.mark.parametrize("kind", [dmb.Steady, dmb.Varying])
def test_a_process_starts_at_the_rates_that_it_is_given(kind):
    alpha = torch.tensor([[1e-6, 0.0, 1e-2, 30.0]], dtype=torch.float64)
    process = dmb.BridgeProcess(dmb.Line(torch.arange(5)[None]), kind(alpha))
    torch.testing.assert_close(process.alpha.detach(), alpha, rtol=1e-12, atol=0)


@pytest.mark.parametrize("low", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("t", [1e-12, 1e-6, 0.3, 1.0])
def test_the_integrand_in_float32_equals_float64_at_extreme_rates_and_times(low, t):
    generator = torch.Generator().manual_seed(0)
    alpha = low * torch.rand(1, 26, generator=generator, dtype=torch.float64)
    line = dmb.Line(torch.randperm(27, generator=generator)[None])
    process = dmb.BridgeProcess(line, dmb.Steady(alpha), num_positions=64)
    x_0 = torch.randint(27, (64, 64), generator=generator)
    x_t = process.sample(x_0, t, generator=generator)
    logits = torch.randn(64, 64, 27, generator=generator, dtype=torch.float64)

    def integrands(process, logits):
        logits = logits.detach().requires_grad_()
        log_posterior = (logits + process.log_likelihood(x_t, t)).log_softmax(-1)
        mean = process.integrand_from_posterior(log_posterior, x_t, x_0, t)
        score = process.integrand_from_score(logits, x_t, x_0, t)
        return [mean, score, *torch.autograd.grad(mean.sum(), logits)]

    exact = [value.detach() for value in integrands(process, logits)]
    single = [value.detach() for value in integrands(process.float(), logits.float())]
    for value, reference in zip(single, exact, strict=True):
        assert value.dtype == torch.float32
        scale = reference.abs().amax() * 1e-6
        torch.testing.assert_close(value.double(), reference, rtol=3e-5, atol=max(scale.item(), 1e-30))


def test_nothing_moves_at_time_zero():
    process = dmb.BridgeProcess.from_marginals(MU, init="uniform")
    x_0 = torch.tensor([[0, 1], [2, 2]])
    assert torch.equal(process.sample(x_0, 0.0), x_0)
    torch.testing.assert_close(process.to_dense(0.0), torch.eye(3).double().expand(2, -1, -1))


def test_each_row_has_its_own_time():
    process = dmb.BridgeProcess.from_marginals(MU, init="uniform")
    x_0, t = torch.tensor([[0, 1], [0, 1]]), torch.tensor([0.1, 0.9])
    rows = process.log_transition(x_0, t)
    for row, time in enumerate([0.1, 0.9]):
        torch.testing.assert_close(rows[row], process.log_transition(x_0, time)[row], rtol=1e-7, atol=0)


def test_moving_a_process_to_another_dtype_moves_all_it_returns():
    process = dmb.BridgeProcess.from_marginals(MU, schedule=dmb.Canonical()).float()
    x = torch.tensor([[0, 1]])
    assert process.log_transition(x, 0.5).dtype == torch.float32
    assert process.evolve(MU, 0.5).dtype == torch.float32


def test_state_dict_restores_rates_and_order():
    process = dmb.BridgeProcess.from_marginals(MU, init="uniform")
    other = dmb.BridgeProcess.from_marginals(MU.flip(0), init="gather")
    other.load_state_dict(process.state_dict())
    x = torch.tensor([[0, 1], [2, 2]])
    torch.testing.assert_close(other.log_transition(x, 0.5), process.log_transition(x, 0.5))
    assert torch.equal(
        other.sample(x, 0.9, generator=torch.Generator().manual_seed(0)),
        process.sample(x, 0.9, generator=torch.Generator().manual_seed(0)),
    )


def test_learning_the_matrix_on_the_prior_term_lowers_it():
    process = dmb.BridgeProcess.from_marginals(MU, init="uniform")
    with torch.no_grad():
        process.clocks.log_rates.sub_(3)
    optimiser = torch.optim.Adam(process.parameters(), lr=0.1)
    values = []
    for _ in range(50):
        loss = (MU * process.prior_kl_table(process.evolve(MU, 1.0))).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert values[-1] < values[0] / 10
    assert math.isfinite(values[-1])
    assert np.diff(values).max() < 0


def in_canonical_time(slow):
    mu, rates = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64), torch.tensor([[slow, 1.0]], dtype=torch.float64)
    line = dmb.Line(torch.tensor([[0, 1, 2]]))
    return dmb.BridgeProcess(line, dmb.Steady(rates), schedule=dmb.Canonical(), marginals=mu)


def load_into_a_copy(process):
    process.load_state_dict(in_canonical_time(0.5).state_dict())
    assert process.p_T.isfinite().all()
    other = copy.deepcopy(process)
    other.load_state_dict(in_canonical_time(0.001).state_dict())
    return other


def replace_parameter(process):
    process.clocks.log_rates = in_canonical_time(0.001).clocks.log_rates
    return process


def change_data(process):
    process.clocks.log_rates.data.copy_(in_canonical_time(0.001).clocks.log_rates)
    return process


@pytest.mark.parametrize("change", [load_into_a_copy, replace_parameter, change_data])
def test_canonical_time_is_solved_anew_when_rates_have_changed_in_whatever_way(change):
    process = in_canonical_time(2.0)
    assert process.p_T.isfinite().all()
    torch.testing.assert_close(change(process).p_T, in_canonical_time(0.001).p_T)


def test_canonical_time_is_solved_anew_for_another_schedule_and_outside_of_inference_mode():
    process = in_canonical_time(0.5)
    before = process.p_T
    process.schedule = dmb.Canonical().bind(torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64))
    with torch.inference_mode():
        assert not torch.allclose(process.p_T, before)
    process.p_T[0, 0].backward()
    assert process.clocks.log_rates.grad.abs().max() > 0

"""The bound of a sampler: it is that of the law by which its samples are drawn, at every number of calls."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import dmb
import dmb.networks.heads
import toys
from dmb import theory
from dmb._core.seeding import seeded
from dmb.objectives.calls import bridge_law, chain_bound, step_nats
from dmb.sampling import SAMPLERS, Denoiser, time_grid

import oracles

PAIRS = [
    (sampler, name, head)
    for name in (
        "bridge",
        "bridge with mask",
        "tree",
        "masked diffusion",
        "varying bridge",
        "tokenwise masking",
        "uniform",
        "dense",
    )
    for sampler, head in [("ancestral", "mean"), ("tweedie", "mean"), ("tweedie", "score"), ("euler", "score")]
]
pytestmark = pytest.mark.usefixtures("no_type_checks")  # sums over all sequences
every_pair = pytest.mark.parametrize(("sampler", "name", "head"), PAIRS, ids=lambda v: v)


def wrong(bridge, amount=0.5):
    """The same model with bent outputs, so that its law is not the data's."""
    bridge.network.register_forward_hook(
        lambda _, inputs, out: out + amount * torch.sin(7.0 * inputs[0][..., None] + torch.arange(out.shape[-1]))
    )
    return bridge


def exact_bounds(bridge, sampler, times, **options):
    """The bound on every sequence, with all expectations enumerated."""
    process, n, d = bridge.process, bridge.num_states, bridge.num_positions
    data = theory.all_sequences(n - process.names, d).view(-1, d)
    noisy, nats = theory.all_sequences(n, d).view(-1, d), process.prior_kl(data, process.p_T).sum(-1)
    x_0, x_t = data.repeat_interleave(len(noisy), 0), noisy.repeat(len(data), 1)
    for t, s in pairwise(times.tolist()):
        chance = process.log_prob(x_t, x_0, t).sum(-1).exp()
        ends = (torch.full((len(x_0),), time, dtype=torch.float64) for time in (t, s))
        cost = step_nats(Denoiser(bridge, **options), SAMPLERS[sampler], x_0, *ends, to_data=s == 0, x_t=x_t).sum(-1)
        nats = nats + torch.where(chance > 0, chance * cost, 0.0).view(len(data), -1).sum(-1)
    return nats.detach()


def law(bridge, sampler, times, **options):
    """The law of the samples on all sequences, by the law of each step; no randomness."""
    process, n, d = bridge.process, bridge.num_states, bridge.num_positions
    states = theory.all_sequences(n, d)
    p = torch.stack([process.p_T.expand(d, -1)[i][states[:, i]] for i in range(d)]).prod(0).detach()
    for t, s in pairwise(times.tolist()):
        now, earlier = (process.solve(time, len(states)) for time in (t, s))
        step = SAMPLERS[sampler].log_step(Denoiser(bridge, **options), states, now, earlier, to_data=s == 0).exp()
        p = p @ torch.stack([step[:, i][:, states[:, i]] for i in range(d)]).prod(0)
    return p


@every_pair
@pytest.mark.parametrize("calls", [1, 3, 8])
@torch.no_grad()
def test_samples_follow_the_law_that_is_bounded(sampler, name, head, calls):
    bridge = wrong(toys.model(name, toys.distribution(3, 3, seed=2), head))
    expected = law(bridge, sampler, time_grid(bridge.process, calls))
    n = bridge.num_states
    x = bridge.sample(6_000, calls=calls, sampler=sampler, generator=seeded("law", sampler, name))
    counts = np.bincount(x[:, 0] * n + x[:, 1], minlength=n * n)
    assert oracles.chi_square_p_value(counts, expected) > 1e-5


@every_pair
@pytest.mark.parametrize("calls", [1, 2, 5, 8])
@torch.no_grad()
def test_a_bound_is_above_the_log_likelihood_of_its_own_law_so_no_more_than_1_in_all(sampler, name, head, calls):
    bridge = wrong(toys.model(name, toys.distribution(3, 3, seed=2), head))
    times = time_grid(bridge.process, calls)
    bounds, p = exact_bounds(bridge, sampler, times), law(bridge, sampler, times)
    data = theory.all_sequences(3, 2)
    p = p[data[:, 0] * bridge.num_states + data[:, 1]]
    assert (bounds >= -p.log() - 1e-9).all()
    assert (-bounds).exp().sum() <= 1 + 1e-9
    if calls == 1 and bounds.isfinite().all():  # nothing is averaged but the noise
        assert (-bounds).exp().sum() > 0.5


@every_pair
@torch.no_grad()
def test_estimates_agree_with_enumeration(sampler, name, head):
    bridge = wrong(toys.model(name, toys.distribution(3, 3, seed=2), head))
    times, data = time_grid(bridge.process, 3), theory.all_sequences(3, 2)
    exact = exact_bounds(bridge, sampler, times)
    estimate = chain_bound(
        Denoiser(bridge), SAMPLERS[sampler], times, data.repeat(100, 1), generator=seeded("estimate")
    )
    if exact.isinf().any():
        if name == "tree":  # whose impossible steps are too rare to be drawn, so that the estimate is finite
            return
        assert estimate.impossible > 0
        assert estimate.bits_per_token == torch.inf
        assert str(estimate).startswith("inf bits per token")
        return
    error = abs(estimate.nats - exact.mean().item())
    assert error < 4 * estimate.stderr * 2 * np.log(2) + 1e-9
    assert estimate.impossible == 0


@pytest.mark.parametrize("calls", [1, 2, 8])
@pytest.mark.parametrize("sampler", ["ancestral", "tweedie"])
@pytest.mark.parametrize("name", ["bridge", "tree", "masked diffusion", "uniform", "tokenwise masking"])
@torch.no_grad()
def test_with_one_position_and_the_exact_posterior_it_is_the_entropy_at_every_number_of_calls(name, sampler, calls):
    mu = toys.distribution(5, seed=1)
    bridge = toys.model(name, mu)
    bounds = exact_bounds(bridge, sampler, time_grid(bridge.process, calls))
    assert (mu * bounds).sum().item() == pytest.approx(theory.entropy(mu), abs=1e-9)
    process, data = bridge.process, toys.with_mask_axis(mu, bridge.process)
    process.set_marginals(toys.with_mask_axis(toys.distribution(5, seed=3), process)[None])
    at_end, prior = data @ process.to_dense(1.0)[0], process.p_T[0]
    gap = torch.special.xlogy(at_end, at_end) - torch.special.xlogy(at_end, prior)
    bounds = exact_bounds(bridge, sampler, time_grid(process, calls))
    assert (mu * bounds).sum().item() == pytest.approx(theory.entropy(mu) + gap.sum().item(), abs=1e-9)


@pytest.mark.parametrize("grid", ["canonical", "uniform"])
@torch.no_grad()
def test_eulers_bound_is_infinite_wherever_its_clamp_forbids_a_token_to_stay(grid):
    """Rates out of a token times the width of the step, from dense matrices; the last step is analytic."""
    mu = toys.distribution(27, seed=1)
    process = dmb.BridgeProcess.from_marginals(mu[None], init="uniform")
    bridge, infinite = toys.exact_bridge(mu, process), []
    for calls in (1, 2, 4, 8, 16, 64, 256):
        times = time_grid(process, calls, grid)
        forbids = False
        for t, s in [*pairwise(times.tolist())][:-1]:
            p_t, width = mu @ process.to_dense(t)[0], 1e-7
            rates = (
                process.to_dense(t)[0] - process.to_dense(t - width)[0]
            ) / width  # into each state, from all others
            Q = torch.linalg.solve(process.to_dense(t - width)[0], rates)
            out = (p_t[:, None] * Q).fill_diagonal_(0).sum(0) / p_t
            forbids |= bool(((t - s) * out[p_t > 0] > 1 + 1e-4).any())
        infinite.append(forbids)
        assert (mu * exact_bounds(bridge, "euler", times)).sum().isinf() == forbids, calls
    assert infinite[:2] == [False, True]
    assert not infinite[-1]


@torch.no_grad()
def test_more_calls_approach_the_bound_in_the_limit():
    mu = toys.distribution(3, 3, seed=2)
    bridge = wrong(toys.model("bridge", mu), 0.2)
    limit = theory.exact_bound(mu, bridge.process)
    costs = [
        (mu.flatten() * exact_bounds(bridge, "ancestral", time_grid(bridge.process, calls))).sum()
        for calls in (1, 4, 16, 64)
    ]
    assert all(few > many for few, many in pairwise(costs))
    assert costs[-1] > limit.total


def test_the_law_between_two_ends_is_bayes_rule_on_dense_matrices():
    process = toys.model("bridge with mask", toys.distribution(3, 3, seed=2)).process
    x_0, x_t = torch.tensor([[0, 2]]), torch.tensor([[3, 2]])
    found = bridge_law(process, x_t, x_0, process.solve(0.8, 1), process.solve(0.3, 1)).exp()
    to_s, on = process.to_dense(0.3), process.to_dense(0.8, start=0.3)
    for i in range(2):
        expected = to_s[i, x_0[0, i]] * on[i, :, x_t[0, i]]
        torch.testing.assert_close(found[0, i], expected / expected.sum())


@every_pair
@torch.no_grad()
def test_a_bridge_bounds_what_it_samples(sampler, name, head):
    bridge = wrong(toys.model(name, toys.distribution(3, 3, seed=2), head))
    data = theory.all_sequences(3, 2).repeat(20, 1)
    found = bridge.bound(data, calls=3, sampler=sampler, generator=seeded("door"))
    times = time_grid(bridge.process, 3)
    expected = chain_bound(Denoiser(bridge), SAMPLERS[sampler], times, data, generator=seeded("door"))
    assert torch.equal(found.score, expected.score)
    if sampler == bridge.samplers[0]:  # the default of samples is that of bounds
        assert torch.equal(bridge.bound(data, calls=3, generator=seeded("door")).score, expected.score)


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_p": 0.6}])
@torch.no_grad()
def test_a_temperature_and_a_nucleus_are_part_of_the_law(options):
    bridge = toys.model("masked diffusion", toys.distribution(3, 3, seed=2))
    data, times = theory.all_sequences(3, 2), time_grid(bridge.process, 2)
    exact = exact_bounds(bridge, "ancestral", times, **options)
    assert (-exact).exp().sum() <= 1 + 1e-9
    p = law(bridge, "ancestral", times, **options)[data[:, 0] * bridge.num_states + data[:, 1]]
    assert exact[p == 0].isinf().all()
    x = bridge.sample(6_000, calls=2, generator=seeded("tempered"), **options)
    counts = np.bincount(x[:, 0] * 3 + x[:, 1], minlength=9)
    assert oracles.chi_square_p_value(counts, p) > 1e-5
    found = bridge.bound(data.repeat(50, 1), calls=2, generator=seeded("tempered"), **options)
    assert (found.impossible > 0) == bool(exact.isinf().any())
    assert (exact - exact_bounds(bridge, "ancestral", times)).abs().max() > 0.1  # and changes it


@torch.no_grad()
def test_given_positions_cost_nothing_and_are_known_to_every_step():
    mu = toys.distribution(3, 3, seed=2)
    bridge = toys.model("masked diffusion", mu)
    given = torch.tensor([[True, False]]).expand(9, -1)
    rows = theory.all_sequences(3, 2).repeat(300, 1)
    bound = bridge.bound(rows, given=given.repeat(300, 1), calls=2, generator=seeded("given"))
    assert bound.mean_tokens == 1
    conditional = -(mu / mu.sum(1, keepdim=True)).log().mean().item()  # one position is left, so that steps are exact
    assert bound.nats == pytest.approx(conditional, abs=4 * bound.stderr * np.log(2) + 0.01)


def test_options_of_a_sampler_without_its_calls_and_samplers_without_a_law_are_refused():
    bridge = toys.model("masked diffusion", toys.distribution(3, 3, seed=2))
    data = theory.all_sequences(3, 2)
    for options in ({"sampler": "ancestral"}, {"temperature": 0.5}, {"grid": "uniform"}):
        with pytest.raises(ValueError, match="are of a bound with calls: give calls, too"):
            bridge.bound(data, **options)
    with pytest.raises(ValueError, match="first_hitting has no number of calls: choose the sampler from"):
        bridge.bound(data, calls=2, sampler="first_hitting")
    with pytest.raises(ValueError, match="calls needs a sampler that knows the law of its step"):
        bridge.bound(data, calls=2, sampler=lambda denoiser, x_T, times, generator: iter(()))
    with pytest.raises(ValueError, match="calls must be at least 1, got 0"):
        bridge.bound(data, calls=0)

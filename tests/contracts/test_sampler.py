"""One suite that every sampler passes, with the exact network in place of a trained one."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb import theory
from dmb.sampling import SAMPLERS, Denoiser, draw_prior, estimate_marginals, time_grid
from dmb.sampling.step_by_step import log_euler, log_tweedie

import oracles

EXACT_IN_ONE_DIMENSION = ("ancestral", "first_hitting", "tweedie")


def runs_on(sampler, name):
    return sampler != "first_hitting" or "bridge" in name or name == "masked diffusion"


ALL_PAIRS = [(s, n) for s in SAMPLERS for n in toys.PROCESSES if runs_on(s, n)]
every_pair = pytest.mark.parametrize(("sampler", "name"), ALL_PAIRS, ids=lambda v: v)
# what samplers do with several positions, which takes longest, is the same for all processes: they ask a process for
# steps, jumps and rates of single positions, and those have tests of their own; so each sampler meets each kind of
# process, and each process with steady clocks meets one sampler
SLOW_PAIRS = [pair for pair in ALL_PAIRS if pair[1] in ("bridge", "masked diffusion", "uniform")] + [
    ("ancestral", "bridge descending"),
    ("first_hitting", "bridge with mask"),
    ("tweedie", "bridge in canonical time"),
    ("euler", "dense"),
]

FEW_PAIRS = [pair for pair in ALL_PAIRS if pair[1] in ("bridge", "masked diffusion", "varying bridge", "uniform")]


def counts_of(x, shape):
    index = np.ravel_multi_index(tuple(x.T.numpy()), shape)
    return np.bincount(index, minlength=np.prod(shape))


def total_variation(x, mu):
    counts = counts_of(x, tuple(mu.shape))
    return np.abs(counts / counts.sum() - mu.numpy().ravel()).sum() / 2


@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("sampler", "name"), [p for p in ALL_PAIRS if p[0] in EXACT_IN_ONE_DIMENSION], ids=lambda v: v)
def test_in_one_dimension_samples_are_exact_at_any_number_of_steps(sampler, name, steps):
    mu = toys.distribution(5, seed=1)
    bridge = toys.model(name, mu)
    x = bridge.sample(20_000, calls=steps, sampler=SAMPLERS[sampler], generator=torch.Generator().manual_seed(steps))
    assert oracles.chi_square_p_value(np.bincount(x[:, 0], minlength=5), mu) > 1e-5


@pytest.mark.parametrize("steps", [1, 3])
def test_the_score_head_samples_exactly_with_tweedie(steps):
    mu = toys.distribution(5, seed=1)
    bridge = toys.model("bridge", mu, "score")
    x = bridge.sample(20_000, calls=steps, sampler="tweedie", generator=torch.Generator().manual_seed(0))
    assert oracles.chi_square_p_value(np.bincount(x[:, 0], minlength=5), mu) > 1e-5


@pytest.mark.parametrize("sampler", EXACT_IN_ONE_DIMENSION)
def test_fast_clocks_in_float32_are_no_obstacle(sampler):
    """Clock intensities of 200 at t = 1: their exponentials leave float32's range."""
    mu = toys.distribution(4, seed=1)
    line, clocks = dmb.Line(torch.arange(4)[None]), dmb.Steady(torch.full((1, 3), 10.0))
    process = dmb.BridgeProcess(line, clocks, marginals=mu.float()[None])
    bridge = dmb.MarkovBridge(process, dmb.Tabular(mu.float(), process))
    x = bridge.sample(20_000, calls=16, sampler=SAMPLERS[sampler], generator=torch.Generator().manual_seed(0))
    assert oracles.chi_square_p_value(np.bincount(x[:, 0], minlength=4), mu) > 1e-5


@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize(("sampler", "name"), SLOW_PAIRS, ids=lambda v: v)
def test_in_two_dimensions_the_error_falls_with_the_number_of_steps(sampler, name):
    mu = toys.distribution(3, 3, seed=2)
    bridge = toys.model(name, mu)
    errors = [
        total_variation(
            bridge.sample(6_000, calls=steps, sampler=SAMPLERS[sampler], generator=torch.Generator().manual_seed(0)), mu
        )
        for steps in (1, 4, 24)
    ]
    noise = 0.015
    assert errors[2] < max(errors[0] / 3, noise)
    assert errors[1] < max(errors[0], noise)
    assert errors[2] < 0.05


def exact_law(bridge, mu, probabilities, steps):
    """The law of the samples, by carrying the distribution of all of x from step to step; no randomness."""
    process, n, d = bridge.process, bridge.num_states, bridge.num_positions
    states = theory.all_sequences(n, d)
    law = torch.stack([process.p_T[i][states[:, i]] for i in range(d)]).prod(0).detach()
    times = time_grid(process, steps)
    with torch.no_grad():  # scores of all steps at once
        scores = bridge.log_score(states.repeat(steps, 1), times[:-1].repeat_interleave(len(states)))
        solved = process.solve(times, len(times))
        clocks = [solved.rows(torch.tensor([k])).expand(len(states)) for k in range(len(times))]
        for (now, earlier), score in zip(pairwise(clocks), scores.split(len(states)), strict=True):
            p = probabilities(process, score, states, now, earlier, to_data=earlier is clocks[-1]).exp()
            p = p / p.sum(-1, keepdim=True)
            kernel = torch.stack([p[:, i][:, states[:, i]] for i in range(d)]).prod(0)
            law = law @ kernel
    return (law - toys.with_mask_axis(mu, process).flatten()).abs().sum().item() / 2


@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize("name", ["bridge", "bridge descending", "bridge in canonical time"])
def test_eulers_error_falls_in_proportion_to_the_step(name):
    mu = toys.distribution(4, seed=3)
    bridge = toys.model(name, mu)
    steps = np.array([128, 256, 512])
    errors = [exact_law(bridge, mu, log_euler, int(k)) for k in steps]
    slope = np.polyfit(np.log(1 / steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.15)


@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize(
    "name", ["bridge", "bridge descending", "bridge with mask", "uniform", "varying bridge", "tokenwise masking"]
)
def test_tweedie_beats_euler_at_eight_steps(name):
    mu = toys.distribution(3, 3, seed=4)
    bridge = toys.model(name, mu)
    assert exact_law(bridge, mu, log_tweedie, 8) < exact_law(bridge, mu, log_euler, 8)


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize(("sampler", "name"), SLOW_PAIRS, ids=lambda v: v)
def test_infilling_approaches_the_exact_conditional(sampler, name):
    mu = toys.distribution(3, 3, 3, seed=5)
    bridge = toys.model(name, mu)
    template = torch.tensor([-1, 2, -1])
    conditional = mu[:, 2] / mu[:, 2].sum()
    errors = []
    for steps in (8, 64) if sampler == "euler" else (1, 16):  # Euler is still far off at 8
        x = bridge.sample(
            4_000, calls=steps, sampler=SAMPLERS[sampler], template=template, generator=torch.Generator().manual_seed(0)
        )
        assert (x[:, 1] == 2).all()
        errors.append(total_variation(x[:, [0, 2]], conditional))
    assert errors[1] < max(errors[0], 0.02)
    assert errors[1] < (0.1 if sampler == "euler" else 0.05)
    assert total_variation(x[:, [0, 2]], mu.sum(1)) > 0.1  # it does condition


@pytest.mark.usefixtures("no_type_checks")  # calls like those below, by the thousand
@pytest.mark.parametrize(("sampler", "name"), [p for p in FEW_PAIRS if p[0] in EXACT_IN_ONE_DIMENSION], ids=lambda v: v)
def test_in_one_dimension_samples_restricted_to_legal_tokens_are_exact(sampler, name):
    mu, legal = toys.distribution(5, seed=1), torch.tensor([True, False, True, True, False])
    bridge = toys.model(name, mu)
    x = bridge.sample(
        10_000, calls=3, sampler=SAMPLERS[sampler], legal=legal, generator=torch.Generator().manual_seed(0)
    )
    expected = mu * legal / (mu * legal).sum()
    assert oracles.chi_square_p_value(np.bincount(x[:, 0], minlength=5), expected) > 1e-5


def law_of_legal_draws(mu, legal):
    """Positions are written in either order, each by its conditional given what stands, on condition that it is legal."""
    forwards, backwards = mu.sum(1) * legal[0], mu.sum(0) * legal[1]
    second, first = mu * legal[1], mu * legal[0][:, None]
    forwards = (forwards / forwards.sum())[:, None] * second / second.sum(1, keepdim=True)
    backwards = (backwards / backwards.sum()) * first / first.sum(0, keepdim=True)
    return (forwards + backwards) / 2


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("by_paths", [False, True], ids=["first hitting", "whole paths"])
def test_one_position_at_a_time_every_token_has_its_conditional_given_that_it_is_legal(by_paths):
    mu, legal = toys.distribution(3, 3, seed=2), torch.tensor([[True, True, False], [False, True, True]])
    bridge = toys.ordered_bridge(mu, [1.0, 1.0]) if by_paths else toys.model("masked diffusion", mu)
    x = bridge.sample(20_000, sampler="first_hitting", legal=legal, generator=torch.Generator().manual_seed(0))
    expected = law_of_legal_draws(mu, legal)
    assert oracles.chi_square_p_value(counts_of(x, (3, 3)), expected.flatten()) > 1e-5
    both = mu * legal[0][:, None] * legal[1]
    assert (expected - both / both.sum()).abs().sum() > 0.05  # which is not the law given that both are legal


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(("sampler", "name"), FEW_PAIRS, ids=lambda v: v)
def test_no_sampler_draws_what_is_illegal_in_its_row(sampler, name):
    bridge = toys.model(name, toys.distribution(3, 3, seed=6))
    legal = torch.tensor([[True, True, False], [False, True, True]]).repeat(20, 1)[:, None]  # [40, 1, 3]: by row
    options = {"calls": 4, "sampler": SAMPLERS[sampler], "generator": torch.Generator().manual_seed(0)}
    for shape in ({}, {"temperature": 0.7, "top_p": 0.9}):
        x = bridge.sample(40, legal=legal, **options, **shape)
        assert (x[0::2] < 2).all()
        assert (x[1::2] > 0).all()
    kept = bridge.sample(40, legal=legal, template=torch.tensor([2, -1]), **options)
    assert (kept[:, 0] == 2).all()  # what is given is kept, legal or not
    assert (kept[0::2, 1] < 2).all()


def test_mistakes_in_what_is_legal_are_told():
    bridge = toys.model("bridge with mask", toys.distribution(3, 3, seed=6))
    for legal, message in [
        (torch.ones(5, dtype=torch.bool), r"legal must broadcast to shape \[2, 2, 4\], got \[5\]"),
        (
            torch.tensor([False, False, False, True]),
            "legal must allow a token at every blank, got none at row 0, position 0",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            bridge.sample(2, legal=legal)
    with pytest.raises(ValueError, match="legal restricts the posterior over clean tokens, which needs head='mean'"):
        toys.model("bridge", toys.distribution(3, seed=1), "score").sample(2, legal=torch.ones(3, dtype=torch.bool))


@every_pair
def test_every_state_on_the_way_is_yielded_and_the_last_is_data(sampler, name):
    mu = toys.distribution(3, 3, seed=6)
    bridge = toys.model(name, mu)
    generator = torch.Generator().manual_seed(0)
    times = time_grid(bridge.process, 5)
    x_T = draw_prior(bridge.process, 50, generator=generator)
    states = list(SAMPLERS[sampler](Denoiser(bridge), x_T, times, generator))
    assert states[0].t == 1
    assert torch.equal(states[0].x, x_T)
    assert states[-1].t == 0
    assert all(early.t >= late.t for early, late in pairwise(states))
    assert states[-1].x.max() < 3  # never the mask
    if sampler != "first_hitting":
        assert [s.t for s in states] == times.tolist()


@every_pair
def test_the_same_seed_gives_the_same_samples(sampler, name):
    bridge = toys.model(name, toys.distribution(3, 3, seed=6))
    one, two, other = (
        bridge.sample(64, calls=3, sampler=SAMPLERS[sampler], generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_first_hitting_calls_the_network_only_when_something_moves():
    mu = toys.distribution(3, 3, 3, seed=7)
    bridge = toys.model("masked diffusion", mu)
    calls = []
    bridge.network.register_forward_hook(lambda *_: calls.append(1))
    generator = torch.Generator().manual_seed(0)
    x_T = torch.full((200, 3), 3)
    times = torch.tensor([1.0, 0.0], dtype=torch.float64)
    states = list(SAMPLERS["first_hitting"](Denoiser(bridge), x_T, times, generator))
    jumps = torch.stack([(early.x != late.x).sum(-1) for early, late in pairwise(states)])
    assert jumps.max() == 1  # one position at a time
    assert (jumps.sum(0) == 3).all()  # every masked token is unmasked once
    assert len(calls) <= jumps.sum(0).max() + 1


def test_rounding_does_not_let_time_stand_still(monkeypatch):
    bridge, calls = toys.model("masked diffusion", toys.distribution(3, 3, seed=7)), []

    def at_once(log_posterior, x_t, now, *, generator):
        """A jump at the very time of the last one; after some of them, never again."""
        calls.append(now.t)
        return now.t[:, None] * (len(calls) < 4) * torch.ones(x_t.shape, dtype=torch.float64), x_t

    monkeypatch.setattr(bridge.process, "_next_jump", at_once)
    times = torch.tensor([1.0, 0.0], dtype=torch.float64)
    states = list(SAMPLERS["first_hitting"](Denoiser(bridge), torch.full((2, 2), 3), times, None))
    assert all(late.t < early.t for early, late in pairwise(states))
    assert len(states) == 5
    assert states[-1].t == 0


@pytest.mark.parametrize("to_data", [False, True], ids=["on the way", "to data"])
@pytest.mark.parametrize("name", ["bridge with mask", "masked diffusion", "tokenwise masking", "uniform"])
def test_tweedies_step_is_that_of_dense_matrices_whatever_the_score(name, to_data):
    """`(s exp(-ΔQ))_y exp(ΔQ)[y, x_t]`, of data only in the end, for a score that no distribution has."""
    process = toys.model(name, toys.distribution(3, 3, seed=6)).process
    t, s = 0.7, 0.0 if to_data else 0.4
    x_t = theory.all_sequences(process.num_states, 2)
    log_score = torch.randn(*x_t.shape, process.num_states, generator=torch.Generator().manual_seed(0)).double()
    now, end = process.solve(t, len(x_t)), process.solve(s, len(x_t))
    found = log_tweedie(process, log_score, x_t, now, end, to_data=to_data).exp().detach().numpy()
    step, whole = process.to_dense(t, start=s).detach().numpy(), process.to_dense(t).detach().numpy()
    for law, score, row in zip(found, log_score.exp().numpy(), x_t.tolist(), strict=True):
        for i, token in enumerate(row):
            ratios = np.where(whole[i, :, token] > 0, score[i], 0.0)
            ratios[token] = 1.0
            weights = np.maximum(np.linalg.solve(step[i].T, ratios) * step[i][:, token], 0)
            weights[3:] *= not to_data  # the mask
            weights = weights if weights.sum() > 0 else np.eye(len(weights))[token]
            np.testing.assert_allclose(law[i], weights / weights.sum(), rtol=1e-6, atol=1e-9)


def test_marginals_are_estimated_by_sampling():
    mu = toys.distribution(3, 3, seed=8)
    for name, head in [("bridge", "mean"), ("bridge", "score"), ("uniform", "mean"), ("masked diffusion", "mean")]:
        bridge = toys.model(name, mu, head)
        marginals = bridge.estimate_marginals(chains=20_000, calls=16, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(marginals.sum(-1), torch.ones(2).double())
        expected = toys.with_mask_axis(mu, bridge.process)
        torch.testing.assert_close(marginals, theory.position_marginals(expected), rtol=0, atol=0.015)
        bridge.process.set_marginals(marginals)
        assert bridge.bound(theory.all_sequences(3, 2)).prior.isfinite().all()


@pytest.mark.long
def test_averaging_the_last_step_has_less_variance_than_counting_samples():
    mu = toys.distribution(3, 3, seed=8)
    bridge = toys.model("bridge", mu)
    exact = theory.position_marginals(mu)
    averaged, counted = [], []
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        averaged.append((estimate_marginals(bridge, chains=64, calls=8, generator=generator) - exact).square().sum())
        x = bridge.sample(64, calls=8, generator=generator)
        counts = torch.stack([torch.bincount(column, minlength=3) for column in x.T]) / 64
        counted.append((counts - exact).square().sum())
    assert torch.stack(averaged).mean() < torch.stack(counted).mean()


def test_a_low_temperature_and_a_small_nucleus_prefer_likely_sequences():
    mu = toys.distribution(4, 4, seed=9)
    bridge = toys.model("masked diffusion", mu)

    def mean_log_prob(**options):
        x = bridge.sample(4000, calls=8, generator=torch.Generator().manual_seed(0), **options)
        return mu[x[:, 0], x[:, 1]].log().mean().item()

    plain = mean_log_prob()
    assert mean_log_prob(temperature=0.5) > plain + 0.1
    assert mean_log_prob(top_p=0.5) > plain + 0.1
    assert mean_log_prob(temperature=0.5, sampler="tweedie") > plain + 0.1


def test_guidance_leads_away_from_the_model_without_the_label():
    torch.manual_seed(0)
    process = dmb.BridgeProcess.from_marginals(torch.full((2, 4), 0.25), mask=True, floor=0.0)
    network = dmb.MLP(5, 2, width=8, blocks=1, num_classes=2)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.5 * torch.randn_like(p))
    bridge = dmb.MarkovBridge(process, network)
    x, t, label = torch.full((1, 2), 4), 0.9, torch.tensor([1])
    with torch.no_grad():
        without, with_label = bridge.eval().log_posterior(x, t), bridge.log_posterior(x, t, label)
        for guidance in (0.0, 1.0, 3.0):
            guided = Denoiser(bridge, label=label, guidance=guidance).log_posterior(x, process.solve(t, 1))
            expected = (without + guidance * (with_label - without)).nan_to_num(nan=-torch.inf).log_softmax(-1)
            torch.testing.assert_close(guided, expected)


def still_unchanged(process, t):
    """The mass of data in states that have not been left by `t`, for good or to come back."""
    if isinstance(process, dmb.UniformProcess | dmb.DenseProcess):
        n = process.num_states
        Q = oracles.uniform_rates(n, n) if isinstance(process, dmb.UniformProcess) else process.Q[0].detach().numpy()
        return (process.p_0.numpy() * np.exp(oracles.loglinear(t)[0] * np.diag(Q))).sum()
    return (process.p_0 * process.to_dense(t).detach().diagonal(dim1=1, dim2=2)).sum().item()


@pytest.mark.parametrize("name", [name for name in toys.PROCESSES if name != "tree"])  # where every stage counts
def test_the_canonical_grid_makes_equal_shares_of_all_changes(name):
    process = toys.model(name, toys.distribution(4, 4, seed=10)).process
    unchanged = [still_unchanged(process, t) for t in time_grid(process, 8).tolist()]
    share = (still_unchanged(process, 0.0) - still_unchanged(process, 1.0)) / 8
    np.testing.assert_allclose(np.diff(unchanged), share, rtol=1e-5)


def test_grids_and_their_mistakes():
    process = toys.model("bridge", toys.distribution(3, seed=1)).process
    assert time_grid(process, 2, "uniform").tolist() == [1, 0.5, 0]
    custom = torch.tensor([1.0, 0.3, 0.0])
    assert torch.equal(time_grid(process, 99, custom), custom.double())
    shares = 1 - time_grid(process, 10, "cosine")
    assert shares[1] < 0.1
    for grid, message in [
        (torch.tensor([1.0, 0.5]), "grid must fall strictly from 1 to 0"),
        (torch.tensor([1.0, 0.5, 0.5, 0.0]), "grid must fall strictly from 1 to 0"),
        ("linear", "grid must be one of canonical, uniform, cosine, got 'linear'"),
    ]:
        with pytest.raises(ValueError, match=message):
            time_grid(process, 4, grid)
    with pytest.raises(ValueError, match="calls must be at least 1, got 0"):
        time_grid(process, 0)

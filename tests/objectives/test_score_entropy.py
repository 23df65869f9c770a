import math

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb import theory
from dmb._core import numerics
from dmb.objectives import score_entropy as losses
from dmb.objectives.variance import MoveControl, TimeDensity, sample_split

every_process = pytest.mark.parametrize("name", toys.PROCESSES)
both_heads = pytest.mark.parametrize("head", ["mean", "score"])


REDUCED = {}
PLAIN = {"stratify": False, "split": False, "importance": False, "control": False}


def entropy(mu):
    return -(mu * mu.log()).nan_to_num().sum().item()


def missed_by_the_prior(mu, process):
    """KL of the joint at t = 1 from the product of its marginals: what an independent prior cannot know."""
    joint = theory.joint_marginal(toys.with_mask_axis(mu, process), process, 1.0).detach()
    product = theory.position_marginals(joint)
    log_product = sum(
        row.log().view([-1 if axis == i else 1 for axis in range(joint.ndim)]) for i, row in enumerate(product)
    )
    return (joint * (joint.log() - log_product)).nan_to_num().sum().item()


@both_heads
@every_process
def test_with_the_exact_network_the_bound_is_the_entropy_by_quadrature(name, head):
    mu = toys.distribution(4, seed=1)
    bridge = toys.model(name, mu, head)
    process, n = bridge.process, bridge.num_states
    x_0, x_t = torch.arange(4).repeat_interleave(n)[:, None], torch.arange(n).repeat(4)[:, None]

    # t = sigmoid(π sinh z) takes the logarithm at 0 and the steep end at 1 out of the way; all nodes in one batch
    z = torch.linspace(-3.4, 3.4, 161, dtype=torch.float64)
    nodes = torch.sigmoid(math.pi * z.sinh())
    weights = math.pi * z.cosh() * nodes * torch.sigmoid(-math.pi * z.sinh()) * (z[1] - z[0])
    t = nodes.repeat_interleave(len(x_0))
    x_0, x_t = x_0.repeat(len(nodes), 1), x_t.repeat(len(nodes), 1)
    with torch.no_grad():
        chance = mu[x_0[:, 0]] * process.log_prob(x_t, x_0, t).exp()[:, 0]
        possible = chance > 0
        value = bridge.integrand(x_t[possible], x_0[possible], t[possible])[:, 0]
    parts = torch.zeros_like(chance).masked_scatter(possible, chance[possible] * value).view(len(nodes), -1)
    parts = weights * parts.sum(1)
    score = parts.sum().item()
    assert 2 * parts[::2].sum().item() == pytest.approx(score, abs=1e-8)  # so that quadrature is not what is tested
    prior = (process.p_0 * process.prior_kl_table(process.p_T)).sum().item()
    assert score + prior == pytest.approx(entropy(mu), abs=1e-6)


@pytest.mark.parametrize("devices", [REDUCED, PLAIN], ids=["reduced", "plain"])
@both_heads
@every_process
def test_with_the_exact_network_the_estimated_bound_is_the_entropy_within_3_standard_errors(name, head, devices):
    mu = toys.distribution(3, 3, seed=2)
    bridge = toys.model(name, mu, head)
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.multinomial(mu.flatten(), 6000, replacement=True, generator=generator)
    x_0 = torch.stack([x_0 // 3, x_0 % 3], dim=1)
    bound = bridge.bound(x_0, batch_size=500, generator=generator, **devices)
    # the entropy of this very sample, so that only the estimator's own noise is left
    empirical = -mu.flatten().log()[x_0[:, 0] * 3 + x_0[:, 1]].mean().item()
    exact = empirical + missed_by_the_prior(mu, bridge.process)
    stderr = bound.stderr * 2 * math.log(2)
    assert bound.nats == pytest.approx(exact, abs=3 * stderr)
    assert 0 < stderr < (0.1 if devices is REDUCED else 1.0)  # the plain estimator's tail is heavy
    assert bound.score.shape == bound.prior.shape == (6000,)
    assert bound.bits_per_token == pytest.approx(bound.nats / 2 / math.log(2))
    assert bound.score_bits + bound.prior_bits == pytest.approx(bound.bits_per_token)


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("devices", "samples"),
    [(REDUCED, 1), (REDUCED, 4), (PLAIN, 1), (PLAIN, 4), ({"importance": False}, 1)],
    ids=["reduced-1", "reduced-4", "plain-1", "plain-4", "uniform times-1"],
)
def test_the_standard_error_is_the_spread_of_repeated_bounds(devices, samples):
    mu = toys.distribution(2, 2, 2, 2, seed=3)
    bridge = toys.model("bridge", mu)
    generator = torch.Generator().manual_seed(0)
    bounds = []
    for _ in range(60 if samples == 1 else 30):
        index = torch.multinomial(mu.flatten(), 64, replacement=True, generator=generator)
        x_0 = theory.all_sequences(2, 4)[index]
        bounds.append(bridge.bound(x_0, samples=samples, batch_size=32, generator=generator, **devices))
    spread = np.std([b.bits_per_token for b in bounds])
    claimed = np.sqrt(np.mean([b.stderr**2 for b in bounds]))
    assert claimed == pytest.approx(spread, rel=0.3)


class MadeUp(dmb.MarkovBridge):
    """Costs that are drawn from a normal distribution, on top of what each token costs and of a slope in time."""

    spread, slope = 3.0, 0.0

    def _integrand(self, x_t, x_0, now, label, given):
        noise = torch.randn(x_0.shape, generator=self.generator, dtype=torch.float64)
        return self.spread * noise + x_0 + self.slope * now.t[:, None]


@pytest.mark.parametrize(("samples", "slope"), [(1, 0.0), (1, 20.0), (4, 0.0)])
def test_the_standard_error_of_made_up_costs_is_the_one_they_were_made_with(samples, slope):
    """To 2 %. With one sample per sequence, strata take a slope in time out of the variance."""
    count, p = 40_000, torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]], dtype=torch.float64)
    process = dmb.BridgeProcess.from_marginals(p)
    bridge = MadeUp(process, dmb.MLP(3, 2, width=4, blocks=1))
    bridge.generator, bridge.slope = torch.Generator().manual_seed(1), slope
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.multinomial(p, count, replacement=True, generator=generator).T.contiguous()
    bound = bridge.bound(
        x_0, samples=samples, batch_size=4000, split=False, importance=False, control=False, generator=generator
    )
    prior = process.prior_kl_table(process.p_T).detach()
    of_each_token = prior + torch.arange(3)
    of_tokens = (p * of_each_token.square()).sum() - (p * of_each_token).sum(-1).square().sum()
    expected = math.sqrt((2 * 3.0**2 / samples + of_tokens) / count) / 2 / math.log(2)
    assert bound.stderr == pytest.approx(expected, rel=0.02)
    mean = ((p * of_each_token).sum() + slope).item() / 2 / math.log(2)
    assert bound.bits_per_token == pytest.approx(mean, abs=4 * expected)


def test_in_batches_of_two_the_standard_error_is_that_of_their_differences():
    """Half as many as there are sequences."""
    process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.5]]))
    bridge = MadeUp(process, dmb.MLP(2, 1, width=4, blocks=1))
    bridge.generator, generator = torch.Generator().manual_seed(1), torch.Generator().manual_seed(0)
    x_0 = torch.zeros(1000, 1, dtype=torch.long)
    bound = bridge.bound(x_0, batch_size=2, split=False, importance=False, control=False, generator=generator)
    assert bound.stderr == pytest.approx(3.0 / math.sqrt(1000) / math.log(2), rel=0.15)


def test_a_cost_that_is_the_same_at_all_times_is_estimated_exactly_while_all_times_weigh_the_same():
    process = dmb.UniformProcess(2, 3).double()
    bridge = MadeUp(process, dmb.MLP(3, 2, width=4, blocks=1))
    bridge.generator, bridge.spread = None, 0.0
    x_0 = theory.all_sequences(3, 2)
    bound = bridge.bound(x_0, split=False, control=False)
    torch.testing.assert_close(bound.score, x_0.sum(-1).double(), rtol=1e-12, atol=0)
    for times in (None, TimeDensity()):
        torch.testing.assert_close(bridge.loss(x_0, times=times), x_0.sum(-1).double(), rtol=1e-12, atol=0)


def test_the_standard_error_is_the_root_of_the_variance_over_the_number_of_sequences_in_bits_per_token():
    bound = losses.Bound(torch.zeros(50), torch.zeros(50), num_positions=3, variance=8.0)
    assert bound.stderr == pytest.approx(0.4 / 3 / 0.6931471805599453, rel=1e-12)


@pytest.mark.long
def test_the_reduced_estimator_has_less_variance_than_the_plain_one():
    mu = toys.distribution(2, 2, 2, 2, seed=3)
    bridge = toys.model("bridge", mu)
    generator = torch.Generator().manual_seed(0)
    x_0 = theory.all_sequences(2, 4)[torch.multinomial(mu.flatten(), 20_000, replacement=True, generator=generator)]
    plain = bridge.bound(x_0, generator=generator, **PLAIN)
    reduced = bridge.bound(x_0, generator=generator)
    assert reduced.variance < plain.variance / 3


@pytest.mark.parametrize("t", [1e-6, 1e-2, 0.5, 1.0])
@pytest.mark.parametrize("name", ["bridge", "masked diffusion", "uniform", "dense"])
def test_splitting_on_whether_anything_moved_leaves_every_mean_as_it_is(name, t):
    mu = toys.distribution(3, 3, seed=4)
    bridge = toys.model(name, mu)
    process = bridge.process
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.tensor([[0, 1]]).expand(200_000, -1)
    times = torch.full((len(x_0),), t, dtype=torch.float64)
    x_t, weight = sample_split(process, x_0, process.solve(times, len(x_0)), generator)
    sequences = theory.all_sequences(process.num_states, 2)
    exact = process.log_prob(sequences, x_0[:1].expand(len(sequences), -1), t).sum(-1).exp().detach()
    found = x_t[:, 0] * process.num_states + x_t[:, 1]
    for state in range(len(sequences)):
        values = torch.where(found == state, weight, 0.0)
        stderr = values.std().item() / len(x_0) ** 0.5
        # a single move of chance 1e-6 is still estimated to a per cent; what is rarer than the draws is not seen
        if (found == state).any():
            assert values.mean().item() == pytest.approx(exact[state].item(), abs=4.5 * stderr)
        else:
            assert exact[state] * len(x_0) < 20
    assert weight.max() <= 2


@pytest.mark.parametrize("name", ["bridge", "masked diffusion", "uniform"])
def test_the_control_variates_have_mean_zero_and_explain_what_they_can(name):
    mu = toys.distribution(3, 3, seed=4)
    process = toys.model(name, mu).process
    generator = torch.Generator().manual_seed(0)
    control = MoveControl(process)
    x_0 = torch.tensor([[0, 1]]).expand(100_000, -1)
    t = torch.full((len(x_0),), 0.3, dtype=torch.float64)
    x_t = process.sample(x_0, t, generator=generator)
    features = control.features(x_0, x_t, process.solve(t, len(x_0)))
    stderr = features.std(0) / len(x_0) ** 0.5
    assert (features.mean(0).abs() < 4 * stderr).all()
    assert (control.predict(features) == 0).all()  # nothing learnt yet
    value = (x_t != x_0).sum(-1).double()  # explained by the count alone
    control.update(features, t, value, torch.ones_like(t))
    residual = value - control.predict(features)
    assert residual.var() < 1e-6 * value.var()


def test_a_batch_is_corrected_by_what_the_batches_before_it_taught_and_by_nothing_else(monkeypatch):
    """The fit is done anew by numpy. The same seed draws the same with and without control, as nothing adapts."""
    bridge = toys.model("bridge", toys.distribution(2, 2, 2, 2, 2, 2, seed=3))
    x_0 = theory.all_sequences(2, 6)  # each sequence once, so that it tells its row
    options = {"batch_size": 16, "importance": False}
    plain = bridge.bound(x_0, control=False, generator=torch.Generator().manual_seed(0), **options).score
    batches = []

    class Recorded(MoveControl):
        def features(self, x_0, x_t, clock, given=None):
            found = super().features(x_0, x_t, clock, given)
            batches.append({"x_0": x_0, "features": found.numpy()})
            return found

        def update(self, features, t, value, weight):
            super().update(features, t, value, weight)
            batches[-1].update(t=t.numpy(), value=value.numpy(), weight=weight.numpy())

    monkeypatch.setattr(losses, "MoveControl", Recorded)
    corrected = bridge.bound(x_0, generator=torch.Generator().manual_seed(0), **options).score
    subtracted = (plain - corrected).numpy()
    design, target = np.zeros((0, 5)), np.zeros(0)
    assert len(batches) == 4
    for number, batch in enumerate(batches):
        rows = (batch["x_0"] * 2 ** torch.arange(5, -1, -1)).sum(-1).numpy()
        coefficients = np.linalg.lstsq(design, target, rcond=None)[0] if number else np.zeros(5)
        expected = batch["weight"] * (batch["features"] @ coefficients[:3])
        np.testing.assert_allclose(subtracted[rows], expected, rtol=1e-6, atol=1e-9)
        assert (np.abs(expected).max() > 0.1) == (number > 0)
        # what it learns from is what the batch cost before it was corrected
        np.testing.assert_allclose(batch["weight"] * batch["value"], plain[rows], rtol=1e-12)
        more = np.column_stack([batch["features"], np.ones(16), batch["t"]])
        design = np.concatenate([design, batch["weight"][:, None] * more])
        target = np.concatenate([target, batch["weight"] * batch["value"]])


@pytest.mark.parametrize("central", [False, True])
def test_the_weight_of_a_time_is_how_far_apart_the_times_are_drawn_there(central):
    """`weight = dt / du`, so that `∫ weight(u) f(t(u)) du = ∫ f(t) dt` for any `f`, to the last digits."""
    density = TimeDensity(central=central)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        u = 1 - torch.rand(500, generator=generator, dtype=torch.float64)
        t, _ = density.at(u)
        density.observe(t, torch.randn(500, generator=generator, dtype=torch.float64) / (t + 0.01))
        density.learn()
    u = torch.linspace(0, 1, 40_001, dtype=torch.float64)
    t, weight = density.at(u)
    assert t[0] < 1e-300
    assert t[-1] == 1
    same_bin = weight[1:] == weight[:-1]
    assert (~same_bin).sum() <= 11  # 12 bins, of which neighbours may weigh the same
    torch.testing.assert_close(t.diff()[same_bin], (weight[1:] / 40_000)[same_bin], rtol=1e-9, atol=0)
    assert weight.max() > 1.5 * weight.min()


def test_times_are_drawn_from_the_density_that_their_weights_claim():
    density = TimeDensity()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        u = 1 - torch.rand(500, generator=generator, dtype=torch.float64)
        t, weight = density.at(u)
        density.observe(t, 1 / (t + 0.01))
        density.learn()
    u = 1 - torch.rand(100_000, generator=generator, dtype=torch.float64)
    t, weight = density.at(u)
    assert t.min() > 0
    assert t.max() <= 1
    assert weight.max() <= 1 / 0.3 + 1e-9
    for power in (0, 1, 2):
        values = weight * t**power
        assert values.mean().item() == pytest.approx(1 / (power + 1), abs=4 * values.std().item() / 100_000**0.5 + 1e-9)
    # it has learnt: the integral of 1/(t + 0.01) has far less variance than with uniform times
    assert (weight / (t + 0.01)).var() < (1 / (u + 0.01)).var() / 10


def test_the_score_head_learns_the_ratio_of_marginals():
    """Proposition 4.6: train a table of scores at one time, compare with p_t(y) / p_t(x)."""
    mu = toys.distribution(4, seed=5)
    process = toys.PROCESSES["bridge"](mu[None])
    table = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    x_0, x_t = torch.arange(4).repeat_interleave(4)[:, None], torch.arange(4).repeat(4)[:, None]
    chance = (mu[x_0[:, 0]] * process.log_prob(x_t, x_0, 0.4).exp()[:, 0]).detach()
    x_0, x_t, chance = x_0[chance > 0], x_t[chance > 0], chance[chance > 0]
    optimiser = torch.optim.LBFGS([table], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure():
        optimiser.zero_grad()
        loss = (chance * process.integrand_from_score(table[x_t], x_t, x_0, 0.4)[:, 0]).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    p_t = process.evolve(mu[None], 0.4)[0].detach()
    used = process.rates_into(torch.arange(4)[:, None], 0.4)[:, 0] > 0
    torch.testing.assert_close(table.detach().exp()[used], (p_t[None] / p_t[:, None])[used], rtol=1e-4, atol=1e-6)
    assert used.sum() == 6


def test_positions_that_are_given_cost_nothing_and_stay_clean():
    mu = toys.distribution(3, 3, seed=6)
    bridge = toys.model("bridge", mu)
    x_0, given = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[True, False], [True, True]])
    seen = []
    handle = bridge.network.register_forward_pre_hook(
        lambda _, args, options: seen.append((args[0], options["given"])), with_kwargs=True
    )
    loss = bridge.loss(x_0, given=given, generator=torch.Generator().manual_seed(0))
    handle.remove()
    x_t, flags = seen[0]
    assert torch.equal(flags, given)
    assert torch.equal(x_t[given], x_0[given])
    assert loss[1] == 0
    assert loss[0] > 0


def test_the_loss_is_computed_in_float32_whatever_the_network_computes_in():
    marginals = torch.full((6, 5), 0.2)
    bridge = dmb.MarkovBridge(
        dmb.BridgeProcess.from_marginals(marginals), dmb.Transformer(5, 6, blocks=1, width=16, heads=2)
    )
    x = torch.randint(5, (8, 6), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bridge.network(x, torch.full((8,), 0.5)).dtype == torch.bfloat16
        loss = bridge.loss(x)
    assert loss.dtype == torch.float32
    loss.mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in bridge.parameters())


def test_the_prior_loss_is_the_mean_of_the_prior_part_of_the_bound():
    mu = toys.distribution(3, 3, seed=7)
    bridge = toys.model("bridge", mu)
    x_0 = theory.all_sequences(3, 2)
    expected = (mu.flatten() * bridge.bound(x_0).prior).sum().item()
    assert bridge.prior_loss().item() == pytest.approx(expected, rel=1e-9)
    tied = dmb.BridgeProcess.from_marginals(theory.position_marginals(mu), tied=True)
    bridge = toys.exact_bridge(mu, tied)
    pooled = theory.position_marginals(mu).mean(0)
    table = tied.prior_kl_table(tied.p_T)[0]
    assert bridge.prior_loss().item() == pytest.approx(2 * (pooled * table).sum().item(), rel=1e-9)


@pytest.mark.parametrize(("rows", "options"), [(5, {"batch_size": 1}), (1, {"samples": 3}), (16, {"batch_size": 4})])
def test_few_sequences_are_no_obstacle(rows, options):
    bridge = toys.model("bridge", toys.distribution(2, 2, seed=3))
    bound = bridge.bound(theory.all_sequences(2, 2).repeat(4, 1)[:rows], **options)
    assert bound.score.isfinite().all()


def test_a_sequence_that_cannot_be_costs_infinitely_much_and_spoils_no_other():
    mu = torch.tensor([[0.5, 0.0], [0.25, 0.25]], dtype=torch.float64)
    bridge = toys.model("masked diffusion", mu)
    x_0 = torch.tensor([[0, 1]] * 8 + [[1, 1]] * 56)
    bound = bridge.bound(x_0, batch_size=8, generator=torch.Generator().manual_seed(0))
    assert bound.score[8:].isfinite().all()
    assert bound.score.isinf().any()


@pytest.mark.usefixtures("no_type_checks")
def test_adapting_to_earlier_batches_leaves_no_bias():
    """The loop of `bound` with -log t for an integrand, whose integral is 1."""
    generator = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(1500):
        density = TimeDensity(central=True)
        for _ in range(4):
            t, weight = density.at(numerics.stratified_times(16, generator=generator))
            density.observe(t, -t.log())
            density.learn()
            estimates.append((weight * -t.log()).mean())
    estimates = torch.stack(estimates)
    assert estimates.mean().item() == pytest.approx(1.0, abs=4 * estimates.std().item() / len(estimates) ** 0.5)


def test_a_bound_prints_its_parts():
    bound = losses.Bound(torch.full((4,), 2 * math.log(2)), torch.full((4,), math.log(2)), 3, 0.0)
    assert str(bound) == "1.0000 ± 0.0000 bits per token (score 0.6667 + prior 0.3333)"


def test_bound_refuses_nothing_to_do():
    bridge = toys.model("bridge", toys.distribution(3, seed=1))
    with pytest.raises(ValueError, match="bound needs sequences to be at least 1, got 0"):
        bridge.bound(torch.zeros(0, 1, dtype=torch.long))

"""Rates that are learned on the whole bound: the gradient, what it does, and that it cannot cheat."""

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import dmb
import toys
from dmb import theory
from dmb._core import numerics, seeding
from dmb.objectives import score_entropy as losses
from dmb.objectives.variance import CostBaseline
from dmb.training import BridgeLearner, engine
from dmb.training.devices import OneDevice

MU = toys.distribution(3, 3, seed=4)  # two positions that depend on each other
STATES = torch.cartesian_prod(torch.arange(3), torch.arange(3))


def stirred(process):
    """With parameters drawn at random, so that no gradient vanishes by symmetry."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in process.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return process


def canonical(**options):
    return lambda marginals: dmb.BridgeProcess.from_marginals(marginals, schedule=dmb.Canonical(), **options)


PROCESSES = {
    "bridge": canonical(init="uniform"),
    "bridge with mask": canonical(floor=0.3, mask=True),
    "varying bridge": canonical(init="uniform", clocks=dmb.Varying),
    "tokenwise": lambda marginals: dmb.TokenwiseMasking.from_marginals(marginals, schedule=dmb.Canonical()),
}
every_process = pytest.mark.parametrize("name", PROCESSES)


def bridge_for(name, seed=0):
    """A bridge with a network that knows nothing, and so has much to lose by the choice of the rates."""
    process = stirred(PROCESSES[name](theory.position_marginals(MU)))
    torch.manual_seed(seed)
    network = dmb.MLP(process.num_states, 2, width=8, blocks=1, conditioning=8, dropout=0.0).double()
    with torch.no_grad():  # networks start at 0; this one starts with strong and wrong opinions
        for name, parameter in network.named_parameters():
            marks = name == "given"  # they play no part; the draw is as large as when the limits below were found
            noise = 0.3 * torch.randn((2, 8) if marks else parameter.shape, dtype=parameter.dtype)
            parameter.add_(0.0 if marks else noise)
    return dmb.MarkovBridge(process, network)


def noisy_pairs(process):
    """All pairs of data and noisy tokens, and the chance of each pair of data."""
    noisy = torch.cartesian_prod(*[torch.arange(process.num_states)] * 2)
    return (
        STATES.repeat_interleave(len(noisy), 0),
        noisy.repeat(len(STATES), 1),
        MU.flatten().repeat_interleave(len(noisy)),
    )


def exact_score(bridge, nodes=40):
    """`J_score` by enumeration of data and noise and Gauss-Legendre quadrature in time: differentiable in the rates."""
    v, weights = np.polynomial.legendre.leggauss(nodes)
    v, weights = (v + 1) / 2, weights / 2
    t = torch.from_numpy(v) ** 4  # takes the logarithm at 0 out of the way
    x_0, x_t, chance = (each.repeat(nodes, *[1] * (each.ndim - 1)) for each in noisy_pairs(bridge.process))
    parts = (chance * expected(bridge, x_0, x_t, t.repeat_interleave(len(x_0) // nodes))).view(nodes, -1).sum(-1)
    return (torch.from_numpy(weights * 4 * v**3) * parts).sum()


def expected(bridge, x_0, x_t, t):
    """Chance times integrand of every noisy pair, the gradient of both included."""
    log_prob = bridge.process.log_prob(x_t, x_0, t).sum(-1)
    possible = log_prob > -torch.inf
    value = bridge.integrand(x_t[possible], x_0[possible], t[possible] if isinstance(t, torch.Tensor) else t).sum(-1)
    return torch.zeros_like(log_prob).index_put((possible.nonzero()[:, 0],), log_prob[possible].exp() * value)


def gradient(process, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(process.parameters()))])


def all_draws(bridge, x_0, t, monkeypatch):
    """Give the loss all noisy tokens that may be drawn in place of some: each a row that weighs its chance."""
    process = bridge.process
    x_t = torch.cartesian_prod(*[torch.arange(process.num_states)] * 2)
    x_0 = x_0.expand(len(x_t), -1)
    log_prob = process.log_prob(x_t, x_0, t).detach().sum(-1)
    possible = log_prob > -torch.inf
    x_0, x_t, chance = x_0[possible], x_t[possible], log_prob[possible].exp()
    assert chance.sum().item() == pytest.approx(1)
    monkeypatch.setattr(losses, "noisy_copies", lambda *_, **__: (x_t, process.solve(t, len(x_t)), chance))
    return x_0, x_t, chance


def learnt_baseline(bridge, x_0, x_t, t):
    """One that has learnt from these very draws, and so has something to be taken away."""
    baseline, value, times = CostBaseline(), bridge.integrand(x_t, x_0, t), torch.full((len(x_t),), t).double()
    assert (baseline.expected(bridge.process, x_0, x_t, times, value) == 0).all()  # nothing learnt yet, only noted
    baseline.learn()
    guess = baseline.expected(bridge.process, x_0, x_t, times, value)
    assert guess.abs().max() > 0.1 * value.abs().max()
    return baseline


@pytest.mark.parametrize("compares", [False, True], ids=["plain", "baseline"])
@every_process
def test_the_gradient_in_the_rates_is_unbiased(name, compares, monkeypatch):
    """Its mean over all that may be drawn, each with its chance, is the gradient of the mean."""
    bridge, t = bridge_for(name), 0.4
    process = bridge.process
    noisy = torch.cartesian_prod(*[torch.arange(process.num_states)] * 2)
    exact = gradient(process, expected(bridge, torch.tensor([[0, 1]]).expand(len(noisy), -1), noisy, t).sum())
    x_0, x_t, chance = all_draws(bridge, torch.tensor([[0, 1]]), t, monkeypatch)
    baseline = learnt_baseline(bridge, x_0, x_t, t) if compares else None
    loss = bridge.loss(x_0, learn_rates=True, baseline=baseline)
    torch.testing.assert_close(loss, chance * bridge.integrand(x_t, x_0, t).sum(-1))
    torch.testing.assert_close(gradient(process, loss.sum()), exact, rtol=1e-9, atol=1e-12)


@every_process
def test_a_baseline_takes_noise_out_of_the_gradient(name, monkeypatch):
    bridge, t = bridge_for(name), 0.4
    x_0, x_t, chance = all_draws(bridge, torch.tensor([[0, 1]]), t, monkeypatch)
    spread = []
    for baseline in (None, learnt_baseline(bridge, x_0, x_t, t)):
        loss = bridge.loss(x_0, learn_rates=True, baseline=baseline) / chance
        parameters = list(bridge.process.parameters())
        each = [torch.autograd.grad(row, parameters, retain_graph=True) for row in loss]
        each = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in each])
        mean = (chance[:, None] * each).sum(0)
        spread.append((chance[:, None] * (each - mean).square()).sum())
    assert spread[1] < spread[0]


def test_what_is_given_is_not_drawn_and_teaches_the_rates_nothing(monkeypatch):
    bridge, t = bridge_for("bridge"), 0.4
    x_0, x_t, _ = all_draws(bridge, torch.tensor([[0, 1]]), t, monkeypatch)
    clean = x_t[:, 0] == x_0[:, 0]
    x_0, x_t = x_0[clean], x_t[clean]
    given = torch.tensor([[True, False]]).expand(len(x_t), -1)
    chance = bridge.process.log_prob(x_t, x_0, t)[:, 1].exp()
    exact = gradient(bridge.process, (chance * bridge.integrand(x_t, x_0, t, given=given)[:, 1]).sum())
    draws = (x_t, bridge.process.solve(t, len(x_t)), chance.detach())
    monkeypatch.setattr(losses, "noisy_copies", lambda *_, **__: draws)
    for baseline in (None, learnt_baseline(bridge, x_0, x_t, t)):
        loss = bridge.loss(x_0, given=given, learn_rates=True, baseline=baseline)
        torch.testing.assert_close(gradient(bridge.process, loss.sum()), exact, rtol=1e-9, atol=1e-12)


@every_process
def test_the_draws_part_of_the_gradient_matters(name):
    bridge = bridge_for(name)
    x_0, x_t, chance = noisy_pairs(bridge.process)
    whole = gradient(bridge.process, (chance * expected(bridge, x_0, x_t, 0.4)).sum())
    log_prob = bridge.process.log_prob(x_t, x_0, 0.4).sum(-1).detach()
    possible = log_prob > -torch.inf
    value = bridge.integrand(x_t[possible], x_0[possible], 0.4).sum(-1)
    path = gradient(bridge.process, (chance[possible] * log_prob[possible].exp() * value).sum())
    assert (whole - path).norm() > 0.1 * whole.norm()


def data_of(mu, count, tmp_path):
    rows = numerics.categorical(mu.flatten().expand(count, -1), generator=seeding.seeded("data"))
    np.save(tmp_path / "toy.npy", STATES[rows].numpy())
    return dmb.data.load(tmp_path / "toy.npy")


SETTINGS = {"batch_size": 64, "matrix_learning_rate": 0.03, "warmup": 5, "evaluate_sequences": 64, "log_every": 50,
            "evaluate_every": 30, "chains": 16, "chain_calls": 4}  # fmt: skip


@pytest.mark.long
@every_process
def test_while_rates_are_learned_the_sampled_bound_agrees_with_quadrature(name, tmp_path):
    data, bridge = data_of(MU, 4000, tmp_path), bridge_for(name).float()
    before = [parameter.clone() for parameter in bridge.process.parameters()]
    checked = 0
    options = SETTINGS | {"matrix_objective": "joint", "cycles": 1, "score_steps": 16, "evaluate_every": 8}
    reports = dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **options)
    rows = STATES[numerics.categorical(MU.flatten().expand(5000, -1), generator=seeding.seeded("rows"))]
    for report in reports:
        if not report.improved:
            continue
        sampled = bridge.bound(rows, batch_size=2000, generator=seeding.seeded("bound"))
        with torch.no_grad():
            score = exact_score(bridge).item()
        assert sampled.score.mean().item() == pytest.approx(score, abs=3 * sampled.stderr * 2 * np.log(2) + 1e-5)
        checked += 1
    assert checked >= 2
    assert any(not torch.equal(a, b) for a, b in zip(before, bridge.process.parameters(), strict=True))


# with tokenwise masking there is next to nothing to gain here: its exact gradient is ten times smaller
@pytest.mark.long
@pytest.mark.parametrize("name", ["bridge", "bridge with mask", "varying bridge"])
def test_matrix_learning_on_the_bound_lowers_it_and_leaves_the_network_alone(name, tmp_path):
    data, bridge = data_of(MU, 4000, tmp_path), bridge_for(name).float()

    def exact():
        with torch.no_grad():
            return (exact_score(bridge) + bridge.prior_loss()).item()

    before, network = exact(), [parameter.clone() for parameter in bridge.network.parameters()]
    # a learning rate of next to nothing: what follows is the rates' doing
    options = {"cycles": 1, "matrix_steps": 25, "matrix_learning_rate": 0.06, "score_steps": 1, "learning_rate": 1e-12,
               "weight_decay": 0.0, "infill": 0.0}  # fmt: skip
    list(dmb.train(bridge, data, fabric=engine(accelerator="cpu"), matrix_objective="bound", **SETTINGS | options))
    assert exact() < before - 0.01
    after = list(bridge.network.parameters())
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(network, after, strict=True))


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("objective", ["bound", "joint"])
def test_a_run_that_was_stopped_goes_on_to_the_same_rates(objective, tmp_path):
    data = data_of(MU, 400, tmp_path)
    options = {"cycles": 2, "matrix_steps": 3, "score_steps": 6, "matrix_objective": objective}
    options = {
        **SETTINGS,
        **options,
        "evaluate_every": 2,
        "evaluate_sequences": 16,
        "fabric": engine(accelerator="cpu"),
    }
    straight, broken = bridge_for("bridge").float(), bridge_for("bridge").float()
    list(dmb.train(straight, data, folder=tmp_path / "straight", **options))
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        return asked in (2, 7, 12)

    for attempt in range(4):
        list(dmb.train(broken, data, folder=tmp_path / "broken", resume=attempt > 0, stop=stop, **options))
    assert torch.equal(straight.process.clocks.log_rates, broken.process.clocks.log_rates)
    assert all(map(torch.equal, straight.network.state_dict().values(), broken.network.state_dict().values()))


@pytest.mark.long
def test_accumulated_parts_teach_the_rates_the_same(tmp_path):
    data = data_of(MU, 400, tmp_path)
    learned = []
    for accumulate in (1, 4):
        bridge = bridge_for("bridge").double()
        options = {**SETTINGS, "cycles": 1, "score_steps": 10, "matrix_objective": "joint", "accumulate": accumulate}
        list(dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **options))
        learned.append(bridge.process.alpha.detach())
    torch.testing.assert_close(*learned)


def test_in_canonical_time_the_common_speed_stays_one(tmp_path):
    bridge = bridge_for("bridge").float()
    options = {**SETTINGS, "cycles": 1, "score_steps": 5, "matrix_objective": "joint"}
    list(dmb.train(bridge, data_of(MU, 400, tmp_path), fabric=engine(accelerator="cpu"), **options))
    assert bridge.process.alpha.sum(-1).mean().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("objective", ["bound", "joint"])
def test_what_cannot_be_learned_on_the_bound_is_refused(objective, tmp_path):
    data, marginals = data_of(MU, 400, tmp_path), theory.position_marginals(MU).float()
    network = dmb.MLP(3, 2, width=8, blocks=1)
    uniform = dmb.MarkovBridge(dmb.UniformProcess(2, 3), network)
    with pytest.raises(ValueError, match="UniformProcess has no rates to learn"):
        dmb.train(uniform, data, fabric=engine(accelerator="cpu"), matrix_objective=objective)
    alone = canonical(floor=0.0, tied=True)(marginals)
    with pytest.raises(ValueError, match="a single clock has nothing to learn"):
        dmb.train(dmb.MarkovBridge(alone, network), data, fabric=engine(accelerator="cpu"), matrix_objective=objective)
    loglinear = dmb.MarkovBridge(dmb.BridgeProcess.from_marginals(marginals), network)
    with pytest.raises(ValueError, match="schedule must be canonical"):
        dmb.train(loglinear, data, fabric=engine(accelerator="cpu"), matrix_objective=objective)


@pytest.mark.long
def test_the_prior_part_alone_is_refused_as_a_teacher_in_canonical_time(tmp_path):
    bridge, data = bridge_for("bridge").float(), data_of(MU, 400, tmp_path)
    with pytest.raises(ValueError, match="J_Q cannot train rates in canonical time"):
        dmb.train(bridge, data, fabric=engine(accelerator="cpu"), matrix_steps=1)
    rates = bridge.process.alpha.detach().clone()
    list(
        dmb.train(
            bridge,
            data,
            fabric=engine(accelerator="cpu"),
            **SETTINGS | {"matrix_steps": 0, "cycles": 1, "score_steps": 50},
        )
    )
    assert bridge.process.alpha.equal(rates)


@pytest.mark.parametrize("options", [{}, {"tied": True}], ids=["plain", "tied"])
def test_normalising_leaves_what_happens_at_each_time_as_it_is(options):
    process = stirred(canonical(init="uniform", **options)(theory.position_marginals(MU)))
    before = process.to_dense(0.3).detach()
    process.normalise()
    assert process.clocks.rates.sum(-1).mean().item() == pytest.approx(1)
    torch.testing.assert_close(process.to_dense(0.3).detach(), before)


def test_a_clock_that_has_slowed_down_to_nothing_is_not_wound_up_again():
    process = canonical(init="uniform")(theory.position_marginals(MU).float())
    with torch.no_grad():
        process.clocks.log_rates[:, 0] = -110.0
    process.normalise()
    assert (process.alpha[:, 0] == 0).all()


def test_what_a_run_learns_beside_the_model_lies_on_the_device_of_the_run(monkeypatch, tmp_path):
    # no number can be read from this device
    monkeypatch.setattr(BridgeLearner, "prior_bits", lambda _: 0.0)
    monkeypatch.setattr(AveragedModel, "to", lambda average, _: average)
    learner = BridgeLearner(bridge_for("bridge"), data_of(MU, 64, tmp_path), dmb.TrainingSettings(), OneDevice("meta"))
    assert {tensor.device.type for tensor in learner.estimator.tensors().values()} == {"meta"}

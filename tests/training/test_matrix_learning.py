"""Matrix-learning: that it learns. Every clock wakes, J_Q falls as in the paper's code, and what is an option matters."""

import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import dmb
from dmb._core import checks
from dmb.app.compare.rows import ROWS
from dmb.app.recipes import recipe
from dmb.processes.clocks import ASLEEP
from dmb.training import BridgeLearner, Trainer, TrainingSettings, engine
from dmb.training.devices import OneDevice

# how often a space and the letters from a to z occur in the first 5,000,000 letters of Text8
TEXT8 = [
    846987, 348230, 61280, 138317, 139835, 525647, 95183, 80141, 187770, 328703, 7214, 22629, 168021, 104368, 328088,
    324250, 81134, 4148, 273733, 272421, 350448, 107497, 49353, 62791, 14327, 60252, 17233,
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("no_type_checks")  # phases are given no data where J_Q needs none

AS_AUTHORS = {"matrix_learning_rate": 1e-3, "matrix_weight_decay": 0.01, "matrix_clip": 1.0}


def learner(process, settings, marginals=None):
    """Of a bridge whose network plays no part."""
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1, conditioning=8).to(process.dtype))
    data = SimpleNamespace(
        marginals=lambda: process.p_0.clone() if marginals is None else marginals, codec=SimpleNamespace(token="token")
    )
    return BridgeLearner(bridge, data, settings, engine(accelerator="cpu"))


def learn(process, steps, marginals=None, **options):
    """The rates after some steps on J_Q, and J_Q before and after in bits per token."""
    trained = learner(process, TrainingSettings(matrix_steps=steps, **AS_AUTHORS | options), marginals)
    before = trained.prior_bits()
    list(Trainer(trained).matrix_learning())
    return trained.corruption.alpha.detach(), before, trained.prior_bits()


@pytest.mark.long
def test_rates_and_j_q_follow_the_trace_of_the_papers_code():
    """J_Q in nats per position, and rates of ranks 1, 6, 16, 25 and 26, from an imitation of the authors' code in float64.

    It had 256 equal positions, whose gradients were clipped to norm 1 together: 1/16 for each.
    """
    wanted = {
        0: (3.172e-3, [0, 0, 0, 0, 1]),
        100: (6.48e-5, [0.0222, 0.0243, 0.0296, 0.0352, 1.0375]),
        1000: (5.94e-6, [0.0265, 0.0310, 0.0485, 0.0925, 1.1006]),
        10_300: (6.41e-8, [0.0269, 0.0328, 0.0609, 0.2844, 1.5272]),
    }
    mu = torch.tensor([TEXT8], dtype=torch.float64) / sum(TEXT8)
    process = dmb.BridgeProcess.from_marginals(mu, order="descending", floor=0.0, learn="linear")
    torch.manual_seed(0)
    p_0 = torch.rand(27, dtype=torch.float64)
    process.set_marginals((p_0 / p_0.sum())[process.rank])
    trained = learner(process, TrainingSettings(matrix_steps=10_300, **AS_AUTHORS | {"matrix_clip": 1 / 16}), mu)
    seen = {0: (trained.prior_bits(), trained.corruption.alpha.detach()[0])}
    for step in range(1, 10_301):
        trained.matrix_step()
        if step in wanted:
            seen[step] = (trained.prior_bits(), trained.corruption.alpha.detach()[0].clone())
    for step, (nats, rates) in wanted.items():
        bits, alpha = seen[step]
        assert bits * math.log(2) == pytest.approx(nats, rel=0.02)
        np.testing.assert_allclose(alpha[[0, 5, 15, 24, 25]], rates, rtol=0.02, atol=1e-6)


def paper_recipe(name):
    """What bears the paper's name, on data at hand: where they are letters, eight of them per sequence."""
    if name == "codes_paper":
        generator = torch.Generator().manual_seed(0)
        codes = torch.multinomial(torch.rand(64, generator=generator) ** 3, 16_000, True, generator=generator)
        return recipe(name), dmb.data.array(codes.view(4000, 4).numpy())
    letters = {"source": "pydocs", "length": 8}
    data = recipe("text").changed(**letters).data.load()
    if name == "text8_paper":  # a third of its steps are enough
        return recipe(name).changed(**letters, matrix_steps=3400), data
    if name == "dmb-published":
        row = next(row for row in ROWS if row.name == name)
        return row.apply(recipe("text_gather").changed(**letters), data, 4000), data
    return recipe(name).changed(**letters), data


def lives(alpha, before, after, fall):
    """Whether every clock is awake, the lower ones weigh in, and J_Q has fallen."""
    top, lower = alpha[:, -1:], alpha[:, :-1]
    return bool((lower > 1e-3 * top).all() and (lower.sum(-1) >= 0.8 * top[:, 0]).all() and after <= before / fall)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fall"), [("text_gather", 1000), ("text8_paper", 1000), ("dmb-published", 1000), ("codes_paper", 10)]
)
def test_what_bears_the_papers_name_is_alive_after_the_first_matrix_learning(name, fall):
    wanted, data = paper_recipe(name)

    def run(wanted):
        trained = learner(wanted.process.build(data), wanted.training, data.marginals())
        before = trained.prior_bits()
        list(Trainer(trained).matrix_learning())
        return lives(trained.corruption.alpha.detach(), before, trained.prior_bits(), fall)

    assert run(wanted)
    assert not run(wanted.changed(matrix_steps=1))  # frozen after one step
    assert not run(wanted.changed(learn="log", matrix_learning_rate=1e-2, matrix_steps=500))


@pytest.mark.long
@pytest.mark.parametrize("name", ["text8_paper", "codes_paper"])
def test_the_papers_recipes_take_a_step_of_each_phase_at_full_width(name):
    text = name == "text8_paper"
    small = {"cycles": 2, "matrix_steps": 1, "score_steps": 1, "batch_size": 2, "chains": 2, "chain_calls": 2,
             "evaluate_every": 10, "evaluate_sequences": 2}  # fmt: skip
    wanted = recipe(name).changed(**small, **({"source": "pydocs", "length": 16} if text else {}))
    codes = np.random.default_rng(0).integers(0, 32, (40, 16))
    data = wanted.data.load() if text else dmb.data.array(codes)
    bridge = wanted.build(data)
    assert sum(p.numel() for p in bridge.network.parameters()) > 80e6  # 12 blocks of width 768
    first = {name: p.detach().clone() for name, p in bridge.network.named_parameters() if "blocks.0." in name}
    reports = list(dmb.train(bridge, data, wanted.training, fabric=engine(accelerator="cpu")))
    assert [r.phase for r in reports] == ["matrix", "validation", "matrix", "validation"]
    assert all(math.isfinite(r.bits) for r in reports)
    assert bridge.process.alpha[:, :-1].min() > 1e-4  # one step at a rate of 1e-3 or 3e-4
    assert any(not torch.equal(first[name], p) for name, p in bridge.network.named_parameters() if name in first)


def marginals(d=2, n=5):
    p = torch.rand(d, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.05
    return p / p.sum(-1, keepdim=True)


def test_a_clock_that_sleeps_wakes_if_rates_are_learned_linearly_and_never_as_logarithms():
    make = partial(dmb.BridgeProcess.from_marginals, marginals(), floor=0.0)
    linear, logarithmic = make(learn="linear"), make(learn="log")
    assert linear.alpha[:, 0].tolist() == [ASLEEP, ASLEEP]
    assert logarithmic.alpha[:, 0].tolist() == [0, 0]
    assert (learn(linear, 10)[0][:, :-1] > 5e-3).all()
    assert (learn(logarithmic, 100)[0][:, :-1] == 0).all()


def test_a_rate_that_a_step_makes_negative_sleeps_and_can_wake_again():
    process = dmb.BridgeProcess.from_marginals(marginals(), floor=0.1, learn="linear")
    with torch.no_grad():
        process.clocks.linear_rates[:, :-1] -= 0.2
    process.normalise()
    assert (process.alpha[:, :-1] == ASLEEP).all()
    assert (learn(process, 10)[0][:, :-1] > 5e-3).all()


TREE = dmb.processes.grouping.by_value(5)


@pytest.mark.parametrize("objective", ["prior", "bound", "joint"])
@pytest.mark.parametrize("tied", [False, True], ids=["per position", "tied"])
@pytest.mark.parametrize("hierarchy", ["line", "tree"])
def test_linear_rates_are_learned_saved_and_loaded(tmp_path, hierarchy, tied, objective):
    shape = {"tree": TREE} if hierarchy == "tree" else {"init": "uniform"}
    schedule = dmb.Canonical(end=math.log(1000)) if objective == "prior" else dmb.Canonical()
    data = dmb.data.array(np.random.default_rng(0).choice(5, (400, 2), p=[0.4, 0.3, 0.15, 0.1, 0.05]))
    process = dmb.BridgeProcess.from_marginals(data.marginals(), tied=tied, learn="linear", schedule=schedule, **shape)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    before = process.alpha.detach().clone()
    settings = {"cycles": 1, "score_steps": 8, "matrix_steps": 8, "batch_size": 16, "evaluate_every": 8}
    list(dmb.train(bridge, data, matrix_objective=objective, folder=tmp_path, **settings))
    moved = (process.alpha - before).abs() > 1e-3 * before
    # below a name that data never visit, no clock has an effect on J_Q
    assert moved[:, -1].all() if (hierarchy, objective) == ("tree", "prior") else moved.float().mean() > 0.5
    assert process.clocks.linear_rates.min() >= ASLEEP
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert torch.equal(again.process.alpha, process.alpha)
    assert json.loads(json.dumps(again.process.to_config())) == process.to_config()
    assert again.process.clocks.learn == "linear"
    assert again.process.schedule.end == schedule.end


def test_j_q_is_the_mean_over_the_data_with_p_t_from_the_estimate():
    """By dense matrices: Σ_i Σ_x μ_i(x) KL(P_i[x] || p_0 P_i); the mean over p_0 would be another number."""
    mu, p_0 = marginals(), marginals().roll(1, -1)
    process = dmb.BridgeProcess.from_marginals(mu, init="uniform")
    process.set_marginals(p_0)
    P = process.to_dense(1.0).detach()
    divergence = torch.special.xlogy(P, P / (p_0[:, None] @ P)).sum(-1)
    bits = learner(process, TrainingSettings(), mu).prior_bits()
    assert bits * 2 * math.log(2) == pytest.approx((mu * divergence).sum().item(), rel=1e-9)
    assert bits * 2 * math.log(2) != pytest.approx((p_0 * divergence).sum().item(), rel=1e-2)


def test_j_q_keeps_its_digits_where_float32_would_lose_them():
    process = dmb.BridgeProcess.from_marginals(marginals(), init="uniform", schedule=dmb.Linear(70.0, 70.0))
    exact = process.prior_loss(marginals()).sum().item()
    assert 0 < exact < 1e-6
    assert process.float().prior_loss(marginals()).sum().item() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("option", "value"), [("matrix_weight_decay", 10.0), ("matrix_clip", 1e-9), ("matrix_learning_rate", 1e-2)]
)
def test_settings_of_matrix_learning_have_their_effect(option, value):
    make = partial(dmb.BridgeProcess.from_marginals, marginals(), floor=0.1, learn="linear")
    usual, _, _ = learn(make(), 20)
    other, _, _ = learn(make(), 20, **{option: value})
    smaller = option != "matrix_learning_rate"
    assert (other < usual).all() if smaller else (other > usual).all()


def test_a_random_start_is_one_vector_for_all_positions():
    data = dmb.data.array(np.random.default_rng(0).integers(0, 5, (100, 3)))
    process = dmb.BridgeProcess.from_marginals(data.marginals(), mask=True, learn="linear")
    started = [learner(process, TrainingSettings(start="random", seed=seed), data.marginals()) for seed in (0, 0, 1)]
    first, again, other = (each.corruption.p_0 for each in started)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, first[:1].expand(3, -1))
    assert (first[:, -1] == 0).all()
    mu = data.marginals().double()
    divergence = (mu * (mu / first[:, :-1].double()).log2()).sum(-1).mean().item()
    assert started[0].marginal_bits() == pytest.approx(divergence)


@pytest.mark.parametrize("learn", ["linear", "log"])
def test_without_a_tolerance_a_step_waits_for_no_device(monkeypatch, learn):
    """No number can be read from this device; what the process checks at its door is left out."""
    monkeypatch.setattr(checks, "distribution", lambda name, p, shape: p)
    process = dmb.BridgeProcess.from_marginals(marginals().float(), init="uniform", learn=learn)
    monkeypatch.setattr(BridgeLearner, "prior_bits", lambda _: 0.0)
    monkeypatch.setattr(AveragedModel, "to", lambda average, _: average)
    data = SimpleNamespace(marginals=lambda: marginals().float())
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    learner = BridgeLearner(bridge, data, TrainingSettings(), OneDevice("meta"))
    for _ in range(3):
        learner.matrix_step()
    with pytest.raises(RuntimeError, match="meta"):
        learner.checkpoint()


def test_rates_that_are_not_finite_are_noticed_before_they_are_saved(tmp_path, monkeypatch):
    """The step is named, though no step has waited for its figures."""
    mu = marginals()
    process = dmb.BridgeProcess.from_marginals(mu, init="uniform", learn="linear")
    trained = learner(process, TrainingSettings(matrix_steps=5), mu)
    trained.progress.phase_step = 3
    monkeypatch.setattr(dmb.MarkovBridge, "prior_loss", lambda self, mu: math.inf * self.process.alpha.sum())
    trained.matrix_step()
    with pytest.raises(FloatingPointError, match=r"J_Q is inf in Matrix-learning, cycle 0, step 3: does p_0"):
        Trainer(trained, tmp_path)._save()
    assert not (tmp_path / "checkpoints").exists()

"""Training by whole paths: the order of positions is learned with the network, and a run can be stopped and go on."""

import numpy as np
import pytest
import torch

import dmb
from dmb import orders
from dmb._core.seeding import seeded
from dmb.orders import waves
from dmb.training import BridgeLearner, TrainingSettings, engine
from dmb.training.checkpoint import Checkpoints
from stopping import StopAfter, same

QUICK = {
    "cycles": 2, "score_steps": 5, "matrix_steps": 2, "batch_size": 16, "orders": 2, "matrix_objective": "joint",
    "chains": 8, "chain_calls": 4, "warmup": 2, "log_every": 3, "evaluate_every": 4, "evaluate_sequences": 20,
}  # fmt: skip


def made():
    """Every token after the first is twice the one before it, modulo 5, one time in ten something else."""
    rng = np.random.default_rng(0)
    x = rng.integers(5, size=(400, 4))
    for i in range(1, 4):
        x[:, i] = np.where(rng.random(400) < 0.9, 2 * x[:, i - 1] % 5, x[:, i])
    return dmb.data.array(x.astype(np.uint8), num_states=5)


ORDERS = {
    "free": lambda: orders.Free(4), "smooth": lambda: orders.Smooth(waves((4,))), "random": lambda: orders.Random(4),
    "left to right": lambda: orders.Fixed.left_to_right(4),
}  # fmt: skip


def make(data, *, kind=dmb.OrderedTransformer, order="free", dropout=0.1, seed=0):
    states = dmb.States.with_mask(data.num_positions, data.num_states)
    torch.manual_seed(seed)
    network = kind(states, blocks=2, width=16, heads=2, conditioning=8, dropout=dropout)
    return dmb.OrderedBridge(ORDERS[order](), network, states)


def run(bridge, data, **options):
    return list(dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **(QUICK | options)))


def weights(bridge):
    return {name: tensor.clone() for name, tensor in bridge.state_dict().items()}


# -- what is learned --------------------------------------------------------------------------------------------------


class Chain(dmb.OrderedNetwork):
    """Knows a position from its left neighbour, if that is visible, and nothing from any other."""

    def __init__(self, num_states, num_positions):
        super().__init__()
        self.num_states, self.num_positions = num_states, num_positions
        self.trust = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x_t, turn=None, label=None):
        turn = self.default_turns(x_t) if turn is None else turn
        after = torch.nn.functional.one_hot(2 * x_t[:, :-1] % 5, self.num_states).to(self.trust)
        seen = turn[:, :-1] < turn[:, 1:]
        return self.trust * torch.nn.functional.pad(after * seen[..., None], (0, 0, 1, 0))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("objective", ["joint", "bound"])
def test_if_the_network_reads_from_left_to_right_the_speeds_learn_to_rise_to_the_right(objective):
    """What is masked faster is written later."""
    data = made()
    plain = make(data)
    bridge = dmb.OrderedBridge(plain.order, Chain(6, 4), plain.states)
    before = bridge.bound(data.train[:], generator=seeded("bound"))
    options = {"cycles": 1, "batch_size": 128, "matrix_learning_rate": 0.1, "learning_rate": 1e-9}
    # learned jointly the speeds move in steps of the network, else in steps of their own
    options |= {"score_steps": 40} if objective == "joint" else {"matrix_steps": 40, "score_steps": 1}
    run(bridge, data, matrix_objective=objective, evaluate_every=40, **options)
    after = bridge.bound(data.train[:], generator=seeded("bound"))
    assert (bridge.order.log_speeds.diff() > 0.5).all()
    assert after.bits_per_token < before.bits_per_token - 5 * before.stderr
    assert bridge.network.trust.item() == pytest.approx(3, abs=1e-6)


@pytest.mark.parametrize("order", ["free", "smooth"])
def test_training_moves_the_speeds_and_reports_them(order):
    data = made()
    bridge = make(data, order=order)
    reports = run(bridge, data, matrix_learning_rate=0.1)
    learned = bridge.order.log_speeds.detach()
    assert learned.std() > (0.05 if order == "free" else 1e-3)
    assert learned.mean().abs() < 1e-5  # what all have in common means nothing
    best = [r for r in reports if r.improved][-1]
    assert best.log_speeds == pytest.approx(bridge.order.log_speeds.tolist(), abs=1e-6)
    assert best.record()["log_speeds"] == best.log_speeds
    assert best.prior_bits == 0
    assert [r.phase for r in reports].count("matrix") == 0


def test_speeds_that_are_not_learned_stay():
    data = made()
    bridge = make(data)
    bridge.order.requires_grad_(False)
    run(bridge, data, matrix_objective="prior", orders=1, matrix_steps=0)
    assert (bridge.order.log_speeds == 0).all()


def first_step(accumulate, infill, singles, any_order):
    data = made()
    own = {"accumulate": accumulate, "infill": infill, "singles": singles, "any_order": any_order, "clip": 0.0}
    settings = TrainingSettings(**QUICK | own)
    bridge, seen = make(data, dropout=0.0).double(), {}
    generator = seeded("weights")
    with torch.no_grad():  # a network that knows nothing yet has no order to prefer
        for parameter in bridge.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    learner = BridgeLearner(bridge, data, settings, engine(accelerator="cpu"))
    noted = [
        ("network", learner.network, learner.score_optimiser),
        ("order", learner.corruption, learner.matrix_optimiser),
    ]
    for name, module, optimiser in noted:
        optimiser.register_step_pre_hook(
            lambda *_, name=name, module=module: seen.update(
                {f"{name}.{key}": p.grad.clone() for key, p in module.named_parameters() if p.grad is not None}
            )
        )
    return learner.score_step(), seen


@pytest.mark.parametrize(("infill", "singles", "any_order"), [(0.0, 0, 0.0), (0.5, 0, 0.0), (0.5, 2, 0.5)])
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_parts_give_the_gradients_of_the_whole_batch(parts, infill, singles, any_order):
    (loss, gradient_norm), gradients = first_step(1, infill, singles, any_order)
    (other_loss, other_norm), others = first_step(parts, infill, singles, any_order)
    assert other_loss == pytest.approx(loss, rel=1e-9)
    assert other_norm == pytest.approx(gradient_norm, rel=1e-6)
    assert gradients.keys() == others.keys()
    assert gradients["order.weights"].abs().max() > 1e-3
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-6, atol=1e-9)


def test_a_batch_holds_so_many_paths_not_sequences():
    data, seen = made(), []
    learner = BridgeLearner(make(data), data, TrainingSettings(**QUICK), engine(accelerator="cpu"))
    learner.network.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    learner.score_step()
    [x] = seen
    assert x.shape == (16, 4)
    assert torch.equal(x[:8], x[8:])
    assert torch.equal(x[:8], data.train.batch(8, step=0, seed=0).x_0)
    learner = BridgeLearner(make(data), data, TrainingSettings(**QUICK | {"singles": 6}), engine(accelerator="cpu"))
    learner.network.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    learner.score_step()
    assert torch.equal(seen[-1][:14], data.train.batch(14, step=0, seed=0).x_0)
    assert torch.equal(seen[-1][14:], seen[-1][[0, 7]])


# -- interruption -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["joint", "bound"])
def straight(request, tmp_path_factory):
    """A run that nothing stopped, to compare with: its options, folder, weights and reports."""
    options, folder = {"infill": 0.3, "matrix_objective": request.param}, tmp_path_factory.mktemp("straight")
    bridge = make(made(), order="smooth")
    reports = run(bridge, made(), folder=folder, **options)
    return options, folder, weights(bridge), reports


@pytest.mark.usefixtures("no_type_checks")  # all but the reference, which makes the same steps
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_a_run_stopped_at_any_step_resumes_to_the_same_weights_and_speeds(tmp_path, straight, steps):
    options, folder, expected, reports = straight
    data = made()
    run(make(data, order="smooth"), data, folder=tmp_path, stop=StopAfter(steps), **options)
    again = make(data, order="smooth", seed=99)  # nothing of a fresh start may matter
    after = run(again, data, folder=tmp_path, resume=True, **options)
    assert same(weights(again), expected)
    last = [Checkpoints(path / "checkpoints").newest().tensors for path in (folder, tmp_path)]
    assert same(*last)
    assert last[0]["order.weights"].abs().max() > 0
    assert after[-1].log_speeds == reports[-1].log_speeds


def test_the_best_model_in_the_folder_is_the_one_in_memory(straight):
    _, folder, expected, _ = straight
    again = dmb.Bridge.from_pretrained(folder)
    assert same(weights(again), expected)
    assert isinstance(again.network, dmb.OrderedTransformer)
    assert torch.equal(again.order.log_speeds, waves((4,)) @ expected["order.weights"])
    assert again.order.log_speeds.std() > 1e-3


def test_a_model_trained_for_infilling_fills_in(straight):
    _, folder, _, _ = straight
    template = torch.tensor([[-1, 3, -1, 2], [1, -1, -1, -1], [-1, -1, -1, -1], [4, 3, 1, 2]]).repeat(25, 1)
    x = dmb.Bridge.from_pretrained(folder).sample(template=template, calls=2, generator=seeded("fill"))
    assert torch.equal(x[template >= 0], template[template >= 0])
    assert x.max() < 5


# -- a known entropy --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
def test_the_bound_by_whole_paths_is_not_below_a_known_entropy_and_better_than_the_marginals():
    length = 5
    data, truth = dmb.data.markov(length=length), dmb.data.markov_bits(length)
    states = dmb.States.with_mask(length, data.num_states)
    torch.manual_seed(0)
    network = dmb.OrderedTransformer(states, blocks=2, width=32, heads=2, conditioning=8, dropout=0.0)
    bridge, above = dmb.OrderedBridge(orders.Smooth(waves((length,))), network, states), []
    settings = QUICK | {"cycles": 1, "score_steps": 90, "evaluate_every": 30, "evaluate_sequences": 200}
    settings |= {"batch_size": 128, "learning_rate": 5e-3, "matrix_learning_rate": 0.1, "warmup": 20}
    for report in dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **settings):
        if report.improved:
            bound = bridge.bound(data.test[:2000], batch_size=500, generator=seeded("bound"))
            assert bound.bits_per_token > truth - 3 * bound.stderr
            above.append(bound.bits_per_token - truth)
    p = data.marginals().double().numpy()
    x = data.test[:2000].numpy()
    marginals = -np.log2(p[np.arange(length), x]).mean()
    assert above[-1] < above[0]
    assert above[-1] < 0.7 * (marginals - truth)


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "options", "bridge", "message"),
    [
        ("joint", {"order": "random"}, {}, "matrix_objective must be prior: Random is not learned, Smooth and Free are"),
        ("bound", {"order": "random"}, {}, "matrix_objective must be prior: Random is not learned, Smooth and Free are"),
        ("joint", {"kind": dmb.CausalTransformer}, {}, "matrix_objective must be prior for a CausalTransformer"),
        ("prior", {"kind": dmb.CausalTransformer}, {"infill": 0.5}, "infill must be 0.0 for a Causal"),
        ("prior", {"kind": dmb.CausalTransformer}, {"any_order": 0.5}, "any_order must be 0.0 for a Causal"),
        ("joint", {}, {"orders": 1}, "orders must be at least 2 to learn an order, by comparing two .* got 1"),
        ("prior", {}, {}, "J_Q cannot train the speeds of positions"),
    ],
    ids=["no speeds", "no speeds on the bound", "causal", "causal, infilling", "causal in any order", "one order", "prior"],
)  # fmt: skip
def test_what_cannot_be_learned_by_whole_paths_is_refused(objective, options, bridge, message):
    causal = {"order": "left to right"} if "kind" in options else {}
    model, settings = make(made(), **causal | options), QUICK | {"matrix_objective": objective} | bridge
    if objective == "prior":
        settings["matrix_steps"] = 0  # which lower J_Q, and an order has none
    with pytest.raises(ValueError, match=message):
        dmb.train(model, made(), fabric=engine(accelerator="cpu"), **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"any_order": 0.5, "orders": 1}, "any_order must be 0 for a network that does not follow orders, got 0.5"),
     ({}, "orders must be 1 for a network that does not follow orders, got 2")],
)  # fmt: skip
def test_settings_of_whole_paths_are_refused_where_times_are_drawn(options, message):
    data = made()
    process = dmb.BridgeProcess.from_marginals(data.marginals(), mask=True, floor=0.0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    with pytest.raises(ValueError, match=message):
        dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **QUICK | {"matrix_objective": "prior"} | options)


def test_frozen_speeds_have_no_order_to_learn():
    data, bridge = made(), make(made())
    bridge.order.requires_grad_(False)
    with pytest.raises(ValueError, match="Free is not learned"):
        dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **QUICK)


def test_a_batch_must_be_shared_out_among_orders_and_parts():
    with pytest.raises(ValueError, match="batch_size must be a multiple of orders × accumulate = 6, got 16"):
        TrainingSettings(batch_size=16, orders=3, accumulate=2)
    with pytest.raises(ValueError, match="orders must be at least 1, got 0"):
        TrainingSettings(orders=0)
    assert TrainingSettings(batch_size=12, orders=3).sequences == 4
    with pytest.raises(ValueError, match="singles must be 0 with one order, got 2"):
        TrainingSettings(singles=2)
    with pytest.raises(ValueError, match=r"any_order must be in \[0, 1\], got 1.5"):
        TrainingSettings(any_order=1.5)


def test_a_causal_network_is_trained_for_more_than_one_cycle():
    data = made()
    bridge = make(data, kind=dmb.CausalTransformer, order="left to right")
    reports = run(bridge, data, matrix_objective="prior", matrix_steps=0, orders=1)
    assert reports[-1].step == 10


@pytest.mark.long
def test_j_q_still_teaches_a_mask_how_fast_to_be_where_times_are_drawn():
    data = made()
    process = dmb.BridgeProcess.from_marginals(data.marginals(), mask=True, floor=0.0, tied=True)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    before = bridge.prior_loss().item()
    run(bridge, data, matrix_objective="prior", orders=1, matrix_steps=20, matrix_learning_rate=0.1)
    assert bridge.prior_loss().item() < 0.5 * before


@pytest.mark.parametrize(
    ("name", "value"),
    [("start", "random"), ("adapt_times", False), ("matrix_steps", 3), ("matrix_tolerance", 0.1),
     ("matrix_learning_rate", 0.1), ("matrix_weight_decay", 0.1), ("matrix_clip", 1.0)],
)  # fmt: skip
def test_a_setting_of_the_other_model_is_refused_if_it_is_chosen(name, value):
    """Settings that are taken as a whole, as from a recipe, may have others."""
    data, objective = made(), {"matrix_objective": "prior", "orders": 1}
    bridge = make(data)
    bridge.order.requires_grad_(False)
    with pytest.raises(ValueError, match=f"{name} has no effect on an OrderedBridge, .*: leave it out"):
        dmb.train(bridge, data, **objective, **{name: value})
    dmb.train(bridge, data, TrainingSettings(**objective, **{name: value}))
    neutral = {"start": "histogram", "matrix_steps": 0, "matrix_clip": 0.0, "reestimate": False, "adapt_times": True}
    dmb.train(bridge, data, **objective, **neutral)

import copy
import dataclasses
import functools
import inspect
import itertools
import math
import shutil
import typing

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dmb
from dmb._core import numerics, seeding
from dmb.data import Batch
from dmb.training import BridgeLearner, TrainingSettings, engine
from dmb.training.checkpoint import Checkpoints
from dmb.training.settings import TrainingOptions
from stopping import StopAfter, same

QUICK = {
    "cycles": 2, "score_steps": 12, "matrix_steps": 3, "batch_size": 16, "chains": 16, "chain_calls": 4, "warmup": 4,
    "log_every": 4, "evaluate_every": 5, "evaluate_sequences": 20,
}  # fmt: skip


def made():
    # the second token repeats the first, the third is the sum of both modulo 4
    first = np.random.default_rng(0).choice(4, size=400, p=[0.4, 0.3, 0.2, 0.1])
    return dmb.data.array(np.stack([first, first, (2 * first) % 4], axis=1).astype(np.uint8), num_states=4)


@pytest.fixture
def data():
    return made()


def make(data, *, head="mean", dropout=0.1, seed=0, **options):
    process = dmb.BridgeProcess.from_marginals(data.marginals(), init="uniform", **options)
    torch.manual_seed(seed)
    return dmb.MarkovBridge(process, dmb.MLP(4, 3, width=16, blocks=1, dropout=dropout), head)


def run(bridge, data, **options):
    return list(dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **(QUICK | options)))


def steps_of(learner, count):
    """What so many steps of Score-learning give."""
    for _ in range(count):
        yield learner.score_step()
        learner.progress.step += 1


def weights(bridge):
    return {name: tensor.clone() for name, tensor in bridge.state_dict().items()}


# -- interruption -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of each head that nothing stopped, to compare with: its options, folder, weights and reports."""

    @functools.cache
    def make_once(head):
        options, folder = {"infill": 0.3}, tmp_path_factory.mktemp("straight")
        bridge = make(made(), head=head)
        reports = run(bridge, made(), folder=folder, **options)
        return options, folder, weights(bridge), reports

    return make_once


@pytest.mark.usefixtures("no_type_checks")  # the tests below check the same calls
@pytest.mark.parametrize(
    ("head", "steps"), [*(("mean", steps) for steps in (1, 2, 7, 8, 15, 16, 20, 29)), ("score", 2), ("score", 20)]
)
def test_a_run_stopped_at_any_step_resumes_to_the_same_weights(tmp_path, data, straight, head, steps):
    options, folder, expected, reports = straight(head)
    broken = make(data, head=head)
    before = run(broken, data, folder=tmp_path / "broken", stop=StopAfter(steps), **options)
    assert len(before) < len(reports)
    again = make(data, head=head, seed=99)  # nothing of a fresh start may matter
    after = run(again, data, folder=tmp_path / "broken", resume=True, **options)
    assert same(weights(again), expected)
    last = [Checkpoints(path / "checkpoints").newest() for path in (folder, tmp_path / "broken")]
    assert same(last[0].tensors, last[1].tensors)
    assert [r.index for r in after] == list(range(len(before), len(reports)))
    assert [(r.phase, r.step, r.score_bits) for r in before + after] == [
        (r.phase, r.step, r.score_bits) for r in reports
    ]


@pytest.mark.parametrize("resume", [False, True])
def test_a_trained_model_whose_checkpoints_are_gone_is_not_trained_over(tmp_path, data, resume):
    run(make(data), data, folder=tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        ValueError, match=r"holds a trained model, model\.safetensors, but no checkpoint.*or move model"
    ):
        run(make(data), data, folder=tmp_path, resume=resume)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "model.safetensors").rename(tmp_path / "old.safetensors")  # which tells it to begin anew
    assert run(make(data), data, folder=tmp_path, resume=resume)[-1].step == 24
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_caller_who_leaves_at_the_first_evaluation_can_go_on(tmp_path, data):
    """Its model is written, and no checkpoint of that step yet."""
    straight, broken = make(data), make(data)
    run(straight, data, folder=tmp_path / "straight")
    for report in dmb.train(broken, data, folder=tmp_path / "broken", fabric=engine(accelerator="cpu"), **QUICK):
        if report.phase == "validation":
            break
    assert (tmp_path / "broken" / "model.safetensors").is_file()
    run(broken, data, folder=tmp_path / "broken", resume=True)
    assert same(weights(broken), weights(straight))


@pytest.mark.long
def test_a_finished_run_resumes_to_nothing_and_can_be_made_longer(tmp_path, data):
    bridge = make(data)
    run(bridge, data, folder=tmp_path)
    again = make(data, seed=5)
    assert run(again, data, folder=tmp_path, resume=True) == []
    assert same(weights(again), weights(bridge))
    longer = run(again, data, folder=tmp_path, resume=True, cycles=3)
    assert longer[-1].step == 36


@pytest.mark.long
def test_a_spoilt_newest_checkpoint_costs_only_the_steps_since_the_one_before(tmp_path, data):
    straight, broken = make(data), make(data)
    run(straight, data, folder=tmp_path / "straight")
    run(broken, data, folder=tmp_path / "broken", stop=StopAfter(20))
    checkpoints = Checkpoints(tmp_path / "broken" / "checkpoints")
    newest = checkpoints.path(checkpoints.steps()[-1])
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="going back"):
        run(broken, data, folder=tmp_path / "broken", resume=True)
    assert same(weights(broken), weights(straight))


def test_the_clock_ends_a_run_with_an_evaluation_and_a_checkpoint(tmp_path, data):
    reports = run(make(data), data, folder=tmp_path, minutes=1e-9)
    assert [(r.phase, r.step) for r in reports] == [("matrix", 0), ("matrix", 0), ("validation", 1)]
    assert Checkpoints(tmp_path / "checkpoints").steps() == [0, 1]
    again = run(make(data), data, folder=tmp_path, minutes=1e-9, resume=True)  # it has its time anew
    assert [(r.phase, r.step) for r in again] == [("validation", 2)]


def test_a_limit_of_time_lowers_the_learning_rate_to_nothing(data, monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr("dmb.training.trainer.time.perf_counter", lambda: float(next(seconds)))
    options = {"decay": "cosine", "log_every": 1, "evaluate_every": 10_000, "score_steps": 10_000, "warmup": 0}
    rates = [r.learning_rate for r in run(make(data), data, minutes=1.0, **options) if r.phase == "score"]
    assert len(rates) < 60
    assert rates[0] > 0.9e-3
    assert all(late < early for early, late in itertools.pairwise(rates))
    assert rates[-1] < 1e-5


def test_warming_up_takes_at_most_a_tenth_of_the_time(data, monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr("dmb.training.trainer.time.perf_counter", lambda: float(next(seconds)))
    options = {"log_every": 1, "evaluate_every": 10_000, "score_steps": 10_000, "warmup": 1000, "matrix_steps": 0}
    rates = [r.learning_rate for r in run(make(data), data, minutes=1.0, **options) if r.phase == "score"]
    tenth = len(rates) // 10
    assert rates[0] < 0.5e-3  # it does warm up
    assert rates[tenth + 1 :] == [1e-3] * (len(rates) - tenth - 1)


@pytest.mark.usefixtures("no_type_checks")  # the tests below check the same calls
@pytest.mark.parametrize("steps", [5, 14, 22])
def test_a_run_that_lost_patience_is_the_same_if_it_was_interrupted(tmp_path, data, steps):
    options = {"patience": 2, "learning_rate": 0.3, "evaluate_every": 2, "score_steps": 40}
    straight, broken = make(data), make(data)
    reports = run(straight, data, folder=tmp_path / "straight", **options)
    assert [r.improved for r in reports if r.phase == "validation"][-2:] == [False, False]
    assert reports[-1].step < 80
    before = run(broken, data, folder=tmp_path / "broken", stop=StopAfter(steps), **options)
    after = run(broken, data, folder=tmp_path / "broken", resume=True, **options)
    assert [(r.phase, r.step) for r in before + after] == [(r.phase, r.step) for r in reports]
    assert same(weights(broken), weights(straight))


def test_the_model_in_the_folder_can_be_loaded_at_every_moment(tmp_path, data, monkeypatch):
    seen = []

    def watched(*args, **options):
        seen.append((tmp_path / "config.json").exists() and (tmp_path / "model.safetensors").exists())
        return save_file(*args, **options)

    monkeypatch.setattr("dmb._core.files.save_file", watched)
    run(make(data), data, folder=tmp_path, learning_rate=1e-2)
    assert len(seen) > 8  # the first are a checkpoint of the start, and the first model
    assert seen == [False] * 2 + [True] * (len(seen) - 2)


def test_a_folder_with_a_run_is_not_begun_anew(tmp_path, data):
    run(make(data), data, folder=tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        run(make(data), data, folder=tmp_path)


def test_a_tolerance_that_was_met_can_be_lowered(tmp_path, data):
    assert run(make(data), data, folder=tmp_path, tolerance=100.0)[-1].step == 12
    assert run(make(data), data, folder=tmp_path, tolerance=100.0, resume=True) == []
    assert run(make(data), data, folder=tmp_path, resume=True)[-1].step == 24


# -- what is learned --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_accumulated_parts_learn_what_the_whole_batch_does(data):
    one, four = make(data, dropout=0.0), make(data, dropout=0.0)
    whole, parts = run(one, data), run(four, data, accumulate=4)
    losses = [[r.score_bits for r in reports if r.phase == "score"] for reports in (whole, parts)]
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
def test_training_comes_close_to_the_entropy_and_stays_above_it(data):
    bridge = make(data, dropout=0.0)
    longer = {"cycles": 1, "score_steps": 300, "learning_rate": 1e-2, "batch_size": 64}
    run(bridge, data, **longer, evaluate_every=300, evaluate_sequences=400)
    bound = bridge.bound(data.train[:], samples=20, generator=torch.Generator().manual_seed(0))
    counts = np.unique(data.train[:].numpy(), axis=0, return_counts=True)[1] / len(data.train)
    entropy = -(counts * np.log2(counts)).sum() / 3
    assert entropy - 3 * bound.stderr < bound.bits_per_token < 1.15 * entropy


def test_matrix_learning_lowers_the_exact_prior_part_and_nothing_else(data):
    learner = BridgeLearner(make(data), data, TrainingSettings(matrix_steps=20), engine(accelerator="cpu"))
    before = {name: p.clone() for name, p in learner.network.named_parameters()}
    trace = []
    for _ in range(20):
        learner.matrix_step()
        trace.append(learner.prior_bits())
    assert all(late < early for early, late in itertools.pairwise(trace))
    # by dense matrices: Σ_i Σ_x μ_i(x) KL(P_i[x] || μ_i P_i)
    P, mu = learner.corruption.to_dense(1.0).double(), learner.corruption.p_0.double()
    divergence = (mu[:, :, None] * torch.special.xlogy(P, P / (mu[:, None] @ P))).sum()
    assert trace[-1] == pytest.approx(divergence.item() / 3 / math.log(2), rel=1e-4)
    assert all(torch.equal(before[name], p) for name, p in learner.network.named_parameters())


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
def test_times_that_adapt_leave_the_mean_of_the_loss_as_it_is(data):
    bridge = make(data, dropout=0.0)
    settings = TrainingSettings(batch_size=16, learning_rate=1e-12, weight_decay=0.0)
    learner = BridgeLearner(bridge, data, settings, engine(accelerator="cpu"))
    steps = torch.tensor([bits for bits, _ in steps_of(learner, 250)])
    assert learner.estimator.density.seen[0].sum() > 1000  # there is a density, and it has learnt
    u = numerics.stratified_times(1000, generator=seeding.seeded("times"))
    assert learner.estimator.density.at(u)[1].std() > 0.1
    exact = learner.model.bound(data.train[:], samples=20, generator=seeding.seeded("bound"))
    error = (steps.std() / len(steps) ** 0.5).item() + exact.stderr
    assert steps.mean().item() == pytest.approx(exact.score_bits, abs=4 * error)
    assert error < 0.1


def test_score_learning_leaves_the_rates_alone(data):
    learner = BridgeLearner(make(data), data, TrainingSettings(batch_size=8), engine(accelerator="cpu"))
    before = learner.corruption.clocks.log_rates.clone()
    list(steps_of(learner, 3))
    assert torch.equal(learner.corruption.clocks.log_rates, before)
    assert learner.corruption.clocks.log_rates.grad is None


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
def test_marginals_are_estimated_again_after_a_random_start(tmp_path, data):
    options = {
        "score_steps": 120,
        "learning_rate": 1e-2,
        "batch_size": 256,
        "chains": 1024,
        "evaluate_every": 120,
        "chain_calls": 24,
    }
    learner = BridgeLearner(make(data, dropout=0.0), data, TrainingSettings(start="random"), engine(accelerator="cpu"))
    truth = data.marginals()
    assert (learner.corruption.p_0 - truth).abs().sum(-1).mean() > 0.2
    run(make(data, dropout=0.0), data, folder=tmp_path, start="random", **options)
    p_0 = Checkpoints(tmp_path / "checkpoints").newest().tensors["process.p_0"]
    assert (p_0 - truth).abs().sum(-1).mean() < 0.1
    assert (p_0 > 0).all()


def test_without_reestimation_the_histogram_stays(data):
    bridge = make(data)
    run(bridge, data, reestimate=False)
    torch.testing.assert_close(bridge.process.p_0, data.marginals())


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"matrix_tolerance": 100.0}, {"matrix": 0, "score": 24}),
        ({"score_tolerance": 100.0, "score_steps": 60}, {"matrix": 6, "score": 100}),  # a mean needs 50 steps
        ({"tolerance": 100.0}, {"matrix": 3, "score": 12}),
    ],
)
def test_tolerances_end_their_phase_or_the_whole(data, options, steps, monkeypatch):
    taken = {"matrix": 0, "score": 0}

    def counted(name):
        step = getattr(BridgeLearner, f"{name}_step")

        def wrapper(self):
            taken[name] += 1
            return step(self)

        monkeypatch.setattr(BridgeLearner, f"{name}_step", wrapper)

    counted("matrix")
    counted("score")
    run(make(data), data, **options)
    assert taken == steps


# -- optimisers -------------------------------------------------------------------------------------------------------


def test_the_learning_rate_warms_up_and_falls_along_a_cosine(data):
    settings = TrainingSettings(cycles=1, score_steps=100, warmup=10, learning_rate=0.5, decay="cosine")
    learner = BridgeLearner(make(data), data, settings, engine(accelerator="cpu"))
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(other, T_max=100)
    for step in range(101):
        learner.progress.step = step
        learner.set_rates()
        expected = cosine.get_last_lr()[0] * min(1.0, (step + 1) / 10)
        assert learner.score_optimiser.param_groups[0]["lr"] == pytest.approx(expected, abs=1e-9)
        other.step()
        cosine.step()
    learner.progress.step = 150  # a run that was made shorter
    learner.set_rates()
    assert learner.score_optimiser.param_groups[0]["lr"] == 0.0


def test_weight_decay_acts_on_matrices_and_turns_off_at_its_step(data):
    settings = TrainingSettings(learning_rate=0.1, warmup=0, weight_decay=0.5, weight_decay_until=7)
    learner = BridgeLearner(make(data), data, settings, engine(accelerator="cpu"))
    decays = {}
    for step in (0, 6, 7, 50):
        learner.progress.step = step
        learner.set_rates()
        decays[step] = {
            p.ndim: group["weight_decay"] for group in learner.score_optimiser.param_groups for p in group["params"]
        }
    assert decays[0] == decays[6] == {1: 0.0, 2: 0.5}
    assert decays[7] == decays[50] == {1: 0.0, 2: 0.0}


def test_the_averaged_weights_follow_their_recursion(data):
    learner = BridgeLearner(make(data), data, TrainingSettings(ema=0.8, batch_size=8), engine(accelerator="cpu"))
    expected = None
    for count, _ in enumerate(steps_of(learner, 30)):
        now = learner.network.output.weight.detach().double()
        decay = min(0.8, (1 + count) / (10 + count))
        expected = now if expected is None else decay * expected + (1 - decay) * now
    torch.testing.assert_close(learner.average.module.output.weight.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_bridge_holds_the_weights_that_were_best_on_validation(data):
    bridge = make(data)
    best, bits = None, math.inf
    for report in dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **QUICK | {"learning_rate": 0.3}):
        if report.validation is not None:
            assert report.improved == (report.bits < bits)
            if report.improved:
                best, bits = copy.deepcopy(weights(bridge)), report.bits
    assert same(weights(bridge), best)


def test_gradients_are_clipped_to_the_norm_that_is_asked(data):
    settings = TrainingSettings(clip=1e-3, batch_size=8, learning_rate=1.0, warmup=0, weight_decay=0.0)
    learner = BridgeLearner(make(data), data, settings, engine(accelerator="cpu"))
    seen = []
    learner.score_optimiser.register_step_pre_hook(
        lambda optimiser, *_: seen.append(
            torch.cat([p.grad.flatten() for g in optimiser.param_groups for p in g["params"] if p.grad is not None])
        )
    )
    _, gradient_norm = learner.score_step()
    assert gradient_norm > 1e-2
    assert seen[0].norm().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_the_loss_is_in_float32_whatever_the_network_computes_in(data, precision):
    learner = BridgeLearner(make(data), data, TrainingSettings(), engine(accelerator="cpu", precision=precision))
    x_0 = data.train[:4]
    inner = []
    learner.network.output.register_forward_hook(lambda *parts: inner.append(parts[-1].dtype))
    loss = learner.model.integrand(x_0, x_0, torch.full((4,), 0.5))
    assert loss.dtype == torch.float32
    assert inner == [torch.bfloat16 if precision == "bf16-mixed" else torch.float32]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_leaves_the_last_good_checkpoint(tmp_path, data, monkeypatch):
    bridge = make(data)
    reports = dmb.train(bridge, data, fabric=engine(accelerator="cpu"), folder=tmp_path, **QUICK)
    for report in reports:
        if report.phase == "validation":
            break

    def poisoned(self, *args, **options):
        return math.nan * self.output.weight.sum().expand(16, 3, 4)

    monkeypatch.setattr(dmb.MLP, "forward", poisoned)
    good = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(
        FloatingPointError, match=r"not finite at step 5 \(cycle 0, Score-learning\).*for 16 of 16 sequences: "
    ):
        list(reports)
    assert good.steps() == [0, 5]
    assert all(t.isfinite().all() for t in good.newest().tensors.values() if t.is_floating_point())


def test_a_gradient_that_is_not_finite_stops_before_it_spoils_the_weights(tmp_path, data):
    bridge = make(data)
    reports = dmb.train(bridge, data, fabric=engine(accelerator="cpu"), folder=tmp_path, **QUICK)
    for report in reports:
        if report.phase == "validation":
            break
    trainer = reports.gi_frame.f_locals["self"]
    trainer.learner.network.output.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(FloatingPointError, match=r"gradient is not finite at step 5"):
        list(reports)
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest.state["step"] == 5
    assert all(t.isfinite().all() for t in trainer.learner.network.state_dict().values())


@pytest.mark.long
def test_given_positions_do_not_flatter_the_loss(data):
    losses = [run(make(data), data, infill=infill, learning_rate=1e-9, matrix_steps=0)[0] for infill in (0.0, 0.9)]
    assert losses[1].score_bits == pytest.approx(losses[0].score_bits, rel=0.5)
    assert losses[1].score_bits > 0.6 * losses[0].score_bits


def test_a_tied_process_keeps_one_row_of_marginals(tmp_path, data):
    process = dmb.BridgeProcess.from_marginals(data.marginals(), init="uniform", tied=True)
    bridge = dmb.MarkovBridge(process, dmb.MLP(4, 3, width=16, blocks=1))
    run(bridge, data, folder=tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").newest().tensors["process.p_0"].shape == (1, 4)


def test_training_leaves_the_global_generator_as_it_was(data):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    learner = BridgeLearner(make(data), data, TrainingSettings(batch_size=8), engine(accelerator="cpu"))
    torch.manual_seed(3)
    learner.score_step()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_that_cannot_be_shared_out_is_refused(data):
    with pytest.raises(ValueError, match="orders × accumulate = 3"):
        TrainingSettings(batch_size=16, accumulate=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cycles", 0),
        ("ema", 1.0),
        ("infill", 1.5),
        ("learning_rate", 0.0),
        ("minutes", -1.0),
        ("patience", -1),
        ("seed", -1),
        ("learning_rate", math.inf),
        ("weight_decay", math.nan),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        TrainingSettings(**{name: value})


def test_an_unknown_setting_is_refused_with_those_that_exist(data):
    with pytest.raises(
        ValueError, match=r"no training setting called steps: did you mean score_steps\? choose from cyc"
    ):
        dmb.train(make(data), data, steps=3)
    with pytest.raises(ValueError, match="no training setting called noise: choose from cycles"):
        dmb.train(make(data), data, noise=3)


def test_help_and_type_checkers_know_every_setting():
    fields = dataclasses.fields(TrainingSettings)
    assert typing.get_type_hints(TrainingOptions) == typing.get_type_hints(TrainingSettings)
    shown = inspect.signature(dmb.train).parameters
    assert {field.name: field.default for field in fields}.items() <= {n: p.default for n, p in shown.items()}.items()
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in shown.values())


def test_data_of_another_shape_are_refused(data):
    other = dmb.data.array(np.zeros((10, 5), dtype=np.uint8), num_states=4)
    with pytest.raises(ValueError, match="5 positions, the bridge 3"):
        dmb.train(make(data), other)


@pytest.mark.long
def test_a_checkpoint_of_another_model_is_refused(tmp_path, data):
    run(make(data), data, folder=tmp_path)
    process = dmb.BridgeProcess.from_marginals(data.marginals(), init="uniform")
    wider = dmb.MarkovBridge(process, dmb.MLP(4, 3, width=32, blocks=1))
    with pytest.raises(ValueError, match="does not fit"):
        run(wider, data, folder=tmp_path, resume=True)


def test_labels_reach_the_network(data):
    labelled = dmb.data.digits()
    process = dmb.BridgeProcess.from_marginals(labelled.marginals())
    network = dmb.MLP(17, 64, width=8, blocks=1, num_classes=10)
    seen = []
    bridge = dmb.MarkovBridge(process, network)
    learner = BridgeLearner(bridge, labelled, TrainingSettings(batch_size=4), engine(accelerator="cpu"))
    learner.network.register_forward_pre_hook(lambda _, args, options: seen.append(options["label"]), with_kwargs=True)
    learner.score_step()
    batch: Batch = labelled.train.batch(4, step=0, seed=0)
    assert torch.equal(seen[0], batch.label)

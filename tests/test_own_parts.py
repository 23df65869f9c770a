"""A process, a network, a sampler of one's own: they train, resume, bound and sample like those that come with it."""

import pytest
import torch
from torch import nn

import dmb
from dmb.sampling import State


class Stripes(dmb.UniformProcess):
    """A process of the user's own."""


class Counts(dmb.Network):
    """A network of the user's own: logits from how often each state occurs."""

    def __init__(self, num_states, num_positions, width=8):
        super().__init__()
        self.num_states, self.num_positions, self.width = num_states, num_positions, width
        self.layers = nn.Sequential(
            nn.Linear(num_states, width), nn.SiLU(), nn.Linear(width, num_states * num_positions)
        )

    def config(self):
        return {"num_states": self.num_states, "num_positions": self.num_positions, "width": self.width}

    def forward(self, x_t, t, label=None, given=None):
        counts = nn.functional.one_hot(x_t, self.num_states).float().sum(1)
        return self.layers(counts).view(len(x_t), self.num_positions, self.num_states)


class Walk(dmb.ForwardProcess):
    """A process of the user's own, of two methods: shades drift to their neighbours."""

    def __init__(self, num_positions, num_states, schedule=None, marginals=None):
        super().__init__(num_positions, num_states, schedule, marginals=marginals)
        self.num_states = num_states

    def rate_matrix(self):
        step = torch.diag(torch.ones(self.num_states - 1), 1)
        return step + step.T - torch.diag((step + step.T).sum(1))


class Half(dmb.ForwardProcess):
    """A process without rates."""


class Plain(nn.Module):
    """Not even a `Network`."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(64, 17))

    def forward(self, x_t, t):
        return self.logits.expand(len(x_t), -1, -1)


def of_one_step(denoiser, x_T, times, generator):
    """A sampler of the user's own: straight to the data."""
    yield State(1.0, x_T)
    now = denoiser.process.solve(1.0, len(x_T))
    yield State(0.0, denoiser.log_posterior(x_T, now).argmax(-1))


@pytest.fixture(scope="module")
def digits():
    return dmb.data.digits()


def own_bridge(digits):
    torch.manual_seed(0)
    process = Stripes(digits.num_positions, digits.num_states, marginals=digits.marginals())
    return dmb.MarkovBridge(process, Counts(process.num_states, process.num_positions))


SETTINGS = {
    "cycles": 1, "matrix_steps": 0, "evaluate_sequences": 64, "batch_size": 16, "chains": 16, "chain_calls": 4
}  # fmt: skip


def test_they_train_and_resume_to_the_same_weights(digits, tmp_path):
    whole = own_bridge(digits)
    list(dmb.train(whole, digits, score_steps=12, evaluate_every=4, **SETTINGS))
    interrupted, steps = own_bridge(digits), iter(range(100))
    list(
        dmb.train(
            interrupted,
            digits,
            score_steps=12,
            evaluate_every=4,
            folder=tmp_path,
            stop=lambda: next(steps) > 5,
            **SETTINGS,
        )
    )
    resumed = own_bridge(digits)
    reports = list(
        dmb.train(resumed, digits, score_steps=12, evaluate_every=4, folder=tmp_path, resume=True, **SETTINGS)
    )
    assert reports[-1].step == 12
    for name, tensor in whole.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name


def test_they_are_saved_loaded_bounded_and_sampled(digits, tmp_path):
    bridge = own_bridge(digits)
    bridge.write(tmp_path)
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert isinstance(again.process, Stripes)
    assert isinstance(again.network, Counts)
    x = digits.test[:8]
    bounds = [each.eval().bound(x, generator=torch.Generator().manual_seed(0)).score for each in (bridge, again)]
    assert bounds[0].equal(bounds[1])
    assert again.sample(3, sampler=of_one_step).shape == (3, 64)


def test_a_process_of_two_methods_trains_is_saved_bounded_and_sampled(tmp_path):
    tokens = torch.randint(4, (300, 1), generator=torch.Generator().manual_seed(0)).repeat(1, 3)
    data = dmb.data.array(tokens)
    process = Walk(3, 4, schedule=dmb.Linear(4.0, 4.0), marginals=data.marginals())
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=16, blocks=1))
    list(
        dmb.train(
            bridge, data, score_steps=150, evaluate_every=75, learning_rate=0.02, ema=0.9, folder=tmp_path, **SETTINGS
        )
    )
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert isinstance(again.process, Walk)
    assert again.process.to_dense(0.5).equal(process.to_dense(0.5))
    bound = again.bound(data.train[:], samples=8, generator=torch.Generator().manual_seed(0))
    assert bound.bits_per_token < 1.7  # independent positions need 2
    assert again.sample(5, calls=8).shape == (5, 3)


def test_a_process_without_rates_says_what_it_lacks():
    with pytest.raises(NotImplementedError, match="Half must have rate_matrix, or kernels of its own"):
        Half(2, 3).log_transition(torch.zeros(1, 2, dtype=torch.long), 0.5)


def test_a_matrix_without_the_axis_of_positions_is_that_of_all():
    Q = torch.tensor([[-1.0, 1.0], [2.0, -2.0]])
    one, other = dmb.DenseProcess(Q, num_positions=3), dmb.DenseProcess(Q[None], num_positions=3)
    assert one.to_dense(0.5).equal(other.to_dense(0.5))


def test_an_empty_batch_has_no_loss_and_no_integrand(digits):
    for process in (dmb.BridgeProcess.from_marginals(digits.marginals()), Stripes(64, 17)):
        bridge = dmb.MarkovBridge(process, Counts(17, 64))
        empty = torch.zeros(0, 64, dtype=torch.long)
        assert bridge.integrand(empty, empty, torch.zeros(0)).shape == (0, 64)
        assert bridge.integrand(empty, empty, 0.5).shape == (0, 64)
        assert bridge.loss(empty).shape == (0,)


def test_a_plain_module_is_a_network(digits, tmp_path):
    process = dmb.BridgeProcess.from_marginals(digits.marginals(), order="natural")
    bridge = dmb.MarkovBridge(process, Plain())
    first, *_, last = [
        report for report in dmb.train(bridge, digits, score_steps=30, evaluate_every=10, learning_rate=0.1, **SETTINGS)
        if report.phase == "validation"
    ]  # fmt: skip
    assert last.bits < first.bits
    assert bridge.sample(2, calls=4).shape == (2, 64)
    template = torch.full((64,), -1)
    template[:8] = 3
    with pytest.warns(UserWarning, match="may take token 3 of the template"):  # it is not told what is given
        assert (bridge.sample(2, calls=4, template=template)[:, :8] == 3).all()
    with pytest.raises(ValueError, match=r"Plain cannot be saved .* dmb.Network"):
        bridge.write(tmp_path)


def test_a_plain_module_is_refused_before_it_is_trained_into_a_folder(digits, tmp_path):
    bridge = dmb.MarkovBridge(dmb.BridgeProcess.from_marginals(digits.marginals()), Plain())
    with pytest.raises(ValueError, match="cannot be saved"):
        dmb.train(bridge, digits, folder=tmp_path, **SETTINGS)
    assert not list(tmp_path.iterdir())


class Undescribed(dmb.Network):
    """A network without `config`."""

    def __init__(self, num_states, num_positions):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_positions, num_states))

    def forward(self, x_t, t, label=None, given=None):
        return self.bias.expand(len(x_t), -1, -1)


def test_a_network_that_could_not_be_loaded_again_is_not_saved(digits, tmp_path):
    process = dmb.BridgeProcess.from_marginals(digits.marginals())
    bridge = dmb.MarkovBridge(process, Undescribed(process.num_states, process.num_positions))
    with pytest.raises(ValueError, match=r"could not be loaded again: .* config\(\) must give the arguments"):
        bridge.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.usefixtures("no_type_checks")  # what a user without a type checker meets
def test_tokens_in_place_of_a_data_set_and_the_reverse_say_what_to_give(digits):
    bridge = own_bridge(digits)
    with pytest.raises(
        ValueError, match=r"data must be a DataSet, got a Tensor: make one .*dmb\.data\.array\(tokens\)"
    ):
        dmb.train(bridge, digits.train[:])
    with pytest.raises(ValueError, match=r"such as data\.test, got a DataSet"):
        bridge.bound(digits)


def test_a_class_cannot_take_the_name_of_one_of_ours():
    with pytest.raises(TypeError, match="dmb has a MLP of its own"):
        type("MLP", (dmb.Network,), {})


def test_labels_and_given_positions_of_the_wrong_shape_are_refused_by_every_method(no_type_checks):
    process = dmb.BridgeProcess.from_marginals(torch.full((2, 3), 1 / 3))
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1, num_classes=3))
    x = torch.zeros(2, 2, dtype=torch.long)
    for call in (bridge.log_posterior, bridge.log_score, lambda x, t, label: bridge.integrand(x, x, t, label)):
        for label, message in (
            (torch.tensor([0, 4]), "lie in"),
            (torch.tensor([-3, 0]), "lie in"),
            (torch.tensor([0]), "shape"),
        ):
            with pytest.raises(ValueError, match=message):
                call(x, 0.5, label)
    with pytest.raises(ValueError, match="given must have the shape"):
        bridge.loss(x, given=torch.ones(1, 1, dtype=torch.bool))


def test_a_trajectory_ends_where_a_sample_does(digits):
    bridge = own_bridge(digits)
    states = list(bridge.trajectory(2, calls=4, generator=torch.Generator().manual_seed(0)))
    assert [state.t for state in states][::4] == [1.0, 0.0]
    assert states[-1].x.equal(bridge.sample(2, calls=4, generator=torch.Generator().manual_seed(0)))
    assert bridge.training  # between two states, too


def test_a_loop_of_ones_own_has_the_gradient_of_the_trainer(digits):
    """Rates learned jointly: `loss` and `prior_loss` are all that the trainer's step is made of."""
    from dmb.objectives.variance import CostBaseline, TimeDensity

    def build():
        torch.manual_seed(0)
        process = dmb.BridgeProcess.from_marginals(digits.marginals(), floor=0.1, schedule=dmb.Canonical())
        return dmb.MarkovBridge(process, dmb.MLP(process, width=16, blocks=1, dropout=0.0))

    trained = build()
    options = {
        "learning_rate": 1e-3,
        "warmup": 1,
        "weight_decay": 0.0,
        "clip": 0.0,
        "ema": 0.0,
        "seed": 3,
        "infill": 0.0,
    }
    list(dmb.train(trained, digits, score_steps=3, matrix_objective="joint", **SETTINGS, **options))

    from dmb._core.seeding import seeded

    own, density, baseline = build(), TimeDensity(central=True, decay=0.99), CostBaseline()
    own.network.given.requires_grad_(False)
    network = torch.optim.AdamW([p for p in own.network.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    rates = torch.optim.AdamW(own.process.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(3):
        x_0 = digits.train.batch(16, step=step, seed=3).x_0
        loss = own.loss(x_0, learn_rates=True, times=density, baseline=baseline, generator=seeded(3, "noise", step))
        (loss.mean() / own.num_positions).backward()
        network.step(), network.zero_grad()
        density.learn(), baseline.learn()
        (own.prior_loss() / own.num_positions).backward()
        rates.step(), rates.zero_grad()
        own.process.normalise()
    torch.testing.assert_close(own.process.alpha, trained.process.alpha, rtol=1e-5, atol=1e-7)
    for name, tensor in own.network.state_dict().items():
        torch.testing.assert_close(tensor, trained.network.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)

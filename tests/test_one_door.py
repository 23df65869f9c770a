"""What enters is checked once, clock time is solved once, and nothing in a step makes the host wait for a device."""

import copy
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dmb
import forks
from dmb._core import checks
from dmb.networks.base import init_given_embedding
from dmb.objectives.variance import CostBaseline, TimeDensity
from dmb.processes import grouping

MU = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
X_0 = torch.multinomial(MU, 8, replacement=True, generator=torch.Generator().manual_seed(0)).T

PROCESSES = {
    "bridge": lambda: dmb.BridgeProcess.from_marginals(MU, floor=0.1),
    "bridge in canonical time": lambda: dmb.BridgeProcess.from_marginals(MU, floor=0.1, schedule=dmb.Canonical()),
    "varying": lambda: dmb.BridgeProcess.from_marginals(MU, clocks=dmb.Varying, schedule=dmb.Canonical()),
    "tree": lambda: dmb.BridgeProcess.from_marginals(MU, tree=grouping.by_value(4), schedule=dmb.Canonical()),
    "masked diffusion": lambda: dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0),
    "tokenwise": lambda: dmb.TokenwiseMasking.from_marginals(MU, schedule=dmb.Canonical()),
    "uniform": lambda: dmb.UniformProcess(3, 4, marginals=MU),
}
every_process = pytest.mark.parametrize("build", PROCESSES.values(), ids=PROCESSES)
every_head = pytest.mark.parametrize("head", ["mean", "score"])


def bridge_of(build, head="mean"):
    torch.manual_seed(0)
    process = build()
    network = dmb.MLP(process, width=8, blocks=1, dropout=0.0)
    torch.nn.init.normal_(network.output.weight, std=0.1)
    return dmb.MarkovBridge(process, network, head)


@pytest.fixture
def entered(monkeypatch):
    """How often tokens and times were checked, and clock time was solved."""
    counts = Counter()

    def counting(owner, name, as_name):
        original = getattr(owner, name)

        def counted(*args, **options):
            counts[as_name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    counting(checks, "tokens", "tokens")
    counting(checks, "times", "times")
    for schedule in (dmb.LogLinear, dmb.Canonical):
        counting(schedule, "forward", "clock")
    return counts


@pytest.mark.parametrize("learn_rates", [False, True])
@every_head
@every_process
def test_a_loss_checks_its_tokens_once_and_solves_clock_time_once(build, head, learn_rates, entered):
    bridge = bridge_of(build, head)
    learn_rates = learn_rates and any(True for _ in bridge.process.parameters())
    bridge.loss(X_0, learn_rates=learn_rates, times=TimeDensity(), baseline=CostBaseline()).sum().backward()
    assert entered == {"tokens": 1, "clock": 1}


GIVEN = torch.tensor([[True, False, False], [False, True, False]]).repeat(4, 1)


@every_process
def test_a_loss_with_given_positions_solves_clock_time_once_too(build, entered):
    """The ambiguous states, which are marked to the network, are known as long as the process stays as it is."""
    bridge = bridge_of(build)
    bridge.loss(X_0, given=GIVEN)
    for _ in range(3):
        entered.clear()
        bridge.loss(X_0, given=GIVEN).sum().backward()
        assert entered == {"tokens": 1, "clock": 1}


@pytest.mark.parametrize("template", [None, torch.tensor([0, -1, -1])], ids=["no template", "template"])
@every_process
def test_every_step_of_sampling_solves_its_clock_time_once(build, template, entered):
    bridge = bridge_of(build)
    init_given_embedding(bridge.network, torch.Generator().manual_seed(0))  # so that a template is no warning
    assert bridge.process.ambiguous_states.shape[1] == bridge.num_states
    grid = torch.linspace(1, 0, 9, dtype=torch.float64)
    entered.clear()
    bridge.sample(2, grid=grid, template=template)
    assert entered["tokens"] == (template is not None)
    assert entered["clock"] <= 9 + 1  # one for each time, and one for the prior


def stepped(process):
    (-process.clocks.log_rates[:, :-1].sum()).backward()
    torch.optim.SGD(process.parameters(), lr=5.0).step()


def loaded(process):
    process.load_state_dict(dmb.BridgeProcess.from_marginals(MU, floor=0.5, schedule=dmb.Canonical()).state_dict())


def normalised(process):
    with torch.no_grad():
        process.clocks.log_rates[:, 0] += 20
    process.normalise()


CHANGES = {
    "a step of an optimiser": stepped,
    "load_state_dict": loaded,
    "set_marginals": lambda process: process.set_marginals(torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(3, -1)),
    "normalise": normalised,
    "data that autograd does not see": lambda process: process.clocks.log_rates.data[:, :-1].add_(5.0),
    "another parameter": lambda process: setattr(
        process.clocks, "log_rates", torch.nn.Parameter(process.clocks.log_rates.detach() / 2)
    ),
    "another schedule": lambda process: setattr(process, "schedule", dmb.Linear(100.0, 100.0)),
    "a schedule that runs on": lambda process: setattr(process.schedule, "survival", 1e-9),
    "another precision": lambda process: process.double().clocks.log_rates.data[:, :-1].add_(5.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_ambiguous_states_are_those_of_the_process_as_it_is(change):
    process = dmb.BridgeProcess.from_marginals(MU, floor=1e-3, schedule=dmb.Canonical())
    if change is CHANGES["a schedule that runs on"]:
        process = dmb.BridgeProcess.from_marginals(MU, floor=1e-3, schedule=dmb.LogLinear(0.99))
    before = process.ambiguous_states
    assert before.equal(process.data_states & (process.noise_share() > 0.01))
    change(process)
    after = process.ambiguous_states
    assert after.equal(process.data_states & (process.noise_share() > 0.01))
    assert not after.equal(before)


def test_a_copy_of_a_process_has_ambiguous_states_of_its_own(entered):
    process = dmb.BridgeProcess.from_marginals(MU, floor=1e-3)
    before = process.ambiguous_states
    copied = copy.deepcopy(process)
    copied.clocks.log_rates.data[:, :-1].add_(5.0)
    assert not copied.ambiguous_states.equal(before)
    assert process.ambiguous_states.equal(before)
    entered.clear()
    assert process.ambiguous_states.equal(before)
    assert entered["clock"] == 0


@every_process
def test_a_method_that_is_called_by_itself_checks_and_solves_once(build, entered):
    process = build()
    x_t = process.sample(X_0, 0.5)
    calls = [
        lambda: process.sample(X_0, 0.5),
        lambda: process.sample_moved(X_0, 0.5),
        lambda: process.log_transition(X_0, 0.5),
        lambda: process.log_likelihood(x_t, 0.5),
        lambda: process.log_prob(x_t, X_0, 0.5),
        lambda: process.rates_into(x_t, 0.5),
        lambda: process.integrand_from_logits(torch.zeros(8, 3, process.num_states), x_t, X_0, 0.5),
        lambda: process.integrand_from_score(torch.zeros(8, 3, process.num_states), x_t, X_0, 0.5),
    ]
    for call in calls:
        entered.clear()
        call()
        assert entered["clock"] == entered["times"] == 1
        assert entered["tokens"] <= 2  # one for each tensor of tokens


class Syncs(TorchDispatchMode):
    """Counts what would make the host wait for an accelerator."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "unique_consecutive", "masked_select")

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in self.WAITS:
            self.seen[name] += 1
        return function(*args, **(kwargs or {}))


@every_head
@pytest.mark.parametrize("given", [None, GIVEN], ids=["nothing given", "given"])
@every_process
def test_a_loss_makes_nobody_wait_for_a_device(build, given, head, monkeypatch):
    """As on an accelerator, where data are checked before they are moved there, and no code looks at what it computes."""
    bridge = bridge_of(build, head)
    monkeypatch.setattr(dmb._core.numerics, "on_host", lambda x: False)
    monkeypatch.setattr(dmb.processes.base.ForwardProcess, "data", lambda self, name, x: x)
    learn = any(True for _ in bridge.process.parameters())
    density = TimeDensity()
    density.observe(torch.rand(4, dtype=torch.float64), torch.rand(4))
    with Syncs() as syncs:
        bridge.loss(X_0, given=given, learn_rates=learn, times=density).sum().backward()
        density.learn()
    assert not syncs.seen


COMPILED = """
import torch
import dmb

mu = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
x_0 = torch.randint(4, (8, 2))


def loss_and_gradients(loss, bridge):
    torch.manual_seed(1)
    bridge.zero_grad()
    value = loss(x_0)
    value.sum().backward()
    return value, [p.grad.clone() for p in bridge.network.parameters() if p.grad is not None]


for options, whole in (({"floor": 0.1}, True), ({"tree": dmb.processes.grouping.by_value(4)}, True), ({"mask": True, "floor": 0.0}, False)):
    process = dmb.BridgeProcess.from_marginals(mu, **options)
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1, dropout=0.0))
    torch.nn.init.normal_(bridge.network.output.weight, std=0.1)
    t = torch.linspace(0.1, 1.0, 8, dtype=torch.float64)
    now, x_t = process.solve(t, 8), process.sample(x_0, t)
    # whether it is one graph does not depend on what is made of the graph, and `aot_eager` takes twice the time
    graph = torch.compile(bridge._integrand, backend="eager" if whole else "aot_eager", fullgraph=True)
    value = bridge.integrand(x_t, x_0, t)
    torch.testing.assert_close(graph(x_t, x_0, now, None, None), value, rtol=1e-4, atol=1e-5)
    if whole:
        compiled = loss_and_gradients(torch.compile(bridge.loss, backend="aot_eager"), bridge)
        plain = loss_and_gradients(bridge.loss, bridge)
        assert len(plain[1]) > 5
        torch.testing.assert_close(compiled[0], plain[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled[1], plain[1], rtol=1e-3, atol=1e-5)
print("one graph each")
"""


@pytest.mark.long
def test_the_whole_loss_can_be_compiled_and_what_follows_the_door_is_one_graph(tmp_path):
    """In a process of its own: the shape checks of the test suite stand between a compiler and the code."""
    process = forks.start(forks.script, COMPILED, output=tmp_path / "words")
    assert forks.codes(process) == [0], (tmp_path / "words").read_text()[-3000:]
    assert (tmp_path / "words").read_text().splitlines()[-1] == "one graph each"

"""Speculative writing: the samples of one position per call, in fewer calls."""

import importlib
import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb._core import numerics
from dmb._core.seeding import seeded
from dmb.data.lengths import Lengths

import oracles

MASK, SHAPE = 3, (3, 3, 3, 3)
MODULE = importlib.import_module("dmb.sampling.speculative")


def dependent(power):
    """A law of four positions with three states; the higher the power, the more each token says of the others."""
    mu = toys.distribution(*SHAPE, seed=5) ** power
    return mu / mu.sum()


MU = dependent(4)
ORDERS = {
    "random": lambda: dmb.orders.Random(4),
    "fixed": lambda: dmb.orders.Fixed([2, 0, 3, 1]),
    "smooth": lambda: dmb.orders.Smooth(dmb.orders.waves((4,))),
    "streams": lambda: dmb.orders.Streams((4,), budgets=(2,)),
    "blocks": lambda: dmb.orders.Blocks(4, size=2),
}


@pytest.fixture
def window(request, monkeypatch):
    """How many positions a call answers for."""
    monkeypatch.setattr(MODULE, "WINDOW", request.param)
    return request.param


every_window = pytest.mark.parametrize("window", [2, 3, 8], indirect=True)


def exact_bridge(order="random", mu=MU):
    return dmb.OrderedBridge(ORDERS[order](), toys.Conditionals(mu), dmb.States.with_mask(4, 3))


def p_value(x, law):
    index = np.ravel_multi_index(tuple(x.T.numpy()), SHAPE)
    return oracles.chi_square_p_value(np.bincount(index, minlength=81), law.numpy().ravel())


def calls_of(bridge, **options):
    """The samples, and the number of network calls that they took."""
    calls = []
    hook = bridge.network.register_forward_hook(lambda *_: calls.append(1))
    x = bridge.sample(sampler="speculative", **options)
    hook.remove()
    return x, len(calls)


# -- the law ----------------------------------------------------------------------------------------------------------


def test_tokens_say_much_of_each_other():
    """Or the tests of the law would show little: what is written without looking has another law by far."""
    product = np.einsum("a,b,c,d->abcd", *(MU.sum(tuple({0, 1, 2, 3} - {i})).numpy() for i in range(4)))
    assert np.abs(product - MU.numpy()).sum() / 2 > 0.3


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("window", [3], indirect=True)
@pytest.mark.parametrize("order", ORDERS)
def test_samples_have_the_law_of_the_model_in_every_order(order, window):
    x = exact_bridge(order).sample(20_000, sampler="speculative", generator=seeded("samples"))
    assert p_value(x, MU) > 1e-3


TEMPLATES = [(-1, 2, -1, -1), (1, -1, 0, -1), (-1, -1, -1, -1), (2, 0, 1, 1), (-1, -1, 2, 0), (0, -1, -1, 2)]


@pytest.mark.usefixtures("no_type_checks")
@every_window
def test_blanks_are_filled_in_by_their_law_given_what_stands_whatever_other_rows_hold(window):
    """Rows with four blanks, three, two, one and none, side by side."""
    template = torch.tensor(TEMPLATES).repeat(3000, 1)
    x = exact_bridge().sample(template=template, sampler="speculative", generator=seeded("samples"))
    assert torch.equal(x[template >= 0], template[template >= 0])
    for row, known in enumerate(TEMPLATES):
        fits = [
            all(k in (-1, y) for k, y in zip(known, each, strict=True)) for each in itertools.product(*[range(3)] * 4)
        ]
        law = MU * torch.tensor(fits).view(SHAPE)
        assert p_value(x[row :: len(TEMPLATES)], law / law.sum()) > 1e-3


def test_the_length_of_a_sample_has_its_law_and_nothing_stands_after_its_end():
    """States 0 and 1 are tokens, 2 is padding, 3 the mask."""
    lengths = Lengths([50, 0, 20, 30], padding=2)
    bridge = dmb.OrderedBridge(dmb.orders.Random(4), toys.Conditionals(MU), dmb.States.with_mask(4, 3), lengths)
    x = bridge.sample(4000, sampler="speculative", generator=seeded("samples"))
    length = (x != 2).sum(-1)
    assert torch.equal(x == 2, torch.arange(4) >= length[:, None])
    assert oracles.chi_square_p_value(np.bincount(length, minlength=5)[1:], lengths.p) > 1e-3


# -- with the noise of a sample, by hand ------------------------------------------------------------------------------


def stirred(kind, positions, **options):
    """A network in which every token matters."""
    torch.manual_seed(0)
    network = kind(4, positions, blocks=2, width=16, heads=2, conditioning=8, num_classes=2, **options).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=seeded(2, name)))
    return network


def transformer_bridge(causal=False, positions=12):
    kind = dmb.CausalTransformer if causal else dmb.OrderedTransformer
    order = dmb.orders.Fixed.left_to_right(positions) if causal else dmb.orders.Random(positions)
    return dmb.OrderedBridge(order, stirred(kind, positions), dmb.States.with_mask(positions, 3))


def nucleus(p, top_p):
    for row in p:
        likeliest = row.argsort(descending=True)
        row[likeliest[1:][row[likeliest].cumsum(0)[:-1] >= top_p]] = 0
    return p / p.sum(-1, keepdim=True)


@torch.no_grad()
def one_by_one(bridge, count, seed, label=None, template=None, legal=None, guidance=1.0, temperature=1.0, top_p=1.0):
    """Position after position, each by a pass over all that stands: the first of exponential arrivals."""
    generator, rows = seeded(seed), torch.arange(count)
    given = None if template is None else (template >= 0).expand(count, -1)
    turn = bridge.turns(count, given=given, generator=generator)
    arrivals = numerics.exponential((count, bridge.num_positions, 4), generator=generator)
    x = torch.full((count, bridge.num_positions), MASK)
    if template is not None:
        x = torch.where(given, template, x)
    for step in range(bridge.num_positions):
        i = (turn == step).long().argmax(-1)
        seen = torch.where(x == MASK, bridge.num_positions, turn)
        log_p = bridge.network(x, turn=seen, label=label)[rows, i].double()
        log_p[:, MASK] = -torch.inf
        if legal is not None:
            log_p[:, :3] = torch.where(legal, log_p[:, :3], -torch.inf)
        p = log_p.softmax(-1)
        if guidance != 1:
            without = bridge.network(x, turn=seen, label=torch.full_like(label, -1))[rows, i].double()
            without = torch.where(log_p > -torch.inf, without, -torch.inf).softmax(-1)
            p = torch.where(p > 0, p**guidance * without ** (1 - guidance), 0)
        p = p ** (1 / temperature)
        p = nucleus(p / p.sum(-1, keepdim=True), top_p)
        token = (arrivals[rows, i] / p).argmin(-1)
        x[rows, i] = torch.where(x[rows, i] == MASK, token, x[rows, i])
    return x


BEGINNINGS = torch.tensor([[1, 0, 2] + [-1] * 9, [-1] * 12, [2] * 11 + [-1], [0] * 12]).repeat(4, 1)
LABEL = torch.tensor([0, 1]).repeat(8)
OPTIONS = [
    {},
    {"template": BEGINNINGS},
    {"legal": torch.tensor([True, False, True])},
    {"temperature": 0.5, "top_p": 0.8},
    {"label": LABEL, "guidance": 2.0},
    {"label": LABEL, "guidance": 0.5, "temperature": 2.0, "template": BEGINNINGS},
]


@pytest.mark.usefixtures("no_type_checks")
@every_window
@pytest.mark.parametrize("causal", [False, True], ids=["any order", "from left to right"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "read again"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(o) or "plain")
def test_a_sample_is_what_one_position_per_call_makes_of_the_same_noise(options, cached, causal, window, monkeypatch):
    bridge = transformer_bridge(causal)
    if not cached:
        monkeypatch.setattr(bridge.network, "cache", lambda *_: None)
    x = bridge.sample(16, sampler="speculative", generator=seeded("noise"), **options)
    assert torch.equal(x, one_by_one(bridge, 16, "noise", **options))


def test_a_template_that_is_no_beginning_is_filled_in_as_well():
    bridge, template = transformer_bridge(), torch.tensor([-1, 2, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2])
    x = bridge.sample(16, template=template, sampler="speculative", generator=seeded("noise"))
    assert torch.equal(x, one_by_one(bridge, 16, "noise", template=template))


def test_a_network_for_tables_is_sampled_as_well():
    torch.manual_seed(0)
    states = dmb.States.with_mask(6, 3, torch.tensor([3, 2, 3, 1, 3, 3]))
    network = dmb.OrderedMLP(states, width=8, features=4)
    with torch.no_grad():
        network.output.weight.normal_()
    bridge = dmb.OrderedBridge(dmb.orders.Random(6), network.eval(), states)
    found = []
    for size in (1, 8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MODULE, "WINDOW", size)
            found.append(bridge.sample(50, sampler="speculative", generator=seeded("noise")))
    assert torch.equal(*found)
    assert (found[0].amax(0) == states.data_states.sum(-1) - 1).all()


# -- the calls --------------------------------------------------------------------------------------------------------


def test_guesses_that_are_right_save_calls():
    """Of independent positions all are: a call guesses seven tokens ahead, the next one writes them and one more."""
    states = dmb.States.with_mask(40, 3)
    network = dmb.OrderedTransformer(states, blocks=1, width=8, heads=2).eval()  # untrained: one law, whatever it reads
    bridge, seen = dmb.OrderedBridge(dmb.orders.Random(40), network, states), []
    for state in bridge.trajectory(3, sampler="speculative", generator=seeded("samples")):
        seen.append((state.x != MASK).sum(-1).tolist())
    assert seen == [[count] * 3 for count in (0, 1, 9, 10, 18, 19, 27, 28, 36, 37, 40)]


def test_samples_of_dependent_tokens_take_fewer_calls_than_positions():
    bridge = exact_bridge()
    _, calls = calls_of(bridge, count=1, generator=seeded("one"))
    assert calls <= 4
    means = [
        np.mean([calls_of(b, count=1, generator=seeded(seed))[1] for seed in range(50)])
        for b in (bridge, exact_bridge(mu=dependent(1)))
    ]
    assert means[1] < means[0] < 4  # the less tokens say of each other, the fewer


def test_no_more_calls_than_positions_even_if_every_guess_is_wrong():
    """A cycle: each token is the one after its left neighbour's, and the first is any."""
    mu = torch.zeros(SHAPE)
    for first in range(3):
        mu[tuple((first + i) % 3 for i in range(4))] = 1 / 3
    x, calls = calls_of(exact_bridge("streams", mu), count=200, generator=seeded("samples"))
    assert torch.equal(x, (x[:, :1] + torch.arange(4)) % 3)
    assert calls <= 4


def test_rows_that_are_given_cost_no_calls():
    x, calls = calls_of(exact_bridge(), template=torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]]))
    assert (x.tolist(), calls) == ([[0, 1, 2, 0], [1, 1, 1, 1]], 0)


def test_guesses_are_as_good_if_everything_is_read_again_in_each_call(monkeypatch):
    """What is not even guessed is a mask, which no query may take for a token."""
    bridge, ways = transformer_bridge(positions=40), []
    for _ in range(2):
        states = bridge.trajectory(8, sampler="speculative", generator=seeded("samples"))
        ways.append(torch.stack([state.x for state in states]))
        monkeypatch.setattr(bridge.network, "cache", lambda *_: None)
    assert torch.equal(*ways)
    assert len(ways[0]) < 40


# -- the way ----------------------------------------------------------------------------------------------------------


def test_states_on_the_way_are_written_by_turns_and_show_no_guesses():
    template = torch.tensor(TEMPLATES)
    states = list(exact_bridge().trajectory(template=template, sampler="speculative", generator=seeded("samples")))
    blanks = (template < 0).sum(-1)
    assert (states[0].t, states[-1].t) == (1, 0)
    for state in states:
        left = (state.x == MASK).sum(-1)
        assert state.t == (left / blanks.clamp(min=1).double()).max() if state is not states[0] else state.t == 1
    for early, late in pairwise(states):
        assert ((early.x == late.x) | (early.x == MASK)).all()  # what is written stays
        assert ((early.x != late.x).any(-1) == (early.x == MASK).any(-1)).all()  # each call writes in every row


def test_the_same_seed_gives_the_same_samples():
    one, two, other = (exact_bridge().sample(64, sampler="speculative", generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_no_samples_at_all_are_an_empty_batch():
    assert exact_bridge().sample(0, sampler="speculative").shape == (0, 4)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_number_of_calls_is_an_error_that_says_so():
    x_0, message = torch.zeros(2, 4, dtype=torch.long), "speculative has no number of calls: choose the sampler from"
    with pytest.raises(ValueError, match=message):
        exact_bridge().sample(2, sampler="speculative", calls=2)
    with pytest.raises(ValueError, match=message):
        exact_bridge().bound(x_0, sampler="speculative", calls=2)


def test_drawn_times_have_no_such_sampler():
    with pytest.raises(ValueError, match=r"sampler must be one of .*, got 'speculative'"):
        toys.model("masked diffusion", toys.distribution(3, 3, seed=2)).sample(2, sampler="speculative")


def test_a_network_that_gives_nan_is_told():
    bridge = transformer_bridge()
    with torch.no_grad():
        bridge.network.output.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="is the network's output nan"):
        bridge.sample(2, sampler="speculative")

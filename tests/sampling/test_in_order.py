"""Sampling position after position, against laws by enumeration."""

import itertools
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb._core.seeding import seeded

import oracles

MU = toys.distribution(3, 3, 3, seed=5)
SEQUENCES = list(itertools.product(range(3), repeat=3))
EVEN, UNEVEN = (1.0, 1.0, 1.0), (2.0, 9.0, 0.5)
every_speed = pytest.mark.parametrize("speeds", [EVEN, UNEVEN], ids=["even", "uneven"])
MASK = 3


# -- by loops ---------------------------------------------------------------------------------------------------------


def conditional(known, i):
    """The law of position `i` given some tokens, `{position: token}`."""
    p = np.zeros(3)
    for y in SEQUENCES:
        if all(y[j] == token for j, token in known.items()):
            p[y[i]] += MU[y].item()
    return p / p.sum()


def chance_of(order, speeds):
    """Of writing in this order: masks fall last to first, each in proportion to its speed among those that stand."""
    chance, standing = 1.0, list(order)
    while standing:
        chance *= speeds[standing[-1]] / sum(speeds[i] for i in standing)
        standing.pop()
    return chance


def law_of(blocks, speeds, known=None):
    """Of the samples, if positions are written in an order in blocks of these sizes, each block at once."""
    known = known or {}
    free = [i for i in range(3) if i not in known]
    law = np.zeros(len(SEQUENCES))
    for order in itertools.permutations(free):
        for index, x in enumerate(SEQUENCES):
            if any(x[i] != token for i, token in known.items()):
                continue
            chance, stands, rest = chance_of(order, speeds), dict(known), list(order)
            for size in blocks:
                block, rest = rest[:size], rest[size:]
                chance *= math.prod(conditional(stands, i)[x[i]] for i in block)
                stands |= {i: x[i] for i in block}
            law[index] += chance
    assert law.sum() == pytest.approx(1)
    return law


def p_value(x, law):
    index = np.ravel_multi_index(tuple(x.T.numpy()), (3, 3, 3))
    return oracles.chi_square_p_value(np.bincount(index, minlength=27), law)


def total_variation(one, other):
    return np.abs(one - other).sum() / 2


# -- the law of the samples -------------------------------------------------------------------------------------------


@every_speed
@pytest.mark.parametrize(
    "options",
    [{"sampler": "first_hitting"}, {"sampler": "ancestral", "calls": 3}, {"calls": 50}, {}],
    ids=["first hitting", "as many steps as positions", "more steps than positions", "default"],
)
def test_one_position_at_a_time_samples_are_exact_whatever_the_speeds(options, speeds):
    x = toys.ordered_bridge(MU, speeds).sample(20_000, generator=seeded("samples"), **options)
    assert p_value(x, MU.numpy().ravel()) > 1e-3


@every_speed
def test_in_one_step_positions_are_independent(speeds):
    x = toys.ordered_bridge(MU, speeds).sample(20_000, calls=1, generator=seeded("samples"))
    product = np.einsum("a,b,c->abc", *(MU.sum(others).numpy() for others in ((1, 2), (0, 2), (0, 1)))).ravel()
    assert total_variation(product, MU.numpy().ravel()) > 0.1
    assert p_value(x, product) > 1e-3


@pytest.mark.parametrize(("grid", "blocks"), [(0.4, (2, 1)), (0.7, (1, 2))])
def test_in_blocks_the_slowest_positions_come_first(grid, blocks):
    """With a grid of shares that are left: after the first step a third of the blanks, or two thirds."""
    grid = torch.tensor([1.0, grid, 0.0])
    x = toys.ordered_bridge(MU, UNEVEN).sample(20_000, grid=grid, generator=seeded("samples"))
    law = law_of(blocks, UNEVEN)
    for wrong in (law_of(blocks, EVEN), law_of(blocks, [1 / v for v in UNEVEN]), law_of(blocks[::-1], UNEVEN)):
        assert total_variation(law, wrong) > 0.02  # another order would be noticed
        assert p_value(x, wrong) < 1e-6
    assert p_value(x, law) > 1e-3


@every_speed
def test_two_calls_write_two_positions_and_then_one(speeds):
    x = toys.ordered_bridge(MU, speeds).sample(20_000, calls=2, generator=seeded("samples"))
    assert p_value(x, law_of((2, 1), speeds)) > 1e-3


# -- templates --------------------------------------------------------------------------------------------------------

TEMPLATES = [(-1, 2, -1), (1, -1, 0), (-1, -1, -1), (2, 0, 1), (-1, -1, 2), (0, -1, -1)]


@every_speed
@pytest.mark.parametrize("steps", [3, 1])
def test_blanks_are_filled_in_given_what_stands_whatever_other_rows_hold(steps, speeds):
    """Rows with three blanks, two, one and none, side by side."""
    template = torch.tensor(TEMPLATES).repeat(3000, 1)
    x = toys.ordered_bridge(MU, speeds).sample(template=template, calls=steps, generator=seeded("samples"))
    assert torch.equal(x[template >= 0], template[template >= 0])
    for row, kept in enumerate(TEMPLATES):
        known = {i: token for i, token in enumerate(kept) if token >= 0}
        law = law_of((1, 1, 1) if steps == 3 else (3,), speeds, known)
        assert p_value(x[row :: len(TEMPLATES)], law) > 1e-3


def test_one_template_serves_all_samples():
    x = toys.ordered_bridge(MU, UNEVEN).sample(5000, template=torch.tensor([-1, 2, -1]), generator=seeded("samples"))
    assert p_value(x, law_of((1, 1), UNEVEN, {1: 2})) > 1e-3


def test_what_is_all_given_stays_as_it_is():
    template = torch.tensor([[0, 1, 2], [2, 2, 0]])
    states = list(toys.ordered_bridge(MU, EVEN).trajectory(template=template, calls=4))
    assert all(torch.equal(state.x, template) for state in states)
    assert states[-1].t == 0


# -- the way ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("template", [None, [-1, 2, -1]], ids=["all blank", "one given"])
def test_the_time_of_a_state_is_the_share_of_blanks_that_are_left(steps, template):
    template = None if template is None else torch.tensor(template)
    states = list(toys.ordered_bridge(MU, UNEVEN).trajectory(200, calls=steps, template=template))
    blanks = 3 if template is None else 2
    assert len(states) == min(steps, blanks) + 1  # no call writes nothing
    for state in states:
        assert ((state.x == MASK).sum(-1) == round(blanks * state.t)).all()
        assert state.t * blanks == pytest.approx(round(blanks * state.t))
    assert (states[0].t, states[-1].t) == (1, 0)
    assert all(early.t >= late.t for early, late in pairwise(states))
    for early, late in pairwise(states):  # what is written stays
        assert ((early.x == late.x) | (early.x == MASK)).all()


def test_each_row_writes_its_own_share_of_blanks_per_call_whatever_other_rows_hold():
    template = torch.tensor([[-1, -1, -1], [1, -1, -1], [1, 2, -1], [1, 2, 0]])
    left = [
        (s.x == MASK).sum(-1).tolist() for s in toys.ordered_bridge(MU, EVEN).trajectory(template=template, calls=3)
    ]
    assert left == [[3, 2, 1, 0], [2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_the_network_is_called_once_per_step_that_writes():
    bridge, calls = toys.ordered_bridge(MU, EVEN), []
    bridge.network.register_forward_hook(lambda *_: calls.append(1))
    for options, expected in [
        ({"calls": 1}, 1),
        ({"calls": 2}, 2),
        ({"calls": 64}, 3),
        ({"sampler": "first_hitting"}, 3),
    ]:
        calls.clear()
        bridge.sample(5, **options)
        assert len(calls) == expected


def test_the_same_seed_gives_the_same_samples():
    bridge = toys.ordered_bridge(MU, EVEN)
    one, two, other = (bridge.sample(64, calls=2, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_a_position_never_gets_a_state_that_it_lacks_nor_the_mask():
    counts = torch.tensor([2, 4, 1, 3])
    states = dmb.States.with_mask(4, 4, counts)
    network = dmb.OrderedTransformer(states, width=8, blocks=1, heads=2)
    with torch.no_grad():
        network.output.bias.copy_(torch.tensor([0.0, 0.0, 5.0, 5.0, 50.0]))  # it would like to, very much
    for options in ({"calls": 1}, {"calls": 2}, {"sampler": "first_hitting"}):
        x = dmb.OrderedBridge(dmb.orders.Random(4), network, states).sample(500, generator=seeded("samples"), **options)
        assert (x < counts).all()
        assert (x.amax(0) == counts - 1).all()


# -- what the user asks of the samples --------------------------------------------------------------------------------


def labelled_bridge(positions=2):
    """Positions are written from the last to the first, in all but one of 10¹³ draws."""
    states, order = dmb.States.with_mask(positions, 3), dmb.orders.Free(positions)
    torch.manual_seed(0)
    network = dmb.OrderedTransformer(states, blocks=2, width=16, heads=2, conditioning=8, num_classes=2, placed=True)
    with torch.no_grad():
        order.weights.copy_(-30.0 * torch.arange(positions))
        for name, parameter in network.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=seeded(2, name)))
    return dmb.OrderedBridge(order, network.eval(), states)


@torch.no_grad()
def said(bridge, known, i, label):
    """Logits of position `i`, as numbers, given `{position: token}`: by a plain pass with turns."""
    x, turn = torch.full((1, bridge.num_positions), MASK), torch.full((1, bridge.num_positions), 9)
    for place, (j, token) in enumerate(known.items()):
        x[0, j], turn[0, j] = token, place
    return (
        bridge.network(x, label=None if label is None else torch.tensor([label]), turn=turn)[0, i, :3].double().numpy()
    )


def shaped(bridge, known, i, label, guidance=1.0, temperature=1.0, top_p=1.0):
    """The law of position `i` as the user wants it, by hand."""
    logits = said(bridge, known, i, label)
    if guidance != 1:
        without = said(bridge, known, i, None)
        logits, without = (each - np.log(np.exp(each).sum()) for each in (logits, without))
        logits = without + guidance * (logits - without)
    p = np.exp(logits / temperature - (logits / temperature).max())
    p /= p.sum()
    order = np.argsort(-p)
    for place, state in enumerate(order):
        if place > 0 and p[order[:place]].sum() >= top_p:
            p[order[place:]] = 0
            break
        assert p[state] > 0
    return p / p.sum()


OPTIONS = [
    {},
    {"guidance": 1.0},
    {"guidance": 0.0},
    {"guidance": 2.5},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_p": 0.8},
    {"guidance": 2.0, "temperature": 0.7, "top_p": 0.9},
]


def law_by_hand(bridge, label, **options):
    """Of both positions, the second written first."""
    second = shaped(bridge, {}, 1, label, **options)
    first = [shaped(bridge, {1: token}, 0, label, **options) if second[token] else np.zeros(3) for token in range(3)]
    return np.stack([chance * given for chance, given in zip(second, first, strict=True)], axis=1).ravel()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(f"{k} {v}" for k, v in o.items()) or "plain")
def test_guidance_temperature_and_nucleus_act_as_by_hand(options):
    bridge = labelled_bridge()
    x = bridge.sample(10_000, label=torch.full((10_000,), 1), generator=seeded("samples"), **options)
    counts = np.bincount(3 * x[:, 0] + x[:, 1], minlength=9)
    assert oracles.chi_square_p_value(counts, law_by_hand(bridge, 1, **options)) > 1e-3


def test_these_options_and_labels_differ():
    """Or the test above would show little."""
    bridge = labelled_bridge()
    laws = [law_by_hand(bridge, 0), *(law_by_hand(bridge, 1, **options) for options in OPTIONS[1:])]
    assert min(total_variation(one, other) for one, other in itertools.combinations(laws, 2)) > 0.05


@pytest.mark.parametrize("options", [{"temperature": 1e-6}, {"top_p": 1e-6}], ids=["cold", "smallest nucleus"])
@pytest.mark.parametrize("label", [0, 1, -1])
def test_at_no_temperature_or_with_the_smallest_nucleus_samples_are_greedy(options, label):
    bridge, known = labelled_bridge(positions=6), {}
    for i in reversed(range(6)):
        known[i] = int(said(bridge, known, i, label).argmax())
    expected = torch.tensor([known[i] for i in range(6)])
    x = bridge.sample(
        20, label=torch.full((20,), label), sampler="first_hitting", generator=seeded("greedy"), **options
    )
    assert torch.equal(x, expected.expand_as(x))


def test_guided_samples_keep_to_their_template_and_their_row_has_its_own_label():
    bridge = labelled_bridge(positions=6)
    label, template = torch.tensor([0, 1]).repeat(2000), torch.tensor([-1, 2, -1, -1, 0, -1])
    x = bridge.sample(label=label, template=template, guidance=2.0, generator=seeded("samples"))
    assert (x[:, 1] == 2).all()
    assert (x[:, 4] == 0).all()
    for each in (0, 1):  # position 5 is written first, after the two that are given
        law = shaped(bridge, {4: 0, 1: 2}, 5, each, guidance=2.0)
        assert oracles.chi_square_p_value(np.bincount(x[label == each, 5], minlength=3), law) > 1e-3


def test_dropout_is_off_while_samples_are_made():
    bridge = labelled_bridge(positions=6).train()
    label = torch.full((20,), 1)
    x = bridge.sample(label=label, temperature=1e-6, generator=seeded("one"))
    assert torch.equal(x, bridge.sample(label=label, temperature=1e-6, generator=seeded("two")))
    assert bridge.training
    assert bridge.network.blocks[0].training


# -- what goes wrong --------------------------------------------------------------------------------------------------


def causal_bridge():
    states, order = dmb.States.with_mask(4, 3), dmb.orders.Fixed.left_to_right(4)
    return dmb.OrderedBridge(order, dmb.CausalTransformer(states, blocks=1, width=8, heads=2), states)


def test_a_causal_network_refuses_a_template_that_is_no_beginning():
    with pytest.raises(ValueError, match="must come first in that order"):
        causal_bridge().sample(3, template=torch.tensor([-1, 1, -1, -1]))


def test_with_everything_given_a_causal_path_ends_as_well():
    states = list(causal_bridge().trajectory(template=torch.tensor([0, 1, 2, 0])))
    assert states[-1].t == 0


def test_first_hitting_writes_one_position_per_call():
    states = list(toys.ordered_bridge(MU, EVEN).trajectory(50, sampler="first_hitting"))
    assert max(int((early.x != late.x).sum(-1).max()) for early, late in pairwise(states)) == 1


def test_no_steps_at_all_are_refused():
    with pytest.raises(ValueError, match="calls must be at least 1, got 0"):
        toys.ordered_bridge(MU, EVEN).sample(2, calls=0)


def test_no_samples_at_all_are_an_empty_batch():
    bridge = toys.ordered_bridge(toys.distribution(2, 2, seed=0), [1.0, 2.0])
    assert bridge.sample(0).shape == (0, 2)

"""Rows written in any order: one at a time, or several at once where there are many positions."""

from itertools import product

import numpy as np
import pytest
import torch

import dmb
from dmb._core.seeding import seeded
from dmb.tables import rows

MARGINALS = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]])
EVERY = torch.tensor(list(product(range(2), range(3), range(2))))


def conditionals(bridge, tokens):
    [log_p] = rows.conditionals(bridge, tokens)
    return log_p


@pytest.fixture
def bridge():
    """A network of random weights, whose conditionals depend on everything."""
    counts = torch.tensor([2, 3, 2])
    process = dmb.BridgeProcess.from_marginals(MARGINALS, mask=True, floor=0.0, init="gather", state_counts=counts)
    network = dmb.MLP(process, width=16, blocks=1, dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return dmb.MarkovBridge(process, network)


@pytest.mark.parametrize("calls", [128, 2, 1])
def test_the_probabilities_of_all_rows_in_one_order_add_up_to_one(bridge, monkeypatch, calls):
    monkeypatch.setattr(rows, "_MOST_CALLS", calls)
    for seed in range(3):
        total = sum(rows.log_prob(bridge, row[None], seeded(seed, "order")).exp().item() for row in EVERY)
        assert total == pytest.approx(1, abs=1e-6)


def test_all_at_once_is_each_given_nothing(bridge, monkeypatch):
    monkeypatch.setattr(rows, "_MOST_CALLS", 1)
    alone = conditionals(bridge, torch.full((1, 3), -1))[0]
    expected = sum(alone[position, EVERY[:, position]] for position in range(3))
    torch.testing.assert_close(rows.log_prob(bridge, EVERY, seeded(0, "order")).float(), expected.float())


@pytest.mark.parametrize("calls", [128, 2])
def test_rows_are_drawn_as_often_as_their_probability_says(bridge, monkeypatch, calls):
    """Rows by chi-square, against the mean of their probabilities over orders."""
    monkeypatch.setattr(rows, "_MOST_CALLS", calls)
    draws = 20_000
    drawn = rows.draw(bridge, torch.full((draws, 3), -1), seeded(0, "rows"))
    counts = np.array([(drawn == row).all(-1).sum().item() for row in EVERY])
    orders = 2_000
    p = np.array(
        [rows.log_prob(bridge, row.expand(orders, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY]
    )
    p = p / p.sum()
    assert counts.sum() == draws
    chi_square = ((counts - draws * p) ** 2 / (draws * p)).sum()
    assert chi_square < 40  # 11 degrees of freedom: one in 30,000


def test_what_is_given_stays_and_what_is_illegal_is_not_drawn(bridge):
    legal = torch.ones(3, 4, dtype=torch.bool)
    legal[1, 0] = False
    drawn = rows.draw(bridge, torch.tensor([[1, -1, -1]]).expand(200, -1), seeded(0, "rows"), legal)
    assert (drawn[:, 0] == 1).all()
    assert set(drawn[:, 1].tolist()) <= {1, 2}


@pytest.mark.parametrize("calls", [128, 2, 1])
def test_what_is_given_stays_whatever_the_model_says_of_it(bridge, monkeypatch, calls):
    """Where several positions are drawn at once, given ones are asked for with the last blanks of their row."""
    monkeypatch.setattr(rows, "_MOST_CALLS", calls)
    monkeypatch.setattr(type(bridge), "conditionals", lambda _, x, known, at: torch.zeros(*at.shape, 2))
    template = torch.tensor([[1, -1, 0], [-1, 1, -1], [1, 1, 1]]).repeat(20, 1)
    drawn = rows.draw(bridge, template, seeded(0, "rows"))
    assert torch.equal(drawn[template >= 0], template[template >= 0])
    assert set(drawn.flatten().tolist()) == {0, 1}


def masking(exponents=None, **options):
    """A process of two positions with two states each, and an oracle of data of which the first decides the second."""
    if exponents is None:
        process = dmb.BridgeProcess.from_marginals(torch.full((2, 2), 0.5), **options)
    else:
        process = dmb.TokenwiseMasking(torch.tensor([exponents]), num_positions=2)
    mu = torch.zeros(process.num_states, process.num_states, dtype=torch.float64)
    mu[0, 0], mu[1, 1] = 0.3, 0.7
    return dmb.MarkovBridge(process.double(), dmb.Tabular(mu, process))


ONLY_NOISE = {
    "floor=0": {"mask": True, "floor": 0.0},
    "clocks that vary": {"mask": True, "floor": 0.0, "clocks": dmb.Varying},
    "clusters that have names": {"tree": dmb.Tree(torch.tensor([[2, 2, 3, 3]]), names=2)},
}


@pytest.mark.parametrize("options", ONLY_NOISE.values(), ids=ONLY_NOISE)
def test_with_a_mask_as_the_only_noise_conditionals_are_those_of_the_data_at_all_times(options):
    """The exact network: what is given is certain, and how much is blank says nothing more."""
    bridge = masking(**options)
    expected = torch.tensor([[0.3, 0.7], [0.0, 1.0]], dtype=torch.float64)
    found = conditionals(bridge, torch.tensor([[-1, -1], [1, -1]]))[:, 1, :2].exp()
    torch.testing.assert_close(found, expected)
    mask = bridge.num_states - 1
    for t in (0.01, 0.5, 1.0):
        found = bridge.log_posterior(torch.tensor([[mask, mask], [1, mask]]), t)[:, 1, :2].exp()
        torch.testing.assert_close(found, expected)


OTHER_NOISE = {
    "no mask": {},
    "a clock into data beside it": {"mask": True, "floor": 0.5},
    "a clock that may wake": {"mask": True, "floor": 0.0, "learn": "linear"},
    "a mask that hides one token sooner": {"exponents": [1.0, 4.0]},
    "a name that is not the last": {"tree": dmb.Tree(torch.tensor([[2, 2, 2, 2]]), names=2)},
    "a tree whose names are data": {"tree": dmb.Tree(torch.tensor([[1, 1]]), names=0)},
}


@pytest.mark.parametrize("options", OTHER_NOISE.values(), ids=OTHER_NOISE)
def test_a_bridge_with_other_noise_than_a_mask_is_refused(options):
    """With floor=0.5 the exact network gave p(x_2 = 1 | x_1 = 1) = 0.774, where x_2 = x_1 always."""
    with pytest.raises(ValueError, match=r"must have a mask as its only noise.*mask=True, floor=0\.0"):
        masking(**options).write_order()


# -- networks that follow orders --------------------------------------------------------------------------------------


@pytest.fixture
def ordered():
    """A network for each column, with random weights, and speeds of the columns."""
    states = dmb.States.with_mask(3, 3, [2, 3, 2])
    network = dmb.OrderedMLP(states, width=16, blocks=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return dmb.OrderedBridge(dmb.orders.Free(3), network, states)


def set_speeds(bridge, log_speeds):
    with torch.no_grad():
        bridge.order.weights.copy_(torch.tensor(log_speeds))


@pytest.mark.parametrize("calls", [128, 2, 1])
def test_one_call_gives_what_a_call_for_each_blank_gives(ordered, monkeypatch, calls):
    """Column 2 is written first, then 0, then 1; with two calls, 2 and 0 at once."""
    monkeypatch.setattr(rows, "_MOST_CALLS", calls)
    set_speeds(ordered, [0.0, 50.0, -50.0])
    groups = {128: [[2], [0], [1]], 2: [[2, 0], [1]], 1: [[2, 0, 1]]}[calls]
    known, expected = torch.full_like(EVERY, -1), torch.zeros(len(EVERY), dtype=torch.float64)
    for group in groups:
        log_p = conditionals(ordered, known)
        for position in group:
            expected += log_p[range(len(EVERY)), position, EVERY[:, position]]
        known[:, group] = EVERY[:, group]
    found = rows.log_prob(ordered, EVERY, seeded(0, "order"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("log_speeds", [[0.0, 50.0, -50.0], [0.5, 0.0, -0.5]], ids=["one order", "some orders"])
def test_rows_are_drawn_in_the_orders_of_the_speeds(ordered, log_speeds):
    """By chi-square, against the mean of probabilities over orders; another order would show."""
    set_speeds(ordered, log_speeds)
    draws = 20_000
    drawn = rows.draw(ordered, torch.full((draws, 3), -1), seeded(0, "rows"))
    counts = np.array([(drawn == row).all(-1).sum().item() for row in EVERY])
    p = np.array(
        [rows.log_prob(ordered, row.expand(2000, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY]
    )
    set_speeds(ordered, [-speed for speed in log_speeds])
    others = np.array(
        [rows.log_prob(ordered, row.expand(2000, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY]
    )
    fit, misfit = (((counts - draws * q) ** 2 / (draws * q)).sum() for q in (p / p.sum(), others / others.sum()))
    assert fit < 40  # 11 degrees of freedom: one in 30,000
    assert misfit > 100


def test_drawing_never_asks_all_columns(ordered, monkeypatch):
    """Neither do the samplers of the bridge, which write one position per call."""
    asked, outputs_at = [], dmb.OrderedMLP.outputs_at

    def counted(self, x_t, position, *others):
        asked.append(position.numel())
        return outputs_at(self, x_t, position, *others)

    def whole(*_, **__):
        raise AssertionError("all columns were asked")

    monkeypatch.setattr(dmb.OrderedMLP, "outputs_at", counted)
    monkeypatch.setattr(dmb.OrderedMLP, "forward", whole)
    rows.draw(ordered, torch.tensor([[-1, 2, -1], [-1, -1, -1]]), seeded(0, "rows"))
    assert sum(asked) == 5
    ordered.sample(7)
    assert sum(asked) == 5 + 7 * 3


def test_in_one_order_there_is_nothing_to_draw(ordered):
    bridge = dmb.OrderedBridge(dmb.orders.Fixed([2, 0, 1]), ordered.network, ordered.states)
    known, expected = torch.full_like(EVERY, -1), torch.zeros(len(EVERY), dtype=torch.float64)
    for column in (2, 0, 1):
        expected += conditionals(bridge, known)[range(len(EVERY)), column, EVERY[:, column]]
        known[:, column] = EVERY[:, column]
    for seed in (0, 1):
        found = rows.log_prob(bridge, EVERY, seeded(seed, "order"))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_known_token_has_all_its_probability_and_is_seen_by_all_blanks(ordered):
    one, other = conditionals(ordered, torch.tensor([[-1, 2, -1], [-1, 0, -1]]))
    assert one[1].exp().tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (one[[0, 2]] - other[[0, 2]])[:, :2].abs().min() > 1e-3


def test_what_is_legal_is_asked_of_blanks_only(bridge, monkeypatch):
    monkeypatch.setattr(rows, "_MOST_CALLS", 1)  # what is known is asked with the blanks
    legal = torch.ones(3, 4, dtype=torch.bool)
    legal[0, 1] = False
    drawn = rows.draw(bridge, torch.tensor([[1, -1, -1]] * 20), seeded(0, "rows"), legal)
    assert (drawn[:, 0] == 1).all()
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        rows.draw(bridge, EVERY, seeded(0, "rows"), temperature=0.0)


@pytest.mark.parametrize("calls", [128, 1])
def test_a_network_of_one_order_keeps_it(monkeypatch, calls):
    monkeypatch.setattr(rows, "_MOST_CALLS", calls)
    states, order = dmb.States.with_mask(3, 3), dmb.orders.Fixed.left_to_right(3)
    network = dmb.CausalTransformer(states, width=8, heads=2, blocks=1, dropout=0.5)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=seeded(weight.numel(), "weight")))
    bridge = dmb.OrderedBridge(order, network, states)
    nats = bridge.eval().token_nats(EVERY, order.turns(len(EVERY)))
    torch.testing.assert_close(nats.sum(-1).double(), bridge.train().bound(EVERY).score)
    assert rows.draw(bridge, torch.full((5, 3), -1), seeded(0, "rows")).shape == (5, 3)
    assert bridge.sample(0).shape == (0, 3)
    found = rows.log_prob(bridge, EVERY, seeded(0, "order"))
    torch.testing.assert_close(found, -bridge.bound(EVERY).score, rtol=0, atol=1e-5)


def test_a_network_of_one_order_says_only_what_comes_next():
    """Any other conditional would be one of gaps that it has never seen, and does not see."""
    process = dmb.BridgeProcess.from_marginals(MARGINALS, mask=True, floor=0.0)
    network = dmb.CausalTransformer(process, width=8, blocks=1, heads=2)
    bridge = dmb.OrderedBridge(dmb.orders.Fixed.left_to_right(3), network, process)
    x, first, second = EVERY[:2], torch.tensor([[True, False, False]] * 2), torch.tensor([[1]] * 2)
    assert bridge.conditionals(x, first, at=second).exp().sum(-1).allclose(torch.ones(2, 1, dtype=torch.float64))
    for known, at in ((first, None), (first, second + 1), (first.flip(-1), second)):
        with pytest.raises(ValueError, match="ask for the next position alone"):
            bridge.conditionals(x, known, at=at)
    with pytest.raises(ValueError, match="one that follows one order only"):
        dmb.TableModel.of(bridge, None)


def test_a_network_for_each_column_is_asked_only_for_the_column_that_is_drawn(ordered):
    """Each row another one, and the answers are those of all columns at once."""
    x, known = EVERY, torch.rand(EVERY.shape, generator=seeded("known")) < 0.5
    at = torch.randint(0, 3, (len(x), 2), generator=seeded("at"))
    every, asked = ordered.conditionals(x, known), []
    hook = ordered.network.blocks[0].register_forward_hook(lambda _, args, out: asked.append(out.shape[:2]))
    found = ordered.conditionals(x, known, at=at)
    hook.remove()
    torch.testing.assert_close(found, every.take_along_dim(at[..., None], 1), rtol=0, atol=1e-6)
    assert sum(columns * rows_ for columns, rows_ in asked) == at.numel()

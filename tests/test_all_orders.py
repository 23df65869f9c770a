"""Rows written in any order: one at a time, or several at once where there are many positions."""

from itertools import product

import numpy as np
import pytest
import torch

import dmb
from dmb import all_orders
from dmb.all_orders import AllOrders
from dmb.seeding import seeded

MARGINALS = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]])
EVERY = torch.tensor(list(product(range(2), range(3), range(2))))


@pytest.fixture
def bridge():
    """A network of random weights, whose conditionals depend on everything."""
    counts = torch.tensor([2, 3, 2])
    process = dmb.BridgeProcess.from_marginals(MARGINALS, mask=True, floor=0.0, init="gather", state_counts=counts)
    network = dmb.MLP.for_process(process, width=16, blocks=1, dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return dmb.Bridge(process, network)


@pytest.mark.parametrize("calls", [128, 2, 1])
def test_the_probabilities_of_all_rows_in_one_order_add_up_to_one(bridge, monkeypatch, calls):
    monkeypatch.setattr(all_orders, "_MOST_CALLS", calls)
    model = AllOrders(bridge)
    for seed in range(3):
        total = sum(model.log_prob(row[None], seeded(seed, "order")).exp().item() for row in EVERY)
        assert total == pytest.approx(1, abs=1e-6)


def test_all_at_once_is_each_given_nothing(bridge, monkeypatch):
    monkeypatch.setattr(all_orders, "_MOST_CALLS", 1)
    model = AllOrders(bridge)
    alone = model.log_conditionals(torch.full((1, 3), -1))[0]
    expected = sum(alone[position, EVERY[:, position]] for position in range(3))
    torch.testing.assert_close(model.log_prob(EVERY, seeded(0, "order")).float(), expected)


@pytest.mark.parametrize("calls", [128, 2])
def test_rows_are_drawn_as_often_as_their_probability_says(bridge, monkeypatch, calls):
    """Rows by chi-square, against the mean of their probabilities over orders."""
    monkeypatch.setattr(all_orders, "_MOST_CALLS", calls)
    model = AllOrders(bridge)
    draws = 20_000
    drawn = model.draw(torch.full((draws, 3), -1), seeded(0, "rows"))
    counts = np.array([(drawn == row).all(-1).sum().item() for row in EVERY])
    orders = 2_000
    p = np.array([model.log_prob(row.expand(orders, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY])
    p = p / p.sum()
    assert counts.sum() == draws
    chi_square = ((counts - draws * p) ** 2 / (draws * p)).sum()
    assert chi_square < 40  # 11 degrees of freedom: one in 30,000


def test_what_is_given_stays_and_what_is_illegal_is_not_drawn(bridge):
    legal = torch.ones(3, 4, dtype=torch.bool)
    legal[1, 0] = False
    rows = AllOrders(bridge).draw(torch.tensor([[1, -1, -1]]).expand(200, -1), seeded(0, "rows"), legal)
    assert (rows[:, 0] == 1).all()
    assert set(rows[:, 1].tolist()) <= {1, 2}


def masking(exponents=None, **options):
    """A process of two positions with two states each, and an oracle of data of which the first decides the second."""
    if exponents is None:
        process = dmb.BridgeProcess.from_marginals(torch.full((2, 2), 0.5), **options)
    else:
        process = dmb.TokenwiseMasking(torch.tensor([exponents]), num_positions=2)
    mu = torch.zeros(process.num_states, process.num_states, dtype=torch.float64)
    mu[0, 0], mu[1, 1] = 0.3, 0.7
    return dmb.Bridge(process.double(), dmb.Tabular(mu, process))


ONLY_NOISE = {
    "floor=0": {"mask": True, "floor": 0.0},
    "clocks that vary": {"mask": True, "floor": 0.0, "clocks": dmb.Varying},
    "speeds": {"mask": True, "floor": 0.0, "speeds": True},
    "clusters that have names": {"tree": dmb.Tree(torch.tensor([[2, 2, 3, 3]]), names=2)},
}


@pytest.mark.parametrize("options", ONLY_NOISE.values(), ids=ONLY_NOISE)
def test_with_a_mask_as_the_only_noise_conditionals_are_those_of_the_data_at_all_times(options):
    """The exact network: what is given is certain, and how much is blank says nothing more."""
    bridge = masking(**options)
    model = AllOrders(bridge)
    expected = torch.tensor([[0.3, 0.7], [0.0, 1.0]], dtype=torch.float64)
    found = model.log_conditionals(torch.tensor([[-1, -1], [1, -1]]))[:, 1, :2].exp()
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
        AllOrders(masking(**options))


# -- networks that follow orders --------------------------------------------------------------------------------------


@pytest.fixture
def ordered():
    """A network for each column, with random weights, and speeds of the columns."""
    counts = torch.tensor([2, 3, 2])
    process = dmb.BridgeProcess.from_marginals(
        MARGINALS, mask=True, floor=0.0, init="gather", state_counts=counts, speeds=True
    )
    network = dmb.OrderedMLP.for_process(process, width=16, blocks=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return dmb.Bridge(process, network)


def set_speeds(bridge, log_speeds):
    with torch.no_grad():
        bridge.process.clocks.speed_weights.copy_(torch.tensor(log_speeds))


@pytest.mark.parametrize("calls", [128, 2, 1])
def test_one_call_gives_what_a_call_for_each_blank_gives(ordered, monkeypatch, calls):
    """Column 2 is written first, then 0, then 1; with two calls, 2 and 0 at once."""
    monkeypatch.setattr(all_orders, "_MOST_CALLS", calls)
    set_speeds(ordered, [0.0, 50.0, -50.0])
    model = AllOrders(ordered)
    groups = {128: [[2], [0], [1]], 2: [[2, 0], [1]], 1: [[2, 0, 1]]}[calls]
    known, expected = torch.full_like(EVERY, -1), torch.zeros(len(EVERY), dtype=torch.float64)
    for group in groups:
        log_p = model.log_conditionals(known)
        for position in group:
            expected += log_p[range(len(EVERY)), position, EVERY[:, position]]
        known[:, group] = EVERY[:, group]
    found = model.log_prob(EVERY, seeded(0, "order"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("log_speeds", [[0.0, 50.0, -50.0], [0.5, 0.0, -0.5]], ids=["one order", "some orders"])
def test_rows_are_drawn_in_the_orders_of_the_speeds(ordered, log_speeds):
    """By chi-square, against the mean of probabilities over orders; another order would show."""
    set_speeds(ordered, log_speeds)
    model, draws = AllOrders(ordered), 20_000
    drawn = model.draw(torch.full((draws, 3), -1), seeded(0, "rows"))
    counts = np.array([(drawn == row).all(-1).sum().item() for row in EVERY])
    p = np.array([model.log_prob(row.expand(2000, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY])
    set_speeds(ordered, [-speed for speed in log_speeds])
    others = np.array([model.log_prob(row.expand(2000, -1), seeded(1, "orders")).exp().mean().item() for row in EVERY])
    fit, misfit = (((counts - draws * q) ** 2 / (draws * q)).sum() for q in (p / p.sum(), others / others.sum()))
    assert fit < 40  # 11 degrees of freedom: one in 30,000
    assert misfit > 100


def test_a_known_token_has_all_its_probability_and_is_seen_by_all_blanks(ordered):
    model = AllOrders(ordered)
    one, other = model.log_conditionals(torch.tensor([[-1, 2, -1], [-1, 0, -1]]))
    assert one[1].exp().tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (one[[0, 2]] - other[[0, 2]])[:, :2].abs().min() > 1e-3


def test_a_network_of_one_order_keeps_it():
    process = dmb.BridgeProcess.from_marginals(MARGINALS, mask=True, floor=0.0, tied=True)
    bridge = dmb.Bridge(process, dmb.CausalTransformer.for_process(process, width=8, heads=2, blocks=1))
    model = AllOrders(bridge)
    assert model.draw(torch.full((5, 3), -1), seeded(0, "rows")).shape == (5, 3)
    found = model.log_prob(EVERY, seeded(0, "order"))
    torch.testing.assert_close(found, -bridge.bound(EVERY).score, rtol=0, atol=1e-5)

"""Orders for few calls: which positions a call writes together, and how many."""

import itertools

import pytest
import torch

from dmb import orders
from dmb._core.seeding import seeded


def calls_of(order, calls, given=None):
    """The call that writes each position of one row."""
    drawn = order.for_calls(calls)
    return drawn.divide(drawn.turns(1, given=given, generator=seeded("calls")), calls, given)[0]


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("calls", [4, 8, 16, 32, 64])
def test_a_call_writes_the_same_place_of_every_stream(calls, learned):
    order = orders.Streams((64,), learned=learned)
    if learned:
        torch.nn.init.constant_(order.weights, 40.0)
    assert torch.equal(calls_of(order, calls), torch.arange(64) % calls)


def test_a_call_writes_the_same_pixel_of_every_tile():
    call = calls_of(orders.Streams((8, 8)), 16).view(8, 8)
    assert torch.equal(call, (torch.arange(8)[:, None] % 4) * 4 + torch.arange(8) % 4)


@pytest.mark.parametrize(("calls", "budget"), [(1, 4), (3, 4), (4, 4), (7, 4), (20, 16), (63, 32), (1000, 64)])
def test_calls_without_an_order_of_their_own_use_that_of_fewer(calls, budget):
    order = orders.Streams((128,))
    assert torch.equal(order.for_calls(calls).turns(1), order.for_calls(budget).turns(1))


@pytest.mark.parametrize("length", [5, 11, 50])
@pytest.mark.parametrize("calls", [4, 8, 16])
def test_what_a_call_writes_is_far_apart_at_lengths_that_calls_do_not_divide(length, calls):
    call = calls_of(orders.Streams((length,)), calls)
    assert len(call.unique()) == min(length, calls)
    for each in call.unique():
        together = (call == each).nonzero().flatten()
        assert (together.diff() >= min(calls, length)).all()


def test_given_positions_come_first_and_streams_go_through_the_blanks():
    given = torch.zeros(1, 16, dtype=torch.bool)
    given[0, 4:12] = True
    assert calls_of(orders.Streams((16,)), 4, given).tolist() == [0, 1, 2, 3, *[-1] * 8, 0, 1, 2, 3]


def test_one_number_per_axis_turns_the_orders_of_all_budgets_around():
    order = orders.Streams((64,), learned=True)
    torch.nn.init.constant_(order.weights, -40.0)
    for calls in (4, 16):
        assert torch.equal(calls_of(order, calls), calls - 1 - torch.arange(64) % calls)


def test_a_learned_slope_has_a_gradient_from_every_budget():
    order = orders.Streams((8, 8), learned=True)
    for calls in order.budgets:
        drawn = order.for_calls(calls)
        drawn.log_choices(drawn.turns(3, generator=seeded("slope"))).sum().backward()
        assert (order.weights.grad != 0).all()
        order.weights.grad = None


def test_a_learned_slope_has_the_precision_of_its_model():
    order = orders.Streams((6,), learned=True).double()
    turn = order.turns(2, generator=seeded("double"))
    assert order.log_speeds.dtype == order.log_choices(turn).dtype == torch.float64


def test_normalising_keeps_slopes_within_the_range_that_floats_can_tell_apart():
    order = orders.Streams((64,), learned=True)
    torch.nn.init.constant_(order.weights, 1e6)
    order.normalise()
    assert order.for_calls(64).log_speeds.abs().max().item() == pytest.approx(300)


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 7])
def test_shares_for_a_budget_cost_no_more_than_those_of_any_other_division(calls):
    costs = torch.rand(7, generator=seeded("costs"), dtype=torch.float64).sort(descending=True).values
    sums = {
        (0, *ends, 7): sum((b - a) * costs[a] for a, b in itertools.pairwise((0, *ends, 7)))
        for ends in itertools.combinations(range(1, 7), calls - 1)
    }
    least = min(sums, key=sums.get)
    assert torch.allclose(orders.best_shares(costs, calls), 1 - torch.tensor(least, dtype=torch.float64) / 7)

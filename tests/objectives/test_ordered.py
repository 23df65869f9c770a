"""Whole paths against loops over all orders: what they cost, how likely they are, and what they teach the speeds."""

import itertools
import math

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb import theory
from dmb._core.seeding import seeded
from dmb.objectives import ordered as paths
from dmb.orders import base, random as drawing

import oracles

MU = toys.distribution(3, 3, 3, seed=5)
SPEEDS = (2.0, 5.0, 1.0)
STATES = theory.all_sequences(3, 3)
CHANCE = MU.flatten()
ENTROPY = -(CHANCE * CHANCE.log()).sum().item()
ORDERS = list(itertools.permutations(range(3)))
"""Positions as they are written, first to last."""
WRONG = 1.2


# -- by loops, and nothing of dmb -------------------------------------------------------------------------------------


def conditional(x, i, visible, wrong=0.0):
    """The law of position `i` given some tokens of `x`, bent as `toys.Conditionals` is."""
    p = np.zeros(3)
    for y in itertools.product(range(3), repeat=3):
        if all(y[j] == x[j] for j in visible):
            p[y[i]] += MU[y].item()
    heard = sum((j + 1) * (x[j] + 1) for j in visible)
    p *= [math.exp(wrong * math.sin(heard + 2.1 * (i + 1) + 1.7 * y)) for y in range(3)]
    return p / p.sum()


BLOCKS = {(3, 1): (3,), (3, 2): (2, 1), (2, 1): (2,), (1, 1): (1,)}
"""How many positions each call writes, by blanks and calls; one each if there are no more blanks than calls."""


def cost(x, order, wrong=0.0, given=(), calls=3):
    """What it costs to write `x` in this order with so many calls, after what is given."""
    free, total, start = [i for i in order if i not in given], 0.0, 0
    for size in BLOCKS.get((len(free), calls), (1,) * len(free)):
        seen = [*given, *free[:start]]
        total -= sum(math.log(conditional(x, i, seen, wrong)[x[i]].item()) for i in free[start : start + size])
        start += size
    return total


def chance_of(order, speeds):
    """Plackett and Luce: masks fall last to first, each position's in proportion to its speed among those that stand."""
    chance, standing = 1.0, list(order)
    while standing:
        masked = standing[-1]
        chance = chance * speeds[masked] / sum(speeds[i] for i in standing)
        standing.pop()
    return chance


def turn_of(order):
    return [order.index(i) for i in range(len(order))]


def counts_of(turns, orders):
    seen = [tuple(row) for row in turns.tolist()]
    counts = [seen.count(tuple(turn_of(order))) for order in orders]
    assert sum(counts) == len(turns)
    return counts


# -- orders -----------------------------------------------------------------------------------------------------------


def test_orders_are_drawn_by_the_law_of_plackett_and_luce():
    speeds, orders = (2.0, 0.3, 1.0, 4.0), list(itertools.permutations(range(4)))
    turns = drawing.draw_turns(torch.tensor(speeds).log(), 20_000, generator=seeded("ranks"))
    assert oracles.chi_square_p_value(counts_of(turns, orders), [chance_of(o, speeds) for o in orders]) > 1e-3


def test_what_is_given_is_written_first_and_the_rest_by_the_same_law():
    speeds = (2.0, 0.3, 1.0, 4.0)
    given = torch.tensor([[False, True, False, True], [True, False, False, False]]).repeat_interleave(10_000, 0)
    turns = drawing.draw_turns(torch.tensor(speeds).log(), 20_000, given=given, generator=seeded("ranks"))
    assert torch.equal(turns.sort(-1).values, torch.arange(4).expand_as(turns))
    assert torch.equal(turns < given.sum(-1, keepdim=True), given)
    for rows, free in ((slice(0, 10_000), (0, 2)), (slice(10_000, None), (1, 2, 3))):
        orders = [tuple(free[k] for k in order) for order in itertools.permutations(range(len(free)))]
        seen = [tuple(sorted(free, key=lambda i: row[i])) for row in turns[rows].tolist()]
        counts = [seen.count(order) for order in orders]
        assert sum(counts) == 10_000
        assert oracles.chi_square_p_value(counts, [chance_of(order, speeds) for order in orders]) > 1e-3


def test_the_position_that_is_masked_fastest_is_written_last():
    turns = drawing.draw_turns(torch.tensor([0.0, 60.0, 0.0, -60.0]), 500, generator=seeded("ranks"))
    assert (turns[:, 1] == 3).all()
    assert (turns[:, 3] == 0).all()
    assert 150 < (turns[:, 0] == 1).sum() < 350


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_speeds_six_hundred_units_of_their_logarithm_apart_are_still_told_apart(dtype):
    log_speeds = torch.tensor([300.0, -300.0, 299.0, -299.0, 0.0], dtype=dtype)
    turns = drawing.draw_turns(log_speeds, 4000, generator=seeded("ranks"))
    assert (turns[:, 4] == 2).all()
    assert (turns[:, [0, 2]].sort(-1).values == torch.tensor([3, 4])).all()
    assert (turns[:, [1, 3]].sort(-1).values == torch.tensor([0, 1])).all()
    for fast, slow in ((0, 2), (3, 1)):  # e to 1
        later = (turns[:, fast] > turns[:, slow]).float().mean().item()
        assert later == pytest.approx(math.e / (1 + math.e), abs=4 * 0.5 / 4000**0.5)
    given = torch.tensor([[True, False, False, False, True]]).expand(4000, -1)
    turns = drawing.draw_turns(log_speeds, 4000, given=given, generator=seeded("ranks"))
    assert torch.equal(turns < 2, given)
    assert (turns[:, 2] == 4).all()


def test_the_same_seed_gives_the_same_order():
    one, two, other = (drawing.draw_turns(torch.zeros(8), 3, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_chance_of_an_order_is_a_product_by_hand_and_all_chances_sum_to_one():
    speeds, orders = (2.0, 0.3, 1.0, 4.0), list(itertools.permutations(range(4)))
    log_speeds = torch.tensor(speeds, dtype=torch.float64).log()
    found = base.log_choices(log_speeds, torch.tensor([turn_of(order) for order in orders])).sum(-1).exp()
    np.testing.assert_allclose(found, [chance_of(order, speeds) for order in orders], rtol=1e-12)
    assert found.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("given", [(), (1,), (3, 0), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_what_is_given_has_no_part_in_the_chance_of_an_order(given):
    speeds, free = (2.0, 0.3, 1.0, 4.0), [i for i in range(4) if i not in given]
    orders = list(itertools.permutations(free))
    turns = torch.tensor([turn_of([*given, *order]) for order in orders])
    mask = torch.tensor([[i in given for i in range(4)]]).expand(len(orders), -1)
    log_speeds = torch.tensor(speeds, dtype=torch.float64).log()
    found = base.log_choices(log_speeds, turns, mask).sum(-1).exp()
    np.testing.assert_allclose(found, [chance_of(order, speeds) for order in orders], rtol=1e-12)
    assert found.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("given", [None, [False, False, True, False]])
def test_the_chance_of_an_order_and_its_gradient_are_finite_at_any_speeds(given):
    log_speeds = torch.tensor([300.0, -300.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    turn = torch.tensor([[3, 2, 0, 1]])  # position 1, the slowest by far, would have been masked second
    mask = None if given is None else torch.tensor([given])
    log_prob = base.log_choices(log_speeds, turn, mask).sum(-1)
    # by hand: 0 first, surely; then 1, against 2 and 3 or 3 alone; then 3, against 2 if that is not given
    assert log_prob.item() == pytest.approx(-301 if given else -300 - math.log1p(math.e) + 1 - math.log1p(math.e))
    [slope] = torch.autograd.grad(log_prob.sum(), log_speeds)
    # d log p / d log v_i = 1 - the sum of its shares in all draws that it stood in
    share = math.e / (1 + math.e)
    expected = [0, 1, 0, -1] if given else [0, 1, -2 * (1 - share), 1 - 2 * share]
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


# -- the bound --------------------------------------------------------------------------------------------------------


def every_path(wrong=0.0):
    """The cost of every sequence in every order, `[27, 6]`, by one call of the network."""
    bridge, turn = toys.ordered_bridge(MU, SPEEDS, wrong), torch.tensor([turn_of(order) for order in ORDERS])
    found = bridge.token_nats(STATES.repeat_interleave(len(ORDERS), 0), turn.repeat(len(STATES), 1))
    return found.detach().sum(-1).view(len(STATES), len(ORDERS))


def by_loops(wrong=0.0):
    """The same by loops."""
    return torch.tensor([[cost(x, order, wrong) for order in ORDERS] for x in STATES.tolist()], dtype=torch.float64)


def test_with_exact_conditionals_every_path_costs_minus_the_log_of_the_chance_of_its_sequence():
    torch.testing.assert_close(every_path(), -CHANCE.log()[:, None].expand(-1, 6), rtol=0, atol=1e-10)


def test_what_a_path_costs_equals_a_product_of_conditionals_by_loops():
    found = every_path(WRONG)
    torch.testing.assert_close(found, by_loops(WRONG), rtol=0, atol=1e-10)
    assert (found.std(-1) > 0.1).any()  # the order matters


def test_with_exact_conditionals_the_bound_is_the_entropy_whatever_the_seed():
    for seed in range(3):
        bound = toys.ordered_bridge(MU, SPEEDS).bound(STATES, generator=seeded(seed))
        torch.testing.assert_close(bound.score, -CHANCE.log(), rtol=0, atol=1e-10)
        assert (CHANCE * bound.score).sum().item() == pytest.approx(ENTROPY, abs=1e-10)
        assert (bound.prior == 0).all()


def weighted_mean(estimate, repeats):
    """The mean over the data and its standard error; each sequence was looked at so often, and has its exact chance."""
    each = estimate.view(repeats, len(STATES))
    error = (CHANCE.square() * each.var(0)).sum().div(repeats).sqrt().item()
    return (CHANCE * each.mean(0)).sum().item(), error


@pytest.mark.parametrize("wrong", [0.0, WRONG], ids=["exact", "wrong"])
def test_whole_paths_and_drawn_times_estimate_the_same_bound(wrong):
    repeats = 2000
    rows = STATES.repeat(repeats, 1)
    by_paths = toys.ordered_bridge(MU, SPEEDS, wrong).bound(rows, batch_size=4500, generator=seeded("paths"))
    by_times = toys.masked_bridge(MU, SPEEDS, wrong).bound(rows, batch_size=4500, generator=seeded("times"))
    (paths_mean, paths_error), (score, times_error) = (weighted_mean(b.score, repeats) for b in (by_paths, by_times))
    times_mean = score + weighted_mean(by_times.prior, repeats)[0]
    chances = torch.tensor([chance_of(order, SPEEDS) for order in ORDERS], dtype=torch.float64)
    truth = (CHANCE * (by_loops(wrong) @ chances)).sum().item()
    assert paths_mean == pytest.approx(truth, abs=4 * paths_error + 1e-9)
    assert times_mean == pytest.approx(paths_mean, abs=4 * math.hypot(paths_error, times_error))
    if wrong:
        assert paths_mean > ENTROPY + 10 * paths_error
        assert times_mean > ENTROPY + 10 * times_error
        uniform = (CHANCE * by_loops(wrong).mean(-1)).sum().item()
        assert abs(truth - uniform) > 10 * paths_error  # and the speeds matter
    else:
        assert truth == pytest.approx(ENTROPY, abs=1e-10)


def test_in_one_call_every_position_costs_what_it_does_given_nothing():
    bound = toys.ordered_bridge(MU, SPEEDS, WRONG).bound(STATES, calls=1, generator=seeded("calls"))
    by_hand = [-sum(math.log(conditional(x, i, [], WRONG)[x[i]]) for i in range(3)) for x in STATES.tolist()]
    np.testing.assert_allclose(bound.score, by_hand, rtol=1e-9)


@pytest.mark.parametrize("calls", [3, 4, 100])
def test_as_many_calls_as_positions_are_the_default(calls):
    one, other = (
        toys.ordered_bridge(MU, SPEEDS, WRONG).bound(STATES, calls=k, generator=seeded("calls")) for k in (None, calls)
    )
    assert torch.equal(one.score, other.score)


def in_one_order():
    return dmb.OrderedBridge(
        dmb.orders.Fixed([2, 0, 1]), toys.Conditionals(MU, WRONG), dmb.States.with_mask(3, 3)
    )  # fmt: skip


FIRST_ONE, FIRST_TWO = (torch.tensor([1.0, left, 0.0], dtype=torch.float64) for left in (2 / 3, 1 / 3))


@pytest.mark.parametrize(
    "options",
    [{"calls": 1}, {"calls": 2}, {"calls": 3}, {"calls": 2, "grid": FIRST_ONE}, {"calls": 2, "grid": FIRST_TWO}],
    ids=["one", "two", "three", "one and two", "two and one"],
)
def test_with_one_order_the_bounds_of_all_sequences_are_the_law_of_the_sampler(options):
    bridge = in_one_order()
    law = (-bridge.bound(STATES, **options).score).exp()
    assert law.sum().item() == pytest.approx(1, abs=1e-12)  # Kraft, with equality
    x = bridge.sample(20_000, **options, generator=seeded("law"))
    counts = np.bincount(np.ravel_multi_index(tuple(x.T.numpy()), (3, 3, 3)), minlength=27)
    assert oracles.chi_square_p_value(counts, law) > 1e-3


@pytest.mark.parametrize(("grid", "sizes"), [(FIRST_ONE, (1, 2)), (FIRST_TWO, (2, 1))], ids=["one first", "two first"])
def test_a_grid_says_how_many_positions_each_call_writes(grid, sizes):
    bound = in_one_order().bound(STATES, calls=2, grid=grid)
    for x, nats in zip(STATES.tolist(), bound.score.tolist(), strict=True):
        seen = [(), (2,) if sizes[0] == 1 else (), (2,) if sizes[0] == 1 else (2, 0)]
        by_hand = [conditional(x, i, known, WRONG)[x[i]] for i, known in zip((2, 0, 1), seen, strict=True)]
        assert nats == pytest.approx(-np.log(by_hand).sum())


@pytest.mark.parametrize("grid", ["cosine", FIRST_ONE], ids=["name", "shares"])
def test_a_grid_is_of_a_bound_with_calls(grid):
    with pytest.raises(ValueError, match="grid is of a bound with calls: give calls, too"):
        in_one_order().bound(STATES, grid=grid)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_over_all_orders_the_bounds_leave_no_more_than_1_in_all(calls):
    chances = [chance_of(order, SPEEDS) for order in ORDERS]
    means = [np.dot(chances, [cost(x, o, WRONG, calls=calls) for o in ORDERS]) for x in STATES.tolist()]
    assert np.exp(np.negative(means)).sum() <= 1
    rows = STATES.repeat(800, 1)
    bound = toys.ordered_bridge(MU, SPEEDS, WRONG).bound(rows, calls=calls, generator=seeded("kraft"))
    each = bound.score.view(800, 27)
    assert ((each.mean(0) - torch.tensor(means)).abs() < 4.5 * each.std(0) / 800**0.5 + 1e-9).all()


def test_the_bound_averages_samples_in_any_batches_and_reports_them():
    seen, bridge = [], toys.ordered_bridge(MU, SPEEDS, WRONG)
    bound = bridge.bound(STATES, samples=100, batch_size=10, generator=seeded("bound"), progress=seen.append)
    assert seen == [10, 10, 7] * 100
    chances = torch.tensor([chance_of(order, SPEEDS) for order in ORDERS], dtype=torch.float64)
    costs = by_loops(WRONG)
    mean = costs @ chances
    error = ((costs - mean[:, None]).square() @ chances / 100).sqrt()
    assert ((bound.score - mean).abs() <= 4.5 * error + 1e-10).all()
    assert bound.variance == pytest.approx(bound.score.var().item())
    assert bound.num_positions == 3


def test_a_long_sequence_is_added_up_in_double_precision():
    class Even(dmb.OrderedNetwork):
        """Logits of 0, in single precision."""

        def forward(self, x_t, turn=None, label=None):
            return torch.zeros(*x_t.shape, 4)

    bridge = dmb.OrderedBridge(dmb.orders.Random(3000), Even(), dmb.States.with_mask(3000, 3))
    [found] = bridge.bound(torch.zeros(1, 3000, dtype=torch.long)).score.tolist()
    assert found == pytest.approx(3000 * float(np.log(np.float32(3))), rel=1e-12)


def test_a_bound_of_nothing_and_one_that_is_not_a_number_are_refused():
    bridge = toys.ordered_bridge(MU, SPEEDS)
    cases = (
        (STATES, {"samples": 0}, "samples"),
        (STATES, {"batch_size": 0}, "batch_size"),
        (STATES[:0], {}, "sequences"),
    )
    for rows, options, name in cases:
        with pytest.raises(ValueError, match=f"bound needs {name} to be at least 1, got 0"):
            bridge.bound(rows, **options)
    with pytest.raises(ValueError, match="the network's output is nan"):
        toys.ordered_bridge(MU, SPEEDS, math.nan).bound(STATES)


# -- learning ---------------------------------------------------------------------------------------------------------

GIVEN = {"nothing given": (), "one given": (1,), "all but one given": (2, 0)}
every_given = pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
X = (2, 2, 1)


def all_draws(orders, given, monkeypatch):
    """Give the loss all orders that may be drawn in place of some: each combination a row that weighs its chance."""
    free = [i for i in range(3) if i not in given]
    single = list(itertools.permutations(free))
    combinations = list(itertools.product(single, repeat=orders))
    turns = torch.tensor([[turn_of([*given, *order]) for order in row] for row in combinations])
    monkeypatch.setattr(drawing, "draw_turns", lambda *_, **__: turns.transpose(0, 1).flatten(0, 1))
    chance = [math.prod(chance_of(order, SPEEDS) for order in row) for row in combinations]
    assert sum(chance) == pytest.approx(1)
    x_0 = torch.tensor([X]).expand(len(combinations), -1)
    mask = torch.tensor([[i in given for i in range(3)]]).expand(len(combinations), -1)
    return x_0, mask if given else None, torch.tensor(chance, dtype=torch.float64), combinations


def exact_mean(log_speeds, given, calls=3):
    """The mean of the cost over all orders: differentiable in the speeds, by loops."""
    orders = itertools.permutations([i for i in range(3) if i not in given])
    return sum(chance_of(order, log_speeds.exp()) * cost(X, order, WRONG, given, calls) for order in orders)


def exact_slope(given, calls=3):
    log_speeds = torch.tensor(SPEEDS, dtype=torch.float64).log().requires_grad_()
    mean = exact_mean(log_speeds, given, calls)
    return torch.autograd.grad(mean, log_speeds)[0] if mean.requires_grad else torch.zeros(3, dtype=torch.float64)


def slope_of(bridge, loss):
    [speeds] = torch.autograd.grad(loss, [bridge.order.weights], retain_graph=True)
    assert abs(speeds.sum()) < 1e-9  # what all positions have in common decides nothing
    return speeds


@pytest.mark.parametrize(("orders", "calls"), [(2, None), (3, None), (2, 2), (2, 1)])
@every_given
def test_the_gradient_in_the_speeds_is_unbiased(orders, calls, given, monkeypatch):
    """Its mean over all that may be drawn, each with its chance, is the gradient of the mean."""
    bridge = toys.ordered_bridge(MU, SPEEDS, WRONG)
    x_0, mask, chance, combinations = all_draws(orders, given, monkeypatch)
    loss = bridge.loss(x_0, given=mask, learn_order=True, orders=orders, calls=calls)
    by_hand = [np.mean([cost(X, order, WRONG, given, calls or 3) for order in row]) for row in combinations]
    np.testing.assert_allclose(loss.detach(), by_hand, rtol=1e-9)
    expected = exact_slope(given, calls or 3)
    torch.testing.assert_close(slope_of(bridge, (chance * loss).sum()), expected, rtol=1e-9, atol=1e-12)


def test_there_is_something_to_learn_from_the_gradient():
    assert exact_slope(()).abs().min() > 0.1
    assert exact_slope((1,)).norm() > 0.1
    assert exact_slope((2, 0)).equal(torch.zeros(3, dtype=torch.float64))


def test_several_numbers_of_calls_divide_a_batch_at_random_by_their_square_roots():
    conditionals, states = toys.Conditionals(MU, WRONG), dmb.States.with_mask(3, 3)
    bridge, x_0 = dmb.OrderedBridge(dmb.orders.Fixed([2, 0, 1]), conditionals, states), torch.tensor([X] * 10)
    one, two, three = (cost(X, (2, 0, 1), WRONG, calls=calls) for calls in (1, 2, 3))
    assert len({round(each, 6) for each in (one, two, three)}) == 3
    shares, expected = [], 10 * np.sqrt([1, 2, 3]) / np.sqrt([1, 2, 3]).sum()
    for seed in range(200):
        loss = bridge.loss(x_0, calls=(1, 2, 3), generator=seeded("shares", seed)).tolist()
        calls = [int(np.argmin([abs(each - own) for own in (one, two, three)])) for each in loss]
        np.testing.assert_allclose(loss, [(one, two, three)[k] for k in calls], rtol=1e-9)
        shares.append(np.bincount(calls, minlength=3))
    assert (np.abs(np.array(shares) - expected) < 2).all()  # in every batch
    np.testing.assert_allclose(np.mean(shares, axis=0), expected, atol=0.15)


@pytest.mark.usefixtures("no_type_checks")
def test_several_numbers_of_calls_teach_an_order_the_mean_of_their_gradients():
    bridge, generator = toys.ordered_bridge(MU, SPEEDS, WRONG), seeded("calls")
    x_0, draws = torch.tensor([X]).expand(100, -1), []
    for _ in range(150):
        loss = bridge.loss(x_0, learn_order=True, orders=2, calls=(2, 3), generator=generator)
        draws.append(slope_of(bridge, loss.mean()))
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / len(draws) ** 0.5
    share = 2**0.5 / (2**0.5 + 3**0.5)
    expected = share * exact_slope((), 2) + (1 - share) * exact_slope((), 3)
    assert ((mean - expected).abs() <= 4 * error + 1e-12).all()
    assert ((expected - exact_slope((), 3)).abs() > 8 * error).any()


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(("orders", "singles"), [(2, 0), (3, 0), (2, 3)])
@pytest.mark.parametrize("given", [(), (1,)], ids=["nothing given", "one given"])
def test_drawn_orders_give_the_same_gradient_on_average(orders, singles, given):
    bridge, generator = toys.ordered_bridge(MU, SPEEDS, WRONG), seeded("orders")
    x_0 = torch.tensor([X]).expand(100, -1)
    mask = torch.tensor([[i in given for i in range(3)]]).expand(100, -1) if given else None
    draws = []
    for _ in range(150):
        loss = bridge.loss(x_0, given=mask, learn_order=True, orders=orders, singles=singles, generator=generator)
        draws.append(slope_of(bridge, loss.mean()))
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / len(draws) ** 0.5
    assert ((mean - exact_slope(given)).abs() <= 4 * error + 1e-12).all()
    assert error.max() < 0.3 * exact_slope(given).norm()


@pytest.mark.parametrize("given", [None, [True, False, False]], ids=["nothing given", "one given"])
def test_a_share_of_the_turns_is_drawn_evenly_from_all_orders_whatever_the_speeds(given):
    """Speeds leave one order; a share of the others is uniform, by chi-square."""
    count = 6000
    known = None if given is None else torch.tensor(given).expand(count, -1)
    first = drawing.draw_turns(torch.tensor([400.0, 0.0, -400.0]), count, given=known)
    turn, even = paths.mixed_turns(first, 0.4, given=known, generator=seeded("mixed"))
    assert abs(even.sum() - 0.4 * count) < 4 * (0.24 * count) ** 0.5
    assert torch.equal(turn[~even], first[~even])
    if known is not None:
        assert (turn[:, 0] == 0).all()
    orders, counts = turn[even].unique(dim=0, return_counts=True)
    expected = even.sum() / (6 if given is None else 2)
    assert len(orders) == (6 if given is None else 2)
    assert ((counts - expected) ** 2 / expected).sum() < 25  # at most 5 degrees of freedom: one in 7,000


@pytest.mark.usefixtures("no_type_checks")
def test_orders_drawn_evenly_teach_the_speeds_nothing_and_cost_the_mean_over_all_orders():
    bridge, generator = toys.ordered_bridge(MU, SPEEDS, WRONG), seeded("orders")
    x_0 = torch.tensor([X]).expand(3000, -1)
    loss = bridge.loss(x_0, learn_order=True, orders=2, any_order=1.0, generator=generator)
    assert (slope_of(bridge, loss.mean()) == 0).all()
    every = np.mean([cost(X, order, WRONG) for order in ORDERS])
    assert loss.mean().item() == pytest.approx(every, abs=4 * loss.std().item() / 3000**0.5)
    bound = bridge.bound(x_0, any_order=1.0, generator=generator)
    assert bound.nats == pytest.approx(every, abs=4 * bound.score.std().item() / 3000**0.5)
    slopes = []
    for _ in range(200):
        loss = bridge.loss(x_0[:100], learn_order=True, orders=2, any_order=0.5, generator=generator)
        slopes.append(slope_of(bridge, loss.mean()))
    mean, error = torch.stack(slopes).mean(0), torch.stack(slopes).std(0) / 200**0.5
    assert ((mean - 0.5 * exact_slope(())).abs() <= 4 * error).all()


@pytest.mark.parametrize("orders", [2, 3])
def test_comparing_orders_takes_noise_out_of_the_gradient(orders, monkeypatch):
    bridge = toys.ordered_bridge(MU, SPEEDS, WRONG)
    x_0, _, chance, combinations = all_draws(orders, (), monkeypatch)
    loss = bridge.loss(x_0, learn_order=True, orders=orders)
    compared = torch.stack([slope_of(bridge, row) for row in loss])
    log_speeds = torch.tensor(SPEEDS, dtype=torch.float64).log().requires_grad_()
    score = {o: torch.autograd.grad(chance_of(o, log_speeds.exp()).log(), log_speeds)[0] for o in ORDERS}
    plain = torch.stack([sum(cost(X, o, WRONG) * score[o] for o in row) / orders for row in combinations])
    mean = chance @ compared
    torch.testing.assert_close(chance @ plain, mean, rtol=1e-9, atol=1e-12)
    spread = [(chance @ (each - mean).square()).sum() for each in (compared, plain)]
    assert spread[0] < 0.2 * spread[1]


def test_the_network_learns_the_same_whether_or_not_the_speeds_do():
    bridge, slopes = toys.ordered_bridge(MU, SPEEDS, WRONG), []
    for learn_order in (False, True):
        loss = bridge.loss(STATES, learn_order=learn_order, orders=2, generator=seeded("loss"))
        slopes.append(torch.autograd.grad(loss.sum(), bridge.network.wrong)[0])
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=0)
    assert slopes[0].abs() > 0.1


def test_without_learned_rates_no_gradient_reaches_the_speeds():
    bridge = toys.ordered_bridge(MU, SPEEDS, WRONG)
    bridge.loss(STATES, orders=2, generator=seeded("loss")).sum().backward()
    assert all(parameter.grad is None for parameter in bridge.order.parameters())


def test_some_sequences_have_several_orders_and_the_singles_after_them_one():
    bridge = toys.ordered_bridge(MU, SPEEDS, WRONG)
    turns = drawing.draw_turns(bridge.order.log_speeds, 2 * 27, generator=seeded("loss")).view(2, 27, 3)
    orders = turns.argsort(-1).tolist()
    costs = [[cost(x, order, WRONG) for x, order in zip(STATES.tolist(), row, strict=True)] for row in orders]
    expected = [
        np.mean([first, second]) if i % 4 == 0 else first for i, (first, second) in enumerate(zip(*costs, strict=True))
    ]
    loss = bridge.loss(STATES, orders=2, singles=3, generator=seeded("loss"))
    np.testing.assert_allclose(loss.detach(), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="singles must be at least 0, got -1"):
        bridge.loss(STATES, orders=2, singles=-1)


@pytest.mark.parametrize("singles", [0, 3])
def test_the_loss_of_some_rows_is_that_of_the_whole_batch_there(singles):
    bridge, given = toys.ordered_bridge(MU, SPEEDS, WRONG), torch.rand(27, 3, generator=seeded("given")) < 0.4
    rows = torch.tensor([20, 3, 4])
    whole, part = (
        bridge.loss(
            STATES, given=given, learn_order=True, orders=3, singles=singles, rows=rows, generator=seeded("loss")
        )
        for rows in (None, rows)
    )
    torch.testing.assert_close(part, whole[rows], rtol=1e-12, atol=0)
    torch.testing.assert_close(slope_of(bridge, part.sum()), slope_of(bridge, whole[rows].sum()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("given", [[True, False, False], [False, True, True], [True, True, True]])
def test_what_is_given_costs_nothing_and_is_known_to_all_the_rest(given):
    """With exact conditionals the loss is that of the rest, given it, in any order."""
    mask = torch.tensor([given]).expand(27, -1)
    others = [i for i in range(3) if not given[i]]
    known = MU.sum(others, keepdim=True).expand_as(MU).flatten() if others else CHANCE
    loss = toys.ordered_bridge(MU, SPEEDS).loss(STATES, given=mask, orders=2, generator=seeded("loss"))
    torch.testing.assert_close(loss, (known / CHANCE).log(), rtol=0, atol=1e-10)


def test_the_prior_part_is_nothing():
    bridge = toys.ordered_bridge(MU, SPEEDS)
    assert bridge.prior_loss().item() == 0
    assert not bridge.prior_loss().requires_grad


def test_orders_that_teach_nothing_are_refused():
    bridge = toys.ordered_bridge(MU, SPEEDS)
    with pytest.raises(ValueError, match="orders must be at least 1, got 0"):
        bridge.loss(STATES, orders=0)
    with pytest.raises(
        ValueError, match="orders must be at least 2 to learn speeds, by comparing orders of a sequence, got 1"
    ):
        bridge.loss(STATES, learn_order=True)


def test_a_position_without_some_states_never_pays_for_them():
    """The network's numbers for states that a position lacks, and for the mask, are not read."""
    states = dmb.States.with_mask(2, 3, state_counts=[2, 3])
    network = dmb.OrderedTransformer(states, width=8, blocks=1, heads=2)
    with torch.no_grad():
        network.output.bias.copy_(torch.tensor([0.0, 1.0, 2.0, 50.0]))
    bound = dmb.OrderedBridge(dmb.orders.Random(2), network, states).bound(torch.tensor([[0, 2], [1, 0]]))
    first, second = math.log(1 + math.e), math.log(1 + math.e + math.e**2)
    torch.testing.assert_close(bound.score.tolist(), [first + second - 2, first - 1 + second], rtol=1e-6, atol=1e-6)

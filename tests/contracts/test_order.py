"""What every order of writing owes, by counting and by enumeration; and what calls it is divided into."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

import dmb
from dmb import orders
from dmb._core.seeding import seeded
from dmb.orders import by_call

import oracles

DRAWS = 12_000


def learned(order, weights):
    with torch.no_grad():
        order.weights.copy_(torch.tensor(weights))
    return order


CASES = {
    "random": lambda: orders.Random(3),
    "free": lambda: learned(orders.Free(3), [0.7, -0.9, 0.2]),
    "smooth": lambda: learned(orders.Smooth(orders.waves((3,))), [0.3, -0.4]),
    "fixed": lambda: orders.Fixed([2, 0, 1]),
    "streams": lambda: orders.Streams((3,), budgets=(2,)),
    "streams-learned": lambda: learned(orders.Streams((3,), budgets=(2,), learned=True), [0.3]),
    "blocks": lambda: orders.Blocks(3, size=2),
}
FIXED = {"fixed": (2, 0, 1), "streams": (0, 2, 1)}
every_case = pytest.mark.parametrize("name", CASES)
every_given = pytest.mark.parametrize("given", [(), (1,), (0, 2), (0, 1, 2)], ids=str)


def law(name, given):
    """The chance of each order of the positions that are not given, by a loop over choices: the last turn comes first."""
    free = [i for i in range(3) if i not in given]
    if name in FIXED:
        return {tuple(i for i in FIXED[name] if i in free): 1.0}
    if name == "blocks":
        first = [*itertools.permutations(i for i in free if i < 2)]
        return {(*written, *(i for i in free if i == 2)): 1 / len(first) for written in first}
    speeds, chances = CASES[name]().for_calls(3).log_speeds.exp().tolist(), {}
    for written in itertools.permutations(free):
        chance, standing = 1.0, list(written)
        while standing:
            chance *= speeds[standing[-1]] / sum(speeds[i] for i in standing)
            standing.pop()
        chances[written] = chance
    return chances


def masks(given, batch):
    return torch.tensor([[i in given for i in range(3)]]).expand(batch, -1)


def counted(turns, given):
    return Counter(tuple(i for i in np.argsort(row).tolist() if i not in given) for row in turns.tolist())


@every_case
@every_given
def test_orders_are_drawn_as_often_as_enumeration_says_and_given_positions_come_first(name, given):
    turns = CASES[name]().turns(DRAWS, given=masks(given, DRAWS), generator=seeded(name, str(given)))
    assert torch.equal(turns.sort(-1).values, torch.arange(3).expand(DRAWS, -1))
    assert torch.equal(turns < len(given), masks(given, DRAWS))
    expected, found = law(name, given), counted(turns, given)
    assert set(found) <= set(expected)
    if len(expected) > 1:
        assert oracles.chi_square_p_value([found[o] for o in expected], [*expected.values()]) > 1e-4


@every_case
@every_given
def test_the_log_probability_of_an_order_is_that_of_its_enumeration(name, given):
    for written, chance in law(name, given).items():
        turn = torch.tensor([[[*given, *written].index(i) for i in range(3)]])
        log_p = CASES[name]().log_choices(turn, masks(given, 1))
        assert log_p.sum().exp().item() == pytest.approx(chance, rel=1e-5)
        assert (log_p[0, : len(given)] == 0).all()  # nothing was chosen


@every_case
def test_the_order_of_a_row_does_not_depend_on_other_rows(name):
    """Of pairs of rows each combination is as frequent as the product says, with other things given elsewhere."""
    given = torch.cat([masks((1,), 2 * DRAWS), masks((), DRAWS)])
    turns = CASES[name]().turns(3 * DRAWS, given=given, generator=seeded("rows", name))
    one, two, other = turns.split(DRAWS)
    chances = itertools.product(law(name, (1,)).items(), repeat=2)
    expected = {(first, second): p * q for (first, p), (second, q) in chances}
    written = ([tuple(i for i in np.argsort(r).tolist() if i != 1) for r in rows.tolist()] for rows in (one, two))
    found = Counter(zip(*written, strict=True))
    assert set(found) <= set(expected)
    if len(expected) > 1:
        assert oracles.chi_square_p_value([found[pair] for pair in expected], [*expected.values()]) > 1e-4
    assert set(counted(other, ())) == set(law(name, ()))


@every_case
def test_an_order_comes_back_from_its_description_and_tensors(name, tmp_path):
    states = dmb.States.with_mask(3, 2)
    order = CASES[name]()
    dmb.OrderedBridge(order, dmb.OrderedMLP(states, width=4, blocks=1), states).write(tmp_path)
    again = dmb.OrderedBridge.from_pretrained(tmp_path).order
    assert type(again) is type(order)
    assert torch.equal(again.turns(50, generator=seeded("again")), order.turns(50, generator=seeded("again")))


@every_case
@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_calls_write_every_blank_once_by_turns_and_a_row_as_if_it_were_alone(name, calls):
    given = torch.tensor([[False] * 3, [True, False, False], [True, True, False], [True] * 3]).repeat(20, 1)
    order = CASES[name]().for_calls(calls)
    turns = order.turns(len(given), given=given, generator=seeded("calls"))
    call = order.divide(turns, calls, given)
    assert torch.equal(call < 0, given)
    for row, (turn, known) in enumerate(zip(turns, given, strict=True)):
        assert torch.equal(order.divide(turn[None], calls, known[None])[0], call[row])
        written = call[row][turn.argsort()][known.sum() :]
        assert (written.diff() >= 0).all()  # earlier turns in earlier calls
        assert written.unique().tolist() == [*range(min(calls, len(written)))]  # no call is wasted


@pytest.mark.parametrize("name", CASES)
def test_a_generator_of_the_host_draws_for_an_order_on_any_device(name, monkeypatch):
    """PyTorch asks this of a GPU, which a test may not have."""
    rand = torch.rand

    def draw(*shape, generator=None, device=None, **options):
        assert generator is None or generator.device == torch.device(device or "cpu")
        return rand(*shape, generator=generator, device=device, **options)

    order = CASES[name]().to("meta")
    monkeypatch.setattr(torch, "rand", draw)
    assert order.turns(2, generator=torch.Generator()).device.type == "meta"

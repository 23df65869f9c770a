"""Speeds that are smooth in the position, and what orders make of them."""

import itertools
import math

import numpy as np
import pytest
import torch

import dmb
from dmb.orders.smooth import SLOPE, WAVES, waves

SHAPES = [(2,), (3,), (4,), (7,), (64,), (8, 8), (2, 5), (3, 1, 6), (1, 9)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def by_loops(shape):
    """Column by column: which axis, and its value at every position."""
    places = list(itertools.product(*map(range, shape)))  # row-major
    columns = []
    for axis, length in enumerate(shape):
        along = [[SLOPE * (i - (length - 1) / 2) for i in range(length)]]
        along += [[math.cos(math.pi * k * (i + 0.5) / length) for i in range(length)] for k in range(1, WAVES + 1)]
        columns += [(axis, [values[place[axis]] for place in places]) for values in along[: length - 1]]
    return columns


@pytest.mark.parametrize("shape", [(2,), (7,), (64,), (8, 8), (1, 9), (6, 2, 7)], ids=str)
def test_waves_equal_loops_over_axes_and_positions(shape):
    expected = by_loops(shape)
    found = waves(shape)
    assert found.shape == (math.prod(shape), len(expected))
    np.testing.assert_allclose(found, np.array([values for _, values in expected]).T, atol=1e-6)


@every_shape
def test_every_column_has_mean_zero_and_does_not_vanish(shape):
    assert waves(shape).double().mean(0).abs().max() < 1e-7
    assert waves(shape).abs().amax(0).min() >= min(SLOPE / 2, 0.7)


@pytest.mark.parametrize("shape", [(8, 8), (3, 1, 6), (2, 5)], ids=str)
def test_every_column_of_a_grid_varies_along_one_axis_only(shape):
    columns = [column.view(shape) for column in waves(shape).T]
    varies = [[axis for axis, length in enumerate(shape) if (c.diff(dim=axis) != 0).any()] for c in columns]
    assert all(len(axes) == 1 for axes in varies)
    assert [sum(axes == [axis] for axes in varies) for axis in range(len(shape))] == [
        min(length - 1, WAVES + 1) for length in shape
    ]


@every_shape
def test_the_ramp_of_an_axis_rises_by_the_same_step_everywhere(shape):
    first = 0
    for axis, length in enumerate(shape):
        if length > 1:
            steps = waves(shape)[:, first].view(shape).diff(dim=axis)
            torch.testing.assert_close(steps, torch.full_like(steps, SLOPE))
        first += min(length - 1, WAVES + 1)


def test_an_axis_of_one_position_has_nothing_to_vary():
    assert waves((1,)).shape == (1, 0)
    assert waves((1, 1)).shape == (1, 0)
    torch.testing.assert_close(waves((1, 9)), waves((9,)))


def test_fewer_waves_can_be_asked_for():
    torch.testing.assert_close(waves((9,), 2), waves((9,))[:, :3])
    assert waves((9,), 0).shape == (9, 1)


@pytest.mark.parametrize("length", [2, 3,
                                    4, 5,
                                    6, 7, 8])  # fmt: skip
def test_no_column_is_a_sum_of_others(length):
    columns = waves((length,))
    assert torch.linalg.matrix_rank(columns.double(), tol=1e-4).item() == columns.shape[1]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)], ids=str)
def test_a_shape_without_positions_is_refused(shape):
    with pytest.raises(ValueError, match="shape must be the lengths of one axis or more"):
        waves(shape)


# -- in orders --------------------------------------------------------------------------------------------------------


def order_of(shape):
    return dmb.orders.Free(6) if shape is True else dmb.orders.Smooth(waves(shape))


@pytest.mark.parametrize("shape", [(6,), (4, 4)], ids=str)
def test_log_speeds_are_waves_times_weights(shape):
    order = order_of(shape)
    assert order.weights.shape == (waves(shape).shape[1],)
    assert (order.log_speeds == 0).all()  # all alike at first
    weights = torch.linspace(-1, 2, waves(shape).shape[1])
    with torch.no_grad():
        order.weights.copy_(weights)
    expected = waves(shape).double().numpy() @ weights.double().numpy()
    np.testing.assert_allclose(order.log_speeds.detach(), expected, atol=1e-6)


def test_one_gradient_moves_all_positions():
    order = order_of((6,))
    [slope] = torch.autograd.grad(order.log_speeds[0], order.weights)
    torch.testing.assert_close(slope, waves((6,))[0])


@pytest.mark.parametrize("shape", [(6,), True], ids=str)
def test_normalising_leaves_every_order_as_likely_as_before_and_speeds_within_reach(shape):
    order = order_of(shape)
    with torch.no_grad():
        order.weights.copy_(torch.linspace(0.9, -0.3, len(order.weights)))
    before = order.log_speeds.detach().clone()
    order.normalise()
    after = order.log_speeds.detach()
    torch.testing.assert_close(after - after.mean(), before - before.mean(), rtol=0, atol=1e-5)
    assert after.mean().abs() < 1e-5
    with torch.no_grad():
        order.weights.mul_(1e4)
    order.normalise()
    assert order.log_speeds.abs().max().item() == pytest.approx(300, rel=1e-5)
    assert order.log_speeds.argsort().equal(after.argsort())


@pytest.mark.parametrize("shape", [(6,), (4, 4), True, (1,)], ids=str)
def test_learned_speeds_come_back_from_a_file(shape, tmp_path):
    order = order_of(shape)
    with torch.no_grad():
        order.weights.copy_(torch.linspace(-1, 1, len(order.weights)))
    states = dmb.States.with_mask(order.num_positions, 3)
    network = dmb.OrderedTransformer(states, blocks=1, width=8, heads=2)
    torch.nn.init.normal_(network.output.weight, generator=torch.Generator().manual_seed(0))
    made = dmb.OrderedBridge(order, network, states)
    made.save_pretrained(tmp_path)
    again = dmb.OrderedBridge.from_pretrained(tmp_path)
    assert isinstance(again.network, dmb.OrderedTransformer)
    assert type(again.order) is type(order)
    assert torch.equal(again.order.log_speeds, order.log_speeds)
    x = torch.arange(4 * order.num_positions).view(4, -1) % 3
    one, two = (b.bound(x, samples=3, generator=torch.Generator().manual_seed(0)) for b in (made, again))
    assert torch.equal(one.score, two.score)

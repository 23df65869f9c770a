"""Speeds that are smooth in the position, and what clocks make of them."""

import itertools
import math

import numpy as np
import pytest
import torch
from dmb.speeds import SLOPE, WAVES, waves

import dmb

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


# -- in clocks --------------------------------------------------------------------------------------------------------


def process(shape, **options):
    d = math.prod(shape) if isinstance(shape, tuple) else 6
    return dmb.BridgeProcess.from_marginals(
        torch.full((d, 3), 1 / 3), mask=True, floor=0.0, tied=True, speeds=shape, **options
    )


@pytest.mark.parametrize("shape", [(6,), (4, 4)], ids=str)
def test_log_speeds_of_a_process_are_its_waves_times_its_weights(shape):
    made = process(shape)
    assert made.clocks.speed_weights.shape == (waves(shape).shape[1],)
    assert (made.log_speeds == 0).all()  # all alike at first
    weights = torch.linspace(-1, 2, waves(shape).shape[1])
    with torch.no_grad():
        made.clocks.speed_weights.copy_(weights)
        made.clocks.log_rates.fill_(0.7)
    expected = waves(shape).double().numpy() @ weights.double().numpy()
    np.testing.assert_allclose(made.clocks.log_speeds.detach(), expected, atol=1e-6)
    np.testing.assert_allclose(made.log_speeds.detach(), expected + 0.7, atol=1e-6)
    np.testing.assert_allclose(made.alpha[:, -1].detach(), np.exp(expected + 0.7), rtol=1e-5)
    assert (made.alpha[:, :-1] == 0).all()


def test_a_position_is_masked_as_its_speed_says():
    made, weights = process((6,)), torch.tensor([0.9, 0.4, -0.3, 0.2, 0.1])
    with torch.no_grad():
        made.clocks.speed_weights.copy_(weights)
    speeds = np.exp(waves((6,)).double().numpy() @ weights.double().numpy())
    sigma_bar = -math.log1p(-0.999 * 0.4)
    np.testing.assert_allclose(made.to_dense(0.4)[:, 0, -1].detach(), 1 - np.exp(-speeds * sigma_bar), rtol=1e-5)


def test_one_gradient_moves_all_positions():
    made = process((6,))
    [slope] = torch.autograd.grad(made.log_speeds[0], made.clocks.speed_weights)
    torch.testing.assert_close(slope, waves((6,))[0])


def test_speeds_of_their_own_are_the_weights_themselves():
    made = process(True)
    assert made.clocks.basis is None
    with torch.no_grad():
        made.clocks.speed_weights.copy_(torch.arange(6.0))
    assert torch.equal(made.log_speeds, torch.arange(6.0))
    assert process(False).clocks.speed_weights is None
    assert torch.equal(process(False).log_speeds, torch.zeros(6))


def test_given_speeds_must_be_what_waves_can_make():
    basis, wanted = waves((8,)), torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0, 6.0, 3.0, 1.0])
    with pytest.raises(ValueError, match="logarithms of speeds must be sums of the columns of basis"):
        dmb.Steady(torch.ones(1, 1), wanted, basis)
    with pytest.raises(ValueError, match="basis must have a row for each of the speeds"):
        dmb.Steady(torch.ones(1, 1), None, basis)
    smooth = dmb.Steady(torch.ones(1, 1), (0.5 * basis[:, 0] - basis[:, 2]).exp(), basis)
    torch.testing.assert_close(smooth.log_speeds, 0.5 * basis[:, 0] - basis[:, 2], rtol=0, atol=1e-5)


def test_normalising_leaves_every_order_as_likely_as_before():
    made = process((6,))
    with torch.no_grad():
        made.clocks.speed_weights.copy_(torch.tensor([0.9, 0.4, -0.3, 0.2, 0.1]))
        made.clocks.log_rates.fill_(1.3)
    before = made.log_speeds.detach()
    made.normalise(by_paths=True)
    after = made.log_speeds.detach()
    torch.testing.assert_close(after - after.mean(), before - before.mean(), rtol=0, atol=1e-5)
    assert after.mean().abs() < 1e-5


@pytest.mark.parametrize("shape", [(6,), (4, 4), True,
                                   (1,)],
                         ids=str)  # fmt: skip
def test_smooth_speeds_come_back_from_a_file(shape, tmp_path):
    made = process(shape)
    with torch.no_grad():
        made.clocks.speed_weights.copy_(torch.linspace(-1, 1, len(made.clocks.speed_weights)))
    network = dmb.OrderedTransformer.for_process(made, blocks=1, width=8, heads=2)
    torch.nn.init.normal_(network.output.weight, generator=torch.Generator().manual_seed(0))
    dmb.MarkovBridge(made, network).save_pretrained(tmp_path)
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert isinstance(again.network, dmb.OrderedTransformer)
    assert torch.equal(again.process.log_speeds, made.log_speeds)
    assert (again.process.clocks.basis is None) == (made.clocks.basis is None)
    x, options = torch.arange(4 * made.num_positions).view(4, -1) % 3, {"samples": 3}
    one, two = (
        b.bound(x, generator=torch.Generator().manual_seed(0), **options)
        for b in (dmb.MarkovBridge(made, network), again)
    )
    assert torch.equal(one.score, two.score)

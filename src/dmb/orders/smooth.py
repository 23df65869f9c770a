"""Orders whose speeds are smooth in the position: a ramp and low waves along every axis."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dmb.orders.random import Random, narrow

WAVES = 4
"""Cosines per axis."""

SLOPE = 2.5
"""Of the ramp, per position, whatever the length. It is steeper than the waves, so that the direction of an order is
learned before its shape."""


class Smooth(Random):
    r"""Speeds that are smooth in the position, `log v = B w`: weights are learned, so that one gradient moves all.

    All speeds are equal at first.

    Args:
        basis: functions of the position, such as `waves` along the axes of a text or an image.

    >>> Smooth(waves((8, 8))).weights.shape
    torch.Size([10])
    """

    basis: Float[Tensor, "d k"]

    def __init__(self, basis: Float[Tensor, "d k"]):
        super().__init__(len(basis))
        self.register_buffer("basis", basis.clone())
        self.weights = nn.Parameter(basis.new_zeros(basis.shape[1]))

    @property
    def log_speeds(self) -> Float[Tensor, " d"]:
        return self.basis @ self.weights

    @torch.no_grad()
    def normalise(self) -> None:
        narrow(self.weights, self.log_speeds)


def waves(shape: tuple[int, ...], count: int = WAVES) -> Float[Tensor, "d k"]:
    r"""Functions of the position, each with mean 0: on every axis of a grid a ramp, and `cos(π k (i + 1/2) / m)`.

    A sequence is a grid of one axis. Positions are in row-major order. An axis of length `m` has at most `m - 1`
    functions, the ramp first.

    >>> waves((3,))
    tensor([[-2.5000,  0.5000],
            [ 0.0000, -1.0000],
            [ 2.5000,  0.5000]])
    >>> waves((8, 8)).shape
    torch.Size([64, 10])
    """
    if not shape or min(shape) < 1:
        raise ValueError(f"shape must be the lengths of one axis or more, got {shape}")
    columns = []
    for axis, length in enumerate(shape):
        place = torch.arange(length, dtype=torch.float64)
        along = [SLOPE * (place - place.mean())]
        lowest = 2 if length <= count + 1 else 1  # of few positions, ramp and half a wave would say the same
        along += [torch.cos(torch.pi * k * (place + 0.5) / length) for k in range(lowest, count + 1)]
        for values in along[: length - 1]:
            spread = [1] * len(shape)
            spread[axis] = length
            columns.append(values.view(spread).expand(shape).flatten())
    return torch.stack(columns, dim=-1).float() if columns else torch.zeros(1, 0)

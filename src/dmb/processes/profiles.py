"""Monotone functions of clock time, for clocks that do not run evenly."""

import torch
from jaxtyping import Float
from torch import Tensor

from dmb import numerics

_LATE = 50.0
"""From here on `1 - s^p` is `p exp(-u)` to the last digit; a little later `s` would be 1 in floats."""


def delayed(
    elapsed: Float[Tensor, "..."], power: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""`-log(1 - s^p)` with `s = 1 - exp(-u)`, and its derivative in `u`.

    It starts like `u^p` and ends at the speed of `u`: a clock that has rung with chance `s^p`. With `p = 1` it is `u`.

    >>> delayed(torch.tensor([0.1, 5.0]), torch.tensor([1.0, 4.0]))[0]
    tensor([0.1000, 3.6238])
    """
    started, over = elapsed > 0, elapsed > _LATE
    u = torch.where(started & ~over, elapsed, 1.0)  # a harmless value, so that no nan reaches the gradient
    log_s = numerics.log1mexp(u)
    value = -numerics.log1mexp(-power * log_s)
    speed = torch.exp(power.log() + (power - 1) * log_s - u + value)
    at_first = torch.where(power > 1, 0.0, torch.where(power < 1, torch.inf, 1.0))
    value = torch.where(over, elapsed - power.log(), torch.where(started, value, 0.0))
    return value, torch.where(over, 1.0, torch.where(started, speed, at_first))

"""Schedules: how far the clocks of the forward process have run at time `t ∈ [0, 1]`.

A schedule gives the clock time `σ̄(t) = ∫_0^t σ` and the speed `σ(t)`, always in float64 and with `σ̄(0) = 0` exactly.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dmb import checks
from dmb.configurable import Configurable

ExitRates = Callable[[], Float[Tensor, "g n"]]


class ClockTime(NamedTuple):
    """Clock time `σ̄(t)` and its derivative `σ(t)`, float64."""

    sigma_bar: Float[Tensor, " b"]
    sigma: Float[Tensor, " b"]


class Schedule(nn.Module, Configurable, ABC):
    """A smooth increasing map from `[0, 1]` to clock time with `σ̄(0) = 0`."""

    @abstractmethod
    def forward(self, t: Float[Tensor, " b"], exit_rates: ExitRates | None = None) -> ClockTime:
        """Clock time and speed at `t`.

        Args:
            t: times in [0, 1].
            exit_rates: gives the rate at which the process leaves each state, `[d, n]` or `[1, n]`. Only one that
                adapts to the process, such as `Canonical`, asks it.
        """

    @abstractmethod
    def inverse(self, sigma_bar: Float[Tensor, "*s"], exit_rates: ExitRates | None = None) -> Float[Tensor, "*s"]:
        """The time `t` at which the clock time is `sigma_bar`, float64."""


class LogLinear(Schedule):
    r"""`σ̄(t) = -log(1 - (1 - survival) t)`: at unit rate the chance to have changed grows linearly in `t`.

    Args:
        survival: the chance that a state of exit rate 1 is still unchanged at `t = 1`; SEDD and the paper use 1e-3.

    >>> LogLinear()(torch.tensor([0.0, 0.5])).sigma_bar
    tensor([0.0000, 0.6921], dtype=torch.float64)
    """

    def __init__(self, survival: float = 1e-3):
        super().__init__()
        self.survival = _fraction("survival", survival)

    def forward(self, t: Float[Tensor, " b"], exit_rates: ExitRates | None = None) -> ClockTime:
        changed = (1 - self.survival) * t.double()
        return ClockTime(-torch.log1p(-changed), (1 - self.survival) / (1 - changed))

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exit_rates: ExitRates | None = None) -> Float[Tensor, "*s"]:
        return -torch.expm1(-sigma_bar.double()) / (1 - self.survival)

    def config(self) -> dict[str, Any]:
        return {"survival": self.survival}


class Geometric(Schedule):
    r"""`σ̄(t) = low ((high / low)^t - 1)`: the speed grows by the same factor in equal times.

    SEDD's geometric schedule starts at `σ̄(0) = low`; the `- 1` removes that noise, so that `p_0` is the data.

    >>> Geometric(1e-3, 20.0)(torch.tensor([0.0, 1.0])).sigma_bar
    tensor([ 0.0000, 19.9990], dtype=torch.float64)
    """

    def __init__(self, low: float = 1e-3, high: float = 20.0):
        super().__init__()
        if not 0 < low < high < math.inf:
            raise ValueError(f"Geometric needs 0 < low < high, got low={low}, high={high}")
        self.low, self.high = low, high

    def forward(self, t: Float[Tensor, " b"], exit_rates: ExitRates | None = None) -> ClockTime:
        grown = t.double() * math.log(self.high / self.low)
        speed = self.low * math.log(self.high / self.low) * grown.exp()
        return ClockTime(self.low * torch.expm1(grown), speed)

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exit_rates: ExitRates | None = None) -> Float[Tensor, "*s"]:
        return torch.log1p(sigma_bar.double() / self.low) / math.log(self.high / self.low)

    def config(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}


class Linear(Schedule):
    r"""`σ(t) = start + (end - start) t`: a speed that changes linearly; constant when both ends agree.

    >>> Linear(1.0, 3.0)(torch.tensor([0.5]))
    ClockTime(sigma_bar=tensor([0.7500], dtype=torch.float64), sigma=tensor([2.], dtype=torch.float64))
    """

    def __init__(self, start: float = 0.1, end: float = 20.0):
        super().__init__()
        if not (0 <= start < math.inf and 0 < end < math.inf):
            raise ValueError(f"Linear needs start ≥ 0 and end > 0, got start={start}, end={end}")
        self.start, self.end = start, end

    def forward(self, t: Float[Tensor, " b"], exit_rates: ExitRates | None = None) -> ClockTime:
        t = t.double()
        slope = self.end - self.start
        return ClockTime(self.start * t + slope * t**2 / 2, self.start + slope * t)

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exit_rates: ExitRates | None = None) -> Float[Tensor, "*s"]:
        sigma_bar = sigma_bar.double()
        # the root of a quadratic in the form that does not cancel, and that still holds when the slope is 0
        root = torch.sqrt(self.start**2 + 2 * (self.end - self.start) * sigma_bar)
        return torch.where(sigma_bar == 0, 0.0, 2 * sigma_bar / (self.start + root))

    def config(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end}


class Canonical(Schedule):
    r"""Time as the expected fraction of changeable tokens that have changed, whatever the rates are now.

    Clock time `u` solves `Σ_x μ_x exp(-u S_x) = M (1 - (1 - survival) t)` over the states that can leave (`S_x > 0`),
    `M` being their total mass, all positions together; and `du/dt = (1 - survival) M / Σ_x μ_x S_x exp(-u S_x)`.

    The score part of the bound does not change under a change of time, so this is a gauge and not a parameter: `u` is
    not differentiated. With it, the common scale of the rates means nothing, and whatever the fastest clock destroys is
    sampled as often as what the slowest does. When every state leaves at one rate it is `LogLinear`.

    Args:
        marginals: `μ`, the data's distribution over states, `[d, n]` or `[1, n]` (token order).
        survival: the fraction of changeable tokens that is still unchanged at `t = 1`.

    >>> schedule = Canonical(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> schedule(torch.tensor([0.0, 0.5]), lambda: torch.tensor([[1.0, 1.0, 0.0]])).sigma_bar
    tensor([0.0000, 0.6921], dtype=torch.float64)
    """

    marginals: Float[Tensor, "g n"]

    # Newton on a mixture of 40 exponentials over 12 decades of rates was never seen to need more than 30 steps
    _MAX_STEPS = 100

    def __init__(self, marginals: Float[Tensor, "g n"], survival: float = 1e-3):
        super().__init__()
        if marginals.ndim != 2:
            raise ValueError(f"marginals must have shape [positions, states], got {list(marginals.shape)}")
        checks.distribution("marginals", marginals, tuple(marginals.shape))
        self.register_buffer("marginals", marginals.double())
        self.survival = _fraction("survival", survival)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Canonical":
        """Move between devices like any module, but stay in float64."""
        exact = self.marginals
        super()._apply(fn, recurse)
        self.marginals = exact.to(self.marginals.device)
        return self

    @torch.no_grad()
    def forward(self, t: Float[Tensor, " b"], exit_rates: ExitRates | None = None) -> ClockTime:
        t = t.double()
        weights, rates = self._mixture(exit_rates)
        log_left = torch.log1p(-(1 - self.survival) * t)
        u = -log_left / (weights @ rates)
        # log Σ w exp(-u S) is convex and decreasing in u, so Newton's steps from the left rise to the root and never
        # pass it: no bracket is needed, and a single rate is solved by the first line above.
        for _ in range(self._MAX_STEPS):
            log_survival = torch.log1p(torch.expm1(-u[:, None] * rates) @ weights)
            slope = torch.exp(-u[:, None] * rates) @ (weights * rates) / log_survival.exp()
            step = (log_survival - log_left) / slope
            u = u + step.clamp(min=0)
            if (step <= 1e-12 * u).all():
                break
        density = torch.exp(-u[:, None] * rates) @ (weights * rates)
        return ClockTime(u, (1 - self.survival) / density)

    @torch.no_grad()
    def inverse(self, sigma_bar: Float[Tensor, "*s"], exit_rates: ExitRates | None = None) -> Float[Tensor, "*s"]:
        weights, rates = self._mixture(exit_rates)
        return -(torch.expm1(-sigma_bar.double()[..., None] * rates) @ weights) / (1 - self.survival)

    def _mixture(self, exit_rates: ExitRates | None) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Weights, summing to 1, and exit rates of all states that data visit and some clock leaves."""
        if exit_rates is None:
            raise ValueError("canonical time is a property of a process: exit_rates must be given")
        rates = exit_rates().double()
        if self.marginals.shape[1] != rates.shape[1]:
            raise ValueError(
                f"marginals of the schedule must cover the {rates.shape[1]} states of the process, "
                f"got {self.marginals.shape[1]}"
            )
        weights = torch.where(rates > 0, self.marginals, 0.0)
        if weights.sum() == 0:
            raise ValueError("canonical time needs a state that data visit and a clock leaves; every rate is 0 there")
        rates = rates.expand(weights.shape)
        kept = weights > 0
        return weights[kept] / weights.sum(), rates[kept]

    def config(self) -> dict[str, Any]:
        return {"survival": self.survival, "shape": list(self.marginals.shape)}

    @classmethod
    def build(cls, shape: list[int], **config: Any) -> "Canonical":
        return cls(torch.full(shape, 1 / shape[1]), **config)


def _fraction(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
    return value

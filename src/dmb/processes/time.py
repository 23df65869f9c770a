"""Schedules: how far the clocks of the forward process have run at time `t ∈ [0, 1]`.

A schedule gives the clock time `σ̄(t) = ∫_0^t σ` and the speed `σ(t)`, always in float64 and with `σ̄(0) = 0` exactly.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dmb._core import numerics
from dmb._core.configuration import Configurable


class Exits(NamedTuple):
    """The intensity and the rate of leaving each state, at given clock times, float64.

    Args:
        intensity: `-log` of the probability that a state has not been left; `g` is `d`, or 1 if all positions share it.
        rate: its derivative in clock time; `c` is 1 if that is constant.
    """

    intensity: Float[Tensor, "b g n"]
    rate: Float[Tensor, "c g n"]


def steady_exits(rates: Float[Tensor, "g n"], elapsed: Float[Tensor, " b"]) -> Exits:
    """The exits of a process that leaves each state at a constant rate of clock time."""
    rates = rates.double()
    return Exits(elapsed[:, None, None] * rates, rates[None])


ExitsAt = Callable[[Float[Tensor, " b"]], Exits]


class SolvedTime(NamedTuple):
    """Times and their clock times, float64: all that a closed form needs.

    Args:
        t: times.
        sigma_bar: `σ̄(t)`, how far the clocks have run.
        sigma: `σ(t)`, its derivative.
        start: the clock time at which a transition begins; None: 0.
    """

    t: Float[Tensor, " b"]
    sigma_bar: Float[Tensor, " b"]
    sigma: Float[Tensor, " b"]
    start: Float[Tensor, " b"] | None = None

    @property
    def elapsed(self) -> Float[Tensor, " b"]:
        """Clock time since `start`."""
        return self.sigma_bar if self.start is None else self.sigma_bar - self.start

    def since(self, earlier: "SolvedTime") -> "SolvedTime":
        """The same times, for transitions that begin at the times of `earlier`."""
        return self._replace(start=earlier.sigma_bar)

    def rows(self, index: Int[Tensor, " k"]) -> "SolvedTime":
        """The times of some of the rows."""
        return SolvedTime(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]

    def expand(self, batch: int) -> "SolvedTime":
        """One time for `batch` rows."""
        return SolvedTime(*(None if part is None else part.expand(batch) for part in self))  # type: ignore[arg-type]


class Schedule(nn.Module, Configurable, ABC):
    """A smooth increasing map from `[0, 1]` to clock time with `σ̄(0) = 0`."""

    @abstractmethod
    def forward(self, t: Float[Tensor, " b"], exits: ExitsAt | None = None) -> SolvedTime:
        """Clock time and speed at `t`.

        Args:
            t: times in [0, 1].
            exits: gives the `Exits` of the process at a clock time. Only schedules that adapt to the process, such as
                `Canonical`, use it.
        """

    @abstractmethod
    def inverse(self, sigma_bar: Float[Tensor, "*s"], exits: ExitsAt | None = None) -> Float[Tensor, "*s"]:
        """The time `t` at which the clock time is `sigma_bar`, float64."""


class LogLinear(Schedule):
    r"""`σ̄(t) = -log(1 - (1 - survival) t)`: at rate 1, the probability of a change grows linearly in `t`.

    Args:
        survival: the probability that a state of exit rate 1 is unchanged at `t = 1`; SEDD and the paper use 1e-3.

    >>> LogLinear()(torch.tensor([0.0, 0.5])).sigma_bar
    tensor([0.0000, 0.6921], dtype=torch.float64)
    """

    def __init__(self, survival: float = 1e-3):
        super().__init__()
        self.survival = _fraction("survival", survival)

    def forward(self, t: Float[Tensor, " b"], exits: ExitsAt | None = None) -> SolvedTime:
        t = t.double()
        changed = (1 - self.survival) * t
        return SolvedTime(t, -torch.log1p(-changed), (1 - self.survival) / (1 - changed))

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exits: ExitsAt | None = None) -> Float[Tensor, "*s"]:
        return -torch.expm1(-sigma_bar.double()) / (1 - self.survival)


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

    def forward(self, t: Float[Tensor, " b"], exits: ExitsAt | None = None) -> SolvedTime:
        t = t.double()
        grown = t * math.log(self.high / self.low)
        return SolvedTime(t, self.low * torch.expm1(grown), self.low * math.log(self.high / self.low) * grown.exp())

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exits: ExitsAt | None = None) -> Float[Tensor, "*s"]:
        return torch.log1p(sigma_bar.double() / self.low) / math.log(self.high / self.low)


class Linear(Schedule):
    r"""`σ(t) = start + (end - start) t`: a speed that changes linearly; constant when both ends agree.

    >>> clock = Linear(1.0, 3.0)(torch.tensor([0.5]))
    >>> clock.sigma_bar, clock.sigma
    (tensor([0.7500], dtype=torch.float64), tensor([2.], dtype=torch.float64))
    """

    def __init__(self, start: float = 0.1, end: float = 20.0):
        super().__init__()
        if not (0 <= start < math.inf and 0 < end < math.inf):
            raise ValueError(f"Linear needs start ≥ 0 and end > 0, got start={start}, end={end}")
        self.start, self.end = start, end

    def forward(self, t: Float[Tensor, " b"], exits: ExitsAt | None = None) -> SolvedTime:
        t = t.double()
        slope = self.end - self.start
        return SolvedTime(t, self.start * t + slope * t**2 / 2, self.start + slope * t)

    def inverse(self, sigma_bar: Float[Tensor, "*s"], exits: ExitsAt | None = None) -> Float[Tensor, "*s"]:
        sigma_bar = sigma_bar.double()
        # the root of a quadratic in the form that does not cancel, and that still holds when the slope is 0
        root = torch.sqrt(self.start**2 + 2 * (self.end - self.start) * sigma_bar)
        return torch.where(sigma_bar == 0, 0.0, 2 * sigma_bar / (self.start + root))


class Canonical(Schedule):
    r"""Time as the expected fraction of changeable tokens that have changed, whatever the current rates.

    If `S_x(u)` is the intensity with which state `x` is left by clock time `u`, then `u` solves

    `Σ_x μ_x exp(-S_x(u)) = M (1 - (1 - survival) t)`

    over the states that can be left, `M` being their total mass, all positions together; and
    `du/dt = (1 - survival) M / Σ_x μ_x S'_x(u) exp(-S_x(u))`.

    A change of time does not change the score part of the bound (for a network that receives the clock time, or no
    time), so this is a choice of gauge and not a parameter: `u` is not differentiated. A common factor of all rates
    then has no effect, and changes by the fastest clock are sampled as often as those by the slowest. If every state is
    left at the same rate, it is `LogLinear`.

    On a tree with names a token changes more than once. Every name on its way counts as a state that it is in, so that
    coarse stages are drawn as often as fine ones: `μ` of a name is the mass below it.

    A process binds a copy of an unbound schedule to its own `stage_mass`.

    With an `end`, clocks run until that clock time at `t = 1`, and `survival` is whatever they leave then. Only the
    times in between follow the rates: the process is that of any other schedule with this end, and so is `J_Q`, which
    can then teach the rates (a common factor of them has an effect on what is left at the end).

    Args:
        survival: the expected fraction of changeable tokens that are unchanged at `t = 1`.
        end: the clock time at `t = 1`, such as `math.log(1000)`, that of `LogLinear()`. Default: where `survival` says.

    >>> schedule = Canonical().bind(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> rates = torch.tensor([[[1.0, 1.0, 0.0]]])
    >>> schedule(torch.tensor([0.0, 0.5]), lambda u: Exits(u[:, None, None] * rates, rates)).sigma_bar
    tensor([0.0000, 0.6921], dtype=torch.float64)
    """

    marginals: Float[Tensor, "g n"] | None

    # never seen to need more than 25: steady clocks over 12 decades of rates, mixed profiles, exponents from 0.1 to 30
    _MAX_STEPS = 200
    _STEPS_OF_ACCELERATOR = 40  # a fixed number: to ask it whether it is done would make the host wait

    def __init__(self, survival: float = 1e-3, end: float | None = None):
        super().__init__()
        self.survival, self.end = _fraction("survival", survival), end
        if end is not None and not 0 < end < math.inf:
            raise ValueError(f"end must be a positive clock time, got {end}")
        self.register_buffer("marginals", None)

    def bind(self, marginals: Float[Tensor, "g n"]) -> "Canonical":
        """Fix `μ`, the mass of the data in every state, `[d, n]` or `[1, n]`; only its ratios matter."""
        if marginals.ndim != 2:
            raise ValueError(f"marginals must have shape [positions, states], got {list(marginals.shape)}")
        if not ((marginals >= 0) & marginals.isfinite()).all():
            raise ValueError("marginals must be finite and at least 0")
        self.marginals = marginals.detach().double().clone()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Canonical":
        """Move between devices like any module, but stay in float64."""
        exact = self.marginals
        super()._apply(fn, recurse)
        if exact is not None and self.marginals is not None:
            self.marginals = exact.to(self.marginals.device)
        return self

    @torch.no_grad()
    def forward(self, t: Float[Tensor, " b"], exits: ExitsAt | None = None) -> SolvedTime:
        times, place, on_host = t.double(), None, numerics.on_host(t)
        if on_host:  # rows that share a time share the work
            times, place = times.unique(return_inverse=True)
        exits, weights = self._mixture(exits)
        log_left, log_last = self._log_left(times, exits, weights)
        rate = (weights * exits(torch.zeros_like(times[:1])).rate).sum((-2, -1))
        u = -log_left / torch.where((rate > 0) & rate.isfinite(), rate, 1.0)
        if self.end is not None:
            u = torch.where(times == 1, self.end, u)  # known, and asked for in every step of Matrix-learning
        low, high, wanted = torch.zeros_like(u), torch.full_like(u, torch.inf), _log_odds(-log_left)
        # Newton's method in two forms. On log Σ w exp(-S(u)), which falls in u: where clocks are steady it is convex,
        # so that steps from the left never pass the root, and where all have come to run evenly a straight line. And on
        # the log odds of a change against log u: a straight line where chances grow like a power of u, be it 8 or 0.2.
        # The step that ends earlier is the better one. A step out of the bracket cuts the bracket itself instead, and
        # so does every third that is still long: between clocks that have stopped and others to come both may cycle
        for count in range(self._MAX_STEPS if on_host else self._STEPS_OF_ACCELERATOR):
            log_survival, slope = self._survival(exits(u), weights)
            excess = log_survival - log_left
            low, high = torch.where(excess >= 0, u, low), torch.where(excess <= 0, u, high)
            odds = wanted - _log_odds(-log_survival)
            step, other = u * torch.exp(-odds * torch.expm1(log_survival) / (u * slope)), u + excess / slope
            step = torch.where((other > 0) & (other >= low), torch.minimum(step, other), step)
            middle = torch.where(low > 0, low.sqrt() * high.sqrt(), high / 16)
            middle = torch.where(high.isfinite(), middle, 16 * u)
            usable = (step > 0) & (step >= low) & (step <= high)
            if count % 3 == 2:
                usable &= ((step - u).abs() < 0.1 * u) | high.isinf()
            following = torch.where(excess == 0, u, torch.where(usable, step, middle))
            done = (following - u).abs() <= 1e-12 * u
            u = following
            if on_host and done.all():
                break
        log_survival, slope = self._survival(exits(u), weights)
        sigma = -torch.expm1(log_last) / (slope * log_survival.exp())
        return SolvedTime(t.double(), *((u, sigma) if place is None else (u[place], sigma[place])))

    @torch.no_grad()
    def inverse(self, sigma_bar: Float[Tensor, "*s"], exits: ExitsAt | None = None) -> Float[Tensor, "*s"]:
        exits, weights = self._mixture(exits)
        log_survival, _ = self._survival(exits(sigma_bar.double().flatten()), weights)
        _, log_last = self._log_left(log_survival[:0], exits, weights)
        return (torch.expm1(log_survival) / torch.expm1(log_last)).view(sigma_bar.shape)

    def _log_left(
        self, t: Float[Tensor, " b"], exits: ExitsAt, weights: Float[Tensor, "g n"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " 1"]]:
        """Logarithms of the fraction of changeable tokens that are unchanged at `t`, and at the end."""
        if self.end is None:
            log_last = torch.full_like(weights[0, :1], math.log(self.survival))
        else:
            log_last, _ = self._survival(exits(torch.full_like(weights[0, :1], self.end)), weights)
        # two forms: that for late times keeps the digits of however little is left
        early, late = torch.log1p(torch.expm1(log_last) * t), torch.log((1 - t) + torch.exp(log_last) * t)
        return torch.where(t < 0.5, early, torch.where(t < 1, late, log_last)), log_last

    @staticmethod
    def _survival(exits: Exits, weights: Float[Tensor, "g n"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """`log Σ w exp(-S)`, to all digits when it is close to 0 and when it is far below, and how fast it falls."""
        intensity = exits.intensity.flatten(1)
        terms = weights.log().flatten() - intensity
        largest = terms.amax(1, keepdim=True)
        shares = torch.exp(terms - largest)
        total = shares.sum(1)
        rate = torch.where(weights > 0, exits.rate.double(), 0.0).flatten(1)
        slope = (shares @ rate[0] if len(rate) == 1 else (rate * shares).sum(1)) / total
        lost = torch.expm1(-intensity) @ weights.flatten()
        log_survival = largest[:, 0] + total.log()
        return torch.where(lost > -0.5, torch.log1p(lost.clamp(min=-0.5)), log_survival), slope

    def _mixture(self, exits: ExitsAt | None) -> tuple[ExitsAt, Float[Tensor, "g n"]]:
        """Weights, summing to 1, of the states that data visit and some clock leaves."""
        if exits is None or self.marginals is None:
            raise ValueError("canonical time belongs to a process: bind it to marginals, and give its exits")
        late = torch.full((1,), 1e3, dtype=torch.float64, device=self.marginals.device)
        leaves = exits(late).intensity[0] > 0
        if self.marginals.shape[1] != leaves.shape[1]:
            raise ValueError(
                f"marginals of the schedule must cover the {leaves.shape[1]} states of the process, "
                f"got {self.marginals.shape[1]}"
            )
        weights = torch.where(leaves, self.marginals, 0.0)
        if numerics.on_host(weights) and weights.sum() == 0:
            raise ValueError(
                "canonical time needs a state of the data with a positive rate of leaving it, got only rates of 0"
            )
        if len(leaves) == 1:  # all positions are left alike
            weights = weights.sum(0, keepdim=True)
        return exits, weights / weights.sum()

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "Canonical":
        schedule = cls(**config)
        return schedule.bind(tensors["marginals"]) if "marginals" in tensors else schedule


def _log_odds(intensity: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """`log((1 - exp(-S)) / exp(-S))`."""
    return intensity + torch.log(-torch.expm1(-intensity))


def _fraction(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
    return value

"""Clocks: the probability that each has rung by a clock time, for steady clocks and for clocks that vary in time.

A clock of cumulative intensity `A` has rung with probability `1 - exp(-A)`. Clocks have rates `[g, m]`, one set per
position or one for all.

Rates are learned in one of two ways. As logarithms a step multiplies them, so that a clock that hardly runs will hardly
ever run. Linearly a step adds to them: clocks that start at next to nothing wake, as in the paper's code.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import checks, numerics
from dmb._core.configuration import Configurable

RateParametrisation = Literal["log", "linear"]

POWERS = (1.0, 2.0, 4.0)
"""Powers of the profiles that are mixed into a varying clock."""

ASLEEP = 1e-10
"""The lowest rate that is learned linearly, as in the paper's code. At 0, where `J_Q` is `D log D`, its slope is
infinite, so a clock at exactly 0 could not be woken by a gradient; here it has no effect, and wakes in a step."""

# initial extra weight of the steady profile, as a logarithm
STEADY = 2.0
# from here on `1 - s^p` is `p exp(-u)` to the last digit; a little later `s` would be 1 in floats
_LATE = 50.0


class Clocks(nn.Module, Configurable, ABC):
    """The clocks of a hierarchy, in its order: the clock of the top node comes last.

    Args:
        rates: `[g, m]`; `g` is `d`, or 1 if all positions share one set of rates. A rate of exactly 0 means that the
            clock is off, and stays off.
        learn: what an optimiser changes: the logarithms of the rates (`log`, default), or the rates themselves
            (`linear`), which `project` keeps at or above `ASLEEP`.
    """

    running: Bool[Tensor, "g m"]

    def __init__(self, rates: Float[Tensor, "g m"], learn: RateParametrisation = "log"):
        super().__init__()
        self.learn = checks.choice("learn", learn, get_args(RateParametrisation))
        rates = checks.rates("rates", rates)
        if rates.ndim != 2:
            raise ValueError(f"rates must have shape [positions, clocks], got {list(rates.shape)}")
        self.register_buffer("running", rates > 0)
        if learn == "log":
            self.log_rates = nn.Parameter(torch.where(rates > 0, rates, 1.0).log())
        else:
            self.linear_rates = nn.Parameter(rates.detach().clone())
            self.project()
        self.register_load_state_dict_post_hook(_check_loaded)

    @property
    def rate_parameter(self) -> nn.Parameter:
        """What an optimiser changes to change the rates, `[g, m]`."""
        return self.log_rates if self.learn == "log" else self.linear_rates

    @property
    def dtype(self) -> torch.dtype:
        return self.rate_parameter.dtype

    @property
    def rates(self) -> Float[Tensor, "g m"]:
        rates = self.log_rates.exp() if self.learn == "log" else self.linear_rates
        return torch.where(self.running, rates, 0.0)

    @torch.no_grad()
    def project(self) -> None:
        """After a step of an optimiser: raise rates that are learned linearly to `ASLEEP`, where they can wake again.

        >>> clocks = Steady(torch.tensor([[0.1, 1.0]]), learn="linear")
        >>> _ = clocks.linear_rates.data.sub_(0.25)
        >>> clocks.project()
        >>> clocks.rates.detach()
        tensor([[1.0000e-10, 7.5000e-01]])
        """
        if self.learn == "linear":
            self.linear_rates.clamp_(min=ASLEEP)

    @abstractmethod
    def intensity(
        self, start: Float[Tensor, "b e"] | None, end: Float[Tensor, "b e"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b f"], Float[Tensor, "c g m"]]:
        """Cumulative intensities between two clock times, or since the beginning, as a scale and rates to multiply."""

    @abstractmethod
    def slope(self, elapsed: Float[Tensor, "b e"]) -> tuple[Float[Tensor, "c f"], Float[Tensor, "c g m"]]:
        """`dA / du` at a clock time, as a scale and rates to multiply; in the precision of `elapsed`."""

    @abstractmethod
    def pace(
        self, clock: Int[Tensor, "h n"], x: Int[Tensor, "b d"], elapsed: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b e"]:
        """`A / (dA / du)` of the clock that leads into each token: the time it would have needed at its current speed.

        Args:
            clock: which clock leads into each token, `Hierarchy.clock_into`.
            x: tokens.
            elapsed: clock time.
        """

    @abstractmethod
    def inverse_intensity(
        self, clock: Int[Tensor, "b d"], intensity: Float[Tensor, "b d"], latest: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        """The clock time, not after `latest`, at which `A` of each clock was `intensity`; anything if it is off."""

    def normalise(self) -> None:
        """Make the mean total rate 1, if a common factor of the rates has no effect."""

    @classmethod
    def with_final_intensity(
        cls, rates: Float[Tensor, "g m"], elapsed: Float[Tensor, ""], learn: RateParametrisation = "log"
    ) -> "Clocks":
        """Clocks whose intensities are `rates` at the clock time `elapsed`."""
        clocks = cls(rates)
        scale, reached = clocks.intensity(None, elapsed[None, None], torch.float64)
        reached = (scale[..., None] * reached)[0].to(rates.dtype)
        with torch.no_grad():
            return cls(torch.where(clocks.running, rates * rates / reached, 0.0), learn)

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "Clocks":
        parameter = tensors["linear_rates" if config.get("learn") == "linear" else "log_rates"]
        return cls(tensors["running"].to(parameter.dtype), **config)


class Steady(Clocks):
    """`A_k(u) = a_k u`: every clock runs evenly in clock time.

    >>> scale, rates = Steady(torch.tensor([[0.5, 1.0]])).intensity(None, torch.tensor([[2.0]]), torch.float32)
    >>> scale[..., None] * rates
    tensor([[[1., 2.]]], grad_fn=<MulBackward0>)
    """

    def intensity(
        self, start: Float[Tensor, "b e"] | None, end: Float[Tensor, "b e"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b e"], Float[Tensor, "1 g m"]]:
        elapsed = end if start is None else end - start  # float64, so that a short span keeps its digits
        return elapsed.to(dtype), self.rates[None].to(dtype)

    def slope(self, elapsed: Float[Tensor, "b e"]) -> tuple[Float[Tensor, "1 e"], Float[Tensor, "1 g m"]]:
        return torch.ones_like(elapsed[:1, :1]), self.rates[None].to(elapsed.dtype)

    def pace(
        self, clock: Int[Tensor, "h n"], x: Int[Tensor, "b d"], elapsed: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b e"]:
        return elapsed

    def inverse_intensity(
        self, clock: Int[Tensor, "b d"], intensity: Float[Tensor, "b d"], latest: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        rate = numerics.pick(F.pad(self.rates.detach(), (1, 0))[None], clock).double()
        return intensity / rate

    @torch.no_grad()
    def normalise(self) -> None:
        if self.learn == "log":
            log_rates = torch.where(self.running, self.log_rates, -torch.inf)
            self.log_rates.sub_(log_rates.flatten().logsumexp(0) - math.log(len(log_rates)))
        else:
            self.linear_rates.div_(self.rates.sum(-1).mean())


class Varying(Clocks):
    r"""`A_k(u) = a_k Σ_p w_kp φ_p(u)`: positive mixtures of monotone `profiles`, learned, almost steady at first.

    Profiles have a time scale of their own, so a common factor of the rates has an effect.

    >>> Varying(torch.tensor([[0.5, 1.0]])).mixtures.shape
    torch.Size([1, 4, 2])
    """

    def __init__(self, rates: Float[Tensor, "g m"], learn: RateParametrisation = "log"):
        super().__init__(rates, learn)
        raw = torch.zeros(len(rates), len(POWERS) + 1, rates.shape[1], dtype=rates.dtype, device=rates.device)
        raw[:, 0] = STEADY
        self.raw_profile = nn.Parameter(raw)

    @property
    def mixtures(self) -> Float[Tensor, "g p m"]:
        """The weight of each profile in every clock."""
        return self.raw_profile.softmax(1)

    def intensity(
        self, start: Float[Tensor, "b e"] | None, end: Float[Tensor, "b e"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b f"], Float[Tensor, "b g m"]]:
        grown = profiles(end.double())[0]
        if start is not None:
            grown = grown - profiles(start.double())[0]
        mixed = self._mixed(grown)
        # the scale takes the size of the intensities, so that early on fast positions and late clocks keep their digits
        most = mixed.detach().amax((-2, -1)).clamp(min=1e-300)[:, None]
        return most.to(dtype), (mixed / most[..., None]).to(dtype)

    def slope(self, elapsed: Float[Tensor, "b e"]) -> tuple[Float[Tensor, "b f"], Float[Tensor, "b g m"]]:
        mixed = self._mixed(profiles(elapsed.double())[1]).to(elapsed.dtype)
        return torch.ones_like(elapsed[:, :1]), mixed

    def pace(
        self, clock: Int[Tensor, "h n"], x: Int[Tensor, "b d"], elapsed: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        index = numerics.pick(clock[None], x)
        # in float64: early on, late clocks have intensities that float32 cannot hold
        intensity, speed = (
            numerics.pick(F.pad(self._mixed(each), (1, 0)), index) for each in profiles(elapsed.double())
        )
        runs = (intensity > 0) & (speed > 0)
        paces = intensity / torch.where(runs, speed, 1.0)
        return torch.where(runs, paces, elapsed.double()).to(elapsed.dtype)

    def inverse_intensity(
        self, clock: Int[Tensor, "b d"], intensity: Float[Tensor, "b d"], latest: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        """By Newton's method in logarithms, where clocks are nearly straight, and by bisection where its steps grow."""
        weights = F.pad(self._weights().detach().double(), (1, 0))
        mixture = torch.stack([numerics.pick(each[None], clock) for each in weights.unbind(1)], dim=-1)
        rang, high = intensity > 0, latest.expand_as(intensity)
        low = torch.where(rang, intensity / mixture.sum(-1), high)  # no profile is ahead of the steady one
        u, step, rounding = high, torch.full_like(high, torch.inf), 64 * torch.finfo(high.dtype).eps
        for _ in range(100):
            reached, speed = ((each * mixture).sum(-1) for each in profiles(u))
            early = reached < intensity
            low, high = torch.where(early, u, low), torch.where(early, high, u)
            newton = u * (intensity / reached) ** (reached / (u * speed))
            trusted = (low <= newton) & (newton <= high) & ((newton / u).log().abs() <= (step / 2).clamp(min=rounding))
            u, before = torch.where(trusted, newton, (low * high).sqrt()), u
            step = (u / before).log().abs()
            if (step <= rounding)[rang].all():
                break
        return torch.where(rang, u, 0.0)

    def _weights(self) -> Float[Tensor, "g p m"]:
        return self.rates[:, None] * self.mixtures

    def _mixed(self, values: Float[Tensor, "b e p"]) -> Float[Tensor, "b g m"]:
        subscripts = "bep,gpm->bgm" if values.shape[1] == 1 else "bgp,gpm->bgm"
        return torch.einsum(subscripts, values, self._weights().double())


def _check_loaded(clocks: Clocks, _: object) -> None:
    for name, parameter in clocks.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{name} must be finite, got {parameter[~parameter.isfinite()][0].item()}")
    if clocks.learn == "linear":
        checks.rates("linear_rates", clocks.linear_rates.detach())


def profiles(elapsed: Float[Tensor, "*s"]) -> tuple[Float[Tensor, "*s p"], Float[Tensor, "*s p"]]:
    r"""Monotone functions of clock time, whose mixtures are varying clocks, and their derivatives.

    With `s = 1 - exp(-u)`: `-log(1 - s^p)` for `p = 1, 2, 4`, of which the first is `u`, a steady clock, and the others
    start late (like `u^p`) but end at the same speed; and `s` itself, a clock that runs early and then stops.

    >>> profiles(torch.tensor([0.1, 5.0], dtype=torch.float64))[0]
    tensor([[1.0000e-01, 9.0972e-03, 8.2013e-05, 9.5163e-02],
            [5.0000e+00, 4.3102e+00, 3.6238e+00, 9.9326e-01]], dtype=torch.float64)
    """
    u = elapsed[..., None]
    late, late_speed = delayed(u, torch.tensor(POWERS, dtype=u.dtype, device=u.device))
    return torch.cat([late, -torch.expm1(-u)], -1), torch.cat([late_speed, torch.exp(-u)], -1)


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

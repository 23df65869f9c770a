"""A bridge whose clocks change their speed as time goes on, each in a way of its own that is learned."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb import numerics
from dmb.processes.bridge import BridgeProcess
from dmb.processes.intensity import Intensity
from dmb.processes.profiles import delayed
from dmb.schedules import Exits

POWERS = (1.0, 2.0, 4.0)
STEADY = 2.0  # how much more weight the first profile has at first, as a logarithm


def profiles(elapsed: Float[Tensor, "*s"]) -> tuple[Float[Tensor, "*s m"], Float[Tensor, "*s m"]]:
    r"""Monotone functions of clock time that clocks are made of, and their derivatives.

    With `s = 1 - exp(-u)`: `-log(1 - s^p)` for `p = 1, 2, 4`, of which the first is `u`, a steady clock, and the others
    start late (like `u^p`) but end at the same speed; and `s` itself, a clock that runs early and then stops.

    >>> profiles(torch.tensor([0.1, 5.0], dtype=torch.float64))[0]
    tensor([[1.0000e-01, 9.0972e-03, 8.2013e-05, 9.5163e-02],
            [5.0000e+00, 4.3102e+00, 3.6238e+00, 9.9326e-01]], dtype=torch.float64)
    """
    u = elapsed[..., None]
    late, late_speed = delayed(u, torch.tensor(POWERS, dtype=u.dtype, device=u.device))
    return torch.cat([late, -torch.expm1(-u)], -1), torch.cat([late_speed, torch.exp(-u)], -1)


class VaryingBridgeProcess(BridgeProcess):
    r"""A `BridgeProcess` with `A_k(u) = a_k Σ_m v_km φ_m(u)`: positive mixtures of the monotone `profiles`.

    All matrices `H` commute, so nothing else changes: every closed form holds with these intensities. The mixtures
    `v_k = softmax(raw_profile_k)` are learned along with the rates, and start almost steady.

    >>> process = VaryingBridgeProcess.from_marginals(torch.tensor([[0.2, 0.5, 0.3]]))
    >>> process.mixtures.shape
    torch.Size([1, 4, 2])
    """

    def __init__(self, alpha: Float[Tensor, "g k"], rank: Int[Tensor, "h n"], **options: Any):
        super().__init__(alpha, rank, **options)
        raw = torch.zeros(len(alpha), len(POWERS) + 1, alpha.shape[1], dtype=alpha.dtype, device=alpha.device)
        raw[:, 0] = STEADY
        self.raw_profile = nn.Parameter(raw)

    @property
    def mixtures(self) -> Float[Tensor, "g m k"]:
        """How much of each profile every clock has, in rank order."""
        return self.raw_profile.softmax(1)

    def normalise(self) -> None:
        """Nothing to do: profiles have a time scale of their own, so that the common speed of the clocks matters."""

    def _weights(self) -> Float[Tensor, "g m n"]:
        return self._clock_rates()[:, None] * F.pad(self.mixtures, (1, 0))

    def _intensity(self, elapsed: Float[Tensor, "b e"]) -> Intensity:
        return Intensity(torch.ones_like(elapsed), self._mixed(profiles(elapsed.double())[0]).to(elapsed.dtype))

    def _between(self, begin: Float[Tensor, "b 1"], end: Float[Tensor, "b 1"], dtype: torch.dtype) -> Intensity:
        gained = profiles(end)[0] - profiles(begin)[0]
        return Intensity(torch.ones_like(end).to(dtype), self._mixed(gained).to(dtype))

    def _speeds(self, elapsed: Float[Tensor, "b e"]) -> Float[Tensor, "b g n"]:
        return self._mixed(profiles(elapsed.double())[1]).to(elapsed.dtype)

    def _mixed(self, values: Float[Tensor, "b e m"]) -> Float[Tensor, "b g n"]:
        return torch.einsum(
            "bem,gmn->bgn" if values.shape[1] == 1 else "bgm,gmn->bgn", values, self._weights().double()
        )

    def _pace(self, rank: Int[Tensor, "b d"], elapsed: Float[Tensor, "b e"]) -> Float[Tensor, "b d"]:
        exact = elapsed.double()  # early on, late clocks have intensities that float32 cannot hold
        intensity, speed = self._intensity(exact).at(rank), numerics.pick(self._speeds(exact), rank)
        runs = (intensity > 0) & (speed > 0)
        return torch.where(runs, intensity / torch.where(runs, speed, 1.0), exact).to(elapsed.dtype)

    def _when(
        self, rank: Int[Tensor, "b d"], intensity: Float[Tensor, "b d"], latest: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        """By Newton's method in logarithms, where clocks are nearly straight, and by bisection where its steps grow."""
        weights = self._weights().detach().double()
        mixture = torch.stack([numerics.pick(each[None], rank) for each in weights.unbind(1)], dim=-1)
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

    @torch.no_grad()
    def _run_out_by(self, alpha: Float[Tensor, "g k"]) -> None:
        total = profiles(self._clock(1.0, 1).sigma_bar)[0].to(alpha.dtype)
        self.raw_alpha.copy_(self._raw(alpha / torch.einsum("bm,gmk->gk", total, self.mixtures)))

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        values, slopes = (self._mixed(each[:, None]) for each in profiles(elapsed))
        return Exits(*(self._to_tokens(numerics.suffix_sum(each)) for each in (values, slopes)))

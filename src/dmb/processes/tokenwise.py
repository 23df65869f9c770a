"""Masking with a learned schedule for every state (GenMD4, arXiv 2406.04329)."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.clocks import delayed
from dmb.processes.initial import support
from dmb.processes.states import count_positions
from dmb.processes.time import Canonical, Exits, Schedule, SolvedTime


class TokenwiseMasking(ForwardProcess):
    r"""Every state jumps straight to one mask, each with its own intensity.

    With `s = 1 - exp(-u)` and an exponent `w_x > 0` for every state, `x` is still unmasked at clock time `u` with
    probability `1 - s^{w_x}`: states with large exponents are masked late. If all exponents are 1, this is masked
    diffusion.

    `p_{t|0}(x|x) = exp(-W_x),  p_{t|0}(mask|x) = 1 - exp(-W_x),  W_x(u) = -log(1 - s^{w_x}).`

    Args:
        exponents: `w`, `[g, n-1]`, one for each state of the data; `g` is `d`, or 1 if all positions share one set.
        num_positions: `d`; needed only if `exponents` has one row.
        schedule: default: `LogLinear()`.
        legal: see `ForwardProcess`; the last state, the mask, must always be legal.
        marginals: see `ForwardProcess`; `[g, n]`, 0 for the mask.

    >>> process = TokenwiseMasking(torch.tensor([[1.0, 4.0]]))
    >>> process.to_dense(0.5).detach()
    tensor([[[0.5005, 0.0000, 0.4995],
             [0.0000, 0.9377, 0.0623],
             [0.0000, 0.0000, 1.0000]]])
    """

    def __init__(
        self,
        exponents: Float[Tensor, "g k"],
        *,
        num_positions: int | None = None,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "f n"] | None = None,
        marginals: Float[Tensor, "e n"] | None = None,
    ):
        if exponents.ndim != 2 or not (exponents > 0).all() or not exponents.isfinite().all():
            raise ValueError(f"exponents must be finite, positive and of shape [positions, states], got {exponents}")
        num_states = exponents.shape[1] + 1
        rows = {"exponents": len(exponents), "legal": 1 if legal is None else len(legal)}
        if legal is not None and not legal[:, -1].all():
            raise ValueError("legal must hold the mask, the last state, at every position")
        super().__init__(count_positions(num_positions, **rows), num_states, schedule, legal, marginals, names=1)
        self.mask_token = num_states - 1
        self.log_exponents = nn.Parameter(exponents.log())

    @classmethod
    def from_marginals(
        cls,
        marginals: Float[Tensor, "d m"],
        *,
        tied: bool = False,
        state_counts: Int[Tensor, " d"] | None = None,
        schedule: Schedule | None = None,
    ) -> "TokenwiseMasking":
        """Masked diffusion of data with these marginals, as a start for learning: all exponents are 1.

        Args:
            marginals: the data's distribution over states at each position.
            tied: one set of exponents for all positions.
            state_counts: the number of states of each position. Default: all of them.
            schedule: default: `LogLinear()`.

        >>> TokenwiseMasking.from_marginals(torch.tensor([[0.2, 0.8]])).mask_token
        2
        """
        num_positions = len(marginals)
        marginals, legal = support(marginals, state_counts, tied=tied, names=1)
        return cls(
            torch.ones_like(marginals[:, :-1]),
            num_positions=num_positions,
            schedule=schedule,
            legal=None if state_counts is None else legal,
            marginals=marginals,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.log_exponents.dtype

    @property
    def exponents(self) -> Float[Tensor, "g k"]:
        """`w`, in token order."""
        return self.log_exponents.exp()

    def learned(self) -> Float[Tensor, "d k"]:
        return torch.where(self.legal[:, :-1], self.exponents, 0.0).expand(self.num_positions, -1)

    @torch.no_grad()
    def normalise(self) -> None:
        """In canonical time only ratios of exponents mean anything: `s → s^c` is a change of time."""
        if isinstance(self.schedule, Canonical):
            self.log_exponents.sub_(self.log_exponents.mean())

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        value, speed = delayed(elapsed[:, None, None], self.exponents.double()[None])
        return Exits(F.pad(value, (0, 1)), F.pad(speed, (0, 1)))

    def describe(self) -> str:
        return "Masking with a schedule of its own for every state (GenMD4)."

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "TokenwiseMasking":
        return super().build(tensors, exponents=torch.ones_like(tensors["log_exponents"]), **config)

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _sample(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        level = numerics.exponential(tuple(x_0.shape), generator=generator, device=x_0.device)
        return torch.where(level < self._intensity_at(x_0, now).detach(), self.mask_token, x_0)

    def _sample_moved(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return torch.full_like(x_0, self.mask_token)

    def _log_transition(self, x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        intensity = self._intensity_at(x_0, now)[..., None]
        state = torch.arange(self.num_states, device=x_0.device)
        moved = torch.where(state == self.mask_token, numerics.log1mexp(intensity), -torch.inf)
        return torch.where(state == x_0[..., None], -intensity, moved).to(self.dtype)

    def _log_likelihood(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        intensity = self._intensities(now)
        here = torch.arange(self.num_states, device=x_t.device) == x_t[..., None]
        masked = (x_t == self.mask_token)[..., None]
        column = torch.where(here, -intensity, torch.where(masked, numerics.log1mexp(intensity), -torch.inf))
        return torch.where(self.legal, column, -torch.inf).to(self.dtype)

    def _log_prob(self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        intensity = self._intensity_at(x_0, now)
        moved = torch.where(x_t == self.mask_token, numerics.log1mexp(intensity), -torch.inf)
        return torch.where(x_t == x_0, -intensity, moved).to(self.dtype)

    def _evolve(self, p_0: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        intensity = self._intensities(now)[0].to(self.dtype)
        return self._masked(p_0 * torch.exp(-intensity), p_0 * -torch.expm1(-intensity))

    def _unevolve(self, p_t: Float[Tensor, "b d n"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        intensity = self._intensities(now)
        before = p_t.double() * torch.exp(intensity)
        return self._masked(before, before * torch.expm1(-intensity)).to(p_t.dtype)

    def _rates_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        rates = (now.sigma[:, None, None] * self.exits(now.sigma_bar).rate).to(self.dtype)
        return torch.where((x_t == self.mask_token)[..., None] & self.legal, rates, 0.0)

    def _log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """`s_y = π_y exp(-W_y) / (1 - exp(-W_y))` at the mask, where alone it is used."""
        intensity = self._intensities(now)
        used = (x_t == self.mask_token)[..., None] & self.legal & (intensity > 0)
        odds = -intensity - torch.where(intensity > 0, numerics.log1mexp(intensity), 0.0)
        return torch.where(used, log_posterior + odds.to(self.dtype), -torch.inf)

    def _integrand_from_posterior(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        """`Σ_y h_y π_y - h_x (1 + log π_x)` at the mask, `x = x_0`, with the hazards `h_y = W'_y / (exp(W_y) - 1)`."""
        intensity, rate = self.exits(now.sigma_bar)
        runs = intensity > 0
        odds = torch.where(runs, rate, 0.0) / torch.expm1(torch.where(runs, intensity, 1.0))
        hazard = (now.sigma[:, None, None] * odds).to(self.dtype)
        masked = x_t == self.mask_token
        # a mask that was there from the start has no hazard, and no logarithm is taken of its chance
        log_right = torch.where(masked & (x_0 != self.mask_token), numerics.pick(log_posterior, x_0), 0.0)
        total = (hazard * log_posterior.exp()).sum(-1) - numerics.pick(hazard, x_0) * (1 + log_right)
        return torch.where(masked, total, 0.0)

    def _prior_kl_table(self, p_T: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        log_p = numerics.log_or_off(torch.where(self.legal, p_T, 1.0))
        intensity = self._intensities(now)[0].to(self.dtype)
        stayed = numerics.times_log_ratio(-intensity, log_p)
        masked = numerics.times_log_ratio(numerics.log1mexp(intensity), log_p[:, -1:])
        return torch.where(self.legal, stayed + masked, 0.0)

    def _intensities(self, now: SolvedTime) -> Float[Tensor, "b g n"]:
        """`W_x` over an interval of time, for every state, 0 for the mask; float64."""
        intensity = self.exits(now.sigma_bar).intensity
        return intensity if now.start is None else intensity - self.exits(now.start).intensity

    def _intensity_at(self, x: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        """`_intensities` at one state per token: nothing of size `[b, d, n]`."""
        power = numerics.pick(F.pad(self.exponents, (0, 1), value=1.0)[None], x).double()
        intensity = delayed(now.sigma_bar[:, None], power)[0]
        if now.start is not None:
            intensity = intensity - delayed(now.start[:, None], power)[0]
        return torch.where(x == self.mask_token, 0.0, intensity)

    def _masked(self, stayed: Float[Tensor, "*s n"], moved: Float[Tensor, "*s n"]) -> Float[Tensor, "*s n"]:
        """`stayed`, and all that has `moved` on top of what the mask has."""
        return torch.cat([stayed[..., :-1], stayed[..., -1:] + moved.sum(-1, keepdim=True)], dim=-1)

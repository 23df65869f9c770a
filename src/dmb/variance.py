"""Devices that cut the variance of the bound's estimate and leave its mean as it is."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb import numerics
from dmb.processes.base import ForwardProcess


def sample_split(
    process: ForwardProcess, x_0: Int[Tensor, "b d"], t: Float[Tensor, " b"], generator: torch.Generator | None = None
) -> tuple[Int[Tensor, "b d"], Float[Tensor, " b"]]:
    r"""Noisy tokens and a weight; weight times integrand has the integrand's mean, and a variance that stays finite.

    With chance `P = Π_i p_{t|0}(x_0^i|x_0^i)` nothing moves. Drawn plainly, the other case has chance ~ t and integrand
    ~ 1/t, whose variance over `∫dt` diverges. Here it is drawn with chance `1/(1+P)` and weighs `(1-P)(1+P)`; that
    nothing moved has chance `P/(1+P)` and weighs `1+P`. Given that something moved, the first mover is drawn by inverse
    CDF over positions, its new state on condition that it is new, and the positions after it freely.
    """
    uniform = torch.rand(2, len(x_0), generator=generator, device=x_0.device, dtype=torch.float64)
    hazard = -process.log_prob(x_0, x_0, t).double()
    total = hazard.sum(-1)
    still, moves = torch.exp(-total), -torch.expm1(-total)
    level = -torch.log1p(-(1 - uniform[0]) * moves)
    first = torch.searchsorted(hazard.cumsum(-1), level[:, None]).clamp(max=x_0.shape[1] - 1)
    position = torch.arange(x_0.shape[1], device=x_0.device)
    free = process.sample(x_0, t, generator=generator)
    moved = process.sample_moved(x_0, t, generator=generator)
    x_t = torch.where(position < first, x_0, torch.where(position == first, moved, free))
    nothing = uniform[1] < still / (1 + still)
    weight = torch.where(nothing, 1 + still, moves * (1 + still))
    return torch.where(nothing[:, None], x_0, x_t), weight


class TimeDensity:
    """A density of times, constant on bins, that learns where an estimate needs them most.

    The variance of an importance-weighted estimate is least when the density is proportional to the integrand's root
    mean square; with stratified times, which take care of the mean, to its standard deviation. Bins are finer towards
    0. 0.3 of it stays uniform, which bounds the weights; what a batch teaches is used from the next batch on.

    Args:
        central: go by the standard deviation, not the root mean square.
        keep: how much of what it has learnt it keeps at every update; below 1 for a model that changes.
        device: where times live.
    """

    _BINS, _UNIFORM, _PRIOR_COUNT = 12, 0.3, 16.0

    def __init__(self, central: bool = False, keep: float = 1.0, device: torch.device | None = None):
        self._central, self._keep = central, keep
        self._edges = torch.linspace(0, 1, self._BINS + 1, device=device, dtype=torch.float64) ** 3
        # a row each: how many values a bin has seen, their sum, the sum of their squares
        self.seen = torch.zeros(3, self._BINS, device=device, dtype=torch.float64)

    def at(self, u: Float[Tensor, " b"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Times by inverse CDF from `u ∈ (0, 1]`, and the weights `1 / density`."""
        widths = self._edges.diff()
        mass = self._UNIFORM * widths + (1 - self._UNIFORM) * self._learned(widths)
        cdf = mass.cumsum(0)
        cdf = cdf / cdf[-1]
        index = torch.searchsorted(cdf, u).clamp(max=self._BINS - 1)
        inside = (cdf[index] - u) / mass[index]
        t = self._edges[index + 1] - inside.clamp(0, 1) * widths[index]
        # t = 0 is never drawn: u > 0, and the lowest bin is left-open
        return t.clamp(min=torch.finfo(t.dtype).tiny), widths[index] / mass[index]

    def update(self, t: Float[Tensor, " b"], value: Float[Tensor, " b"]) -> None:
        """Learn from a batch, after it has been used."""
        self.add(self.sums(t, value))

    def sums(self, t: Float[Tensor, " b"], value: Float[Tensor, " b"]) -> Float[Tensor, "3 k"]:
        """What there is to learn from a batch."""
        t, value = t[value.isfinite()], value[value.isfinite()].double()
        index = torch.searchsorted(self._edges, t).clamp(1, self._BINS) - 1
        return torch.zeros_like(self.seen).index_add_(
            1, index, torch.stack([torch.ones_like(value), value, value.square()])
        )

    def add(self, sums: Float[Tensor, "3 k"]) -> None:
        """Learn from `sums`."""
        self.seen.mul_(self._keep).add_(sums)

    def _learned(self, widths: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        count, total, squares = self.seen
        if count.sum() == 0:
            return widths
        if self._central:
            squares = squares - total.square() / count.clamp(min=1)
        overall = squares.sum() / count.sum()
        spread = (squares + self._PRIOR_COUNT * overall) / (count + self._PRIOR_COUNT)
        mass = widths * spread.clamp(min=0).sqrt()
        return mass / mass.sum() if mass.sum() > 0 else widths  # too few values to tell one bin from another


class MoveControl:
    r"""Control variates: tokens that moved, less those that were expected to.

    Most of the noise of one evaluation is *how many* tokens happened to move and whether they were rare ones. Both
    have known means: if `m_i` says whether position `i` moved and `p_i` is the chance of it, `Σ_i (m_i - p_i) / t` has
    mean 0, and so has the same sum weighted by the token's surprisal `-log p_0(x_0^i)`. Coefficients are fitted by
    least squares on the batches before, so that what is subtracted has mean 0 exactly.
    """

    _FEATURES, _NUISANCE = 3, 2  # the mean and its slope in t are fitted along, but never subtracted

    def __init__(self, process: ForwardProcess):
        self._process = process
        size = self._FEATURES + self._NUISANCE
        self._gram = torch.zeros(size, size, dtype=torch.float64, device=process.device)
        self._moment = torch.zeros(size, dtype=torch.float64, device=process.device)

    def features(
        self, x_0: Int[Tensor, "b d"], x_t: Int[Tensor, "b d"], t: Float[Tensor, " b"]
    ) -> Float[Tensor, "b f"]:
        """Numbers of mean 0 given `x_0` and `t`."""
        chance = -torch.expm1(self._process.log_prob(x_0, x_0, t).double())
        excess = ((x_t != x_0).double() - chance) / t[:, None]
        surprisal = -numerics.pick(self._process.p_0[None], x_0).double().log().nan_to_num(posinf=0.0)
        count = excess.sum(-1)
        return torch.stack([count, count * t, (excess * surprisal).sum(-1)], dim=-1)

    def predict(self, features: Float[Tensor, "b f"]) -> Float[Tensor, " b"]:
        """What the features are worth, by the fit so far."""
        coefficients = torch.linalg.pinv(self._gram, hermitian=True) @ self._moment
        return features @ coefficients[: self._FEATURES]

    def update(
        self,
        features: Float[Tensor, "b f"],
        t: Float[Tensor, " b"],
        value: Float[Tensor, " b"],
        weight: Float[Tensor, " b"],
    ) -> None:
        """Learn from a batch, after it has been used. `weight` is what each value counts in the estimate."""
        if not value.isfinite().all():
            return
        design = weight[:, None] * torch.cat([features, torch.ones_like(t)[:, None], t[:, None]], dim=-1)
        self._gram += design.T @ design
        self._moment += design.T @ (weight * value)


class CostBaseline:
    r"""What a position is expected to cost, by what can be known of it alone: a baseline for the gradient in the rates.

    A linear fit to the integrand, on the batches before: if the token has moved, on `1/t` and 1 and the same times its
    surprisal `-log p_0(x_0)`; if it has not, on 1 and `t`. Older batches count for less and less.
    """

    _FEATURES, _KEEP = 6, 0.99

    def __init__(self, device: torch.device | None = None):
        self.gram = torch.zeros(self._FEATURES, self._FEATURES, dtype=torch.float64, device=device)
        self.moment = torch.zeros(self._FEATURES, dtype=torch.float64, device=device)

    def features(
        self, process: ForwardProcess, x_0: Int[Tensor, "b d"], x_t: Int[Tensor, "b d"], t: Float[Tensor, " b"]
    ) -> Float[Tensor, "b d f"]:
        """What the fit goes by, each times `t`, so that no time outweighs the others."""
        t = t.double()[:, None]
        moved = (x_t != x_0).double()
        surprisal = -numerics.pick(process.p_0[None], x_0).double().log().nan_to_num(posinf=0.0)
        columns = [moved, moved * t, moved * surprisal, moved * surprisal * t, (1 - moved) * t, (1 - moved) * t * t]
        return torch.stack(columns, dim=-1)

    def predict(self, features: Float[Tensor, "b d f"], t: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """The cost to expect, by the fit so far; 0 before there is one."""
        coefficients = torch.linalg.pinv(self.gram, hermitian=True) @ self.moment
        return features @ coefficients / t.double()[:, None]

    def sums(
        self, features: Float[Tensor, "b d f"], t: Float[Tensor, " b"], value: Float[Tensor, "b d"]
    ) -> Float[Tensor, "f g"]:
        """What `update` wants to know of a batch, as means over it: of several batches, take the mean again."""
        target = value.detach().double() * t.double()[:, None]
        target = torch.where(target.isfinite(), target, 0.0)
        design = torch.cat([features, target[..., None]], dim=-1).flatten(0, 1)
        return features.flatten(0, 1).T @ design / len(design)

    def update(self, sums: Float[Tensor, "f g"]) -> None:
        """Learn from a batch, after it has been used."""
        self.gram.mul_(self._KEEP).add_(sums[:, :-1])
        self.moment.mul_(self._KEEP).add_(sums[:, -1])

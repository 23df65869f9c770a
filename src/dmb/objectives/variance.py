"""Methods that reduce the variance of the bound and of its gradient, and do not change their mean."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime

Reduce = Callable[[Tensor], Tensor]
"""The mean of a tensor over all processes that train together."""


def sample_split(
    process: ForwardProcess,
    x_0: Int[Tensor, "b d"],
    now: SolvedTime,
    generator: torch.Generator | None = None,
    given: Bool[Tensor, "b d"] | None = None,
) -> tuple[Int[Tensor, "b d"], Float[Tensor, " b"]]:
    r"""Noisy tokens and a weight; weight times integrand has the integrand's mean, and a variance that stays finite.

    With chance `P = Π_i p_{t|0}(x_0^i|x_0^i)` nothing moves. Drawn plainly, the other case has chance ~ t and integrand
    ~ 1/t, whose variance over `∫dt` diverges. Here it is drawn with chance `1/(1+P)` and weighs `(1-P)(1+P)`; that
    nothing moved has chance `P/(1+P)` and weighs `1+P`. Given that something moved, the first mover is drawn by inverse
    CDF over positions, its new state on condition that it is new, and the positions after it freely. Positions that are
    `given` never move.
    """
    uniform = torch.rand(2, len(x_0), generator=generator, device=x_0.device, dtype=torch.float64)
    hazard = -process._log_prob(x_0, x_0, now).double()
    hazard = hazard if given is None else torch.where(given, 0.0, hazard)
    total = hazard.sum(-1)
    still, moves = torch.exp(-total), -torch.expm1(-total)
    level = -torch.log1p(-(1 - uniform[0]) * moves)
    reached = hazard.cumsum(-1)
    # rounding must not lead beyond the last position that can move
    first = torch.searchsorted(reached, torch.minimum(level[:, None], reached[:, -1:]))
    position = torch.arange(x_0.shape[1], device=x_0.device)
    free = process._sample(x_0, now, generator=generator)
    free = free if given is None else torch.where(given, x_0, free)
    moved = process._sample_moved(x_0, now, generator=generator)
    x_t = torch.where(position < first, x_0, torch.where(position == first, moved, free))
    nothing = uniform[1] < still / (1 + still)
    weight = torch.where(nothing, 1 + still, moves * (1 + still))
    return torch.where(nothing[:, None], x_0, x_t), weight


class TimeDensity:
    """A density of times, constant on bins, that adapts to where an estimate varies most.

    The variance of an importance-weighted estimate is smallest if the density is proportional to the integrand's root
    mean square; for stratified times, which remove the variance of the mean, to its standard deviation. Bins are finer
    towards 0. A share of 0.3 stays uniform, which bounds the weights. A batch affects the density of the next one.

    Args:
        central: use the standard deviation, not the root mean square.
        decay: factor on past observations at every update; below 1 for a model that changes.
        device: device of the times.
    """

    _BINS, _UNIFORM, _PRIOR_COUNT = 12, 0.3, 16.0

    def __init__(self, central: bool = False, decay: float = 1.0, device: torch.device | None = None):
        self._central, self._decay = central, decay
        self._edges = torch.linspace(0, 1, self._BINS + 1, device=device, dtype=torch.float64) ** 3
        # one row each: how many values a bin has seen, their sum, the sum of their squares
        self.seen = torch.zeros(3, self._BINS, device=device, dtype=torch.float64)
        self._noted = torch.zeros_like(self.seen)

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

    def observe(self, t: Float[Tensor, " b"], value: Float[Tensor, " b"]) -> None:
        """Store the costs of a batch for `learn`."""
        finite = value.isfinite()
        value = torch.where(finite, value.double(), 0.0)
        seen = torch.stack([finite.double(), value, value.square()])
        index = torch.searchsorted(self._edges, t).clamp(1, self._BINS) - 1
        self._noted.index_add_(1, index, seen)

    def learn(self, reduce: Reduce | None = None, processes: int = 1) -> None:
        """Learn from the batches since the last call, over all processes."""
        noted = self._noted if reduce is None else processes * reduce(self._noted)
        self.seen.mul_(self._decay).add_(noted)
        self._noted.zero_()

    def _learned(self, widths: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        count, total, squares = self.seen
        if self._central:
            squares = squares - total.square() / count.clamp(min=1)
        overall = squares.sum() / count.sum().clamp(min=1)
        spread = (squares + self._PRIOR_COUNT * overall) / (count + self._PRIOR_COUNT)
        mass = widths * spread.clamp(min=0).sqrt()
        # with too few values to tell one bin from another, all alike
        return torch.where(mass.sum() > 0, mass / mass.sum(), widths)


def least_squares(gram: Float[Tensor, "f f"], moment: Float[Tensor, " f"]) -> Float[Tensor, " f"]:
    """The smallest coefficients that fit best, from sums over rows of products of features, and with the target.

    Features that depend on each other (at a single `t`, all but one of its powers) make `gram` singular up to the
    rounding of those sums, which grows with their rows: torch's own tolerance of 5 roundings would take it for signal.
    """
    return torch.linalg.pinv(gram, rtol=1e-12, hermitian=True) @ moment


class MoveControl:
    r"""Control variates: the number of tokens that moved, minus its expectation.

    Most of the noise of one evaluation comes from *how many* tokens moved, and from how rare they were. Both have known
    means: if `m_i` is 1 if position `i` moved and `p_i` the probability of it, `Σ_i (m_i - p_i) / t` has mean 0, and so
    has the same sum weighted by the token's surprisal `-log p_0(x_0^i)`. Coefficients are fitted by least squares on
    previous batches, so that the subtracted term has mean 0 exactly.
    """

    _FEATURES, _NUISANCE = 3, 2  # the mean and its slope in t are fitted along, but never subtracted

    def __init__(self, process: ForwardProcess):
        self._process = process
        size = self._FEATURES + self._NUISANCE
        self._gram = torch.zeros(size, size, dtype=torch.float64, device=process.device)
        self._moment = torch.zeros(size, dtype=torch.float64, device=process.device)

    def features(
        self,
        x_0: Int[Tensor, "b d"],
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b f"]:
        """Numbers of mean 0 given `x_0` and `t`; positions that are `given` do not move."""
        chance = -torch.expm1(self._process._log_prob(x_0, x_0, now).double())
        chance = chance if given is None else torch.where(given, 0.0, chance)
        excess = ((x_t != x_0).double() - chance) / now.t[:, None]
        count = excess.sum(-1)
        return torch.stack([count, count * now.t, (excess * surprisal(self._process, x_0)).sum(-1)], dim=-1)

    def predict(self, features: Float[Tensor, "b f"]) -> Float[Tensor, " b"]:
        """What the features are worth, by the fit so far."""
        coefficients = least_squares(self._gram, self._moment)
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
    r"""The expected cost of a position, given its own token only: a baseline for the gradient in the rates.

    A linear fit to the integrand, on previous batches. If the token has moved, the features are `1/t`, 1, and both
    times its surprisal `-log p_0(x_0)`; if it has not, 1 and `t`. Older batches have less weight.
    """

    _FEATURES, _KEEP = 6, 0.99

    def __init__(self, device: torch.device | None = None):
        self.gram = torch.zeros(self._FEATURES, self._FEATURES, dtype=torch.float64, device=device)
        self.moment = torch.zeros(self._FEATURES, dtype=torch.float64, device=device)
        self._noted: list[Tensor] = []

    def expected(
        self,
        process: ForwardProcess,
        x_0: Int[Tensor, "b d"],
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        value: Float[Tensor, "b d"],
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """The expected cost at each position, by the fit so far (initially 0); `value` is stored for `learn`."""
        t = t.double()[:, None]
        moved = (x_t != x_0).double()
        rare = moved * surprisal(process, x_0)
        # each feature times `t`, so that no time outweighs the others
        features = torch.stack([moved, moved * t, rare, rare * t, (1 - moved) * t, (1 - moved) * t * t], dim=-1)
        if given is not None:  # given positions cost nothing, and are left out of the fit
            features = torch.where(given[..., None], 0.0, features)
        target = value.detach().double() * t
        target = torch.where(target.isfinite(), target, 0.0)
        design = torch.cat([features, target[..., None]], dim=-1).flatten(0, 1)
        self._noted.append(features.flatten(0, 1).T @ design / len(design))
        return (features @ least_squares(self.gram, self.moment) / t).to(value.dtype)

    def learn(self, reduce: Reduce | None = None) -> None:
        """Learn from the batches since the last call, if there were any, over all processes."""
        if not self._noted:
            return
        mean = torch.stack(self._noted).mean(0)
        mean = mean if reduce is None else reduce(mean)
        self.gram.mul_(self._KEEP).add_(mean[:, :-1])
        self.moment.mul_(self._KEEP).add_(mean[:, -1])
        self._noted.clear()


def surprisal(process: ForwardProcess, x_0: Int[Tensor, "b d"]) -> Float[Tensor, "b d"]:
    """`-log p_0(x_0)` at each position, by the marginals of the process; 0 where `p_0(x_0) = 0`."""
    return -numerics.pick(process.p_0[None], x_0).double().log().nan_to_num(neginf=0.0)

"""The bound: the training loss, and an estimate with error bars for evaluation."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb import checks, numerics
from dmb.reverse import ReverseModel

ESTIMATORS = ("reduced", "plain")


def score_loss(
    model: ReverseModel,
    x_0: Int[Tensor, "b d"],
    *,
    label: Int[Tensor, " b"] | None = None,
    given: Bool[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " b"]:
    """An unbiased estimate of `J_score` for each sequence, in nats: one stratified time and one noisy copy a row.

    Args:
        model: the model to train.
        x_0: data.
        label: classes, for a network that takes them.
        given: positions that stay clean, are marked as such to the network, and cost nothing: training for infilling.
        generator: source of all randomness but dropout's.
    """
    t = numerics.stratified_times(len(x_0), generator=generator, device=x_0.device)
    x_t = model.process.sample(x_0, t, generator=generator)
    if given is not None:
        x_t = torch.where(given, x_0, x_t)
    with model.process.fixed():  # Score-learning moves the network, not the rates
        return model.integrand(x_t, x_0, t, label, given).sum(-1)


@dataclass(frozen=True)
class Bound:
    """An upper bound on `-log p(x)`, by part, one value a sequence, in nats.

    Each `score` is unbiased but noisy: one or a few draws of a time and a noisy copy. Means over sequences are what to
    look at, with their standard error.
    """

    score: Float[Tensor, " b"]
    """`J_score` of each sequence."""
    prior: Float[Tensor, " b"]
    """`KL(p_{1|0}(·|x_0) || p_T)` of each sequence, exact."""
    num_positions: int
    variance: float
    """Estimated variance of `score + prior` from one sequence to the next, given its time stratum, in nats²."""

    @property
    def nats(self) -> float:
        """Nats a sequence."""
        return (self.score.mean(dtype=torch.float64) + self.prior.mean(dtype=torch.float64)).item()

    @property
    def bits_per_token(self) -> float:
        return self._bits(self.nats)

    @property
    def stderr(self) -> float:
        """Standard error of `bits_per_token` over sequences."""
        return self._bits(math.sqrt(self.variance / len(self.score)))

    @property
    def score_bits(self) -> float:
        return self._bits(self.score.mean(dtype=torch.float64).item())

    @property
    def prior_bits(self) -> float:
        return self._bits(self.prior.mean(dtype=torch.float64).item())

    def _bits(self, nats: float) -> float:
        return nats / self.num_positions / math.log(2)

    def __str__(self) -> str:
        return (
            f"{self.bits_per_token:.4f} ± {self.stderr:.4f} bits a token "
            f"(score {self.score_bits:.4f} + prior {self.prior_bits:.4f})"
        )


@torch.no_grad()
def bound(
    model: ReverseModel,
    x_0: Int[Tensor, "N d"],
    *,
    label: Int[Tensor, " N"] | None = None,
    samples: int = 1,
    batch_size: int = 128,
    estimator: str = "reduced",
    generator: torch.Generator | None = None,
) -> Bound:
    """The bound on every row of `x_0`, unbiased over all of `[0, 1]`: no cut-off, no ε.

    The `reduced` estimator (the default) is stratified over the batch, draws times where the integrand is large (from a
    density learned on the batches before, so that it stays unbiased), and near `t = 0` splits on whether anything has
    moved at all. `plain` draws uniform, independent times and is there to compare with.

    Args:
        model: put it in evaluation mode first, unless dropout is meant.
        x_0: data.
        label: classes, for a network that takes them.
        samples: network calls a sequence. For one figure over many sequences 1 is best; more sharpen each one's own.
        batch_size: sequences a network call.
        estimator: `reduced` or `plain`.
        generator: source of all randomness.
    """
    checks.choice("estimator", estimator, ESTIMATORS)
    if samples < 1 or len(x_0) == 0:
        raise ValueError(f"bound needs ≥ 1 sequence and ≥ 1 sample, got {len(x_0)} and {samples}")
    process = model.process
    prior = process.prior_kl(x_0, process.p_T).sum(-1).double()
    score = torch.zeros_like(prior)
    density = TimeDensity(device=x_0.device)
    squares, differences = 0.0, 0
    batches = torch.randperm(len(x_0), generator=generator, device=x_0.device).split(batch_size)
    strata = [numerics.stratified_times(len(rows), generator=generator, device=x_0.device) for rows in batches]
    for sample in range(samples):
        for rows, u in zip(batches, strata, strict=True):
            x, y = x_0[rows], None if label is None else label[rows]
            if estimator == "plain":
                t = 1 - torch.rand(len(rows), generator=generator, device=x_0.device, dtype=torch.float64)
                x_t, weight = process.sample(x, t, generator=generator), torch.ones_like(t)
                rank = torch.arange(len(rows), device=x_0.device)
            else:
                # evenly spaced over a sequence's samples, as they are over a batch's sequences
                shifted = (u + sample / samples - 1).remainder(1.0)
                t, weight = density.at(1 - shifted)
                x_t, branch = sample_split(model, x, t, generator=generator)
                weight = weight * branch
                rank = (1 - shifted).argsort()
            value = model.integrand(x_t, x, t, y).sum(-1).double()
            if estimator == "reduced":
                density.update(t, value * branch)
            score[rows] += weight * value / samples
            # neighbouring strata differ little in their means, so successive differences show the rest of the variance
            ordered = (weight * value + prior[rows])[rank]
            squares += ordered.diff().square().sum().item() / 2
            differences += len(rows) - 1
    if samples == 1:
        variance = squares / differences if differences else math.nan
    else:  # a sequence's samples share its data: only the spread over sequences counts
        variance = (score + prior).var().item() if len(x_0) > 1 else math.nan
    return Bound(score, prior, process.num_positions, variance)


def sample_split(
    model: ReverseModel, x_0: Int[Tensor, "b d"], t: Float[Tensor, " b"], *, generator: torch.Generator | None = None
) -> tuple[Int[Tensor, "b d"], Float[Tensor, " b"]]:
    r"""Noisy tokens and a weight; weight times integrand has the integrand's mean, and a variance that stays finite.

    With chance `P = Π_i p_{t|0}(x_0^i|x_0^i)` nothing moves. Drawn plainly, the other case has chance ~ t and integrand
    ~ 1/t, whose variance over `∫dt` diverges. Here it is drawn with chance `1/(1+P)` and weighs `(1-P)(1+P)`; nothing
    moved has chance `P/(1+P)` and weighs `1+P`. Given that something moved, the first mover is drawn by inverse CDF over
    positions, its new state on condition that it is new, and the positions after it freely.
    """
    process = model.process
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
    """A density of times, constant on bins, that learns to be proportional to the integrand's root mean square.

    That choice minimises the variance of an importance-weighted estimate. Bins are finer towards 0. A tenth stays
    uniform, which bounds the weights by 10; what a batch teaches is used from the next batch on.
    """

    _BINS, _UNIFORM, _PRIOR_COUNT = 48, 0.1, 4.0

    def __init__(self, device: torch.device | None = None):
        self._edges = torch.linspace(0, 1, self._BINS + 1, device=device, dtype=torch.float64) ** 3
        self._squares = torch.zeros(self._BINS, device=device, dtype=torch.float64)
        self._counts = torch.zeros(self._BINS, device=device, dtype=torch.float64)

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
        index = torch.searchsorted(self._edges, t).clamp(1, self._BINS) - 1
        self._squares.index_add_(0, index, value.double().square())
        self._counts.index_add_(0, index, torch.ones_like(t))

    def _learned(self, widths: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        if self._counts.sum() == 0:
            return widths
        overall = self._squares.sum() / self._counts.sum()
        mean_square = (self._squares + self._PRIOR_COUNT * overall) / (self._counts + self._PRIOR_COUNT)
        mass = widths * mean_square.sqrt()
        return mass / mass.sum()

"""The bound on a model's bits per token for unseen data: of the model, and of its samplers with few network calls."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import checks
from dmb._core.seeding import seeded
from dmb.app.evaluation.drawing import AT_ONCE
from dmb.bridges import Bridge, OrderedBridge
from dmb.data.base import DataSet
from dmb.data.reading import Progress, ignore_progress
from dmb.data.splits import Split
from dmb.objectives.bound import Bound
from dmb.orders import Random

ORDERS, SMOOTH = 4, 6  # per sequence, to estimate what a token costs when so many are known; degree of that function
TIMED = 8  # samples that are drawn together to measure the time of one, as many as `dmb sample` draws by default


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """An upper bound on a model's bits per token, over one split of the data.

    Args:
        split: the split.
        bits: the bound, the sum of `score_bits` and `prior_bits`.
        stderr: standard error of `bits` over sequences.
        unigram_bits: bits per token of the training data's marginals alone: the baseline.
        sequences, of_sequences: number of sequences that were evaluated, and in the split.
        tokens: number of tokens that were evaluated.
        samples: draws of time and noise per sequence.
        seed: of these draws.
        token: what the data call a token.
        step: the step of the run's model, where a run has stored the result.
    """

    split: str
    bits: float
    stderr: float
    score_bits: float
    prior_bits: float
    unigram_bits: float
    sequences: int
    of_sequences: int
    tokens: int
    samples: int
    seed: int
    token: str = "token"
    step: int | None = None

    def in_words(self) -> str:
        """The bound with its standard error."""
        return f"{self.bits:.4f} ± {self.stderr:.4f} bits per {self.token} on {self.split}"

    def __str__(self) -> str:
        return (
            f"{self.in_words()} (score {self.score_bits:.4f} + prior {self.prior_bits:.4f}); "
            f"marginals alone {self.unigram_bits:.4f}"
        )


@dataclass(frozen=True, kw_only=True)
class SamplerBound:
    """An upper bound on the bits per token of what a sampler draws with a number of network calls.

    Args:
        split: the split of the data.
        sampler: the name of the sampler.
        calls: network calls per sample.
        grid: how much each call does: see `dmb.sampling.time_grid`, and `best_shares`.
        bits: the bound; inf if a step can never lead to the data, nan if the model needs more calls.
        stderr: standard error of `bits` over sequences.
        impossible: share of the steps that can never lead to the data.
        seconds: per sample.
        sequences, of_sequences, samples, seed, token, step: see `Likelihood`.
    """

    kind: ClassVar[str] = "calls"

    split: str
    sampler: str
    calls: int
    bits: float
    stderr: float
    impossible: float
    seconds: float
    sequences: int
    of_sequences: int
    samples: int
    seed: int
    token: str = "token"
    step: int | None = None
    grid: str = "canonical"

    @property
    def how(self) -> str:
        """The sampler, and its grid if that is not the usual one."""
        return self.sampler if self.grid == "canonical" else f"{self.sampler}, {self.grid} grid"

    def __str__(self) -> str:
        where = f"{self.calls:,} call{'s' * (self.calls > 1)} ({self.how})"
        if math.isnan(self.bits):
            return f"{where}: fewer than the model needs, which writes one {self.token} per call"
        bound = f"{self.bits:.4f} ± {self.stderr:.4f} bits per {self.token} on {self.split}"
        if self.impossible:
            bound = f"inf bits per {self.token} ({100 * self.impossible:.2g}% of the steps cannot lead to the data)"
        return f"{where}: {bound}, {self.seconds:.2g} s per sample"


def at_calls(bounds: Sequence[SamplerBound], calls: int) -> str:
    """The bounds of a sampler at about so many calls, and at most, in a few words.

    >>> common = {"split": "test", "sampler": "ancestral", "stderr": 0.01, "impossible": 0.0, "seconds": 0.1}
    >>> common |= {"sequences": 100, "of_sequences": 100, "samples": 1, "seed": 0, "token": "letter"}
    >>> found = [SamplerBound(calls=16, bits=2.361, **common), SamplerBound(calls=64, bits=2.17, **common)]
    >>> at_calls(found, 20)
    'at 16 calls: 2.36 bits per letter, 2.17 at 64'
    """
    first, most = min(bounds, key=lambda each: abs(math.log(each.calls / calls))), max(bounds, key=attrgetter("calls"))
    words = f"at {first.calls:,} call{'s' * (first.calls > 1)}: {first.bits:.2f} bits per {first.token}"
    return words if most is first else f"{words}, {most.bits:.2f} at {most.calls:,}"


def order_used(bridge: Bridge, calls: int) -> list[str]:
    """What is to be said if samples of so many calls follow the order of another number."""
    budget = bridge.budget_for(calls)
    return [] if budget in (None, calls) else [f"{calls} calls: the order for {budget} calls is used"]


def likelihood(
    bridge: Bridge,
    data: DataSet,
    split: str = "test",
    *,
    marginals: Float[Tensor, "d n"] | None = None,
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Likelihood:
    """The bound on a split: all of it, or `sequences` spread evenly over it.

    Args:
        bridge: the model.
        data: the data set with the split.
        split: `train`, `validation` or `test`.
        marginals: those of the training data, for the baseline. Default: those of `data.train`.
        sequences: number of sequences. Default: all.
        samples: network calls per sequence.
        batch_size: sequences per network call.
        seed: seed of times and noise.
        progress: called with the number of network rows done, and their total.
    """
    part, chosen = _chosen(data, split, sequences)
    bound = _bound(bridge, part, chosen, samples, batch_size, seed, progress)
    return Likelihood(
        split=split,
        bits=bound.bits_per_token,
        stderr=bound.stderr,
        score_bits=bound.score_bits,
        prior_bits=bound.prior_bits,
        unigram_bits=data.unigram_bits(part, marginals, bridge.lengths),
        sequences=len(chosen),
        of_sequences=len(part),
        tokens=round(len(chosen) * bound.mean_tokens),
        samples=samples,
        seed=seed,
        token=data.codec.token,
    )


def sampler_bound(
    bridge: Bridge,
    data: DataSet,
    split: str = "test",
    *,
    calls: int,
    sampler: str | None = None,
    grid: str | Float[Tensor, " k"] = "canonical",
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> SamplerBound:
    """The bound of what a sampler draws with so many network calls, and how long it takes; otherwise as `likelihood`.

    Args:
        calls: network calls per sample. A model that needs more has no bound: its bits are nan.
        sampler: default: the first that has a number of calls.
        grid: see `Bridge.sample`; numbers are those of `best_shares`.
    """
    (part, chosen), sampler = _chosen(data, split, sequences), bridge.step_sampler(sampler)
    bits = stderr = seconds = math.nan
    impossible = 0.0
    if calls >= bridge.least_calls:
        asked: dict[str, Any] = {"calls": calls, "sampler": sampler, "grid": grid}
        bound = _bound(bridge, part, chosen, samples, batch_size, seed, progress, **asked)
        bits, stderr, impossible = bound.bits_per_token, bound.stderr, bound.impossible
        seconds = _seconds_per_sample(bridge, seed, **asked)
    return SamplerBound(
        split=split,
        sampler=sampler,
        calls=calls,
        bits=bits,
        stderr=stderr,
        impossible=impossible,
        seconds=seconds,
        sequences=len(chosen),
        of_sequences=len(part),
        samples=samples,
        seed=seed,
        token=data.codec.token,
        grid=grid if isinstance(grid, str) else "best",
    )


@torch.no_grad()
def token_costs(bridge: Bridge, examples: Int[Tensor, "N d"]) -> Float[Tensor, " d"]:
    """What a token costs when so many are known, in the mean over random orders: for `dmb.orders.best_shares`.

    Orders are always the same, so that the same examples give the same costs.
    """
    if not isinstance(bridge, OrderedBridge) or type(bridge.order) is not Random or bridge.lengths is not None:
        raise ValueError("the best grid is known for models that write sequences of one length in random order only")
    costs, generator = list[Tensor](), seeded(0, "costs", device=bridge.device)
    for x in examples.to(bridge.device).repeat(ORDERS, 1).split(AT_ONCE):
        turn = bridge.turns(len(x), generator=generator)
        with bridge._evaluating():
            costs.append(bridge.token_nats(x, turn).gather(1, turn.argsort(-1)))
    place, means = np.arange(bridge.num_positions), torch.cat(costs).double().mean(0).cpu().numpy()
    # smooth: otherwise the best shares would be those whose costs happen to be underestimated
    fit = np.polynomial.Chebyshev.fit(place, means, min(SMOOTH, len(place) - 1))
    return torch.from_numpy(fit(place))


def _chosen(data: DataSet, split: str, sequences: int | None) -> tuple[Split, Tensor]:
    """A split, and the sequences of it that are evaluated."""
    part = data.splits()[checks.choice("split", split, tuple(data.splits()))]
    if sequences is not None and sequences < 1:
        raise ValueError(f"sequences must be at least 1, got {sequences}")
    return part, part.spread(sequences or len(part))


def _bound(
    bridge: Bridge, part: Split, chosen: Tensor, samples: int, batch_size: int, seed: int, progress: Progress,
    **asked: Any,
) -> Bound:  # fmt: skip
    label = part.labels(chosen) if bridge.num_classes else None
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, len(chosen) * samples)

    return bridge.bound(
        part[chosen].to(bridge.device),
        label=None if label is None else label.to(bridge.device),
        samples=samples,
        batch_size=batch_size,
        generator=seeded(seed, "evaluation", device=bridge.device),
        progress=advance,
        **asked,
    )


def _seconds_per_sample(bridge: Bridge, seed: int, **asked: Any) -> float:
    """Of `TIMED` samples that are drawn together."""
    took = 0.0
    for states in (2, None):  # the first steps only warm up
        began = time.perf_counter()
        generator = seeded(seed, "speed", device=bridge.device)
        *_, last = islice(bridge.trajectory(TIMED, generator=generator, **asked), states)
        last.x.cpu()  # waits for a GPU
        took = time.perf_counter() - began
    return took / TIMED

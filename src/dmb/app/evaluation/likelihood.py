"""The bound on a model's bits per token for unseen data."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from dmb._core import checks
from dmb._core.seeding import seeded
from dmb.bridges import Bridge
from dmb.data.base import DataSet
from dmb.data.reading import Progress, ignore_progress


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
    part = data.splits()[checks.choice("split", split, tuple(data.splits()))]
    if sequences is not None and sequences < 1:
        raise ValueError(f"sequences must be at least 1, got {sequences}")
    chosen = part.spread(sequences or len(part))
    label = part.labels(chosen) if bridge.num_classes else None
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, len(chosen) * samples)

    bound = bridge.bound(
        part[chosen].to(bridge.device),
        label=None if label is None else label.to(bridge.device),
        samples=samples,
        batch_size=batch_size,
        generator=seeded(seed, "evaluation", device=bridge.device),
        progress=advance,
    )
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

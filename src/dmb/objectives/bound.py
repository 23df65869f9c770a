"""An upper bound on `-log p(x)`: its two parts, its bits, and its standard error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Bound:
    """An upper bound on `-log p(x)` and its two parts, one value per sequence, in nats.

    Each `score` is unbiased but noisy, from one or a few draws of a time and a noisy copy. Use means over sequences,
    with their standard error.
    """

    score: Float[Tensor, " b"]
    """`J_score` of each sequence."""
    prior: Float[Tensor, " b"]
    """`KL(p_{1|0}(·|x_0) || p_T)` of each sequence, exact; with `-log p(length)` if lengths differ."""
    num_positions: int
    variance: float
    """Estimated variance of `score + prior` from one sequence to the next, given its time stratum, in nats². If numbers
    of tokens differ, of what is left when each token of the sequence has paid the mean of all."""
    tokens: Int[Tensor, " b"] | None = None
    """The number of tokens that each sequence pays for, if not all `num_positions`: some are given, or padding."""
    impossible: float = 0.0
    """The share of drawn steps of a sampler that can never lead to the data: if it is not 0, the bound is infinite."""

    @property
    def mean_tokens(self) -> float:
        """Tokens that a sequence pays for."""
        return float(self.num_positions) if self.tokens is None else self.tokens.double().mean().item()

    @property
    def nats(self) -> float:
        """Nats per sequence."""
        return (self.score.mean(dtype=torch.float64) + self.prior.mean(dtype=torch.float64)).item()

    @property
    def bits_per_token(self) -> float:
        """All bits over all tokens."""
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
        return nats / self.mean_tokens / math.log(2)

    def __str__(self) -> str:
        if self.impossible:
            return f"inf bits per token ({100 * self.impossible:.2g}% of the sampler's steps cannot lead to the data)"
        return (
            f"{self.bits_per_token:.4f} ± {self.stderr:.4f} bits per token "
            f"(score {self.score_bits:.4f} + prior {self.prior_bits:.4f})"
        )


def expected_nats(nats: Float[Tensor, " b"], tokens: Int[Tensor, " b"] | None) -> Float[Tensor, " b"]:
    """What each sequence would cost if every token cost the same: the error of a ratio is that of what is left."""
    return torch.zeros_like(nats) if tokens is None else nats.sum() / tokens.sum() * tokens


def bound_of_rows(
    score: Float[Tensor, " b"],
    prior: Float[Tensor, " b"],
    num_positions: int,
    tokens: Int[Tensor, " b"] | None,
    impossible: float = 0.0,
) -> Bound:
    """The bound whose variance is that over sequences; a ValueError if it is nan."""
    if score.isnan().any():
        raise ValueError("the network's output is nan, so the bound is nan: check the network")
    left = score + prior - expected_nats(score + prior, tokens)
    variance = left.var().item() if len(score) > 1 else math.nan
    return Bound(score, prior, num_positions, variance, tokens, impossible)


def given_like(x_0: Int[Tensor, "N d"], given: Bool[Tensor, "N d"]) -> Bool[Tensor, "N d"]:
    """The given positions on the device of the data; a ValueError if they are of another shape."""
    if given.shape != x_0.shape:
        raise ValueError(f"given must have the shape of x_0, {list(x_0.shape)}, got {list(given.shape)}")
    return given.to(x_0.device)


def check_given(
    given: Bool[Tensor, "N d"] | None, x_0: Int[Tensor, "N d"]
) -> tuple[Bool[Tensor, "N d"] | None, Int[Tensor, " N"] | None]:
    """The given positions, checked, and how many others each row has."""
    if given is None:
        return None, None
    given = given_like(x_0, given)
    tokens = (~given).sum(-1)
    if not tokens.all():
        raise ValueError(f"given must leave at least one unknown position per row; row {int(tokens.argmin())} has none")
    return given, tokens


def check_counts(sequences: int, samples: int, batch_size: int) -> None:
    """A ValueError if there is nothing to estimate a bound from."""
    for name, value in {"sequences": sequences, "samples": samples, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"bound needs {name} to be at least 1, got {value}")

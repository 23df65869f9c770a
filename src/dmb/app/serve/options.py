"""What a visitor may ask of the model, and how much of it."""

import math
from dataclasses import dataclass
from typing import Any

from dmb._core import checks
from dmb.sampling import SAMPLERS

# network calls per sample; samples at a time; rows of a table at a time
MOST_CALLS, MOST_SAMPLES, MOST_ROWS = 512, 64, 10_000
LONGEST = 600.0  # seconds that a call may take, as estimated before it begins
LARGEST_SEED = 2**53  # above it the whole numbers of a browser have gaps


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to draw samples. Everything comes from a visitor and is checked here, types included.

    Args:
        n: number of samples.
        calls: network calls per sample; `first_hitting` has no number of them.
        sampler: name of the sampling algorithm.
        temperature: values below 1 favour likely tokens.
        seed: of all random numbers.
        label: class to sample; None: any.
        guidance: how strongly to follow the class; 1: as trained.
        most: the largest number of samples.
    """

    n: int = 8
    calls: int = 64
    sampler: str = "ancestral"
    temperature: int | float = 1.0
    seed: int = 0
    label: int | None = None
    guidance: int | float = 1.0
    most: int = MOST_SAMPLES

    def __post_init__(self) -> None:
        whole("number of samples", self.n, 1, self.most)
        whole("calls", self.calls, 1, MOST_CALLS)
        whole("seed", self.seed, 0, LARGEST_SEED)
        checks.choice("sampler", words("sampler", self.sampler, 40), (*SAMPLERS, "speculative"))
        number("temperature", self.temperature, 0.05, 5.0)
        number("guidance", self.guidance, 0.0, 20.0)
        if self.label is not None:
            whole("class", self.label, 0, LARGEST_SEED)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number that a visitor sent; a browser may send 8.0 for 8."""
    number(name, value, low, high)
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(value)


def number(name: str, value: Any, low: int | float, high: int | float) -> float:
    """A number that a visitor sent."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {value!r:.40}")
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low:,} and {high:,}, got {value:,}")
    return float(value)


def words(name: str, value: Any, longest: int) -> str:
    """A text that a visitor sent, of at most `longest` characters."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r:.40}")
    if len(value) > longest:
        raise ValueError(f"{name} must have at most {longest:,} characters, got {len(value):,}")
    return value

"""Everything that can be chosen about training a VQ-VAE."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AutoencoderSettings:
    """How long to train, how fast, and on what loss.

    >>> AutoencoderSettings(steps=500).batch_size
    32
    """

    steps: int = 8000
    """How many batches to learn from."""
    batch_size: int = 32
    """Images per step, over all processes."""
    learning_rate: float = 2e-3
    """After warm-up; it falls to 0 along a quarter of a cosine by the last step."""
    warmup: int = 50
    """Steps over which the learning rate rises from 0."""
    detail: float = 0.1
    """Weight of the edges in the loss."""
    commitment: float = 0.25
    """Weight of the distance between the encoder's vectors and their codes."""
    seed: int = 0
    """Of data order and of the codes that come to life."""
    minutes: float | None = None
    """Stop after so much time, whatever the steps say."""
    log_every: int = 100
    """Steps between reports."""
    evaluate_every: int = 1000
    """Steps between evaluations on validation data; each is followed by a checkpoint."""
    evaluate_images: int = 1000
    """Most validation images an evaluation looks at; always the same ones."""
    keep: int = 2
    """Checkpoints that are kept, besides the best on validation."""

    def __post_init__(self) -> None:
        whole = ("steps", "batch_size", "log_every", "evaluate_every", "evaluate_images", "keep")
        least = dict.fromkeys(whole, 1) | dict.fromkeys(("seed", "warmup", "detail", "commitment"), 0)
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least {bound}, got {getattr(self, name)}")
        for name in ("learning_rate", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be finite and positive, got {value}")

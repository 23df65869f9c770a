"""All settings of an image tokenizer."""

import math
from dataclasses import dataclass

import torch

from dmb.app.tokenizer.autoencoder import VQVAE
from dmb.data import DataSet, Picture
from dmb.networks.base import MOST_BLOCKS
from dmb.seeding import seed_of
from dmb.training.settings import MOST_RATE, MOST_ROWS


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """The sizes of a VQ-VAE, and how to train it."""

    grid: int = 8
    """Height and width of the grid of codes that an image becomes."""
    codes: int = 512
    """Number of codes in the codebook."""
    width: int = 64
    """Channels of the convolutions at the grid."""
    blocks: int = 2
    """Residual blocks in the encoder, and in the decoder."""
    code_width: int = 16
    """Dimension of a code's vector."""
    decay: float = 0.9
    """Decay per step of the moving averages that codes follow."""
    revive: float = 0.1
    """A code used less often than this share of the mean is moved to where images are."""

    steps: int = 8000
    """Number of training steps."""
    batch_size: int = 32
    """Images per step, over all processes."""
    learning_rate: float = 2e-3
    """Learning rate after warm-up; it falls to 0 along a quarter of a cosine by the last step."""
    warmup: int = 50
    """Steps over which the learning rate rises from 0."""
    detail: float = 0.1
    """Weight of edges in the loss."""
    commitment: float = 0.25
    """Weight of the distance between the encoder's vectors and their codes."""
    seed: int = 0
    """Seed of initial weights, the order of images, and the codes that are moved."""
    minutes: float | None = None
    """Stop after this many minutes, counted from the start or from resuming; default: no limit.
    The learning rate falls to 0 by then."""
    patience: int = 0
    """Stop after this many evaluations in a row without improvement; 0: never."""
    log_every: int = 100
    """Steps between reports."""
    evaluate_every: int = 1000
    """Steps between evaluations on validation images; each is followed by a checkpoint."""
    evaluate_images: int = 1000
    """Maximum number of validation images per evaluation; always the same ones."""
    keep: int = 2
    """Number of checkpoints to keep, besides that of the best evaluation."""

    def __post_init__(self) -> None:
        whole = ("steps", "batch_size", "log_every", "evaluate_every", "evaluate_images", "keep")
        least = dict.fromkeys(whole, 1) | dict.fromkeys(("seed", "warmup", "detail", "commitment", "patience"), 0)
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least {bound}, got {getattr(self, name)}")
        for name, most in {"batch_size": MOST_ROWS, "learning_rate": MOST_RATE, "blocks": MOST_BLOCKS}.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}, got {getattr(self, name)}")
        for name in ("learning_rate", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be finite and positive, got {value}")

    @property
    def total_steps(self) -> int:
        """The number of steps, under the name that the training loop uses.

        >>> TokenizerSettings(steps=500).total_steps
        500
        """
        return self.steps

    def sizes(self) -> dict[str, int | float]:
        """The settings that define the VQ-VAE, and cannot change during training."""
        names = ("grid", "codes", "width", "blocks", "code_width", "decay", "revive")
        return {name: getattr(self, name) for name in names}

    def build(self, data: DataSet) -> VQVAE:
        """A VQ-VAE for the images of `data`, with initial weights drawn from the seed."""
        height, width, channels = picture_of(data).shape
        if height != width:
            raise ValueError(f"images must be square for a VQ-VAE, got {height} × {width}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, "init"))
            return VQVAE(size=height, channels=channels, **self.sizes())  # type: ignore[arg-type]


def picture_of(data: DataSet) -> Picture:
    """The codec of images whose values are their tokens; a ValueError for other data."""
    if not isinstance(data.codec, Picture):
        raise ValueError(f"a VQ-VAE needs images: give cifar10, or a folder of images; got {data.name}")
    return data.codec

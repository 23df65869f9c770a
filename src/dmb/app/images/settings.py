"""All settings of an image tokenizer."""

from dataclasses import dataclass

import torch

from dmb._core.seeding import seed_of
from dmb.app.images.autoencoder import VQVAE, Architecture
from dmb.data import DataSet, Picture
from dmb.data.sources.images import size_hint
from dmb.training.settings import check_common


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Architecture):
    """The sizes of a VQ-VAE, and how to train it."""

    steps: int = 8000
    """Number of training steps."""
    batch_size: int = 32
    """Images per step, over all processes."""
    learning_rate: float = 2e-3
    """Learning rate after warm-up; it falls to 0 along a quarter of a cosine by the last step."""
    warmup: int = 50
    """Steps over which the learning rate rises from 0; if minutes are given, at most the first tenth of them."""
    detail: float = 0.1
    """Weight of edges in the loss."""
    commitment: float = 0.25
    """Weight of the distance between the encoder's vectors and their codes."""
    seed: int = 0
    """Seed of initial weights, the order of images, and the codes that are moved."""
    minutes: float | None = None
    """Stop after this many minutes, counted from the start or from resuming; None: no limit.
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
        check_common(self, ("steps", "evaluate_images"), ("detail", "commitment"))

    @property
    def total_steps(self) -> int:
        """The number of steps, under the name that the training loop uses."""
        return self.steps

    def build(self, data: DataSet) -> VQVAE:
        """A VQ-VAE for the images of `data`, with initial weights drawn from the seed."""
        height, width, channels = picture_of(data).shape
        if height != width:
            wanted = size_hint(min(height, width), self.grid)
            raise ValueError(f"images must be square for a VQ-VAE, got {width} × {height}: {wanted}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, "init"))
            return VQVAE(size=height, channels=channels, **self.sizes())


def picture_of(data: DataSet) -> Picture:
    """The codec of images whose values are their tokens; a ValueError for other data."""
    if not isinstance(data.codec, Picture):
        raise ValueError(f"a VQ-VAE needs images: give cifar10, or a folder of images; got {data.name}")
    return data.codec

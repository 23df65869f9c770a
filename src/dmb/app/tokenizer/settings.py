"""Everything that can be chosen about a tokenizer of images."""

import math
from dataclasses import dataclass

import torch

from dmb.app.tokenizer.autoencoder import VQVAE
from dmb.data import DataSet, Picture
from dmb.seeding import seed_of


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """The sizes of a VQ-VAE, how long to train it, how fast, and on what loss."""

    grid: int = 8
    """Height and width of the grid of codes that an image becomes."""
    codes: int = 512
    """How many codes there are to choose from."""
    width: int = 64
    """Channels of the convolutions at the grid."""
    blocks: int = 2
    """Residual blocks in the encoder, and in the decoder."""
    code_width: int = 16
    """Dimension of a code's vector."""
    decay: float = 0.9
    """Of the moving averages that codes follow, per step."""
    revive: float = 0.1
    """A code is moved to where images are when its use falls below this share of the mean."""

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
    """Of the first weights, the order of the images, and the codes that are moved."""
    minutes: float | None = None
    """Stop after so much time, counted anew when training is resumed; the learning rate has then fallen to 0.
    Default: as long as the steps take."""
    patience: int = 0
    """Stop after so many evaluations in a row without a better one. Default: 0, never."""
    log_every: int = 100
    """Steps between reports."""
    evaluate_every: int = 1000
    """Steps between evaluations on validation images; each is followed by a checkpoint."""
    evaluate_images: int = 1000
    """Most validation images that an evaluation looks at; always the same ones."""
    keep: int = 2
    """Checkpoints that are kept, besides the best on validation images."""

    def __post_init__(self) -> None:
        whole = ("steps", "batch_size", "log_every", "evaluate_every", "evaluate_images", "keep")
        least = dict.fromkeys(whole, 1) | dict.fromkeys(("seed", "warmup", "detail", "commitment", "patience"), 0)
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least {bound}, got {getattr(self, name)}")
        for name in ("learning_rate", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be finite and positive, got {value}")

    @property
    def total_steps(self) -> int:
        """As every training calls it."""
        return self.steps

    def sizes(self) -> dict[str, int | float]:
        """What the VQ-VAE is made of, and cannot change while it is trained."""
        names = ("grid", "codes", "width", "blocks", "code_width", "decay", "revive")
        return {name: getattr(self, name) for name in names}

    def build(self, data: DataSet) -> VQVAE:
        """A VQ-VAE for images of the size that `data` has, its first weights drawn from the seed."""
        height, width, channels = picture_of(data).shape
        if height != width:
            raise ValueError(f"images must be square for a VQ-VAE, got {height} × {width}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, "init"))
            return VQVAE(size=height, channels=channels, **self.sizes())  # type: ignore[arg-type]


def picture_of(data: DataSet) -> Picture:
    """The codec of images whose values are their tokens; a ValueError for other data."""
    if not isinstance(data.codec, Picture):
        raise ValueError(f"a VQ-VAE is trained on images: cifar10, or a folder of them; got {data.name}")
    return data.codec

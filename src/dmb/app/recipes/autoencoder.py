"""The recipe of a VQ-VAE: images, the sizes of its parts, and training settings."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch

from dmb.app.recipes.base import AnyRecipe
from dmb.app.tokenizer import VQVAE
from dmb.app.tokenizer.training import (
    AutoencoderReport,
    AutoencoderSettings,
    picture_of,
    refuse_unfit_autoencoder,
    train_autoencoder,
)
from dmb.data.base import DataSet
from dmb.seeding import seed_of
from dmb.training import Engine


@dataclass(frozen=True, kw_only=True)
class AutoencoderChoice:
    """The VQ-VAE; its size and channels are those of the images. See `VQVAE`."""

    grid: int = 8
    """Height and width of the grid of codes that an image becomes."""
    codes: int = 512
    """How many codes there are."""
    width: int = 64
    """Channels of the convolutions at the grid."""
    blocks: int = 2
    """Residual blocks on either side."""
    code_width: int = 16
    """Dimension of a code."""
    decay: float = 0.9
    """Of the averages that codes follow."""
    revive: float = 0.1
    """A code is moved when its use falls below this share of the mean."""

    def build(self, data: DataSet) -> VQVAE:
        """The VQ-VAE for `data`."""
        height, width, channels = picture_of(data).shape
        if height != width:
            raise ValueError(f"images must be square for a VQ-VAE, got {height} × {width}")
        return VQVAE(size=height, channels=channels, **asdict(self))


@dataclass(frozen=True, kw_only=True)
class VQRecipe(AnyRecipe):
    """A VQ-VAE's run: `build` makes the VQ-VAE, `training` says how to train it."""

    fixed: ClassVar[tuple[str, ...]] = ("data.", "autoencoder.")

    autoencoder: AutoencoderChoice
    training: AutoencoderSettings

    def build(self, data: DataSet) -> VQVAE:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.training.seed, "init"))
            return self.autoencoder.build(data)

    def check(self, model: VQVAE, data: DataSet, fabric: Engine) -> None:
        refuse_unfit_autoencoder(model, data, self.training, fabric)

    def train(
        self,
        model: VQVAE,
        data: DataSet,
        *,
        fabric: Engine,
        folder: Path,
        resume: bool,
        stop: Callable[[], bool],
    ) -> Iterator[AutoencoderReport]:
        return train_autoencoder(model, data, self.training, fabric=fabric, folder=folder, resume=resume, stop=stop)

    def describe(self, data: DataSet) -> str:
        height, width, _ = picture_of(data).shape
        choice, settings = self.autoencoder, self.training
        return (
            f"{data.name}, images of {height} × {width} pixels as {choice.grid} × {choice.grid} codes out of "
            f"{choice.codes}; {settings.steps} steps of {settings.batch_size} images"
        )

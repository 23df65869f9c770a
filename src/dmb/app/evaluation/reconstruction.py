"""How well images come back from a VQ-VAE's codes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dmb.app.tokenizer import VQVAE, perplexity, psnr
from dmb.data import DataSet, ImageCodec


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What a VQ-VAE makes of one split of the images."""

    split: str
    psnr: float
    """In decibels, over all values of all images."""
    perplexity: float
    """The number of codes in use."""
    codes: int
    """How many there are."""
    sequences: int
    """Images that were looked at."""
    of_sequences: int
    """How many there are in the split."""

    def __str__(self) -> str:
        return (
            f"PSNR {self.psnr:.2f} dB of {self.sequences:,} {self.split} images; "
            f"{self.perplexity:.1f} codes in use of {self.codes:,}"
        )


def reconstruction(
    vqvae: VQVAE,
    data: DataSet,
    split: str = "test",
    *,
    images: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Reconstruction:
    """Encode and decode images of a split: all of them, or so many spread evenly over it.

    Args:
        vqvae: the model.
        data: images, as pixels.
        split: `train`, `validation` or `test`.
        images: how many. Default: all.
        progress: called with the number of images done, and of all there are to do.
    """
    if not isinstance(data.codec, ImageCodec):
        raise ValueError(f"data must be images for a VQ-VAE, got {data.name}: {type(data.codec).__name__}")
    part = data.splits()[split]
    if images is not None and images < 1:
        raise ValueError(f"images must be at least 1, got {images}")
    rows = part.spread(images or len(part))
    tokens, before, after = [], [], []
    for shown in data.codec.shown(part, rows):
        before.append(torch.from_numpy(shown))
        tokens.append(vqvae.encode(before[-1]))
        after.append(vqvae.decode(tokens[-1]).cpu())
        if progress is not None:
            progress(sum(map(len, before)), len(rows))
    return Reconstruction(
        split=split,
        psnr=psnr(torch.cat(before), torch.cat(after)),
        perplexity=perplexity(torch.cat(tokens), vqvae.codes),
        codes=vqvae.codes,
        sequences=len(rows),
        of_sequences=len(part),
    )

"""How near images are to the originals, and how many codes are in use."""

import math

import torch
from jaxtyping import Int, UInt8
from torch import Tensor


def psnr(a: UInt8[Tensor, "b h w c"], b: UInt8[Tensor, "b h w c"]) -> float:
    """The peak signal-to-noise ratio in decibels, `10 log₁₀(255² / MSE)`, the mean being over all values of all images.

    It is infinite for equal images, and never more than the mean of the images' own ratios.

    >>> black = torch.zeros(1, 2, 2, 1, dtype=torch.uint8)
    >>> round(psnr(black, black + 51), 4)                # 51 = 255 / 5: 20 log₁₀ 5
    13.9794
    """
    if a.shape != b.shape or a.numel() == 0:
        raise ValueError(f"a and b must have the same shape, and not be empty, got {list(a.shape)} and {list(b.shape)}")
    # whole numbers of at most 17 bits: their sum is exact
    squares = int((a.long() - b.long()).square().sum())
    return 10 * math.log10(255**2 * a.numel() / squares) if squares else math.inf


def perplexity(tokens: Int[Tensor, "*s"], codes: int) -> float:
    """The number of codes in use, `exp(-Σ_k p_k log p_k)` with `p_k` the share of code k among all tokens.

    It lies in [1, codes], where `codes` is the size of the codebook.

    >>> round(perplexity(torch.tensor([[0, 0], [3, 3]]), codes=512), 6)
    2.0
    """
    if tokens.numel() == 0:
        raise ValueError(f"tokens must not be empty, got {list(tokens.shape)}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= codes:
        raise ValueError(f"tokens must lie in [0, {codes}), got {low if low < 0 else high}")
    shares = tokens.flatten().bincount(minlength=codes).double() / tokens.numel()
    return float(torch.special.entr(shares).sum().exp())

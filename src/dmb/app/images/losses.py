"""What a VQ-VAE is trained on (pixels, edges, an encoder that stays near its codes), and what it is judged by."""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

_VARIANCE = 1 / 16  # of a pixel in [0, 1], of natural images; 0.063 in CIFAR-10
_SCALES = 3


def reconstruction(error: Float[Tensor, "b c h w"]) -> Float[Tensor, ""]:
    """`16 MSE` of pixels in [0, 1]: 1 for a model that knows the mean colour only, 0.1 at 22 dB."""
    return error.square().mean() / _VARIANCE


def detail(error: Float[Tensor, "b c h w"]) -> Float[Tensor, ""]:
    """How far edges are off, `mean_s mean(|∂_x P_s e| + |∂_y P_s e|) / 2`, in standard deviations of a pixel.

    `e` is the error of pixels in [0, 1], `P_s` the average over squares of side 1, 2 and 4, as far as they fit, and `∂`
    the difference of neighbours. A mean of absolute values forgives a few large errors, where a mean of squares blurs
    every edge to avoid them. All is linear but for the absolute value, so the error is all that is needed.
    """
    parts = []
    for _ in range(_SCALES):
        if min(error.shape[-2:]) < 2:
            break
        parts.append((error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()) / 2)
        error = F.avg_pool2d(error, 2)
    return sum(parts, error.new_zeros(())) / (max(len(parts), 1) * _VARIANCE**0.5)


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
    if tokens.numel() == 0 or tokens.min() < 0 or tokens.max() >= codes:
        raise ValueError(f"tokens must lie in [0, {codes}) and not be empty, got {tokens.flatten().tolist()!r:.80}")
    shares = tokens.flatten().bincount(minlength=codes).double() / tokens.numel()
    return float(torch.special.entr(shares).sum().exp())

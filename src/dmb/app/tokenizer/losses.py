"""What a VQ-VAE is trained on: pixels, edges, and an encoder that stays near its codes."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

_VARIANCE = 1 / 16
"""Of a pixel in [0, 1], of natural images; 0.063 in CIFAR-10."""
_SCALES = 3


class Losses(NamedTuple):
    """The loss of a batch, by part; the parts are not weighted."""

    total: Float[Tensor, ""]
    """What is minimised."""
    reconstruction: Float[Tensor, ""]
    """See `reconstruction`."""
    detail: Float[Tensor, ""]
    """See `detail`."""
    commitment: Float[Tensor, ""]
    """The mean squared difference of the encoder's vectors from their codes, over all their numbers."""
    codes: Int[Tensor, "b d"]
    """The tokens of the batch, for its `perplexity`."""


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

"""A small discriminator, and what a decoder learns against it: texture, which an error of pixels averages away."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

Features = list[Float[Tensor, "b _ _ _"]]


class Discriminator(nn.Module):
    """Says of every patch of an image whether it is real: above 0, or below.

    Weights have a spectral norm of 1 (Miyato et al. 2018), so that gradients stay in bounds without other norms. There
    are 213,000 for 32 × 32 pixels in colour, of which they see 8 × 8 patches of 26 pixels a side.
    """

    def __init__(self, channels: int, size: int):
        super().__init__()
        halved, self.layers = min(2, size.bit_length() - 1), nn.ModuleList()
        for at, (inputs, outputs) in enumerate(pairwise((channels, 64, 96, 128, 1))):
            kernel, stride = (4, 2) if at < halved else (3, 1)
            self.layers.append(spectral_norm(nn.Conv2d(inputs, outputs, kernel, stride, padding=1)))

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> Features:
        """What every layer says; the last one judges."""
        found = [self.layers[0](pixels)]
        for layer in self.layers[1:]:
            found.append(layer(F.leaky_relu(found[-1], 0.2)))
        return found


def telling(real: Features, made: Features) -> Float[Tensor, ""]:
    """What the discriminator minimises: `mean max(0, 1 - D(real)) + mean max(0, 1 + D(made))`, the hinge loss."""
    return F.relu(1 - real[-1]).mean() + F.relu(1 + made[-1]).mean()


def passing(real: Features, made: Features) -> Float[Tensor, ""]:
    """What the decoder minimises: `-mean D(made)`, and the mean difference of each layer's features from real ones."""
    differences = [F.l1_loss(b, a.detach()) for a, b in zip(real[:-1], made[:-1], strict=True)]
    return sum(differences, -made[-1].mean())


def balance(image: Tensor, last: Tensor, main: Tensor, other: Tensor) -> Float[Tensor, ""]:
    """The factor by which a gradient is as long as another at the `last` weights (VQGAN, arXiv 2012.09841).

    `|∂main/∂last| / |∂other/∂last|`, of gradients in `image`, which these weights made; 0 if the other one is 0.
    """
    first, second = (torch.autograd.grad(image, last, each, retain_graph=True)[0].norm() for each in (main, other))
    return torch.where(second > 0, first / second, 0.0)

"""The convolutions: down to a grid of vectors, and up again to pixels.

ReLU without norms, strided and transposed convolutions, channels last in memory: on a CPU a training step takes about
0.8 of the time it takes with group norm and SiLU, and of that with upsampling before plain convolutions.
"""

from torch import Tensor, nn


def encoder(channels: int, width: int, blocks: int, halvings: int, code_width: int) -> nn.Sequential:
    """Pixels `[b, channels, size, size]` to vectors `[b, code_width, grid, grid]`; `size = grid · 2^halvings`."""
    widths = _widths(width, halvings)
    layers: list[nn.Module] = []
    for inputs, outputs in zip([channels, *widths], widths, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
    layers = [*layers[:-1], *(_Block(width) for _ in range(blocks)), nn.ReLU(), nn.Conv2d(width, code_width, 1)]
    return nn.Sequential(*layers)


def decoder(channels: int, width: int, blocks: int, halvings: int, code_width: int) -> nn.Sequential:
    """The way back."""
    widths = _widths(width, halvings)[::-1]
    layers: list[nn.Module] = [nn.Conv2d(code_width, width, 3, padding=1), *(_Block(width) for _ in range(blocks))]
    for inputs, outputs in zip(widths, [*widths[1:], channels], strict=True):
        layers += [nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)]
    return nn.Sequential(*layers)


def _widths(width: int, halvings: int) -> list[int]:
    """Twice as wide at every halving, up to `width`."""
    return [max(1, width >> left) for left in reversed(range(halvings))]


class _Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)

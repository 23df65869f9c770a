"""The VQ-VAE: images to a grid of codes and back, in one object that trains, encodes, decodes, saves and loads."""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from dmb._core import checks
from dmb._core.pretrained import Pretrained
from dmb.app.images import losses
from dmb.app.images.quantizer import Quantizer
from dmb.networks.base import check_num_blocks

_BATCH = 256  # images or grids that go through the convolutions at once
_CODEBOOK = "codebook"


class VQVAE(Pretrained):
    """An autoencoder whose middle is a grid of codes (van den Oord et al. 2017).

    Args:
        size: height and width of the images; `size / grid` is a power of 2. Widths are halved at every doubling of the
            resolution.
        channels: 3 for colour, 1 for grey.
        grid: height and width of the grid of codes that an image becomes.
        codes: number of codes in the codebook.
        width: channels of the convolutions at the grid.
        blocks: residual blocks in the encoder, and in the decoder.
        code_width: dimension of a code's vector.
        cosine: codes are directions, and the nearest is that of the highest cosine; otherwise they are points.
        decay: decay per step of the moving averages that codes follow.
        revive: a code used less often than this share of the mean is moved to where images are.

    >>> vqvae = VQVAE(size=8, channels=1, grid=4, codes=16, width=8)
    >>> images = torch.zeros(2, 8, 8, 1, dtype=torch.uint8)
    >>> vqvae.encode(images).shape
    torch.Size([2, 16])
    >>> vqvae.decode(vqvae.encode(images)).shape
    torch.Size([2, 8, 8, 1])
    """

    kind = "VQ-VAE"

    def __init__(
        self,
        *,
        size: int = 32,
        channels: int = 3,
        grid: int = 8,
        codes: int = 512,
        width: int = 64,
        blocks: int = 2,
        code_width: int = 16,
        cosine: bool = True,
        decay: float = 0.9,
        revive: float = 0.1,
    ):
        super().__init__()
        halvings = (size // grid).bit_length() - 1 if grid > 0 else 0
        if halvings < 1 or size != grid << halvings:
            raise ValueError(f"size / grid must be a power of 2, at least 2, got {size} / {grid}")
        check_num_blocks(blocks)
        if min(channels, width) < 1:
            raise ValueError(f"channels and width must be at least 1, got {channels} and {width}")
        self.size, self.channels, self.grid, self.codes = size, channels, grid, codes
        self.width, self.blocks, self.code_width, self.cosine = width, blocks, code_width, cosine
        self.decay, self.revive = decay, revive
        widths = [channels, *(max(1, width >> left) for left in reversed(range(halvings)))]
        self.encoder = _encoder(widths, blocks, code_width)
        self.quantizer = Quantizer(codes, code_width, cosine=cosine, decay=decay, revive=revive)
        self.decoder = _decoder(widths[::-1], blocks, code_width)

    @property
    def device(self) -> torch.device:
        return self.quantizer.codebook.device

    def loss(
        self,
        images: UInt8[Tensor, "b h w c"],
        *,
        detail: float = 0.1,
        commitment: float = 0.25,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """What training minimises: `reconstruction + detail · (edges) + commitment · |z - e|²`.

        For the first two see `dmb.app.images.losses`; the last is the mean squared difference of the encoder's
        vectors from their codes, over all their numbers. In training mode every call also updates the codes, see
        `Quantizer`, which draws from `generator`, on the CPU; default: torch's own.
        """
        pixels = self._pixels(images)
        if len(images) == 0:
            raise ValueError("images must not be empty, got 0 of them")
        vectors, _, distance = self.quantizer(self._vectors(pixels), generator)
        error = (self._image(vectors) - pixels) / 2  # of values in [0, 1]
        return losses.reconstruction(error) + detail * losses.detail(error) + commitment * distance

    forward = loss  # training is what wrappers of modules are for

    @torch.no_grad()
    def encode(self, images: UInt8[Tensor, "b h w c"]) -> Int[Tensor, "b d"]:
        """The tokens of images, by row of the grid; any number of images, in batches."""
        return torch.cat([self.quantizer.nearest(self._vectors(self._pixels(part))) for part in images.split(_BATCH)])

    @torch.no_grad()
    def decode(self, tokens: Int[Tensor, "b d"]) -> UInt8[Tensor, "b h w c"]:
        """The images of tokens; any number of rows, in batches."""
        tokens = checks.tokens("tokens", tokens, (self.grid**2, self.codes)).to(self.device)
        parts = []
        for part in tokens.split(_BATCH):
            image = self._image(self.quantizer.codebook[part])
            parts.append(((image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous())
        return torch.cat(parts)

    def decoded(self, images: UInt8[Tensor, "b h w c"]) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"]]:
        """Pixels in [-1, 1], and what the decoder makes of their codes: a gradient reaches the decoder alone."""
        return self._pixels(images), self._image(self.quantizer.codebook[self.encode(images)])

    def reconstruct(self, images: UInt8[Tensor, "b h w c"]) -> UInt8[Tensor, "b h w c"]:
        """What is left of images after the codes."""
        return self.decode(self.encode(images))

    def judged(self, images: UInt8[Tensor, "b h w c"]) -> tuple[float, float]:
        """How well images come back: their PSNR in decibels, and how many codes are in use for them."""
        tokens = self.encode(images)
        return losses.psnr(images.cpu(), self.decode(tokens).cpu()), losses.perplexity(tokens.cpu(), self.codes)

    def digest(self) -> str:
        """SHA-256 of all that tokens depend on, the encoder's weights and the codebook: a name for them in a cache."""
        digest = hashlib.sha256()
        for name, tensor in {**self.encoder.state_dict(), _CODEBOOK: self.quantizer.codebook}.items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _pixels(self, images: Tensor) -> Float[Tensor, "b c h w"]:
        """Values in [-1, 1]."""
        shape = [self.size, self.size, self.channels]
        if images.dtype != torch.uint8 or images.ndim != 4 or list(images.shape[1:]) != shape:
            got = f"{images.dtype} {list(images.shape)}"
            raise ValueError(f"images must be uint8 [batch, {', '.join(map(str, shape))}], got {got}")
        # channels are last in memory, as the convolutions want them
        return images.to(self.device).permute(0, 3, 1, 2).to(self.quantizer.codebook.dtype) / 127.5 - 1

    def _vectors(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d e"]:
        return self.encoder(pixels).permute(0, 2, 3, 1).flatten(1, 2)

    def _image(self, vectors: Float[Tensor, "b d e"]) -> Float[Tensor, "b c h w"]:
        return self.decoder(vectors.unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2))

    # -- files: of the quantizer only the codebook is kept; to resume training, keep `state_dict()` --------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds: the weights, and the codebook as one plain tensor."""
        weights = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("quantizer.")}
        return {**weights, _CODEBOOK: self.quantizer.codebook}

    @staticmethod
    def upgraded(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """Those that were saved before there were directions have points."""
        return {"cosine": False, **config}, tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load such weights; training, if there is any, goes on from their codes."""
        state = {f"quantizer.{name}" if name == _CODEBOOK else name: tensor for name, tensor in tensors.items()}
        if (codebook := tensors.get(_CODEBOOK)) is not None:
            ones, started = codebook.new_ones(len(codebook)), torch.tensor(True)
            state |= {"quantizer.counts": ones, "quantizer.sums": codebook, "quantizer.started": started}
        super().load_tensors(state)


# ReLU without norms, strided and transposed convolutions, channels last in memory: on a CPU a training step takes about
# 0.8 of the time it takes with group norm and SiLU, and of that with upsampling before plain convolutions.


def _encoder(widths: list[int], blocks: int, code_width: int) -> nn.Sequential:
    """Pixels `[b, channels, size, size]` to vectors `[b, code_width, grid, grid]`: each of `widths` halves the size."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
    middle = (_Block(widths[-1]) for _ in range(blocks))
    return nn.Sequential(*layers[:-1], *middle, nn.ReLU(), nn.Conv2d(widths[-1], code_width, 1))


def _decoder(widths: list[int], blocks: int, code_width: int) -> nn.Sequential:
    """The way back."""
    layers = [nn.Conv2d(code_width, widths[0], 3, padding=1), *(_Block(widths[0]) for _ in range(blocks))]
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)]
    return nn.Sequential(*layers)


class _Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)

"""The VQ-VAE: images to a grid of codes and back, in one object that trains, encodes, decodes, saves and loads."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dmb import checks
from dmb.app.tokenizer import layers, losses
from dmb.app.tokenizer.losses import Losses
from dmb.app.tokenizer.quantizer import Quantizer
from dmb.configurable import Configurable
from dmb.networks.base import refuse_many
from dmb.pretrained import Pretrained

_BATCH = 256
"""Images or grids that go through the convolutions at once."""
_CODEBOOK = "codebook"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What defines a VQ-VAE besides its images, and cannot change during training."""

    grid: int = 8
    """Height and width of the grid of codes that an image becomes."""
    codes: int = 512
    """Number of codes in the codebook."""
    width: int = 64
    """Channels of the convolutions at the grid."""
    blocks: int = 2
    """Residual blocks in the encoder, and in the decoder."""
    code_width: int = 16
    """Dimension of a code's vector."""
    decay: float = 0.9
    """Decay per step of the moving averages that codes follow."""
    revive: float = 0.1
    """A code used less often than this share of the mean is moved to where images are."""

    def sizes(self) -> dict[str, int | float]:
        """These settings, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in fields(Architecture)}


class VQVAE(Pretrained, Configurable):
    """An autoencoder whose middle is a grid of codes (van den Oord et al. 2017).

    Args:
        size: height and width of the images; `size / grid` is a power of 2. Widths are halved at every doubling of the
            resolution.
        channels: 3 for colour, 1 for grey.
        sizes: fields of `Architecture`.

    >>> vqvae = VQVAE(size=8, channels=1, grid=4, codes=16, width=8)
    >>> images = torch.zeros(2, 8, 8, 1, dtype=torch.uint8)
    >>> vqvae.encode(images).shape
    torch.Size([2, 16])
    >>> vqvae.decode(vqvae.encode(images)).shape
    torch.Size([2, 8, 8, 1])
    """

    kind = "VQ-VAE"

    def __init__(self, *, size: int = 32, channels: int = 3, **sizes: Any):
        super().__init__()
        own = Architecture(**sizes)
        halvings = (size // own.grid).bit_length() - 1 if own.grid > 0 else 0
        if halvings < 1 or size != own.grid << halvings:
            raise ValueError(f"size / grid must be a power of 2, at least 2, got {size} / {own.grid}")
        refuse_many(own.blocks)
        if min(channels, own.width) < 1:
            given = f"{channels}, {own.width} and {own.blocks}"
            raise ValueError(f"channels and width must be at least 1 and blocks at least 0, got {given}")
        self.size, self.channels, self.grid, self.codes, self.architecture = size, channels, own.grid, own.codes, own
        self.encoder = layers.encoder(channels, own.width, own.blocks, halvings, own.code_width)
        self.quantizer = Quantizer(own.codes, own.code_width, decay=own.decay, revive=own.revive)
        self.decoder = layers.decoder(channels, own.width, own.blocks, halvings, own.code_width)

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "channels": self.channels, **self.architecture.sizes()}

    @property
    def num_positions(self) -> int:
        """Tokens of an image."""
        return self.grid**2

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
    ) -> Losses:
        """What training minimises: `reconstruction + detail · (edges) + commitment · |z - e|²`.

        For the parts see `dmb.app.tokenizer.losses`. In training mode every call also updates the codes, see
        `Quantizer`, which draws from `generator`, on the CPU; default: torch's own.
        """
        pixels = self._pixels(images)
        if len(images) == 0:
            raise ValueError("images must not be empty, got 0 of them")
        quantized = self.quantizer(self._vectors(pixels), generator)
        error = (self._image(quantized.vectors) - pixels) / 2  # of values in [0, 1]
        parts = losses.reconstruction(error), losses.detail(error), quantized.commitment
        total = parts[0] + detail * parts[1] + commitment * parts[2]
        return Losses(total, *parts, quantized.tokens)

    def forward(self, images: UInt8[Tensor, "b h w c"], **options: Any) -> Losses:
        """The loss: training is what wrappers of modules are for."""
        return self.loss(images, **options)

    @torch.no_grad()
    def encode(self, images: UInt8[Tensor, "b h w c"]) -> Int[Tensor, "b d"]:
        """The tokens of images, by row of the grid; any number of images, in batches."""
        self._check(images)
        parts = [self.quantizer.nearest(self._vectors(self._pixels(part))) for part in images.split(_BATCH)]
        return torch.cat(parts)

    @torch.no_grad()
    def decode(self, tokens: Int[Tensor, "b d"]) -> UInt8[Tensor, "b h w c"]:
        """The images of tokens; any number of rows, in batches."""
        tokens = checks.tokens("tokens", tokens, (self.num_positions, self.codes)).to(self.device)
        parts = []
        for part in tokens.split(_BATCH):
            image = self._image(self.quantizer.vectors(part))
            parts.append(((image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous())
        return torch.cat(parts)

    def reconstruct(self, images: UInt8[Tensor, "b h w c"]) -> UInt8[Tensor, "b h w c"]:
        """What is left of images after the codes."""
        return self.decode(self.encode(images))

    def digest(self) -> str:
        """SHA-256 of all that tokens depend on, the encoder's weights and the codebook: a name for them in a cache."""
        digest = hashlib.sha256()
        for name, tensor in {**self.encoder.state_dict(), _CODEBOOK: self.quantizer.codebook}.items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _check(self, images: Tensor) -> None:
        if images.dtype != torch.uint8:
            raise ValueError(f"images must be of type uint8, got {images.dtype}")
        shape = (self.size, self.size, self.channels)
        if images.ndim != 4 or images.shape[1:] != shape:
            raise ValueError(f"images must be [batch, {', '.join(map(str, shape))}], got {list(images.shape)}")

    def _pixels(self, images: Tensor) -> Float[Tensor, "b c h w"]:
        """Values in [-1, 1]."""
        self._check(images)
        # channels are last in memory, as the convolutions want them
        return images.to(self.device).permute(0, 3, 1, 2).to(self.quantizer.codebook.dtype) / 127.5 - 1

    def _vectors(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d e"]:
        return self.encoder(pixels).permute(0, 2, 3, 1).flatten(1, 2)

    def _image(self, vectors: Float[Tensor, "b d e"]) -> Float[Tensor, "b c h w"]:
        return self.decoder(vectors.unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2))

    # -- files: of the quantizer only the codebook is kept; to resume training, keep `state_dict()` --------------------

    def description(self) -> dict[str, Any]:
        return self.to_config()

    @classmethod
    def from_description(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> "VQVAE":
        if config.get("type") != cls.__name__:
            raise ValueError(f"its type is not {cls.__name__}")
        return Configurable.from_config(config)

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds: the weights, and the codebook as one plain tensor."""
        weights = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("quantizer.")}
        return {**weights, _CODEBOOK: self.quantizer.codebook}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        own = self.tensors()
        for name in sorted(own.keys() ^ tensors.keys()):
            raise ValueError(f"{name} is {'missing' if name in own else 'unknown'}")
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or tensor.shape != own[name].shape:
                shapes = f"{list(own[name].shape)}, got {tensor.dtype}, {list(tensor.shape)}"
                raise ValueError(f"{name} must be of floating point, {shapes}")
        self.to(tensors[_CODEBOOK].dtype)  # all take the precision they were saved in
        self.quantizer.start_from(tensors[_CODEBOOK])
        self.load_state_dict({name: tensor for name, tensor in tensors.items() if name != _CODEBOOK}, strict=False)

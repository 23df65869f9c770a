"""Images: what all their codecs share, and the codec with a token for every channel of every pixel."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb._core.files import write_array
from dmb.data.codecs.base import Codec, filled
from dmb.data.codecs.grid import Grid, pillow, sheet, write_pictures
from dmb.data.codecs.views import Images, View
from dmb.data.reading import as_value_error
from dmb.data.splits import Split

_AT_ONCE = 256  # images that are held as tokens
_IN_TERMINAL = 16  # pixels of the longer side, two characters each
_ON_SHEET = 96  # pixels of the shorter side, as small images are enlarged
_LARGEST_SHEET = 4096
_GAP, _BETWEEN = 2, 128  # of images on a sheet: pixels, and a grey that black and white ones stand out from


class ImageCodec(Codec):
    """A codec of images of `shape` = height, width and channels (1: grey, 3: colour).

    An image has `num_positions` tokens of `num_states` states, and `across` of them lie side by side. A subclass owes
    `images` and `template`, besides `config`.
    """

    extension = ".png"
    formats = (".png", ".npy")
    fills_folders = True
    unit = "images of {:,} tokens"
    incidental = ("cropped", "vqvae")  # how images were made to fit, and where their VQ-VAE lies

    def __init__(self, shape: list[int], *, num_states: int, num_positions: int, across: int):
        if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
            raise ValueError(f"shape must be height, width and 1 or 3 channels, got {shape}")
        self.shape = list(shape)
        self.num_states, self.num_positions, self.across = num_states, num_positions, across

    @abstractmethod
    def images(self, tokens: Int[Tensor, "b d"]) -> UInt8[np.ndarray, "b h w c"]:
        """The images that tokens stand for."""

    def shown(self, split: Split, rows: Int[Tensor, " k"] | None = None) -> Iterator[UInt8[np.ndarray, "b h w c"]]:
        """Images of a split, all or those with these numbers, a few at a time: tokens take eight bytes each."""
        rows = torch.arange(len(split)) if rows is None else rows
        for part in rows.split(_AT_ONCE):
            yield self.images(split[part])

    def view(self, tokens: Int[Tensor, "b d"]) -> View:
        images = self.images(torch.where(self.knows(tokens), tokens, 0))
        return Images(images, (self.num_positions // self.across, min(self.across, self.shape[1])))

    def legal(self, tokens: Int[Tensor, "b d"]) -> np.ndarray:
        if tokens.shape[1] != self.num_positions:
            raise ValueError(f"tokens must have {self.num_positions} positions, got {tokens.shape[1]}")
        return super().legal(tokens)

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        """Blocks of shades, two characters a pixel so that they come out square; large images are made smaller."""
        height, width, _ = self.shape
        scale = min(1.0, _IN_TERMINAL / max(height, width))
        size = across, down = max(1, round(width * scale)), max(1, round(height * scale))
        grey = (pillow().fromarray(image).convert("L") for image in _drawable(self.images(tokens)))
        small = [np.asarray(image.resize(size, pillow().Resampling.BOX)) for image in grey]
        return Grid([down, across], 256).decode(torch.tensor(np.array(small)).long().view(-1, down * across))

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """One picture of all of them, small ones enlarged; or uint8 `[b, h, w, c]` if `path` ends in `.npy`.

        If `path` is a folder (one that exists, or any path without an extension) a numbered `.png` for each.
        """
        suffix, images = self.check_path(path), self.images(tokens)
        if suffix == ".npy":
            write_array(path, images)
        else:
            write_pictures(path, suffix, _drawable(images), _enlarged)

    def describe(self) -> list[str]:
        height, width, channels = self.shape
        return [f"{width} × {height} pixels in {'colour' if channels == 3 else 'grey'}"]

    def _drawn(self, path: Path) -> UInt8[np.ndarray, "h w k"]:
        """The image of a template; its last channel says how opaque each pixel is."""
        height, width, channels = self.shape
        with as_value_error(f"the template {path} cannot be read"), pillow().open(path) as file:
            drawn = np.asarray(file.convert("RGBA" if channels == 3 else "LA"))
        if drawn.shape[:2] != (height, width):
            raise ValueError(
                f"the template {path} must have {width} × {height} pixels, got {drawn.shape[1]} × {drawn.shape[0]}"
            )
        return drawn


class Picture(ImageCodec):
    """Images whose tokens are the channels of their pixels, each in `levels` steps.

    A value `v` in `[0, 256)` is the token `v * levels // 256`; a token is the middle of the values that it stands for.
    With 256 levels tokens are the values themselves. `cropped`: images of any size are made to fit when they are read.

    >>> import torch
    >>> codec = Picture([1, 2, 3], levels=4)
    >>> codec.images(torch.tensor([[0, 1, 2, 3, 3, 3]])).tolist()
    [[[[31, 95, 159], [223, 223, 223]]]]
    >>> codec.template("255, _, 64", num_positions=6)
    tensor([ 3, -1,  1, -1, -1, -1])
    """

    def __init__(self, shape: list[int], levels: int = 256, cropped: bool = False):
        super().__init__(shape, num_states=levels, num_positions=math.prod(shape), across=math.prod(shape[1:]))
        self.levels, self.cropped = levels, cropped
        first = np.searchsorted(states_of_values(levels), np.arange(levels + 1))
        self.values = ((first[:-1] + first[1:] - 1) // 2).astype(np.uint8)
        """What each token stands for."""

    def images(self, tokens: Int[Tensor, "b d"]) -> UInt8[np.ndarray, "b h w c"]:
        return self.values[self.legal(tokens)].reshape(len(tokens), *self.shape)

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """The path of a `.png` whose transparent pixels are blank; or, as for `Grid`, a `.npy` or numbers below 256."""
        if text.strip().lower().endswith(".png"):
            drawn = self._drawn(Path(text.strip()))
            known = np.where(drawn[..., -1:] == 0, -1, drawn[..., :-1].astype(int))
            values = filled(known.ravel(), num_positions)
        else:
            values = Grid(self.shape, 256).template(text, num_positions, blank)
        return torch.where(values < 0, values, values * self.levels // 256)

    def describe(self) -> list[str]:
        return [f"{super().describe()[0]}, {self.levels} levels per channel"]

    def config(self) -> dict[str, Any]:
        return {"shape": self.shape, "levels": self.levels} | ({"cropped": True} if self.cropped else {})


def states_of_values(levels: int) -> UInt8[np.ndarray, "256"]:
    """The token of every value of a channel: all levels are equally wide, up to rounding.

    >>> states_of_values(2).tolist() == [0] * 128 + [1] * 128
    True
    """
    if not 2 <= levels <= 256:
        raise ValueError(f"levels must lie in [2, 256], got {levels}")
    return (np.arange(256) * levels // 256).astype(np.uint8)


def _drawable(images: UInt8[np.ndarray, "b h w c"]) -> UInt8[np.ndarray, "b h w *c"]:
    """As Pillow wants them: grey images have no axis of channels."""
    return images[..., 0] if images.shape[3] == 1 else images


def _enlarged(images: UInt8[np.ndarray, "b h w *c"]) -> Any:
    """One picture of all, in which small images are enlarged."""
    shorter, longer = sorted(images.shape[1:3])
    scale = max(1, min(_ON_SHEET // shorter, _LARGEST_SHEET // (longer * math.ceil(math.sqrt(len(images))))))
    return pillow().fromarray(sheet(images.repeat(scale, axis=1).repeat(scale, axis=2), _GAP, _BETWEEN))

"""Images, and other arrays of integers of one shape."""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb._core import checks
from dmb._core.files import write_array, written_whole
from dmb.data.codecs.base import FOLDER, Codec, Images, View, filled
from dmb.data.reading import arrays, as_value_error
from dmb.data.splits import Split

SHADES = np.array(list(" ░▒▓█"))
_AT_ONCE = 256  # images that are held as tokens
_IN_TERMINAL = 16  # pixels of the longer side, two characters each
_ON_SHEET = 96  # pixels of the shorter side, as small images are enlarged
_LARGEST_SHEET = 4096
_GAP, _BETWEEN = 2, 128  # of images on a sheet: pixels, and a grey that black and white ones stand out from


class Grid(Codec):
    """Integers in `[0, num_states)`, arranged in `shape`; if that has two axes they are the shades of an image.

    >>> import torch
    >>> print(Grid([2, 3], num_states=5).decode(torch.tensor([[0, 1, 2, 3, 4, 0]]))[0].replace(" ", "."))
    ..░░▒▒
    ▓▓██..
    >>> Grid([3], num_states=9).decode(torch.tensor([[3, 1, 4]]))
    ['3 1 4']
    >>> Grid([3], num_states=9).template("3, _, 4", num_positions=3)
    tensor([ 3, -1,  4])
    """

    formats = (".npy", ".png")

    def __init__(self, shape: list[int], num_states: int):
        if not shape or min(shape) < 1:
            raise ValueError(f"shape must hold positive sizes, got {shape}")
        checks.at_least(1, num_states=num_states)
        self.shape, self.num_states = list(shape), num_states
        self.fills_folders = len(shape) == 2

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        """Images as blocks of shades, two characters a pixel so that they come out square; others as numbers."""
        examples = self._examples(tokens)
        if len(self.shape) != 2:
            return [" ".join(map(str, example.ravel())) for example in examples]
        shades = SHADES[examples * len(SHADES) // self.num_states].repeat(2, axis=2)
        return ["\n".join("".join(row) for row in image) for image in shades]

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """`.npy` of shape `[b, *shape]`; or one picture of all of them if `path` ends in `.png`.

        If there are two axes and `path` is a folder (one that exists, or any path without an extension) a numbered
        `.png` for each.
        """
        suffix, examples = self.check_path(path), self._examples(tokens)
        if suffix == ".npy":
            write_array(path, examples.astype(np.min_scalar_type(self.num_states - 1)))
        else:
            shades = np.minimum(examples / max(1, self.num_states - 1) * 256, 255).astype(np.uint8)
            write_pictures(path, suffix, shades, lambda images: _enlarged(images).convert("RGBA"))

    def check_path(self, path: Path, name: str = "path") -> str:
        suffix = super().check_path(path, name)
        if suffix == ".png" and len(self.shape) != 2:
            raise ValueError(f"only two-dimensional data can be written as .png, got shape {self.shape}")
        return suffix

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """The path of a `.npy` with -1 where the model chooses, or numbers separated by commas or spaces."""
        if text.strip().endswith(".npy"):
            values = self._load(Path(text.strip()))
        else:
            fields = re.split(r"\s*,\s*|\s+", text.strip()) if text.strip() else []
            wrong = [field for field in fields if field != blank and not (field.isascii() and field.isdigit())]
            if wrong:
                rule = f"the template must hold numbers or {blank!r}, separated by commas"
                raise ValueError(f"{rule}, got {wrong[0]!r}")
            values = np.array([-1 if field == blank else int(field) for field in fields])
        outside = (values < -1) | (values >= self.num_states)
        if outside.any():
            where = int(outside.argmax())
            raise ValueError(
                f"the template must hold numbers in [0, {self.num_states}), got {values[where]} at position {where}"
            )
        return filled(values, num_positions)

    def describe(self) -> list[str]:
        return [f"integers in [0, {self.num_states:,}) of shape {' × '.join(map(str, self.shape))}"]

    def view(self, tokens: Int[Tensor, "b d"]) -> View:
        """Two axes are those of an image, from black to white."""
        if len(self.shape) != 2:
            return super().view(tokens)
        shades = self._examples(torch.where(self.knows(tokens), tokens, 0)) * 255 // max(1, self.num_states - 1)
        return Images(shades.astype(np.uint8)[..., None], (self.shape[0], self.shape[1]))

    def _examples(self, tokens: Int[Tensor, "b d"]) -> np.ndarray:
        if tokens.shape[1] != math.prod(self.shape):
            raise ValueError(f"tokens must have {math.prod(self.shape)} positions, got {tokens.shape[1]}")
        return self.legal(tokens).reshape(len(tokens), *self.shape)

    def _load(self, path: Path) -> np.ndarray:
        with as_value_error(f"the template {path} cannot be read"):
            members = arrays(path)
            if len(members) != 1:
                raise ValueError(f"it must hold one array, got {len(members)}")
            [values] = members.values()
        if values.dtype.kind not in "iu":
            raise ValueError(f"the template {path} must hold integers, got {values.dtype}")
        if values.ndim != 1 and values.shape not in (tuple(self.shape), (1, *self.shape)):
            raise ValueError(f"the template {path} must have shape {self.shape}, got {list(values.shape)}")
        return values.ravel()


class ImageCodec(Codec):
    """A codec of images of `shape` = height, width and channels (1: grey, 3: colour).

    An image has `num_positions` tokens of `num_states` states, and `across` of them lie side by side. A subclass owes
    `images` and `template`, besides `config`.
    """

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
        self.values = ((first[:-1] + first[1:] - 1) // 2).astype(np.uint8)  # what each token stands for

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


def pillow() -> Any:
    """Pillow's module `Image`, imported late: only pictures need it."""
    from PIL import Image

    return Image


def write_pictures(path: Path, suffix: str, images: np.ndarray, whole: Callable[[np.ndarray], Any]) -> None:
    """Write grey `[b, h, w]` or colour `[b, h, w, 3]` images as one picture, which `whole` makes of them.

    If the suffix is `FOLDER`: as `0001.png`, `0002.png`, … in the folder `path`, made on demand. Files of the same
    names are replaced, others stay.
    """
    if len(images) == 0:
        raise ValueError("tokens must have at least one row to be written as .png, got none")
    for file, picture in _numbered(path, images) if suffix == FOLDER else [(path, whole(images))]:
        with written_whole(file) as part:
            picture.save(part, format="png")


def _numbered(folder: Path, images: np.ndarray) -> Iterator[tuple[Path, Any]]:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be made: {error.strerror}") from error
    digits = max(4, len(str(len(images))))
    for number, image in enumerate(images, 1):
        yield folder / f"{number:0{digits}}.png", pillow().fromarray(image)


def sheet(images: np.ndarray, gap: int = 1, between: int = 0) -> np.ndarray:
    """All images `[b, h, w, …]` on one, as nearly square as can be, with a line of the shade `between` between them.

    >>> sheet(np.array([[[1, 1]], [[2, 2]], [[3, 3]]]))
    array([[1, 1, 0, 2, 2],
           [0, 0, 0, 0, 0],
           [3, 3, 0, 0, 0]])
    """
    across = math.ceil(math.sqrt(len(images)))
    down = math.ceil(len(images) / across)
    height, width = images.shape[1] + gap, images.shape[2] + gap
    tiled = np.full((down * height - gap, across * width - gap, *images.shape[3:]), between, dtype=images.dtype)
    for index, image in enumerate(images):
        top, left = index // across * height, index % across * width
        tiled[top : top + height - gap, left : left + width - gap] = image
    return tiled

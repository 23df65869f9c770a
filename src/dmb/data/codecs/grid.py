"""Arrays of integers of one shape: images, codes of an autoencoder, any fixed-length sequence."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core.files import write_array, written_whole
from dmb.data.codecs.base import FOLDER, Codec, filled
from dmb.data.codecs.views import Images, View
from dmb.data.reading import as_value_error

SHADES = np.array(list(" ░▒▓█"))


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

    extension = ".npy"
    formats = (".npy", ".png")

    def __init__(self, shape: list[int], num_states: int):
        if not shape or min(shape) < 1:
            raise ValueError(f"shape must hold positive sizes, got {shape}")
        if num_states < 1:
            raise ValueError(f"num_states must be at least 1, got {num_states}")
        self.shape = list(shape)
        self.num_states = num_states
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
            write_pictures(path, suffix, shades, lambda images: pillow().fromarray(sheet(images)).convert("RGBA"))

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
            values = np.array([_number(field, blank) for field in fields])
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

    def config(self) -> dict[str, Any]:
        return {"shape": self.shape, "num_states": self.num_states}

    def _examples(self, tokens: Int[Tensor, "b d"]) -> np.ndarray:
        if tokens.shape[1] != math.prod(self.shape):
            raise ValueError(f"tokens must have {math.prod(self.shape)} positions, got {tokens.shape[1]}")
        return self.legal(tokens).reshape(len(tokens), *self.shape)

    def _load(self, path: Path) -> np.ndarray:
        with as_value_error(f"the template {path} cannot be read"):
            values = np.load(path, allow_pickle=False)
        if values.dtype.kind not in "iu":
            raise ValueError(f"the template {path} must hold integers, got {values.dtype}")
        if values.ndim != 1 and values.shape not in (tuple(self.shape), (1, *self.shape)):
            raise ValueError(f"the template {path} must have shape {self.shape}, got {list(values.shape)}")
        return values.ravel()


def _number(field: str, blank: str) -> int:
    if field == blank:
        return -1
    if not (field.isascii() and field.isdigit()):
        raise ValueError(f"the template must hold numbers or {blank!r}, separated by commas, got {field!r}")
    return int(field)


def pillow() -> Any:
    """Pillow's module `Image`, imported late: only pictures need it."""
    from PIL import Image

    return Image


def square(image: Any, mode: str, size: int) -> Any:
    """The largest square in the middle of one of Pillow's images, upright, in `size` × `size` pixels."""
    from PIL import ImageOps

    return ImageOps.fit(ImageOps.exif_transpose(image).convert(mode), (size, size), pillow().Resampling.LANCZOS)


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

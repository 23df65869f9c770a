"""Arrays of integers of one shape: images, codes of an autoencoder, any fixed-length sequence."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs.base import Codec, filled
from dmb.data.codecs.views import Images, View
from dmb.files import written_whole

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

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        """Images as blocks of shades, two characters a pixel so that they come out square; others as numbers."""
        examples = self._examples(tokens)
        if len(self.shape) != 2:
            return [" ".join(map(str, example.ravel())) for example in examples]
        shades = SHADES[examples * len(SHADES) // self.num_states].repeat(2, axis=2)
        return ["\n".join("".join(row) for row in image) for image in shades]

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """`.npy` of shape `[b, *shape]`; or one picture of all of them if `path` ends in `.png`."""
        suffix, examples = self.check_path(path), self._examples(tokens)
        if suffix == ".npy":
            with written_whole(path) as part, part.open("wb") as file:
                np.save(file, examples.astype(np.min_scalar_type(self.num_states - 1)))
            return
        if len(examples) == 0:
            raise ValueError("tokens must have at least one row to be written as .png, got none")
        shades = np.minimum(sheet(examples) / max(1, self.num_states - 1) * 256, 255).astype(np.uint8)
        with written_whole(path) as part:
            from PIL import Image  # only pictures need it

            Image.fromarray(shades).convert("RGBA").save(part, format="png")

    def check_path(self, path: Path) -> str:
        suffix = super().check_path(path)
        if suffix == ".png" and len(self.shape) != 2:
            raise ValueError(f"only two-dimensional data can be written as .png, got shape {self.shape}")
        return suffix

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """The path of a `.npy` with -1 where the model chooses, or numbers separated by commas."""
        if text.strip().endswith(".npy"):
            values = self._load(Path(text.strip()))
        else:
            values = np.array([_number(field.strip(), blank) for field in text.split(",")] if text.strip() else [])
        outside = (values < -1) | (values >= self.num_states)
        if outside.any():
            where = int(outside.argmax())
            raise ValueError(
                f"the template must hold numbers in [0, {self.num_states}), got {values[where]} at position {where}"
            )
        return filled(values, num_positions)

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
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"the template {path} cannot be read: {error}") from error
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

"""Images as codes of a VQ-VAE."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dmb.app.images.autoencoder import VQVAE
from dmb.data.codecs.base import filled
from dmb.data.codecs.images import Grid, ImageCodec

SUMMARY, SHEET = "tokenizer.json", "sheet.png"
"""Files in a folder of codes: its description, and validation images beside their reconstructions."""
KEPT = "summary.json"
"""What a bridge's run calls its copy of the description."""

_GREY = 128
"""What the encoder sees where a template says nothing."""


class Codes(ImageCodec):
    """Images as squares of `grid` × `grid` codes, by row.

    Only where the VQ-VAE lies is kept; it is read when the first image is asked for. The run of a bridge over codes has
    a copy (`keep`), so that whatever becomes of the folder of the codes, the bridge's run is whole.

    Args:
        vqvae: the folder of the VQ-VAE.
        digest: of what its tokens depend on, `VQVAE.digest`; a folder with another VQ-VAE is refused.
        grid: codes across and down.
        codes: how many there are to choose from.
        shape: height, width and channels of the images.

    >>> Codes("codes", "…", grid=2, codes=9, shape=[8, 8, 3]).template("3, _, 4", num_positions=4)
    tensor([ 3, -1,  4, -1])
    """

    def __init__(self, vqvae: str, digest: str, grid: int, codes: int, shape: list[int]):
        super().__init__(shape, num_states=codes, num_positions=grid**2, across=grid)
        self.vqvae, self.digest, self.grid, self.codes = vqvae, digest, grid, codes
        self._loaded: VQVAE | None = None

    def keep(self, folder: Path) -> None:
        """Put a copy of the VQ-VAE there; and, if its folder has them, of its sheet and its summary."""
        self._model().write(folder)
        for name, kept in ((SHEET, SHEET), (SUMMARY, KEPT)):
            if (Path(self.vqvae) / name).is_file():
                shutil.copyfile(Path(self.vqvae) / name, folder / kept)

    def vectors(self) -> Float[Tensor, "n e"]:
        """The codebook: the vector of every code, for `dmb.processes.grouping.by_vectors`."""
        return self._model().quantizer.codebook.detach().cpu().clone()

    def encode(self, images: UInt8[np.ndarray, "b h w c"]) -> Int[np.ndarray, "b d"]:
        """The tokens of images."""
        return self._model().encode(torch.from_numpy(images)).numpy()

    def images(self, tokens: Int[Tensor, "b d"]) -> UInt8[np.ndarray, "b h w c"]:
        return self._model().decode(torch.from_numpy(self.legal(tokens))).numpy()

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """The path of a `.png`; or, as for `Grid`, a `.npy` of codes or numbers.

        A code of the image is known if all its pixels are opaque. Others are grey to the encoder, which looks a few
        pixels beyond each code.
        """
        if not text.strip().lower().endswith(".png"):
            return Grid([self.grid, self.grid], self.codes).template(text, num_positions, blank)
        drawn = self._drawn(Path(text.strip()))
        unknown = drawn[..., -1:] < 255
        tokens = self.encode(np.where(unknown, np.uint8(_GREY), drawn[..., :-1])[None])[0]
        height, width, _ = self.shape
        cells = unknown.reshape(self.grid, height // self.grid, self.grid, width // self.grid).any((1, 3))
        return filled(np.where(cells.ravel(), -1, tokens), num_positions)

    def config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("vqvae", "digest", "grid", "codes", "shape")}

    def _model(self) -> VQVAE:
        if self._loaded is None:
            if not Path(self.vqvae).is_dir():
                raise ValueError(f"{self.vqvae} must hold the VQ-VAE of these codes, got no such folder")
            found = VQVAE.from_pretrained(self.vqvae)
            if found.digest() != self.digest:
                raise ValueError(f"{self.vqvae} holds another VQ-VAE than the one that made this model's codes")
            self._loaded = found
        return self._loaded

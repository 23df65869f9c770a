"""Images as codes, in a folder that `dmb tokenize` makes: what it holds, how it is written, and how it is read.

tokenizer-settings.json   where the images are from, and all settings; written first
config.json               the VQ-VAE, best so far: `VQVAE.from_pretrained(folder)`
model.safetensors         its weights
metrics.jsonl             one report per line
checkpoints/              what a resumed run needs
sheet.png                 validation images, each beside its reconstruction
train.npy                 the codes of a split, `[N, d]`; also validation.npy and test.npy
train_labels.npy          its class labels, if there are any; also of the other splits
tokenizer.json            a summary; written last: a folder without it is not finished
"""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dmb._core.configuration import from_json
from dmb._core.files import write_array, write_json
from dmb.app.images.autoencoder import VQVAE
from dmb.data import Codec, DataSet, Grid, ImageCodec, Picture, Rows
from dmb.data.codecs.base import filled
from dmb.data.loading import is_name, load
from dmb.data.reading import Progress, as_value_error, ignore_progress, mapped
from dmb.data.splits import Splits

FORMAT = 1
SETTINGS, SUMMARY, SHEET = "tokenizer-settings.json", "tokenizer.json", "sheet.png"
KEPT = "summary.json"  # what a bridge's run calls its copy of the summary

_GREY = 128  # what the encoder sees where a template says nothing
_PAIRS = 32  # on a sheet


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

    def keep(self, folder: Path) -> None:
        """Put a copy of the VQ-VAE there; and, if its folder has them, of its sheet and its summary."""
        self._model.write(folder)
        for name, kept in ((SHEET, SHEET), (SUMMARY, KEPT)):
            if (Path(self.vqvae) / name).is_file():
                shutil.copyfile(Path(self.vqvae) / name, folder / kept)

    def vectors(self) -> Float[Tensor, "n e"]:
        """The codebook: the vector of every code, for `dmb.processes.grouping.by_vectors`."""
        return self._model.quantizer.codebook.detach().cpu().clone()

    def encode(self, images: UInt8[np.ndarray, "b h w c"]) -> Int[np.ndarray, "b d"]:
        """The tokens of images."""
        return self._model.encode(torch.from_numpy(images)).numpy()

    def images(self, tokens: Int[Tensor, "b d"]) -> UInt8[np.ndarray, "b h w c"]:
        return self._model.decode(torch.from_numpy(self.legal(tokens))).numpy()

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

    @cached_property
    def _model(self) -> VQVAE:
        if not Path(self.vqvae).is_dir():
            raise ValueError(f"{self.vqvae} must hold the VQ-VAE of these codes, got no such folder")
        vqvae = VQVAE.from_pretrained(self.vqvae)
        if vqvae.digest() != self.digest:
            raise ValueError(f"{self.vqvae} holds another VQ-VAE than the one that made this model's codes")
        return vqvae


def is_codes(source: str | Path) -> bool:
    """Whether data are codes of images; a ValueError if they are unfinished, or a run, whose pictures are no data.

    >>> is_codes("digits"), is_codes(Path("/"))
    (False, False)
    """
    folder = Path(source)
    if is_name(source) or not folder.is_dir():
        return False
    if (folder / SUMMARY).is_file():
        return True
    if (folder / SETTINGS).is_file():
        raise ValueError(f"{folder} has no {SUMMARY}, so it is not finished: continue with dmb tokenize --resume")
    if (folder / "run.json").is_file():
        raise ValueError(f"{folder} must hold images, or codes of images, to be read as data, got the folder of a run")
    return False


def read_codes(folder: str | Path, codec: Codec | None = None) -> DataSet:
    """The codes in a folder as a data set, memory-mapped: in the splits of the images, with their labels.

    If they are codes of a model's `codec`, it stays the codec that makes images of them.
    """
    folder = Path(folder).absolute()
    about = summary_of(folder)
    with as_value_error(f"{folder / SUMMARY} does not describe codes", KeyError, TypeError):
        own = Codes(str(folder), about["digest"], about["settings"]["grid"], about["codes"], about["shape"])
        counts, names = about["images"], tuple(about.get("class_names", ()))

        def array(name: str, *shape: int) -> np.ndarray:
            return mapped(folder / f"{name}.npy", "unsigned integers", np.unsignedinteger, shape)

        def rows(part: str) -> Rows:
            labels = array(f"{part}_labels", counts[part]) if about["classes"] else None
            with as_value_error(f"{folder / part}.npy", ValueError):
                return Rows(array(part, counts[part], own.num_positions), own.codes, labels=labels)

        splits = Splits(*map(rows, Splits._fields))
    if isinstance(codec, Codes) and codec.meaning() == own.meaning():
        own = codec
    return DataSet(
        name=folder.name,
        source=str(folder),
        codec=own,
        **splits._asdict(),
        num_classes=about["classes"],
        class_names=names,
    )


def write_codes(
    folder: Path, vqvae: VQVAE, images: DataSet, progress: Progress | None = None, adversarial_steps: int = 0
) -> dict[str, Any]:
    """Write the codes of all images to the folder of the VQ-VAE, and last the summary, which is returned.

    `images` are those it was trained with; `progress` is called with the number of images done, and of all;
    `adversarial_steps` of its decoder alone are mentioned.
    """
    picture, progress, done = picture_of(images), progress or ignore_progress, 0
    counts = {part: len(split) for part, split in images.splits().items()}
    for part, split in images.splits().items():
        codes, labels = [], split.labels(slice(None))
        for some in picture.shown(split):
            tokens = vqvae.encode(torch.from_numpy(some)).cpu().numpy()
            codes.append(tokens.astype(np.min_scalar_type(vqvae.codes - 1)))
            done += len(some)
            progress(done, sum(counts.values()))
        write_array(folder / f"{part}.npy", np.concatenate(codes))
        if labels is not None:
            write_array(
                folder / f"{part}_labels.npy", labels.numpy().astype(np.min_scalar_type(images.num_classes - 1))
            )
    ratio, used = vqvae.judged(torch.from_numpy(np.concatenate([*picture.shown(images.test)])))
    about = {
        "format": FORMAT,
        "source": images.source,
        "settings": vqvae.config(),
        "shape": picture.shape,
        "cropped": picture.cropped,
        "codes": vqvae.codes,
        "classes": images.num_classes,
        "class_names": images.class_names,
        "digest": vqvae.digest(),
        "psnr": ratio,
        "perplexity": used,
        "adversarial_steps": adversarial_steps,
        "images": counts,
        "unigram_bits": images.baselines(),
    }
    write_json(folder / SUMMARY, about)
    return about


def write_sheet(path: Path, vqvae: VQVAE, images: DataSet) -> None:
    """A picture of validation images, each beside its reconstruction."""
    split, (height, width, channels) = images.validation, picture_of(images).shape
    before = torch.from_numpy(picture_of(images).images(split[split.spread(_PAIRS)]))
    pairs = torch.cat([before, vqvae.reconstruct(before).cpu()], dim=2)
    Picture([height, 2 * width, channels]).write(path, pairs.flatten(1).long())


def images_of(folder: Path) -> DataSet:
    """The images that the codes in a folder are of, as they were before: in the same splits and order.

    A ValueError if they are not there, or have changed.
    """
    about = summary_of(folder)
    with as_value_error(f"the images of {folder} cannot be read", ValueError, KeyError):
        source, bits = about["source"], about["unigram_bits"]
        data = load(source, size=about["shape"][0] if about.get("cropped") else None)
    if data.differs(bits):  # images that are new to a split may be old to the VQ-VAE
        raise ValueError(f"{source} has changed since {folder} was made from it: make it again with dmb tokenize")
    return data


def summary_of(folder: Path) -> dict[str, Any]:
    """What `tokenizer.json` says."""
    file = folder / SUMMARY
    with as_value_error(f"{file} cannot be read", OSError, ValueError):
        about = from_json(file.read_text(encoding="utf-8"))
    version = about.get("format") if isinstance(about, dict) else None
    if version != FORMAT:
        raise ValueError(f"{file} must have format {FORMAT}, which this version of dmb reads, got {version}")
    return about


def picture_of(data: DataSet) -> Picture:
    """The codec of images whose values are their tokens; a ValueError for other data."""
    if not isinstance(data.codec, Picture):
        raise ValueError(f"a VQ-VAE needs images: give cifar10, or a folder of images; got {data.name}")
    return data.codec

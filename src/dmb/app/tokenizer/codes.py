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

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dmb.app.tokenizer.autoencoder import VQVAE
from dmb.app.tokenizer.codec import SUMMARY, Codes
from dmb.app.tokenizer.metrics import perplexity, psnr
from dmb.app.tokenizer.settings import TokenizerSettings, picture_of
from dmb.data import Codec, DataSet, Picture, Rows
from dmb.data.home import Progress, explained, mapped, unseen
from dmb.data.loading import is_name, load
from dmb.data.partition import Splits
from dmb.files import write_array, write_json

FORMAT = 1
SETTINGS = "tokenizer-settings.json"

_SHOWN = (32, 18, 8, 2, 1)  # how many pairs a sheet may have: so many fill its rows, and no pair is torn apart


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
        raise ValueError(
            f"{folder} has no {SUMMARY}, so its codes are not finished: continue with dmb tokenize --resume"
        )
    if (folder / "run.json").is_file():
        raise ValueError(f"{folder} must hold images, or codes of images, to be read as data, got the folder of a run")
    return False


def read_codes(folder: str | Path, codec: Codec | None = None) -> DataSet:
    """The codes in a folder as a data set, memory-mapped: in the splits of the images, with their labels.

    If they are codes of a model's `codec`, it stays the codec that makes images of them.
    """
    folder = Path(folder).absolute()
    about = summary_of(folder)
    with explained(f"{folder / SUMMARY} does not describe codes", KeyError, TypeError):
        own = Codes(str(folder), about["digest"], about["settings"]["grid"], about["codes"], about["shape"])
        labelled, counts, names = about["classes"] > 0, about["images"], tuple(about.get("class_names", ()))
        splits = Splits(*(_read(folder, part, own, labelled, counts[part]) for part in Splits._fields))
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
    folder: Path,
    vqvae: VQVAE,
    images: DataSet,
    settings: TokenizerSettings,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the codes of all images to the folder of the VQ-VAE, and last the summary, which is returned.

    `images` and `settings` are those it was trained with; `progress` is called with the number of images done, and of
    all.
    """
    picture, progress, done = picture_of(images), progress or unseen, 0
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
            lowest = np.min_scalar_type(images.num_classes - 1)
            write_array(folder / f"{part}_labels.npy", labels.numpy().astype(lowest))
    test = torch.from_numpy(np.concatenate([*picture.shown(images.test)]))
    seen = vqvae.encode(test).cpu()
    about = {
        "format": FORMAT,
        "source": images.source,
        "settings": asdict(settings),
        "shape": picture.shape,
        "codes": vqvae.codes,
        "classes": images.num_classes,
        "class_names": images.class_names,
        "digest": vqvae.digest(),
        "psnr": psnr(test, vqvae.decode(seen).cpu()),
        "perplexity": perplexity(seen, vqvae.codes),
        "images": counts,
        "unigram_bits": images.baselines(),
    }
    write_json(folder / SUMMARY, about)
    return about


def write_sheet(path: Path, vqvae: VQVAE, images: DataSet) -> None:
    """A picture of validation images, each beside its reconstruction."""
    Picture(picture_of(images).shape).write(path, paired(vqvae, images).flatten(1).long())


def paired(vqvae: VQVAE, images: DataSet) -> UInt8[Tensor, "k h w c"]:
    """A few validation images, each followed by its reconstruction."""
    split = images.validation
    rows = split.spread(next(count for count in _SHOWN if count <= len(split)))
    before = torch.from_numpy(picture_of(images).images(split[rows]))
    return torch.stack([before, vqvae.reconstruct(before).cpu()], dim=1).flatten(0, 1)


def images_of(folder: Path, shape: list[int]) -> DataSet:
    """The images that the codes in a folder are of, as they were before: in the same splits and order.

    A ValueError if they are not there, have changed, or have another shape.
    """
    about = summary_of(folder)
    with explained(f"the images of {folder} cannot be read", ValueError, KeyError):
        source, bits = about["source"], about["unigram_bits"]
        data = load(source)
    found = data.codec.shape if isinstance(data.codec, Picture) else type(data.codec).__name__
    if found != shape:
        raise ValueError(f"{source} must hold images of shape {shape}, like those of {folder}, got {found}")
    if data.differs(bits):  # images that are new to a split may be old to the VQ-VAE
        raise ValueError(f"{source} has changed since {folder} was made from it: make it again with dmb tokenize")
    return data


def summary_of(folder: Path) -> dict[str, Any]:
    """What `tokenizer.json` says."""
    file = folder / SUMMARY
    with explained(f"{file} cannot be read", OSError, ValueError):
        about = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise ValueError(f"{file} must have format {FORMAT}, which this version of dmb reads, got {found}")
    return about


def _read(folder: Path, part: str, codec: Codes, labelled: bool, count: int) -> Rows:
    def array(name: str, *shape: int) -> np.ndarray:
        return mapped(folder / name, "unsigned integers", np.unsignedinteger, shape)

    tokens = array(f"{part}.npy", count, codec.num_positions)
    labels = array(f"{part}_labels.npy", count) if labelled else None
    with explained(f"{folder / f'{part}.npy'}", ValueError):
        return Rows(tokens, codec.codes, labels=labels)

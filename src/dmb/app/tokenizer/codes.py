"""Images as codes of the VQ-VAE that was trained on them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from dmb.app.tokenizer.codec import Codes
from dmb.data.base import DataSet
from dmb.data.codecs import Codec, ImageCodec, Picture
from dmb.data.home import data_home
from dmb.data.loading import is_name, load
from dmb.data.splits import Rows, Split
from dmb.files import written_whole
from dmb.pretrained import CONFIG

MOST_CODES = 1 << 16
"""That a VQ-VAE may have: two bytes each are kept."""

FORMAT = 1  # of the cache

_RUN = "run.json"


def codes(
    folder: str | Path, *, codec: Codec | None = None, progress: Callable[[int, int], None] | None = None
) -> DataSet:
    """The images that a VQ-VAE was trained on, as its codes: in the same splits, with the same labels.

    They are encoded once, and cached in the data folder under a digest of the images and of the VQ-VAE.

    Args:
        folder: the run of the VQ-VAE.
        codec: a model's; if it is of codes, they are those of its own VQ-VAE, whatever has become of the one here.
        progress: called with the number of images done, and of all; never, if all are cached.
    """
    folder = Path(folder).resolve()
    own = codec if isinstance(codec, Codes) else Codes.of(folder)
    if own.codes > MOST_CODES:
        raise ValueError(f"{folder} must have at most {MOST_CODES:,} codes, got {own.codes:,}")
    images = images_of(folder, own.shape)
    splits = images.splits().values()
    total, done = sum(map(len, splits)), 0

    def advance(count: int) -> None:
        if progress is not None:
            progress(done + count, total)

    rows = []
    for split in splits:
        labels = split.labels(slice(None))
        tokens = _tokens(own, images, split, advance)
        rows.append(Rows(tokens, own.codes, labels=None if labels is None else labels.numpy()))
        done += len(split)
    train, validation, test = rows
    return DataSet(
        name=folder.name,
        source=str(folder),
        codec=own,
        train=train,
        validation=validation,
        test=test,
        num_classes=images.num_classes,
    )


def images_of(folder: Path, shape: list[int]) -> DataSet:
    """The images that a VQ-VAE was trained on, as they were before they became codes: in the same splits and order.

    Args:
        folder: the run of the VQ-VAE.
        shape: that they must have.
    """
    file = folder / _RUN
    if not file.is_file():
        raise ValueError(f"{folder} must be the run of a VQ-VAE to be read as data, got one without {_RUN}")
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        choice, bits = described["recipe"]["data"], described["unigram_bits"]
        source = choice["source"]
        options = {name: choice[name] for name in ("length", "encoding", "levels") if name in choice}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not describe a run: {error}") from error
    try:
        if is_vqvae(source):
            raise ValueError(f"{source} must hold images, got the run of a VQ-VAE")
        data = load(source, **options)
    except ValueError as error:
        raise ValueError(f"the images of {folder} cannot be read: {error}") from error
    found = data.codec.shape if isinstance(data.codec, Picture) else type(data.codec).__name__
    if found != shape:
        raise ValueError(f"{source} must hold images of shape {shape}, which {folder} is for, got {found}")
    if data.differs(bits):  # images that are new to a split may be old to the VQ-VAE
        raise ValueError(f"{source} has changed since the VQ-VAE in {folder} was trained on it")
    return data


def is_vqvae(source: str | Path) -> bool:
    """Whether data are the run of a VQ-VAE; a ValueError if they are that of anything else, whose images are no data.

    >>> is_vqvae("digits"), is_vqvae(Path("/"))
    (False, False)
    """
    folder = Path(source)
    if is_name(source) or not folder.is_dir():
        return False
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    found = config.get("type") if isinstance(config, dict) else None
    if found != "VQVAE" and (folder / _RUN).is_file():
        got = "one that has no model yet" if config is None else f"one of a {found}"
        raise ValueError(f"{folder} must be the run of a VQ-VAE to be read as data, got {got}")
    return found == "VQVAE"


def _tokens(own: Codes, data: DataSet, split: Split, advance: Callable[[int], None]) -> Integer[np.ndarray, "N d"]:
    """The codes of a split, memory-mapped; `advance` is told how many images of it are done, if they have to be."""
    path = data_home() / "codes" / f"{_digest(own, data, split)}.npy"
    shape = (len(split), own.num_positions)
    if not _is_whole(path, shape, own.codes):
        path.parent.mkdir(exist_ok=True)
        with written_whole(path) as part:
            tokens = np.lib.format.open_memmap(part, mode="w+", dtype=np.dtype("<u2"), shape=shape)
            done = 0
            for images in _codec(data).shown(split):
                tokens[done : done + len(images)] = own.encode(images)
                done += len(images)
                advance(done)
            tokens.flush()
            del tokens  # some systems do not move a file that is mapped
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _is_whole(path: Path, shape: tuple[int, int], codes: int) -> bool:
    """Whether a file of the cache is there and can be used; a damaged one is made again."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return tokens.dtype == np.dtype("<u2") and tokens.shape == shape and int(tokens.max()) < codes


def _digest(own: Codes, data: DataSet, split: Split) -> str:
    """Of everything the tokens depend on."""
    content = hashlib.sha256(f"codes {FORMAT} {own.digest} {own.shape} ".encode())
    for images in _codec(data).shown(split):
        content.update(images.tobytes())
    return content.hexdigest()


def _codec(images: DataSet) -> ImageCodec:
    assert isinstance(images.codec, ImageCodec)
    return images.codec

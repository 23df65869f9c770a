"""Folders of images, and their splits, which stay on disk as bytes and become tokens as they are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from dmb.data.base import DataSet
from dmb.data.cache import cached
from dmb.data.codecs import Picture
from dmb.data.codecs.base import shortened
from dmb.data.codecs.images import pillow, states_of_values
from dmb.data.reading import Progress, as_value_error, existing, files_in, ignore_progress
from dmb.data.splits import Rows, Splits, tenths

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMAT = 2  # of the cache

_KEPT = 1 << 28  # bytes of images that are in memory from their first reading until they are decoded
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")  # what the names of modes with more than 8 bits a channel begin with
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


class Pixels(Rows):
    """Images as rows of tokens, a channel after the other of a pixel after the other, each in `levels` steps.

    Args:
        images: `[N, h, w, c]`, often a memory-mapped file.
        levels: of a channel; see `Picture`.
        labels: class labels `[N]`, if any.
        rows: which images belong to this split, in order. Default: all of them.

    >>> Pixels(np.array([[[[0, 127, 255]]]], dtype=np.uint8), levels=4)[:]
    tensor([[0, 1, 3]])
    """

    def __init__(
        self,
        images: UInt8[np.ndarray, "N h w c"],
        levels: int,
        *,
        labels: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ):
        self._states = states_of_values(levels)
        super().__init__(images, levels, labels=labels, rows=rows)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return self._states[super()._read(rows)]

    def _check_tokens(self) -> None:
        """Nothing to read for: every byte is a level."""


def images(
    folder: str | Path,
    levels: int = 256,
    colour: bool = False,
    size: int | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """All images in a folder and the folders in it, split 80 / 10 / 10 by a fixed permutation.

    Without `size` they must have one size. Grey files give one channel, colour files three; if there are both, all are
    colour. Transparency is dropped. What is hidden (a name that begins with a dot) is not read, and links are followed.
    If every image lies in one of several sub-folders, these are the classes, in alphabetical order.

    The images are decoded once, and cached in the data folder under a digest of their content; they are memory-mapped
    from there.

    Args:
        folder: of the images.
        levels: of a channel; see `Picture`.
        colour: three channels even if all are grey.
        size: crop each image, upright as its EXIF data say, to the largest square in its middle, and resize that to
            `size` × `size` pixels.
        progress: called with the number of images done, and of all: first as they are read, then, unless they are
            cached, as they are decoded.
    """
    folder = Path(folder)
    states_of_values(levels)  # a mistake is better found before the work than after
    files = list(files_in(folder))
    images = (path for path in files if path.suffix.lower() in EXTENSIONS)
    paths = sorted(images, key=lambda path: path.relative_to(folder).parts)  # in the same order on every machine
    if not paths:
        raise ValueError(f"{folder} must hold images ({', '.join(EXTENSIONS)}), got none")
    classes, labels = _classes(folder, paths)
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size must lie in [1, 4096], got {size}")
    pixels, notes = _pixels(paths, colour, size, progress)
    if len(files) > len(paths):
        others = len(files) - len(paths)
        notes.append(f"files not read, with other extensions than {', '.join(EXTENSIONS)}: {others:,}")
    if classes:
        notes.append(f"classes by sub-folder: {shortened(classes)}")
    with as_value_error(f"{folder}", ValueError):
        splits = Splits(*(Pixels(pixels, levels, labels=labels, rows=part) for part in tenths(len(pixels))))
    return DataSet(
        name=folder.absolute().name,
        source=str(folder.absolute()),
        codec=Picture(list(pixels.shape[1:]), levels, cropped=size is not None),
        **splits._asdict(),
        num_classes=len(classes),
        class_names=tuple(classes),
        notes=tuple(notes),
    )


def _classes(folder: Path, paths: list[Path]) -> tuple[list[str], np.ndarray | None]:
    tops = [path.relative_to(folder).parts for path in paths]
    classes = sorted({parts[0] for parts in tops})
    if any(len(parts) == 1 for parts in tops) or len(classes) == 1:
        return [], None
    if {name.lower() for name in classes} <= _SPLITS:
        raise ValueError(
            f"{folder} must have one sub-folder per class, got {', '.join(classes)}: give one of these instead"
        )
    labels = {name: label for label, name in enumerate(classes)}
    return classes, np.array([labels[parts[0]] for parts in tops])


def _pixels(
    paths: list[Path], colour: bool, size: int | None, progress: Progress | None
) -> tuple[np.ndarray, list[str]]:
    digests, kept, large = list[str](), dict[Path, bytes](), dict[Path, np.ndarray]()
    progress, room = progress or ignore_progress, _KEPT
    for done, path in enumerate(paths, 1):
        content = existing(path).read_bytes()
        digests.append(sha256(content).hexdigest())
        room -= len(content)
        if room >= 0:
            kept[path] = content
        else:  # opened once more to be decoded
            large[path] = _header(path, content)
        progress(done, len(paths))
    headers = cached("headers", [FORMAT, digests], lambda: (
        large[path] if path in large else _header(path, kept[path]) for path in paths
    ))  # fmt: skip
    sizes, grey, transparent = headers[:, :2], headers[:, 2] > 0, headers[:, 3] > 0
    width, height = sizes[0].tolist() if size is None else (size, size)
    others, mode = (sizes != (width, height)).any(1), "L" if grey.all() and not colour else "RGB"
    if size is None and others.any():
        first = int(others.argmax())
        rule = f"must have {width} × {height} pixels like {paths[0].name}"
        raise ValueError(
            f"{paths[first]} {rule}, got {' × '.join(map(str, sizes[first]))}: {size_hint(int(sizes.min()))}"
        )

    def decoded() -> Iterator[np.ndarray]:
        for done, path in enumerate(paths, 1):
            with _picture(path, kept.pop(path) if path in kept else path.read_bytes()) as file:
                pixels = np.asarray(file.convert(mode) if size is None else _square(file, mode, size))
            yield pixels.reshape(1, height, width, len(mode))
            progress(done, len(paths))

    files = {
        f"cropped to squares and resized to {size} × {size} pixels": others,
        f"enlarged, with fewer than {size} pixels across or down": (sizes < (size or 0)).any(1),
        "in grey, read as colour": grey & (mode == "RGB"),
        "whose transparency was dropped": transparent,
    }
    notes = [f"files {what}: {which.sum():,}" for what, which in files.items() if which.any()]
    return cached("images", [FORMAT, mode, size, digests], decoded), notes


def _square(image: Any, mode: str, size: int) -> Any:
    """The largest square in the middle of one of Pillow's images, upright, in `size` × `size` pixels."""
    from PIL import ImageOps

    return ImageOps.fit(ImageOps.exif_transpose(image).convert(mode), (size, size), pillow().Resampling.LANCZOS)


@contextmanager
def _picture(path: Path, content: bytes) -> Iterator[Any]:
    """The image in the file `path`, which has this content."""
    with as_value_error(f"{path} cannot be read as an image"):
        image = pillow()
        try:
            file = image.open(BytesIO(content))
        except image.UnidentifiedImageError:  # the message would be about memory
            raise ValueError("its format is not known") from None
        with file:
            yield file


def _header(path: Path, content: bytes) -> np.ndarray:
    """Width, height, whether it is grey, and whether it has transparency, without decoding the image."""
    with _picture(path, content) as file:
        (width, height), mode, transparent = file.size, file.mode, file.has_transparency_data
    if mode.startswith(_DEEP):
        raise ValueError(f"{path} must have 8 bits per channel, got an image of mode {mode}")
    return np.array([[width, height, mode in _GREY, transparent]], dtype=np.int32)


def size_hint(shortest: int, grid: int = 1) -> str:
    """What to do about images of other sizes, given their shortest side, and the grid that their size must fit."""
    size = grid << max(1, (min(64, shortest) // max(1, grid)).bit_length() - 1)
    return f"add --size {size} (in Python: size={size}) to crop each image to a square and resize it"

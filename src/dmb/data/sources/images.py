"""Folders of images."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.cache import cached, digest_of
from dmb.data.codecs import Picture
from dmb.data.codecs.base import shortened
from dmb.data.codecs.grid import pillow
from dmb.data.codecs.picture import states_of_values
from dmb.data.home import Progress, existing, explained, unseen
from dmb.data.partition import Splits, tenths
from dmb.data.pixels import Pixels

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMAT = 2  # of the cache

_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")  # what the names of modes with more than 8 bits a channel begin with
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def images(folder: str | Path, levels: int = 256, colour: bool = False, progress: Progress | None = None) -> DataSet:
    """All images in a folder and the folders in it, split 80 / 10 / 10 by a fixed permutation.

    They must have one size. Grey files give one channel, colour files three; if there are both, all are colour.
    Transparency is dropped. What is hidden (a name that begins with a dot) is not read, and links are followed. If
    every image lies in one of several sub-folders, these are the classes, in alphabetical order.

    The images are decoded once, and cached in the data folder under a digest of their content; they are memory-mapped
    from there.

    Args:
        folder: of the images.
        levels: of a channel; see `Picture`.
        colour: three channels even if all are grey.
        progress: called with the number of images done, and of all: first as they are read, then, unless they are
            cached, as they are decoded.
    """
    folder = Path(folder)
    states_of_values(levels)  # a mistake is better found before the work than after
    paths, others = _images_in(folder)
    classes, labels = _classes(folder, paths)
    pixels, notes = _pixels(paths, colour, progress)
    if others:
        notes.append(f"files not read, with other extensions than {', '.join(EXTENSIONS)}: {others:,}")
    if classes:
        notes.append(f"classes by sub-folder: {shortened(classes)}")
    with explained(f"{folder}", ValueError):
        splits = Splits(*(Pixels(pixels, levels, labels=labels, rows=part) for part in tenths(len(pixels))))
    return DataSet(
        name=folder.absolute().name,
        source=str(folder.absolute()),
        codec=Picture(list(pixels.shape[1:]), levels),
        **splits._asdict(),
        num_classes=len(classes),
        class_names=tuple(classes),
        notes=tuple(notes),
    )


def _images_in(folder: Path) -> tuple[list[Path], int]:
    """In the order of their names below `folder`, which is the same on every machine; and how many other files."""
    files = list(_files_in(folder))
    paths = [path for path in files if path.suffix.lower() in EXTENSIONS]
    if not paths:
        raise ValueError(f"{folder} must hold images ({', '.join(EXTENSIONS)}), got none")
    return sorted(paths, key=lambda path: path.relative_to(folder).parts), len(files) - len(paths)


def _files_in(folder: Path) -> Iterator[Path]:
    """All files in it and the folders in it that are not hidden."""

    def fail(error: OSError) -> None:
        raise ValueError(f"the folder {error.filename} cannot be read: {error.strerror}") from error

    for place, inside, names in os.walk(folder, onerror=fail, followlinks=True):
        here = Path(place)
        if here.is_symlink() and here.resolve() in (above.resolve() for above in here.parents):
            raise ValueError(f"{here} must not link to a folder that contains it, {here.resolve()}: remove the link")
        inside[:] = [name for name in inside if not name.startswith(".")]
        yield from (here / name for name in names if not name.startswith("."))


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


def _pixels(paths: list[Path], colour: bool, progress: Progress | None) -> tuple[np.ndarray, list[str]]:
    digests, progress = list[str](), progress or unseen
    for done, path in enumerate(paths, 1):
        digests.append(digest_of(existing(path)))
        progress(done, len(paths))
    headers = cached("headers", [FORMAT, digests], lambda: (_header(path) for path in paths))
    sizes, grey, transparent = headers[:, :2], headers[:, 2] > 0, headers[:, 3] > 0
    others = (sizes != sizes[0]).any(1)
    if others.any():
        first = int(others.argmax())
        (width, height), (wide, high) = sizes[0].tolist(), sizes[first].tolist()
        raise ValueError(
            f"{paths[first]} must have {width} × {height} pixels like {paths[0].name}, got {wide} × {high}: "
            "make all images one size"
        )
    mode = "L" if grey.all() and not colour else "RGB"

    def decoded() -> Iterator[np.ndarray]:
        for done, path in enumerate(paths, 1):
            with explained(f"{path} cannot be read as an image"), pillow().open(path) as file:
                pixels = np.asarray(file.convert(mode))
            yield pixels.reshape(1, *sizes[0, ::-1], len(mode))
            progress(done, len(paths))

    notes = []
    if mode == "RGB" and grey.any():
        notes.append(f"files in grey, read as colour: {grey.sum():,}")
    if transparent.any():
        notes.append(f"files whose transparency was dropped: {transparent.sum():,}")
    return cached("images", [FORMAT, mode, digests], decoded), notes


def _header(path: Path) -> np.ndarray:
    """Width, height, whether it is grey, and whether it has transparency, without decoding the image."""
    with explained(f"{path} cannot be read as an image"), pillow().open(path) as file:
        (width, height), mode, transparent = file.size, file.mode, file.has_transparency_data
    if mode.startswith(_DEEP):
        raise ValueError(f"{path} must have 8 bits per channel, got an image of mode {mode}")
    return np.array([[width, height, mode in _GREY, transparent]], dtype=np.int32)

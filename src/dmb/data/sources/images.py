"""Folders of images."""

import hashlib
from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.codecs import Picture
from dmb.data.codecs.picture import broken, pillow, states_of_values
from dmb.data.home import data_home
from dmb.data.partition import tenths
from dmb.data.pixels import Pixels
from dmb.files import written_whole

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMAT = 1  # of the cache

_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")  # what the names of modes with more than 8 bits a channel begin with
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def images(folder: str | Path, levels: int = 256, colour: bool = False) -> DataSet:
    """All images in a folder and the folders in it, split 80 / 10 / 10 by a fixed permutation.

    They must have one size. Grey files give one channel, colour files three; if there are both, all are colour.
    Transparency is dropped, and what is hidden (a name that begins with a dot) is not read. If every image lies in one
    of several sub-folders, these are the classes, in alphabetical order.

    The images are decoded once, and cached in the data folder under a digest of their content; they are memory-mapped
    from there.

    Args:
        folder: of the images.
        levels: of a channel; see `Picture`.
        colour: three channels even if all are grey.
    """
    folder = Path(folder)
    states_of_values(levels)  # a mistake is better found before the work than after
    paths = _images_in(folder)
    classes, labels = _classes(folder, paths)
    pixels = _pixels(paths, colour)
    try:
        train, validation, test = (Pixels(pixels, levels, labels=labels, rows=part) for part in tenths(len(pixels)))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return DataSet(
        name=folder.absolute().name,
        source=str(folder.absolute()),
        codec=Picture(list(pixels.shape[1:]), levels),
        train=train,
        validation=validation,
        test=test,
        num_classes=len(classes),
    )


def _images_in(folder: Path) -> list[Path]:
    """In the order of their names below `folder`, which is the same on every machine."""
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.suffix.lower() in EXTENSIONS and not any(part.startswith(".") for part in parts) and path.is_file():
            found.append((parts, path))
    if not found:
        raise ValueError(f"{folder} must hold images ({', '.join(EXTENSIONS)}), got none")
    return [path for _, path in sorted(found)]


def _classes(folder: Path, paths: list[Path]) -> tuple[list[str], np.ndarray | None]:
    tops = [path.relative_to(folder).parts for path in paths]
    classes = sorted({parts[0] for parts in tops})
    if any(len(parts) == 1 for parts in tops) or len(classes) == 1:
        return [], None
    if {name.lower() for name in classes} <= _SPLITS:
        raise ValueError(
            f"{folder} must have a sub-folder a class, got {', '.join(classes)}: give one of these instead"
        )
    labels = {name: label for label, name in enumerate(classes)}
    return classes, np.array([labels[parts[0]] for parts in tops])


def _pixels(paths: list[Path], colour: bool) -> np.ndarray:
    cached = data_home() / "cache" / f"{_digest(paths, colour)}.npy"
    if not cached.exists():
        width, height, has_colour = _size(paths)
        channels = 3 if colour or has_colour else 1
        cached.parent.mkdir(exist_ok=True)
        with written_whole(cached) as part:
            shape = (len(paths), height, width, channels)
            pixels = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
            for index, path in enumerate(paths):
                pixels[index] = _decoded(path, "RGB" if channels == 3 else "L").reshape(shape[1:])
            pixels.flush()
            del pixels  # some systems do not move a file that is mapped
    return np.load(cached, mmap_mode="r", allow_pickle=False)


def _size(paths: list[Path]) -> tuple[int, int, bool]:
    """Width, height, and whether any is in colour; from the headers, before any is decoded."""
    wanted, has_colour = None, False
    for path in paths:
        try:
            with pillow().open(path) as file:
                size, mode = file.size, file.mode
        except broken() as error:
            raise _unreadable(path, error) from error
        if mode.startswith(_DEEP):
            raise ValueError(f"{path} must have 8 bits a channel, got an image of mode {mode}")
        if wanted is None:
            wanted = size
        elif size != wanted:
            raise ValueError(
                f"{path} must have {wanted[0]} × {wanted[1]} pixels like {paths[0].name}, got {size[0]} × {size[1]}"
            )
        has_colour |= mode not in _GREY
    assert wanted is not None
    return *wanted, has_colour


def _decoded(path: Path, mode: str) -> np.ndarray:
    try:
        with pillow().open(path) as file:
            return np.asarray(file.convert(mode))
    except broken() as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = "" if str(path) in str(error) else f": {error}"  # it says no more than that
    return ValueError(f"{path} cannot be read as an image{reason}")


def _digest(paths: list[Path], colour: bool) -> str:
    """Of everything the pixels depend on."""
    content = hashlib.sha256(f"images {FORMAT} {colour}".encode())
    for path in paths:
        try:
            content.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    return content.hexdigest()

"""Figures of examples that are images."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure

from dmb.app.reports.drawing import ORANGE, WIDTH, styled
from dmb.app.reports.names import Names
from dmb.data import Codec, Grid, ImageCodec, Picture

FRAME = "#8a929b60"
"""Between pictures: black and white ones alike stand out from it, on a light page and on a dark one."""


def is_image(codec: Codec) -> bool:
    """Whether examples are pictures."""
    return across(codec) is not None


def across(codec: Codec) -> int | None:
    """How many positions lie side by side, if examples are pictures.

    >>> across(Grid([2, 3], 9)), across(Grid([6], 9))
    (3, None)
    """
    if isinstance(codec, ImageCodec):
        return codec.across
    return codec.shape[1] if isinstance(codec, Grid) and len(codec.shape) == 2 else None


def is_ordered(codec: Codec) -> bool:
    """Whether tokens are shades, so that some lie between others."""
    return isinstance(codec, Grid | Picture)


def painted(codec: Codec, tokens: Int[np.ndarray, "*b d"], names: Names | None = None) -> Float[np.ndarray, "*b h w 3"]:
    """Images in colour.

    Tokens beyond the codec's are names, such as a mask, in orange: a masked channel takes the orange's. The name of a
    group of shades is the middle one of them with some orange, the more the wider the group.

    Args:
        codec: of the data.
        tokens: of the images.
        names: of the process, the same at every position. Default: every name is as good as a mask.
    """
    assert isinstance(codec, Grid | ImageCodec)
    rows = tokens.reshape(-1, tokens.shape[-1])
    named = rows >= codec.num_states
    known, orange = np.where(named, 0, rows), named.astype(float)
    if names is not None and is_ordered(codec):
        middle, width = _groups(names)
        name = np.where(named, rows - codec.num_states, 0)
        known, orange = np.where(named, middle[name], rows), np.where(named, width[name], 0.0)
    if isinstance(codec, ImageCodec):
        shades = codec.images(torch.from_numpy(known)) / 255
        orange = orange.reshape(shades.shape) if is_ordered(codec) else codec.pixels(named)
    else:
        shades = known.reshape(-1, *codec.shape, 1) / max(1, codec.num_states - 1)
        orange = orange.reshape(shades.shape)
    images = orange * to_rgb(ORANGE) + (1 - orange) * shades
    return images.reshape(*tokens.shape[:-1], *images.shape[1:])


def _groups(names: Names) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The middle shade below each name, and the share of all shades between the first and the last."""
    below = names.below[:, 0]
    states = np.arange(below.shape[1])
    first = np.where(below, states, len(states)).min(1)
    last = np.where(below, states, 0).max(1)
    return (first + last) // 2, (last - first) / max(1, len(states) - 1)


@styled
def strips(pictures: Float[np.ndarray, "r c h w 3"], times: list[float]) -> Figure:
    """Paths of images, a row each, the time above every column."""
    rows, columns, height, width, _ = pictures.shape
    gap = max(1, width // 8)
    tiled = _canvas(rows * (height + gap) - gap, columns * (width + gap) - gap)
    for row in range(rows):
        for column in range(columns):
            _place(tiled, pictures[row, column], row * (height + gap), column * (width + gap))
    figure = Figure(figsize=(WIDTH, WIDTH * tiled.shape[0] / tiled.shape[1] + 0.35), layout="constrained")
    axes = figure.subplots()
    _show(axes, tiled)
    centres = [column * (width + gap) + width / 2 + 0.5 for column in range(columns)]
    axes.set_xticks(centres, [f"{'t = ' if not column else ''}{_time(t)}" for column, t in enumerate(times)])
    return figure


@styled
def sheet(
    left: Float[np.ndarray, "a h w 3"],
    right: Float[np.ndarray, "b h w 3"],
    titles: tuple[str, str] = ("validation data", "samples"),
) -> Figure:
    """Two squares of pictures side by side."""
    figure = Figure(figsize=(WIDTH, WIDTH / 2 + 0.2), layout="constrained")
    for axes, pictures, title in zip(figure.subplots(1, 2), (left, right), titles, strict=True):
        _show(axes, _tiled(pictures, math.ceil(math.sqrt(len(pictures)))))
        axes.set_xticks([])
        axes.set_title(title, loc="center")
    return figure


@styled
def tiles(pictures: Float[np.ndarray, "k h w 3"], across: int = 16) -> Figure:
    """Small pictures in rows of `across`, each as large as if the rows were full."""
    columns = min(len(pictures), across)
    tiled = _tiled(pictures, columns)
    width = WIDTH * columns / across
    figure = Figure(figsize=(width, width * tiled.shape[0] / tiled.shape[1]), layout="constrained")
    axes = figure.subplots()
    _show(axes, tiled)
    axes.set_xticks([])
    return figure


def _tiled(pictures: Float[np.ndarray, "k h w 3"], across: int) -> Float[np.ndarray, "y x 4"]:
    count, height, width, _ = pictures.shape
    gap = max(1, width // 12)
    tiled = _canvas(math.ceil(count / across) * (height + gap) - gap, across * (width + gap) - gap)
    for index, picture in enumerate(pictures):
        _place(tiled, picture, index // across * (height + gap), index % across * (width + gap))
    return tiled


def _canvas(height: int, width: int) -> Float[np.ndarray, "h w 4"]:
    """Nothing but frame, of which a pixel on every side is to be left."""
    return np.tile(to_rgba(FRAME), (height + 2, width + 2, 1))


def _place(tiled: np.ndarray, picture: np.ndarray, top: int, left: int) -> None:
    within = tiled[top + 1 : top + 1 + picture.shape[0], left + 1 : left + 1 + picture.shape[1]]
    within[..., :3], within[..., 3] = picture, 1.0


def _show(axes: Axes, tiled: np.ndarray) -> None:
    axes.imshow(tiled)
    axes.set_yticks([])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def _time(t: float) -> str:
    return f"{t:g}" if t in (0, 1) else f"{t:.2f}" if t >= 5e-3 else f"{t:.0e}"

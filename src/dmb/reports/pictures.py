"""Figures of examples that are images."""

import math

import matplotlib as mpl
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmb.reports.drawing import ORANGE, WIDTH, styled

FRAME = "#8a929b60"
"""Between pictures: black and white ones alike stand out from it, on a light page and on a dark one."""


@styled
def strips(pictures: Int[np.ndarray, "r c h w"], times: list[float], num_states: int) -> Figure:
    """Paths of images, a row each, the time above every column.

    Args:
        pictures: tokens; those at or above `num_states` are the mask, in orange.
        times: of the columns.
        num_states: of the data.
    """
    rows, columns, height, width = pictures.shape
    gap = max(1, width // 8)
    tiled = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for row in range(rows):
        for column in range(columns):
            _place(tiled, pictures[row, column], row * (height + gap), column * (width + gap))
    figure = Figure(figsize=(WIDTH, WIDTH * tiled.shape[0] / tiled.shape[1] + 0.35), layout="constrained")
    axes = figure.subplots()
    _show(axes, tiled, num_states)
    centres = [column * (width + gap) + width / 2 + 0.5 for column in range(columns)]
    axes.set_xticks(centres, [f"{'t = ' if not column else ''}{_time(t)}" for column, t in enumerate(times)])
    return figure


@styled
def sheet(data: Int[np.ndarray, "a h w"], samples: Int[np.ndarray, "b h w"], num_states: int) -> Figure:
    """As many examples of the data, left, as samples, right."""
    figure = Figure(figsize=(WIDTH, WIDTH / 2 + 0.2), layout="constrained")
    for axes, pictures, title in zip(
        figure.subplots(1, 2), (data, samples), ("validation data", "samples"), strict=True
    ):
        count, height, width = pictures.shape
        across = math.ceil(math.sqrt(count))
        down = math.ceil(count / across)
        gap = max(1, width // 12)
        tiled = np.full((down * (height + gap) - gap, across * (width + gap) - gap), np.nan)
        for index, picture in enumerate(pictures):
            _place(tiled, picture, index // across * (height + gap), index % across * (width + gap))
        _show(axes, tiled, num_states)
        axes.set_xticks([])
        axes.set_title(title, loc="center")
    return figure


def _place(tiled: np.ndarray, picture: np.ndarray, top: int, left: int) -> None:
    tiled[top : top + picture.shape[0], left : left + picture.shape[1]] = picture


def _show(axes: Axes, tiled: np.ndarray, num_states: int) -> None:
    shades = mpl.colormaps["gray"].with_extremes(bad=FRAME, over=ORANGE)
    tiled = np.pad(tiled, 1, constant_values=np.nan)
    axes.imshow(tiled, cmap=shades, vmin=0, vmax=max(1, num_states - 1))
    axes.set_yticks([])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def _time(t: float) -> str:
    return f"{t:g}" if t in (0, 1) else f"{t:.2f}"

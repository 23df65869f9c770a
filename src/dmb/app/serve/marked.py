"""Samples and films as blocks of a page."""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from dmb.app.report.contents import Block
from dmb.app.report.examples import address, alike, gallery, values
from dmb.app.report.symbols import NAME
from dmb.app.serve.model import Certainty, Film, Playground
from dmb.data.codecs import Cells, Codec, Images

MOST_SHOWN = 20  # rows of a table on the page; a file has them all
EMPTY = "∅"  # stands for padding that is noise
BLUE, ORANGE = np.array([46, 134, 200]), np.array([217, 102, 43])

Colour = Literal["certainty", "order"]


def samples(
    playground: Playground, x: Int[Tensor, "k d"], given: Bool[Tensor, " d"] | None = None, codec: Codec | None = None
) -> Block:
    """Samples as `codec` shows them; where something was given, what was filled in is marked."""
    view, codec = playground.view, codec or playground.codec
    if isinstance(view, Images):
        return gallery(playground, x)
    looks = [""] * x.shape[1] if given is None else ["" if known else "filled" for known in given.tolist()]
    if isinstance(view, Cells):
        rows = values(playground, x, codec)[:MOST_SHOWN]
        return Block(kind="table", body=(view.columns, [list(zip(row, looks, strict=True)) for row in rows]))
    lines = []
    for row in playground.symbols.rows(x):
        cells = zip(visible(row, row), looks, strict=True)
        lines.append(alike([(cell, f"{look} mask" if cell == NAME else look) for cell, look in cells], view.gap))
    return Block(kind="path", body=[(str(number), line) for number, line in enumerate(lines, 1)])


def frame(
    playground: Playground, film: Film, number: int, sample: int, certainty: Certainty | None, colour: Colour
) -> Block:
    """One frame of a film, each position coloured by certainty, or by when it was decided."""
    view, symbols, x, decided = playground.view, playground.symbols, film.of(sample), film.decided(sample)
    final, early = number >= decided, 1 - decided / max(1, len(film) - 1)
    note = (
        f"Frame {number + 1} of {len(film)}, t = {film.t[number]:.3f}: {int(final.sum())} of {len(final)} positions "
        f"have their final {playground.codec.token}."
    )
    strength = (0.15 + 0.85 * early).where(final, 0.0)
    if isinstance(view, Images):
        pictures = [("the picture now", address(symbols.painted(x[number][None])[0]))]
        if certainty is not None:
            blue = address(heat(certainty.probability[number], view.grid, BLUE))
            pictures.append(("certainty: the bluer, the more certain", blue))
        pictures.append(
            ("decided: the darker, the earlier; white: not yet", address(heat(strength, view.grid, ORANGE)))
        )
        return Block(kind="pictures", body=pictures, note=note)
    now, last = symbols.rows(x[[number, -1]])
    given, cells, look = film.given, list[tuple[str, str, float, str]](), "order"
    if certainty is not None:
        likeliest, sure = symbols.rows(certainty.likeliest[number][None])[0], certainty.probability[number]
        look, strength = ("sure", sure) if colour == "certainty" else (look, strength)
    for place, cell in enumerate(visible(now, last)):
        if given is not None and given[place]:
            cells.append((cell, "given", 0.0, "given"))
            continue
        told = f"decided in frame {int(decided[place]) + 1}"
        if certainty is not None:
            told = f"likeliest: {likeliest[place]} ({sure[place]:.0%}); {told}"
        cells.append((cell, f"{look} mask" if cell == NAME else look, float(strength[place]), told))
    if isinstance(view, Cells):
        rows = [[name, cell, cell[-1]] for name, cell in zip(view.columns, cells, strict=True)]
        return Block(kind="table", body=(["column", "now", ""], rows), note=note)
    return Block(kind="film", body=[part for cell in cells if cell[0] for part in (cell, view.gap)], note=note)


def heat(values: Tensor, grid: tuple[int, int], colour: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    """Numbers in [0, 1] as a picture, from white to a colour."""
    cells = values.reshape(*grid, -1).mean(-1).numpy()[..., None]
    return (255 + cells * (colour - 255)).round().astype(np.uint8)


def visible(cells: list[str], final: list[str]) -> list[str]:
    """Padding among noise is seen; after the end of the final sequence there is nothing."""
    end = max((place + 1 for place, cell in enumerate(final) if cell), default=0)
    return [cell or (EMPTY if place < end else "") for place, cell in enumerate(cells)]

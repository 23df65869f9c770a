"""HTML of samples, films and noise. Every text is escaped: it may come from a visitor, or from the data."""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from markupsafe import Markup
from torch import Tensor

from dmb.app.report.examples import BETWEEN, address
from dmb.app.report.symbols import NAME
from dmb.app.serve.film import Certainty, Film
from dmb.app.serve.model import Playground
from dmb.data import Columns
from dmb.data.codecs import Cells, Images
from dmb.data.codecs.images import sheet
from dmb.sampling import State

MOST_SHOWN = 20
"""Rows of a table on the page; a file has them all."""
EMPTY = "∅"
"""Stands for padding that is noise."""
BLUE, ORANGE = np.array([46, 134, 200]), np.array([217, 102, 43])

Colour = Literal["certainty", "order"]
Given = Bool[Tensor, " d"] | None


def samples(playground: Playground, x: Int[Tensor, "k d"], given: Given = None) -> Markup:
    """Samples; where something was given, what was filled in is marked."""
    known = [False] * x.shape[1] if given is None else given.tolist()
    looks = ["" if given is None or k else "filled" for k in known]
    return shown(playground, x, [looks] * len(x))


def noise(playground: Playground, x: Int[Tensor, "k d"], t: float) -> Markup:
    """An example, and noisy copies of it, in which what has changed is marked."""
    changed = x != x[:1]
    share = changed[1:].float().mean().item()
    note = Markup("<p class='note'>At t = {:.2f}, {:.0f} % of the {}s of {} noisy copies have changed.</p>")
    looks = [["changed" if c else "" for c in row] for row in changed.tolist()]
    titles = ["the example", *(f"copy {k}" for k in range(1, len(x)))]
    return note.format(t, 100 * share, playground.codec.token, len(x) - 1) + shown(playground, x, looks, titles)


def way(playground: Playground, path: Sequence[State]) -> Markup:
    """One example on its way to noise."""
    x = torch.cat([state.x for state in path])
    note = Markup("<p class='note'>One example all the way to noise, with equal shares of all changes between:</p>")
    looks = [["changed" if c else "" for c in row] for row in (x != x[:1]).tolist()]
    return note + shown(playground, x, looks, [f"t = {state.t:.3g}" for state in path])


def shown(
    playground: Playground, x: Int[Tensor, "k d"], looks: Sequence[Sequence[str]], titles: Sequence[str] = ()
) -> Markup:
    """Sequences in the way of the data: as text, rows of a table, or images. `looks` are classes of CSS."""
    view = playground.view
    if isinstance(view, Images):
        return _images(playground, x, titles)
    if isinstance(view, Cells):
        return _rows(playground, view, x, looks, titles)
    cells = _visible(playground.symbols.rows(x))
    lines = [_line(row, look, view.gap) for row, look in zip(cells, looks, strict=False)]
    numbers = titles or [str(k) for k in range(1, len(lines) + 1)]
    body = (Markup("<div><b>{}</b><span>{}</span></div>").format(*pair) for pair in zip(numbers, lines, strict=True))
    return Markup("<div class='lines'>{}</div>").format(Markup("").join(body))


def table(header: Iterable[str], rows: Iterable[Iterable[Any]], looks: Iterable[Iterable[str]]) -> Markup:
    """A table whose cells have looks."""
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in header)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td class='{}'>{}</td>").format(look, cell) for cell, look in zip(row, each, strict=True)
            )
        )
        for row, each in zip(rows, looks, strict=False)
    )
    return Markup("<div class='scroll'><table><tr>{}</tr>{}</table></div>").format(head, body)


def frame(
    playground: Playground, film: Film, number: int, sample: int, certainty: Certainty | None, colour: Colour
) -> Markup:
    """One frame of a film, each position coloured by certainty, or by when it was decided."""
    x, decided = film.of(sample), film.decided(sample)
    final, early = number >= decided, 1 - decided / max(1, len(film) - 1)
    note = Markup("<p class='note'>Frame {} of {}, t = {:.3f}: {} of {} positions have their final {}.</p>").format(
        number + 1, len(film), film.t[number], int(final.sum()), len(final), playground.codec.token
    )
    sure = None if certainty is None else certainty.probability[number]
    strength = (0.15 + 0.85 * early).where(final, 0.0)
    if isinstance(playground.view, Images):
        return note + _picture_frame(playground, x[number], sure, strength)
    look = "order" if colour == "order" or sure is None else "sure"
    [cells] = _visible(playground.symbols.rows(x[number][None]), [_length(playground, x[-1])])
    likeliest = None if certainty is None else playground.symbols.rows(certainty.likeliest[number][None])[0]
    given = [False] * len(cells) if film.template is None else (film.template >= 0).tolist()
    rows = []
    for place, cell in enumerate(cells):
        if given[place]:
            rows.append((cell, "given", 0.0, "given"))
            continue
        when = f"decided in frame {int(decided[place]) + 1}"
        belief = "" if likeliest is None or sure is None else f"likeliest: {likeliest[place]} ({sure[place]:.0%}); "
        value = strength[place] if look == "order" or sure is None else sure[place]
        rows.append((cell, look, float(value), belief + when))
    if isinstance(playground.view, Cells):
        return note + _columns_frame(playground.view, rows)
    piece = Markup("<span class='{}' style='--c:{:.2f}' title='{}'>{}</span>")
    pieces = [
        piece.format(f"{look} mask" if cell == NAME else look, value, title, cell)
        for cell, look, value, title in rows
        if cell
    ]
    return note + Markup("<div class='film'>{}</div>").format(Markup(playground.view.gap).join(pieces))


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names and values."""
    items = (Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(*pair) for pair in pairs)
    return Markup("<dl class='facts'>{}</dl>").format(Markup("").join(items))


def bars(title: str, labels: Sequence[str], p: Sequence[float], usual: Sequence[float], note: str = "") -> Markup:
    """A distribution as bars, with the usual one beside it in grey."""
    top = max([*p, *usual, 1e-9])
    row = Markup(
        "<div class='bar'><span title='{0}'>{0}</span><div><i style='width:{1:.1f}%'></i>"
        "<i class='usual' style='width:{2:.1f}%'></i></div><em>{3}</em></div>"
    )
    body = Markup("").join(
        row.format(label, 100 * mine / top, 100 * other / top, f"{100 * mine:.1f} %")
        for label, mine, other in zip(labels, p, usual, strict=True)
    )
    return Markup("<section><h4>{}</h4>{}<p class='note'>{}</p></section>").format(title, body, note)


def _visible(cells: list[list[str]], ends: Sequence[int] | None = None) -> list[list[str]]:
    """Padding among noise is seen; after the end of a sequence there is nothing. Default: it ends with what is seen."""
    found = []
    for index, row in enumerate(cells):
        last = max((place + 1 for place, cell in enumerate(row) if cell), default=0)
        end = last if ends is None else ends[index]
        found.append([cell or (EMPTY if place < end else "") for place, cell in enumerate(row)])
    return found


def _length(playground: Playground, x: Int[Tensor, " d"]) -> int:
    """Where a finished sequence ends."""
    return sum(map(bool, playground.symbols.rows(x[None])[0]))


def _line(cells: Sequence[str], looks: Sequence[str], gap: str) -> Markup:
    """Symbols in a line; those that look alike share one element."""
    marked = [(cell, f"{look} mask" if cell == NAME else look) for cell, look in zip(cells, looks, strict=True)]
    return Markup("").join(
        Markup("<span class='{}'>{}</span>").format(look, "".join(cell + gap for cell, _ in run))
        for look, run in groupby(marked, key=lambda pair: pair[1])
    )


def _rows(
    playground: Playground, view: Cells, x: Int[Tensor, "k d"], looks: Sequence[Sequence[str]], titles: Sequence[str]
) -> Markup:
    """Values as a file has them where all are known, else the names of their states."""
    codec = playground.codec
    if not titles and isinstance(codec, Columns) and codec.knows(x).all():
        values = zip(*codec.cells(x), strict=True)
        cells: list[list[Any]] = [
            ["missing" if v is None else "(empty)" if v == "" else v for v in row] for row in islice(values, MOST_SHOWN)
        ]
    else:
        cells = list(playground.symbols.rows(x[:MOST_SHOWN]))
    if titles:
        named = [[name, *row] for name, row in zip(titles, cells, strict=True)]
        return table(["", *view.columns], named, [["", *look] for look in looks])
    return table(view.columns, cells, looks)


def _images(playground: Playground, x: Int[Tensor, "k d"], titles: Sequence[str]) -> Markup:
    painted = playground.symbols.painted(x)
    if titles:
        figures = zip(titles, painted, strict=True)
        return Markup("<div class='pictures'>{}</div>").format(
            Markup("").join(_figure(address(image), name) for name, image in figures)
        )
    across = min(len(x), 1 + int((len(x) - 1) ** 0.5))
    drawn = address(sheet(painted, between=BETWEEN))
    return Markup("<div class='pictures'><img class='sheet' style='--n:{}' src='{}' alt='samples'></div>").format(
        across, drawn
    )


def _figure(source: str, caption: str) -> Markup:
    return Markup("<figure><img src='{0}' alt='{1}'><figcaption>{1}</figcaption></figure>").format(source, caption)


def _picture_frame(
    playground: Playground, x: Int[Tensor, " d"], sure: Tensor | None, early: Float[Tensor, " d"]
) -> Markup:
    """The picture as it stands, how certain each part of it is, and when it was decided."""
    view = playground.view
    assert isinstance(view, Images)

    def heat(values: Tensor, colour: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
        cells = values.reshape(*view.grid, -1).mean(-1).numpy()[..., None]
        return (255 + cells * (colour - 255)).round().astype(np.uint8)

    parts = [_figure(address(playground.symbols.painted(x[None])[0]), "the picture now")]
    if sure is not None:
        parts.append(_figure(address(heat(sure, BLUE)), "certainty: the bluer, the more certain"))
    parts.append(_figure(address(heat(early, ORANGE)), "decided: the darker, the earlier; white: not yet"))
    return Markup("<div class='pictures'>{}</div>").format(Markup("").join(parts))


def _columns_frame(view: Cells, rows: list[tuple[str, str, float, str]]) -> Markup:
    line = Markup("<tr><td>{}</td><td class='{}' style='--c:{:.2f}'>{}</td><td>{}</td></tr>")
    body = Markup("").join(
        line.format(name, look, value, cell, title)
        for name, (cell, look, value, title) in zip(view.columns, rows, strict=True)
    )
    head = Markup("<tr><th>column</th><th>now</th><th></th></tr>")
    return Markup("<div class='scroll'><table>{}{}</table></div>").format(head, body)

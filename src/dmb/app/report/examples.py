"""Examples of the data and samples: beside each other, and on their way to noise and from it."""

import base64
import io
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.app.report.contents import SHOWN, Block, Contents, OpenRun
from dmb.app.report.symbols import NAME
from dmb.data.codecs import Codec, Columns, Images, Lines
from dmb.data.codecs.images import pillow, sheet
from dmb.sampling import State

# images on their way, images on a sheet, other examples that are shown, and the grey between images
PICTURES, SHEET, ROWS, BETWEEN = 4, 64, 10, 150
MOST_COLUMNS = 12  # of a table; if there are more, they are shown below each other

Cell = tuple[str, str]  # a text, and its look: a class of CSS


def trajectories(contents: Contents) -> list[Block]:
    """Validation examples on their way to noise, samples on their way from it."""
    device = contents.bridge.device
    generator = seeded(contents.seed, "report", "forward", device=device)
    forward = contents.bridge.corruption_path(contents.examples[:PICTURES].to(device), SHOWN, generator=generator)
    there = "Validation data on the way to noise, at times between which equal shares of all changes fall."
    back = f"Samples on the way from noise to data, in {contents.calls} network calls."
    time = f" {contents.bridge.meaning_of_time}".rstrip()
    return [
        path(contents, timed(forward), "Forward", there + time),
        path(contents, timed(contents.reverse), "Reverse", back + time, clean=-1),
    ]


def beside_data(contents: Contents) -> list[Block]:
    """Samples beside examples of the data."""
    codec, view, symbols, blocks = contents.codec, contents.view, contents.symbols, []
    sheet_size = min(SHEET, len(contents.samples))  # of both, at one scale
    for title, tokens in (("Samples", contents.samples), ("Validation data", contents.examples)):
        few = tokens[:ROWS]
        if isinstance(view, Images):
            blocks.append(gallery(contents, tokens[:sheet_size], title))
        elif isinstance(view, Lines):
            # whole, so that symbols which take several tokens come out right; by token if one is a name
            texts = codec.decode(few) if codec.knows(few).all() else map(view.gap.join, symbols.rows(few))
            blocks.append(Block(kind="texts", title=title, body=list(texts)))
        else:
            header, rows = view.columns, values(contents, few)
            if len(header) > MOST_COLUMNS:
                rows = [[name, *cells] for name, cells in zip(header, zip(*rows, strict=True), strict=True)]
                header = [""] * len(rows[0])
            blocks.append(Block(kind="table", title=title, body=(header, rows)))
    return blocks


def by_class(contents: Contents) -> list[Block]:
    """A few samples of each class, if there are classes."""
    classes, device = contents.classes[:MOST_COLUMNS], contents.bridge.device
    if not classes or not isinstance(contents.view, Images):
        return []
    each = max(1, min(8, len(contents.samples) // len(classes)))
    label = torch.arange(len(classes), device=device).repeat_interleave(each)
    generator = seeded(contents.seed, "report", "classes", device=device)
    drawn = contents.bridge.sample(len(label), label=label, calls=contents.calls, generator=generator).cpu()
    stacked = [address(_stack(contents, x)) for x in drawn.split(each)]
    columns = list(zip(classes, stacked, strict=True))
    return [Block(kind="pictures", title="Samples of each class", body=columns)]


def values(run: OpenRun, tokens: Int[Tensor, "b d"], codec: Codec | None = None) -> list[list[str]]:
    """Rows of a table as a file has them: values, not bins; symbols, where they are names."""
    codec = codec or run.codec
    if not isinstance(codec, Columns) or not codec.knows(tokens).all():
        return run.symbols.rows(tokens)
    cells = zip(*codec.cells(tokens), strict=True)
    return [["missing" if v is None else "(empty)" if v == "" else str(v) for v in row] for row in cells]


def gallery(run: OpenRun, tokens: Int[Tensor, "k d"], title: str = "") -> Block:
    """Images on one sheet."""
    drawn = address(sheet(run.symbols.painted(tokens), between=BETWEEN))
    return Block(kind="pictures", title=title, body=[("", drawn)])


def _stack(run: OpenRun, tokens: Int[Tensor, "k d"]) -> UInt8[np.ndarray, "h w 3"]:
    """Images below each other."""
    strip = np.pad(run.symbols.painted(tokens), ((0, 0), (0, 1), (0, 0), (0, 0)), constant_values=BETWEEN)
    return strip.reshape(-1, *strip.shape[2:])[:-1]


def address(image: UInt8[np.ndarray, "h w 3"] | bytes) -> str:
    """The address of an image that is part of the page; it may be the content of a PNG file."""
    if not isinstance(image, bytes):
        pillow().fromarray(image).save(file := io.BytesIO(), format="png")
        image = file.getvalue()
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def timed(states: Iterable[State]) -> list[tuple[str, Int[Tensor, "k d"]]]:
    """States by their times; one so small that two places would be 0 is given in powers of ten."""
    return [(f"t\u00a0=\u00a0{s.t:{'.2f' if s.t == 0 or s.t >= 5e-3 else '.0e'}}", s.x.cpu()) for s in states]


def path(
    run: OpenRun, states: Sequence[tuple[str, Int[Tensor, "k d"]]], title: str = "", note: str = "", clean: int = 0
) -> Block:
    """A few images, or one example, in several states; `clean` is the index of the one that has no noise."""
    view, names, captions = run.view, run.bridge.states.names, [caption for caption, _ in states]
    tokens = [x[:PICTURES] for _, x in states]
    note += "" if not names else " Orange: masked." if names == 1 else " Orange: names of groups of states."
    if isinstance(view, Images):
        drawn = [address(_stack(run, x)) for x in tokens]
        return Block(kind="pictures", title=title, note=note, body=list(zip(captions, drawn, strict=True)))
    lines = []
    for x in tokens:
        row, differs = run.symbols.rows(x[:1])[0], (x[0] != tokens[clean][0]).tolist()
        lines.append([(s, "mask" if s == NAME else "dim") if d else (s, "") for s, d in zip(row, differs, strict=True)])
    if any(look == "dim" for line in lines for _, look in line):
        note += f" Grey: tokens that differ from the {'data' if clean == 0 else 'sample'}."
    if not isinstance(view, Lines):
        cells = [[name, *column] for name, column in zip(view.columns, zip(*lines, strict=True), strict=True)]
        return Block(kind="table", title=title, note=note, body=(["", *captions], cells))
    runs = [alike(line, view.gap) for line in lines]
    return Block(kind="path", title=title, note=note, body=list(zip(captions, runs, strict=True)))


def alike(cells: Iterable[Cell], gap: str) -> list[Cell]:
    """Symbols in a line, in which those that look alike share one element."""
    return [("".join(s + gap for s, _ in run), look) for look, run in groupby(cells, lambda cell: cell[1])]

"""Examples of the data and samples: beside each other, and on their way to noise and from it."""

import base64
import io
from itertools import groupby

import numpy as np
from jaxtyping import UInt8

from dmb._core.seeding import seeded
from dmb.app.report.contents import Block, Contents
from dmb.app.report.sampling import SHOWN
from dmb.app.report.symbols import NAME
from dmb.data.codecs import Images, Lines
from dmb.data.codecs.images import pillow, sheet
from dmb.sampling import State

PICTURES, SHEET, ROWS, BETWEEN = 4, 64, 10, 150
"""Images on their way, images on a sheet, other examples that are shown, and the grey between images."""
MOST_COLUMNS = 12  # of a table; if there are more, they are shown below each other


def trajectories(contents: Contents) -> list[Block]:
    """Validation examples on their way to noise, samples on their way from it."""
    device = contents.bridge.device
    generator = seeded(contents.seed, "report", "forward", device=device)
    forward = contents.bridge.corruption_path(contents.examples[:PICTURES].to(device), SHOWN, generator=generator)
    there = "Validation data on the way to noise, at times between which equal shares of all changes fall."
    back = f"Samples on the way from noise to data, in {contents.calls} network calls."
    time = f" {contents.bridge.meaning_of_time}".rstrip()
    return [
        _path(contents, forward, "Forward", there + time, clean=0),
        _path(contents, contents.reverse, "Reverse", back + time, clean=-1),
    ]


def beside_data(contents: Contents) -> list[Block]:
    """Samples beside examples of the data."""
    codec, view, symbols, blocks = contents.run.codec, contents.view, contents.symbols, []
    for title, tokens in (("Validation data", contents.examples), ("Samples", contents.samples)):
        few = tokens[:ROWS]
        if isinstance(view, Images):
            drawn = [("", address(sheet(symbols.painted(tokens[:SHEET]), between=BETWEEN)))]
            blocks.append(Block(kind="pictures", title=title, body=drawn))
        elif isinstance(view, Lines):
            # whole, so that symbols which take several tokens come out right; by token if one is a name
            texts = codec.decode(few) if codec.knows(few).all() else map(view.gap.join, symbols.rows(few))
            blocks.append(Block(kind="texts", title=title, body=list(texts)))
        else:
            header, rows = view.columns, symbols.rows(few)
            if len(header) > MOST_COLUMNS:
                rows = [[name, *cells] for name, cells in zip(header, zip(*rows, strict=True), strict=True)]
                header = [""] * len(rows[0])
            blocks.append(Block(kind="table", title=title, body=(header, rows)))
    return blocks


def address(image: UInt8[np.ndarray, "h w 3"] | bytes) -> str:
    """The address of an image that is part of the page; it may be the content of a PNG file."""
    if not isinstance(image, bytes):
        pillow().fromarray(image).save(file := io.BytesIO(), format="png")
        image = file.getvalue()
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _path(contents: Contents, path: list[State], title: str, note: str, clean: int) -> Block:
    """A few images, or one example, at several times; `clean` is the index of the state that has no noise."""
    view, names, tokens = contents.view, contents.bridge.states.names, [state.x[:PICTURES].cpu() for state in path]
    # a time so small that two places would be 0 is given in powers of ten
    times = [f"t\u00a0=\u00a0{s.t:.2f}" if s.t == 0 or s.t >= 5e-3 else f"t\u00a0=\u00a0{s.t:.0e}" for s in path]
    if isinstance(view, Images):
        note += "" if not names else " Orange: masked." if names == 1 else " Orange: names of groups of states."
        pad = ((0, 0), (0, 1), (0, 0), (0, 0))
        strips = (np.pad(contents.symbols.painted(x), pad, constant_values=BETWEEN) for x in tokens)
        drawn = [address(strip.reshape(-1, *strip.shape[2:])[:-1]) for strip in strips]
        return Block(kind="pictures", title=title, note=note, body=list(zip(times, drawn, strict=True)))
    lines = []
    for x in tokens:
        row, differs = contents.symbols.rows(x[:1])[0], (x[0] != tokens[clean][0]).tolist()
        lines.append([(s, "mask" if s == NAME else "dim") if d else (s, "") for s, d in zip(row, differs, strict=True)])
    if any(look == "dim" for line in lines for _, look in line):
        note += f" Grey: tokens that differ from the {'data' if clean == 0 else 'sample'}."
    note += "" if not names else " Orange: masked." if names == 1 else " Orange: the name of a group of states."
    if not isinstance(view, Lines):
        cells = [[name, *column] for name, column in zip(view.columns, zip(*lines, strict=True), strict=True)]
        return Block(kind="table", title=title, note=note, body=(["", *times], cells))
    runs = [  # tokens that look alike share one element
        [("".join(s + view.gap for s, _ in run), look) for look, run in groupby(line, lambda cell: cell[1])]
        for line in lines
    ]
    return Block(kind="path", title=title, note=note, body=list(zip(times, runs, strict=True)))

"""The parts of a report that show examples: on their way to noise and back, and as they come out."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from dmb.app.reports import markup, pictures
from dmb.app.reports.contents import Contents
from dmb.app.reports.symbols import printable
from dmb.app.reports.trajectories import forward_path
from dmb.data import Columns, Grid
from dmb.samplers import State
from dmb.seeding import seeded

PICTURES, LINES = 5, 3
"""Paths shown, of images and of others."""
SHEET = 64
"""Samples shown."""


def trajectories(contents: Contents) -> str:
    """Validation examples on their way to noise, samples on their way from it."""
    device = contents.bridge.device
    forward = forward_path(
        contents.process,
        contents.examples[: PICTURES if pictures.is_image(contents.run.codec) else LINES].to(device),
        generator=seeded(contents.seed, "report", "forward", device=device),
    )
    there = "Validation data, noised along one path each, at times between which equal shares of all changes fall."
    back = f"Samples on their way from noise to data, {contents.steps} steps in all."
    if contents.whole_paths:
        there += " Time is the expected share of masked tokens."
        back += " Time is the share of masked tokens."
    return (
        f"<h3>Forward</h3>{_paths(contents, forward, 'forward', there, clean=0)}"
        f"<h3>Reverse</h3>{_paths(contents, contents.reverse, 'reverse', back, clean=-1)}"
    )


def sample_sheet(contents: Contents) -> str:
    """Samples beside as many examples of the data."""
    samples = contents.samples[:SHEET]
    examples = contents.examples[: len(samples)]
    titles = ("Validation data", "Samples")
    codec = contents.run.codec
    if pictures.is_image(contents.run.codec):
        drawn = pictures.sheet(_images(contents, examples), _images(contents, samples))
        return markup.figure(drawn, "sheet", f"{len(examples)} validation examples and {len(samples)} samples.")
    if isinstance(codec, Columns):
        tables = [markup.table(codec.names, _rows(contents, part), "rows") for part in (examples, samples)]
        return markup.beside(tables[0], tables[1], titles)
    texts = [_texts(contents, part) for part in (examples, samples)]
    return markup.beside(markup.blocks(texts[0]), markup.blocks(texts[1]), titles)


def _paths(contents: Contents, path: Sequence[State], name: str, caption: str, clean: int) -> str:
    times = [state.t for state in path]
    if pictures.is_image(contents.run.codec):
        strips = np.stack([_images(contents, state.x[:PICTURES]) for state in path], axis=1)
        return markup.figure(pictures.strips(strips, times), name, caption + _in_orange(contents))
    note = "Grey: tokens that differ from the data." if clean == 0 else "Grey: tokens that differ from the sample."
    if contents.symbols.names is not None:
        note += (
            " ▒: masked."
            if contents.bridge.process.names == 1
            else " ░ ▒ ▓: names of groups of states, from fine to coarse."
        )
    parts = [markup.paragraph(f"{caption} {note}", "note")]
    for index in range(min(LINES, len(path[0].x))):
        states = [state.x[index].tolist() for state in path]
        rows = [contents.symbols.row(tokens) for tokens in states]
        grey = [[token != final for token, final in zip(tokens, states[clean], strict=True)] for tokens in states]
        codec = contents.run.codec
        if isinstance(codec, Columns):
            parts.append(markup.path_table(codec.names, times, rows, grey))
        else:
            gap = " " if isinstance(codec, Grid) else ""
            parts.append(markup.path(times, rows, grey, gap))
    return "".join(parts)


def _images(contents: Contents, tokens: Int[Tensor, "b d"]) -> Float[np.ndarray, "b h w 3"]:
    return pictures.painted(contents.run.codec, tokens.cpu().numpy(), contents.symbols.names)


def _in_orange(contents: Contents) -> str:
    names = contents.symbols.names
    if names is None:
        return ""
    if len(names.below) == 1:
        return " Orange: masked."
    ordered = pictures.is_ordered(contents.run.codec)
    return " Orange: names of groups of states" + ("; the wider the group, the more of it." if ordered else ".")


def _rows(contents: Contents, tokens: Int[Tensor, "b d"]) -> list[list[str]]:
    return [contents.symbols.row(row) for row in tokens.tolist()]


def _texts(contents: Contents, tokens: Int[Tensor, "b d"]) -> list[str]:
    """Whole sequences, so that symbols which take several tokens come out right; by token if one is a name."""
    if (tokens >= contents.run.codec.num_states).any():
        return ["".join(row) for row in _rows(contents, tokens)]
    return [printable(sequence) for sequence in contents.run.codec.decode(tokens)]

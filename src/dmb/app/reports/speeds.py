"""The part of a report that shows the speeds of positions, and the order of writing that they make."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from dmb.app.reports import markup, speed_figures
from dmb.app.reports.contents import Contents
from dmb.app.reports.orders import LONGEST_NAME, firmness, order_along, order_of_columns, order_on_grid
from dmb.app.reports.scales import Values
from dmb.app.reports.symbols import short
from dmb.data import Codec, Columns, Grid, ImageCodec, Picture, Text
from dmb.processes import BridgeProcess

MOST_LINES = 12
MAPS = 3
MOST_COLUMNS = 40
"""Of more columns, as many of the first and of the last to be written are shown."""
HARDLY = 0.6
"""A smaller chance that the slower of two is written first is hardly an order."""


class History(NamedTuple):
    """Log speeds at validations, the first one first."""

    names: list[str]
    values: Float[np.ndarray, "r d"]

    def thinned(self, most: int) -> "History":
        """At most so many, evenly spaced, the first and the last among them."""
        chosen = np.linspace(0, len(self.names) - 1, min(most, len(self.names))).round().astype(int)
        return History([self.names[index] for index in chosen], self.values[chosen])


def order_of_writing(contents: Contents) -> str:
    """The figure, with the order in words; nothing if positions have no speeds."""
    process, codec = contents.bridge.process, contents.run.codec
    if not isinstance(process, BridgeProcess) or process.clocks.log_speeds is None:
        return ""
    ordered = contents.bridge.ordered
    if ordered is not None and ordered.order is not None:
        return markup.paragraph("The network writes in one order only, whatever the speeds of positions are.")
    history = log_speeds_over_training(contents)
    done = "masked" if process.names == 1 else "destroyed"
    meaning = f"larger: {done} earlier, written later"
    shape = image_axes(codec, process.num_positions)
    last = history.values[-1]
    if isinstance(codec, Columns):
        drawn, about = _columns(codec, history, meaning)
    elif len(shape) == 2:
        kept = history.thinned(MAPS)
        drawn = speed_figures.maps(kept.names, _on_grid(kept.values, codec, shape), meaning)
        about = f"The logarithm of each position’s speed, on the grid of positions{_channels(codec)}."
        about += f" At the end images are written {order_on_grid(_on_grid(last[None], codec, shape)[0])}."
    else:
        kept = history.thinned(MOST_LINES)
        drawn = speed_figures.lines(kept.names, kept.values, meaning)
        about = "The logarithm of each position’s speed"
        if len(kept.names) > 1:
            about += ", one line per validation: the paler, the earlier in training; bold: the last"
        what = "text" if isinstance(codec, Text) else "sequence"
        about += f". At the end the {what} is written {order_along(last, what)}."
    place = "column" if isinstance(codec, Columns) else "position"
    about += f" The larger a speed, the earlier its {place} is {done}, and the later it is written."
    return markup.figure(drawn, "speeds", about + _firmness(process, last, place) + _best(contents, history))


def log_speeds_over_training(contents: Contents) -> History:
    """Log speeds at every validation that has them; those of the model itself if none has."""
    process = contents.bridge.process
    assert isinstance(process, BridgeProcess)
    own = process.clocks.log_speeds if process.log_speeds is None else process.log_speeds
    assert own is not None
    names, rows = [], []
    for record in contents.records("validation", "step", "log_speeds"):
        row = np.array([np.nan if value is None else value for value in record["log_speeds"]], dtype=float)
        if len(row) == len(own) and np.isfinite(row).all():
            names.append(_name(record["step"]))
            rows.append(row)
    if not rows:
        names, rows = ["the model"], [own.detach().double().cpu().numpy()]
    return History(names, np.stack(rows))


def image_axes(codec: Codec, num_positions: int) -> tuple[int, ...]:
    """The axes along which positions lie, channels left out: two for images, otherwise one.

    >>> image_axes(Grid([2, 3], 9), 6), image_axes(Picture([2, 3, 3]), 18), image_axes(Grid([2, 2, 2], 9), 8)
    ((2, 3), (2, 3), (8,))
    """
    if isinstance(codec, Picture) or (isinstance(codec, Grid) and len(codec.shape) == 2):
        return (codec.shape[0], codec.shape[1])
    if isinstance(codec, ImageCodec):
        return (num_positions // codec.across, codec.across)
    return (num_positions,)


def _columns(codec: Columns, history: History, meaning: str) -> tuple[Figure, str]:
    last = history.values[-1]
    order = np.argsort(last, kind="stable")
    about = "The logarithm of each column’s speed at the end of training, what is written first on top."
    if len(order) > MOST_COLUMNS:
        half = MOST_COLUMNS // 2
        order = np.concatenate([order[:half], order[-half:]])
        about += f" The {half} columns that are written first and the {half} that are written last, of {len(last):,}."
    first = (history.names[0], history.values[0][order]) if len(history.names) > 1 else None
    drawn = speed_figures.bars(
        [short(codec.names[column], LONGEST_NAME) for column in order], last[order], first, meaning
    )
    return drawn, f"{about} Rows are written {order_of_columns(codec.names, last)}."


def _on_grid(values: Float[np.ndarray, "r d"], codec: Codec, shape: tuple[int, ...]) -> Float[np.ndarray, "r h w"]:
    """Channels averaged: they come last."""
    return values.reshape(len(values), *shape, -1).mean(-1)


def _channels(codec: Codec) -> str:
    return ", averaged over channels" if isinstance(codec, Picture) and codec.shape[2] > 1 else ""


def _firmness(process: BridgeProcess, log_speeds: Values, place: str) -> str:
    """How much chance is left in the order, if speeds alone decide it."""
    if process.log_speeds is None:
        return ""
    chance = firmness(log_speeds)
    shown = f"{100 * chance:.0f} %, averaged over pairs" + (": hardly any order yet" if chance < HARDLY else "")
    return f" Of two {place}s, the slower is written first with a chance of {shown}."


def _best(contents: Contents, history: History) -> str:
    best = contents.run.best().get("step")
    if best is None or len(history.names) < 2 or history.names[-1] == _name(best):
        return ""
    return f" The other figures show the best model, that of step {best:,}."


def _name(step: int) -> str:
    return f"step {step:,}"

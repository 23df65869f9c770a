"""Tables: values for some columns, the distributions of the others, and rows."""

import csv
import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gradio as gr
import numpy as np
import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from dmb.app.serve import marked
from dmb.app.serve.kinds import Kind
from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_ROWS, Options, words
from dmb.data import Columns
from dmb.data.columns import Column
from dmb.tables import TableModel

MOST_CHOICES, MOST_COLUMNS, LONGEST, COUNTED = 200, 40, 200, 256
"""Values to choose from; columns with a box each; characters of a value; samples to count values in."""
BARS = 10
"""Bars of a distribution."""


class TableKind(Kind):
    """A box for each column; one box for all in a wide table."""

    most, usual, verb = MOST_ROWS, 100, "Draw rows"

    def __init__(self, playground: Playground):
        super().__init__(playground)
        assert isinstance(playground.codec, Columns)
        self.codec = playground.codec
        try:
            self.model: TableModel | None = TableModel.of(playground.bridge, self.codec)
        except ValueError:  # with other noise than a mask the conditional distributions are counted from samples
            self.model = None

    def inputs(self) -> list[Any]:
        if len(self.codec.names) > MOST_COLUMNS:
            example = f"{self.codec.names[0]}={self.codec.columns[0].called(0)}"
            return [gr.Textbox(label="Known values", info=f"column=value, column=value; such as {example}")]
        gr.Markdown("Choose or type values for some columns; the others are left to the model.")
        boxes = []
        with gr.Row(elem_id="columns"):
            for name, column in zip(self.codec.names, self.codec.columns, strict=True):
                choices = [_name(column, state) for state in range(min(MOST_CHOICES, len(column)))]
                box = gr.Dropdown(
                    [("(any)", ""), *((choice, choice) for choice in choices)], value="", label=name,
                    allow_custom_value=True, min_width=130, scale=1,
                )  # fmt: skip
                boxes.append(box)
        return boxes

    def template(self, *values: Any) -> Int[Tensor, " d"]:
        d = len(self.codec.names)
        if d > MOST_COLUMNS:
            return self.codec.template(words("known values", values[0], LONGEST * d), d)
        template = torch.full((d,), -1)
        for place, (name, column, value) in enumerate(zip(self.codec.names, self.codec.columns, values, strict=True)):
            text = words(f"column {name!r:.40}", value, LONGEST)
            if text != "":
                template[place] = self._state(name, column, text)
        return template

    def _state(self, name: str, column: Column, text: str) -> int:
        """The state of a value: one of those to choose from, or what a visitor typed."""
        called = [_name(column, state) for state in range(len(column))]
        if text in called:
            return called.index(text)
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([f"{name}={text}"])
        return int(self.codec.template(line.getvalue(), len(self.codec.names))[self.codec.names.index(name)])

    # -- distributions ------------------------------------------------------------------------------------------------

    def distributions(self, *values: Any) -> Markup:
        """The distribution of every column that is not given, beside its marginal in the training data."""
        template = self.template(*values)
        p, how = self.conditionals(template)
        parts = []
        for place, (name, column) in enumerate(zip(self.codec.names, self.codec.columns, strict=True)):
            if template[place] < 0:
                usual = self.playground.marginals[place, : len(column)].double().numpy()
                parts.append(marked.bars(name, *summary(column, p[place], usual)))
        given = int((template >= 0).sum())
        note = f"Blue: given {given} column{'s' * (given != 1)}, {how}. Grey: the training data."
        return Markup("<p class='note'>{}</p><div class='distributions'>{}</div>").format(note, Markup("").join(parts))

    def conditionals(self, template: Int[Tensor, " d"]) -> tuple[list[Float[np.ndarray, " n"]], str]:
        """The distribution of every column given the template, and in words how it was found."""
        if self.model is not None:
            self.playground.calls += 1
            return self.model.conditionals(template), "by the model"
        *_, last = self.playground.draw(Options(n=COUNTED, most=COUNTED), template)
        counts = [
            np.bincount(last.x[:, place].numpy(), minlength=len(column))[: len(column)] / COUNTED
            for place, column in enumerate(self.codec.columns)
        ]
        return counts, f"counted in {COUNTED} samples"


def summary(
    column: Column, p: Float[np.ndarray, " n"], usual: Float[np.ndarray, " n"]
) -> tuple[list[str], list[float], list[float], str]:
    """A few bars of two distributions: labels, both heights, and a note.

    Numbers in many bins are put into equally wide ones; of many other values the likeliest are shown.
    """
    means = column.means()
    if len(column) > BARS and all(isinstance(mean, int | float | None) for mean in means):
        return _histogram(column, p, usual)
    order = np.arange(len(column)) if len(column) <= BARS else np.argsort(-p, kind="stable")[:BARS]
    note = "" if len(order) == len(column) else f"and {len(column) - len(order):,} other values"
    return [_name(column, state) for state in order.tolist()], p[order].tolist(), usual[order].tolist(), note


def _name(column: Column, state: int) -> str:
    """What a state is called on the page, where an empty text cannot be seen or chosen."""
    return column.called(state) or "(empty)"


def _histogram(
    column: Column, p: Float[np.ndarray, " n"], usual: Float[np.ndarray, " n"], draws: int = 64
) -> tuple[list[str], list[float], list[float], str]:
    states = np.repeat(np.arange(len(column)), draws)
    drawn = column.values(states, np.random.default_rng(0))  # where in its bin a number lies
    there = np.array([value is not None for value in drawn])
    numbers = np.array([0.0 if value is None else value for value in drawn], dtype=float)
    edges = np.linspace(numbers[there].min(), numbers[there].max(), BARS + 1)
    heights: Sequence[list[float]] = [
        np.histogram(numbers[there], edges, weights=(each[states] / draws)[there])[0].tolist() for each in (p, usual)
    ]
    labels = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    note = f"mean {np.average(numbers[there], weights=p[states][there]):.4g}" if p[states][there].sum() else ""
    if column.missing is not None:
        note += f"; missing: {100 * p[column.missing]:.1f} %"
    return labels, *heights, note  # type: ignore[return-value]

"""Tables: values for some columns, the distributions of the others, and rows."""

from typing import Any

import gradio as gr
import numpy as np
import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from dmb.app.report.contents import Block, html
from dmb.app.report.shares import groups_of, mean_of, names_of
from dmb.app.serve.kinds import Kind
from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_ROWS, Options, words
from dmb.data import Columns
from dmb.tables import TableModel

# values to choose from; columns with a box each; characters of a value; samples to count values in
MOST_CHOICES, MOST_COLUMNS, LONGEST, COUNTED = 200, 40, 200, 256


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
            example = f"{self.codec.names[0]}={self.codec.columns[0].display_name(0)}"
            return [gr.Textbox(label="Known values", info=f"column=value, column=value; such as {example}")]
        gr.Markdown("Choose or type values for some columns; the others are left to the model.")
        with gr.Row(elem_id="columns"):
            return [
                gr.Dropdown(
                    [("(any)", ""), *((choice, choice) for choice in names_of(column)[:MOST_CHOICES])], value="",
                    label=name, allow_custom_value=True, min_width=130, scale=1,
                )
                for name, column in zip(self.codec.names, self.codec.columns, strict=True)
            ]  # fmt: skip

    def template(self, *values: Any) -> Int[Tensor, " d"]:
        d = len(self.codec.names)
        if d > MOST_COLUMNS:
            return self.codec.template(words("known values", values[0], LONGEST * d), d)
        template = torch.full((d,), -1)
        for place, (name, column, value) in enumerate(zip(self.codec.names, self.codec.columns, values, strict=True)):
            text = words(f"column {name!r:.40}", value, LONGEST)
            if text in names_of(column):
                template[place] = names_of(column).index(text)
            elif text:  # what a visitor typed, as a field of CSV
                field = f"{name}={text}".replace('"', '""')
                template[place] = self.codec.template(f'"{field}"', d)[place]
        return template

    # -- distributions ------------------------------------------------------------------------------------------------

    def distributions(self, *values: Any) -> Markup:
        """The distribution of every column that is not given, beside its marginal in the training data."""
        template = self.template(*values)
        given, (p, how) = int((template >= 0).sum()), self.conditionals(template)
        blocks = []
        for place, (name, column) in enumerate(zip(self.codec.names, self.codec.columns, strict=True)):
            if template[place] < 0:
                usual = self.playground.marginals[place, : len(column)].double().numpy()
                bars = groups_of(column, usual).bars(usual, p[place])
                blocks.append(Block(kind="bars", title=name, body=[("", bars)], note=mean_of(column, p[place])))
        note = f"Data: the training data. Samples: given {given} column{'s' * (given != 1)}, {how}."
        return Markup("<p>{}</p><div class='distributions'>{}</div>").format(note, html(*blocks))

    def conditionals(self, template: Int[Tensor, " d"]) -> tuple[list[Float[np.ndarray, " n"]], str]:
        """The distribution of every column given the template, and in words how it was found."""
        if self.model is not None:
            return self.model.conditionals(template), "by the model"
        *_, last = self.playground.draw(Options(n=COUNTED, most=COUNTED), template)
        columns = zip(last.x.T.numpy(), self.codec.columns, strict=True)
        counts = [np.bincount(x, minlength=len(column))[: len(column)] / COUNTED for x, column in columns]
        return counts, f"counted in {COUNTED} samples"

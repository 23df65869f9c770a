"""Tables: values for some columns, the distributions of the others, and rows."""

from typing import Any

import gradio as gr
import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from dmb.app.report.contents import Block, html
from dmb.app.report.shares import groups_of, mean_of, names_of
from dmb.app.serve.kinds import Kind
from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_ROWS, Options, words
from dmb.data import Columns
from dmb.data.columns import Category
from dmb.tables import TableModel

ANY = "(any)"  # what stands for no value
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
        gr.Markdown("Choose or type values for some columns; empty ones are left to the model.")
        with gr.Row(elem_id="columns"):
            return [
                gr.Dropdown(
                    [(ANY, ""), *((name, name) for name in names_of(column)[:MOST_CHOICES])], value=None,
                    label=name, allow_custom_value=True, min_width=130, scale=1,
                )
                for name, column in zip(self.codec.names, self.codec.columns, strict=True)
            ]  # fmt: skip

    def template(self, *values: Any) -> Int[Tensor, " d"]:
        d = len(self.codec.names)
        template = self.codec.template(self._typed(values), d)
        if d <= MOST_COLUMNS:
            for place, (column, text) in enumerate(zip(self.codec.columns, self._texts(values), strict=True)):
                if text in (names := names_of(column)):
                    template[place] = names.index(text)
        return template

    def codec_for(self, *values: Any) -> Columns:
        return self.codec.with_given_values(self._typed(values))

    def _texts(self, values: tuple[Any, ...]) -> list[str]:
        """What was chosen or typed for each column; the beginning of a single choice stands for it."""
        texts = []
        for name, column, value in zip(self.codec.names, self.codec.columns, values, strict=True):
            text = words(f"column {name!r:.40}", value, LONGEST).removeprefix(ANY)  # which one may have typed after
            if text and isinstance(column, Category) and text not in (names := names_of(column)):
                meant = [each for each in names if each.lower().startswith(text.lower())]
                text = meant[0] if len(meant) == 1 else text
            texts.append(text)
        return texts

    def _typed(self, values: tuple[Any, ...]) -> str:
        """All that was typed, as a line of CSV, without what is the name of a state."""
        if len(self.codec.names) > MOST_COLUMNS:
            return words("known values", values[0], LONGEST * len(self.codec.names))
        fields = zip(self.codec.names, self.codec.columns, self._texts(values), strict=True)
        typed = (f"{name}={text}" for name, column, text in fields if text and text not in names_of(column))
        return ",".join('"{}"'.format(field.replace('"', '""')) for field in typed)

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
            return self.model.shares(template), "by the model: as often as they are drawn"
        *_, last = self.playground.draw(Options(n=COUNTED, most=COUNTED), template)
        columns = zip(last.x.T.numpy(), self.codec.columns, strict=True)
        counts = [np.bincount(x, minlength=len(column))[: len(column)] / COUNTED for x, column in columns]
        return counts, f"counted in {COUNTED} samples"

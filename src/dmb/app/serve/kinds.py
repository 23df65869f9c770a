"""What a visitor can give, by the kind of data: the contract; and of text, records and other sequences, a template."""

import re
from abc import ABC, abstractmethod
from typing import Any

import gradio as gr
import torch
from jaxtyping import Int
from torch import Tensor

from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_SAMPLES, words
from dmb.data.codecs import Codec, Lines, Records, Text, Tokenizer

_BLANKS = "_□¿§"
_PER_TOKEN = 16  # characters that a token of a tokenizer may have, on average


class Kind(ABC):
    """A kind of data on the page.

    Args:
        playground: the model.
    """

    most: int = MOST_SAMPLES  # how many samples one can ask for
    usual: int = 8  # how many samples there are unless one asks for more
    verb: str = "Draw"  # what the main button does

    def __init__(self, playground: Playground):
        self.playground = playground

    @abstractmethod
    def inputs(self) -> list[Any]:
        """Make the components in which something is given, and return those whose values `template` takes."""

    @abstractmethod
    def template(self, *values: Any) -> Int[Tensor, " d"]:
        """What is given: tokens, and negative numbers for blanks. A ValueError if a visitor sent what cannot be."""

    def codec_for(self, *values: Any) -> Codec:
        """What turns samples with these things given into data."""
        return self.playground.codec


class TextKind(Kind):
    """A template in a box. Only numbers and blanks are read unless the data are text: other codecs open files."""

    verb = "Fill in"

    def __init__(self, playground: Playground):
        super().__init__(playground)
        alphabet = getattr(playground.codec, "alphabet", "")
        self.blank = next((blank for blank in _BLANKS if blank not in alphabet), "_")
        per_token = _PER_TOKEN if isinstance(playground.codec, Tokenizer) else 4
        self.longest = per_token * playground.bridge.num_positions + 64

    def inputs(self) -> list[Any]:
        number, unit = self.playground.bridge.num_positions, self.playground.codec.token
        after = "Only a beginning can be given." if self.playground.bridge.from_left else "After the end all is blank."
        box = gr.Textbox(
            label=f"Template: up to {number} {unit}s, “{self.blank}” is a blank", value=self.example(), lines=3,
            max_lines=10, info=f"{after} Empty: nothing is given.", max_length=self.longest, elem_id="template",
            elem_classes="mono",
        )  # fmt: skip
        return [box]

    def template(self, *values: Any) -> Int[Tensor, " d"]:
        codec, [value] = self.playground.codec, values
        text = words("the template", value, self.longest)
        if not isinstance(codec, Text | Records) and not re.fullmatch(r"[\d,\s_]*", text, re.ASCII):
            raise ValueError("the template must hold whole numbers and blanks, separated by commas or spaces")
        return codec.template(text, self.playground.bridge.num_positions, self.blank)

    def example(self) -> str:
        """A validation example with a blank middle, or its beginning if nothing else can be given; "" if there is none.

        It must read as what it is: bytes of a text may be cut in the middle of a character.
        """
        tokens, d = self.playground.examples[0].clone(), self.playground.bridge.num_positions
        lengths = self.playground.bridge.lengths
        end = d if lengths is None else int(lengths.of(tokens[None])[0])
        tokens[end // 3 : d if self.playground.bridge.from_left else 2 * end // 3] = -1
        view = self.playground.codec.view(tokens[None, :end])
        assert isinstance(view, Lines)
        text = view.gap.join(self.blank if symbol is None else symbol for symbol in view.symbols[0])
        text = text.rstrip(self.blank) if self.playground.bridge.from_left else text
        try:
            found = self.template(text)
        except ValueError:
            return ""
        return text if torch.equal(found[:end].clamp(min=-1), tokens[:end]) else ""

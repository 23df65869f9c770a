"""Kinds of data, the names of built-in data sets, and where text is held out; none of it needs torch."""

from typing import Literal

HeldOut = Literal["spread", "end"]
"""Where validation and test text come from: places all over a text, or its last tenth."""

Kind = Literal["text", "table", "array", "images", "records"]

NAMES: dict[str, Kind] = {
    "cifar10": "images",
    "digits": "array",
    "markov": "text",
    "pydocs": "text",
    "text8": "text",
}

"""Kinds of data, and the names of built-in data sets."""

from typing import Literal

Kind = Literal["text", "table", "array", "images", "records"]

NAMES: dict[str, Kind] = {
    "cifar10": "images",
    "digits": "array",
    "markov": "text",
    "pydocs": "text",
    "text8": "text",
}

"""What a token looks like in print."""

import unicodedata

import torch

from dmb.data import Codec, Columns, Text

MASK = "▒"
"""Stands for a masked token in running text."""
LONGEST = 14
"""Characters of a label; the rest of a longer one is cut off."""


class Symbols:
    """Every state of every position as a string, the mask included, which no codec knows.

    Args:
        codec: of the data.
        mask_token: the process's, if it has one.

    >>> from dmb.data import Characters
    >>> symbols = Symbols(Characters(" ab"), mask_token=3)
    >>> symbols.row([1, 0, 2, 3]), symbols.labels(0)
    (['a', ' ', 'b', '▒'], ['␣', 'a', 'b', 'mask'])
    """

    def __init__(self, codec: Codec, mask_token: int | None = None):
        self.mask_token = mask_token
        if isinstance(codec, Columns):
            shown = [["missing" if value is None else str(value) for value in known] for known in codec.values]
        elif isinstance(codec, Text):
            shown = [codec.decode(torch.arange(codec.num_states)[:, None])]
        else:
            shown = [[str(state) for state in range(codec.num_states)]]
        self._shown = [[printable(symbol, "↵⇥") for symbol in known] for known in shown]
        self.shared = len(shown) == 1
        """Whether a token means the same at every position."""

    def row(self, tokens: list[int]) -> list[str]:
        """A sequence, symbol by symbol, each on one line."""
        return [self._symbol(position, token) for position, token in enumerate(tokens)]

    def labels(self, position: int) -> list[str]:
        """All states of a position, short and visible, for an axis."""
        labels = [_label(symbol) for symbol in self._at(position)]
        return labels if self.mask_token is None else [*labels, *[""] * (self.mask_token - len(labels)), "mask"]

    def _symbol(self, position: int, token: int) -> str:
        return MASK if token == self.mask_token else self._at(position)[token]

    def _at(self, position: int) -> list[str]:
        return self._shown[0 if self.shared else position]


def printable(text: str, breaks: str = "\n\t") -> str:
    r"""`text` without what a page or a font cannot hold: control characters become their pictures.

    Args:
        text: any string, halves of surrogate pairs included.
        breaks: what a line break and a tab become.

    >>> printable("a\nb\x07", breaks="↵⇥")
    'a↵b␇'
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.encode("utf-8", "replace").decode()
    pictures = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡", 10: breaks[0], 9: breaks[1]}
    text = text.translate(pictures)
    return "".join(
        "�" if unicodedata.category(symbol) in ("Cc", "Cn") and symbol not in "\n\t" else symbol for symbol in text
    )


def short(text: str, most: int = 12) -> str:
    """`text`, or what fits of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _label(symbol: str) -> str:
    if not symbol.strip():
        return "␣" * len(symbol) if symbol else "(empty)"
    return short(symbol, LONGEST)

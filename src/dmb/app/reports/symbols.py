"""What a token looks like in print."""

import unicodedata
from collections.abc import Sequence

import torch

from dmb.app.reports.names import Names
from dmb.data import Codec, Columns, Text

MASK = "▒"
"""Stands for a masked token in running text."""
FINE, MIDDLE, TOP = "░", MASK, "▓"
"""Stand for a name with states only below it, for one with other names below it, and for one with everything below."""
SHADES = frozenset((FINE, MIDDLE, TOP))
LONGEST = 14
"""Characters of a label; the rest of a longer one is cut off."""


class Symbols:
    """Every state of every position as a string, names such as a mask included, which no codec knows.

    Args:
        codec: of the data.
        names: of the process; they come after its other states.
        num_states: of the process. Default: those of the codec, and the names.

    >>> from dmb import Steady, grouping
    >>> from dmb.app.reports.names import names_of
    >>> from dmb.data import Characters
    >>> from dmb.processes import BridgeProcess
    >>> tree = grouping.from_groups([torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0])])
    >>> process = BridgeProcess(tree, Steady(tree.level_rates(5.0)), num_positions=5)
    >>> symbols = Symbols(Characters(" ab"), names_of(process))
    >>> symbols.row([1, 0, 2, 3, 4]), symbols.labels(0)
    (['a', ' ', 'b', '░', '▓'], ['␣', 'a', 'b', '{a b}', 'any'])
    """

    def __init__(self, codec: Codec, names: Names | None = None, num_states: int | None = None):
        self.names = names
        count = 0 if names is None else len(names.below)
        self._first = codec.num_states if num_states is None else num_states - count
        if isinstance(codec, Columns):
            shown = [["missing" if value is None else str(value) for value in known] for known in codec.values]
        elif isinstance(codec, Text):
            shown = [codec.decode(torch.arange(codec.num_states)[:, None])]
        else:
            shown = [[str(state) for state in range(codec.num_states)]]
        self._shown = [[printable(symbol, "↵⇥") for symbol in known] for known in shown]
        self._numbers = not isinstance(codec, Columns | Text)
        self.shared = len(shown) == 1
        """Whether a token means the same at every position."""

    def row(self, tokens: list[int]) -> list[str]:
        """A sequence, symbol by symbol, each on one line."""
        return [self._symbol(position, token) for position, token in enumerate(tokens)]

    def labels(self, position: int) -> list[str]:
        """All states of a position, short and visible, for an axis."""
        labels = [_label(symbol) for symbol in self._at(position)]
        if self.names is None:
            return labels
        labels += [""] * (self._first - len(labels))
        below = self.names.below
        if len(below) == 1:
            return [*labels, "mask"]
        row = position if below.shape[1] > 1 else 0
        has = below[:, row].any(0)
        for members in below[:, row]:
            states = members.nonzero()[0].tolist()
            everything = bool((members == has).all())
            labels.append("any" if everything else _group([labels[state] for state in states], self._run(states)))
        return labels

    def _run(self, states: list[int]) -> bool:
        """Whether states are numbers that follow each other."""
        return self._numbers and len(states) > 2 and states[-1] - states[0] == len(states) - 1

    def _symbol(self, position: int, token: int) -> str:
        if self.names is None or token < self._first:
            return self._at(position)[token]
        below, coarse = self.names
        if len(below) == 1:
            return MASK
        row, name = position if below.shape[1] > 1 else 0, token - self._first
        if (below[name, row] == below[:, row].any(0)).all():
            return TOP
        return MIDDLE if coarse[name, min(row, coarse.shape[1] - 1)] else FINE

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


def _group(members: Sequence[str], run: bool = False) -> str:
    """The states below a name: all of them, or what fits and how many more there are.

    >>> _group(["a", "e", "i"]), _group(["4", "5", "6"], run=True), _group([*"abcdefgh"]), _group([])
    ('{a e i}', '{4…6}', '{a b c d e +3}', '')
    """
    if not members:
        return ""
    if run:
        return f"{{{members[0]}…{members[-1]}}}"
    for shown in range(len(members), 1, -1):
        others = f" +{len(members) - shown}" if shown < len(members) else ""
        label = f"{{{' '.join(members[:shown])}{others}}}"
        if len(label) <= LONGEST:
            return label
    others = f" +{len(members) - 1}" if len(members) > 1 else ""
    return f"{{{short(members[0], LONGEST - 2 - len(others))}{others}}}"

"""What states and tokens look like in print; states of a process that no codec knows, such as a mask, included."""

import unicodedata

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb.data.codecs import Codec, Images
from dmb.processes import BridgeProcess
from dmb.processes.states import States

NAME = "▒"  # stands for a mask, or for the name of a group of states
LONGEST, MEMBERS = 24, 5  # characters of a label, and members of a group in one; the rest is cut off
ORANGE = np.array([0xD9, 0x66, 0x2B])


class Symbols:
    """Tokens as symbols or as images; its last states may be names that the codec does not know."""

    def __init__(self, codec: Codec, space: States):
        self.codec, self.space, self.first = codec, space, space.num_states - space.names
        states = torch.arange(space.num_states)
        name = (states >= self.first)[None]
        self._share, self._middle = name.float(), torch.where(name, 0, states)
        if space.names > 1 and isinstance(space, BridgeProcess):
            # by sums along the hierarchy: a table of states by names would be large
            data = space.data_states.cpu().double()
            count, total = space.hierarchy.sum_below(torch.stack([data, data * states]).to(space.device)).cpu()
            self._share = torch.where(name, count / data.sum(-1, keepdim=True), 0.0).float()
            self._middle = torch.where(name, (total / count.clamp(min=1)).floor().long(), states)

    def rows(self, tokens: Int[Tensor, "b d"]) -> list[list[str]]:
        """Every token on one line."""
        view = self.codec.view(tokens)
        assert not isinstance(view, Images)
        return [[NAME if symbol is None else printable(symbol, "↵⇥") for symbol in row] for row in view.symbols]

    def painted(self, tokens: Int[Tensor, "b d"]) -> UInt8[np.ndarray, "b h w 3"]:
        """Images in colour, with names in orange: a masked channel takes the orange's.

        The name of a group of shades is the middle one of them with some orange, the more the wider the group.
        """
        view, cover = self.codec.view(_at(self._middle, tokens)), _at(self._share, tokens)
        assert isinstance(view, Images)
        _, height, width, channels = view.pixels.shape
        if tokens.shape[1] != height * width * channels:  # no shades: what lies in the middle of some says nothing
            cover = (cover > 0).float()
        cells: np.ndarray = cover.reshape(len(tokens), *view.grid, -1).numpy()
        cells = cells.repeat(height // view.grid[0], axis=1).repeat(width // view.grid[1], axis=2)
        return (cells * ORANGE + (1 - cells) * view.pixels).round().astype(np.uint8)

    def label(self, state: int, position: int = 0) -> str:
        """A state of one position, short and visible; of a name, what lies below it at the first position."""
        if state >= self.first:
            return self._group(state)
        tokens = torch.full((1, self.space.num_positions), -1)
        tokens[0, position] = state
        view = self.codec.view(tokens)
        symbol = printable(str(state) if isinstance(view, Images) else view.symbols[0][position] or "", "↵⇥")
        if not symbol.strip():
            return "␣" * len(symbol) or "(empty)"
        return symbol if len(symbol) <= LONGEST else symbol[: LONGEST - 1] + "…"

    def _group(self, name: int) -> str:
        if self.space.names == 1 or not isinstance(self.space, BridgeProcess):
            return "mask"
        hierarchy = self.space.hierarchy
        names = torch.full((1, len(hierarchy.clock_into)), name, device=self.space.device)
        below = hierarchy.mask_below(names)[0, 0, : self.first].nonzero()[:, 0].tolist()
        more = f" +{len(below) - MEMBERS}" if len(below) > MEMBERS else ""
        return "any" if len(below) == self.first else "{" + " ".join(map(self.label, below[:MEMBERS])) + more + "}"


def printable(text: str, breaks: str = "\n\t") -> str:
    """`text` without what a page cannot hold: control characters become pictures, line breaks and tabs `breaks`."""
    if text.isascii() and text.isprintable():
        return text
    pictures = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡", 10: breaks[0], 9: breaks[1]}
    text = text.encode("utf-8", "replace").decode().translate(pictures)  # halves of surrogate pairs have no encoding
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cn") and c not in "\n\t" else c for c in text)


def _at(table: Tensor, tokens: Int[Tensor, "b d"]) -> Tensor:
    """Entries of a table `[d, n]`, or `[1, n]` if positions are alike."""
    return table.expand(tokens.shape[1], -1).gather(1, tokens.T).T

"""Text by the tokens of a Hugging Face tokenizer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs.text import Text
from dmb.data.reading import File, Progress, reason

_CURE = "give it an unknown token (unk_token), or use another one"
_PIECE = 1 << 18  # bytes given to the tokenizer at once: it keeps many words of notes for every token


class Tokenizer(Text):
    """Tokens of the `tokenizers` library, whose whole JSON definition is part of the config.

    No special tokens are added. A long file is tokenized in pieces that end at a line break, or else before a space.

    Args:
        definition: the content of a `tokenizer.json`.
    """

    def __init__(self, definition: str):
        try:
            import tokenizers
        except ImportError as error:
            raise ValueError("a tokenizer needs the extra `hf`: pip install 'discrete-markov-bridge[hf]'") from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises the bare class
            raise ValueError(f"definition must be the JSON of a tokenizer: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ValueError("definition must have a vocabulary, got an empty one")
        self.definition = definition
        self.num_states = max(vocabulary.values()) + 1  # ids may have gaps

    def encode(self, text: str, offset: int = 0) -> np.ndarray:
        try:
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises the bare class
            raise ValueError(f"the tokenizer cannot read the text ({reason(error)}): {_CURE}") from error
        if getattr(self._tokenizer.model, "unk_token", None) is None:
            self._check_whole(text, encoded.offsets, offset)
        return np.array(encoded.ids, dtype=np.int64)

    def read(self, file: File, progress: Progress | None = None) -> Iterator[np.ndarray]:
        rest, offset = "", 0
        for text in file.text(file.chunks(progress, _PIECE)):
            text = rest + text
            cut = _cut(text)
            yield self.encode(text[:cut], offset)
            rest, offset = text[cut:], offset + cut
        yield self.encode(rest, offset)

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        return self._tokenizer.decode_batch(self.legal(tokens).tolist(), skip_special_tokens=False)

    def describe(self) -> list[str]:
        return [f"{self.num_states:,} tokens of a tokenizer"]

    def _check_whole(self, text: str, spans: list[tuple[int, int]], offset: int) -> None:
        """A ValueError if a symbol is in no token: a tokenizer without an unknown token drops what it does not know.

        Spaces may be dropped, and what its normalizer removes.
        """
        edges = np.zeros(len(text) + 1, dtype=np.int64)
        if spans:
            begins, ends = np.array(spans).T
            np.add.at(edges, begins, 1)
            np.add.at(edges, ends, -1)
        first: dict[str, int] = {}
        for where in np.flatnonzero(edges.cumsum()[:-1] == 0).tolist():
            first.setdefault(text[where], where)
        normalizer = self._tokenizer.normalizer
        for symbol, where in first.items():
            kept = symbol if normalizer is None else normalizer.normalize_str(symbol)
            if kept.strip():
                raise ValueError(f"symbol {symbol!r} at offset {offset + where:,} is unknown to the tokenizer: {_CURE}")

    def config(self) -> dict[str, Any]:
        return {"definition": self.definition}


def _cut(text: str) -> int:
    """Where to end a piece so that no word is cut, if that can be.

    >>> _cut("one\\ntwo thr"), _cut("two thr"), _cut("three")
    (4, 3, 5)
    """
    line = text.rfind("\n") + 1
    word = text.rfind(" ")
    return line or (word if word > 0 else len(text))

"""Text by characters, by bytes, or by the tokens of a Hugging Face tokenizer."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int
from torch import Tensor

from dmb._core.files import written_whole
from dmb.data.codecs.base import Codec, filled, shortened
from dmb.data.reading import File, Progress, as_value_error

_CODE_POINTS = 0x110000
_UNKNOWN = "give it an unknown token (unk_token), or use another one"
_PIECE = 1 << 18  # bytes given to a tokenizer at once: it keeps many words of notes for every token


class Text(Codec):
    """A codec of text: files are read in chunks, samples are written as text."""

    gap = ""

    @abstractmethod
    def encode(self, text: str, offset: int = 0) -> np.ndarray:
        """The tokens of `text`, which begins `offset` symbols into what the user gave."""

    def read(self, file: File, progress: Progress | None = None) -> Iterator[np.ndarray]:
        """The tokens of a file, in chunks; `progress` is called with the bytes read so far and in all."""
        offset = 0
        for text in file.text(file.chunks(progress)):
            yield self.encode(text, offset)
            offset += len(text)

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """One sequence a line; with an empty line between them if they hold line breaks themselves."""
        self.check_path(path)
        sequences = self._raw(tokens)
        separator = b"\n\n" if any(b"\n" in sequence for sequence in sequences) else b"\n"
        with written_whole(path) as part:
            part.write_bytes(separator.join(sequences) + b"\n" if sequences else b"")

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """Text with blanks, such as `the ____ of`; every `blank` is one token, never itself a symbol."""
        if len(blank) != 1:
            raise ValueError(f"blank must be one symbol, got {blank!r}")
        parts, offset = [], 0
        for piece in text.split(blank):
            parts += [self.encode(piece, offset), np.array([-1])]
            offset += len(piece) + 1
        return filled(np.concatenate(parts[:-1]), num_positions)

    def symbols(self, states: Int[Tensor, " k"]) -> list[str]:
        return self.decode(states[:, None])

    def _raw(self, tokens: Int[Tensor, "b d"]) -> list[bytes]:
        return [text.encode("utf-8", "surrogatepass") for text in self.decode(tokens)]


class Characters(Text):
    """One token a character.

    >>> codec = Characters(" abc")
    >>> codec.encode("a cab")
    array([1, 0, 3, 1, 2], dtype=int32)
    >>> codec.template("c_b", num_positions=5)
    tensor([ 3, -1,  2, -1, -1])
    """

    def __init__(self, alphabet: str):
        if not alphabet:
            raise ValueError("alphabet must have at least one symbol, got none")
        points = _code_points(alphabet)
        if len(np.unique(points)) < len(points):
            twice = next(symbol for symbol in alphabet if alphabet.count(symbol) > 1)
            raise ValueError(f"alphabet must not repeat a symbol, got {twice!r} twice")
        self.alphabet = alphabet
        self.num_states = len(points)
        self._points = points
        self._table = np.full(_CODE_POINTS, -1, dtype=np.int32)
        self._table[points] = np.arange(len(points))

    def encode(self, text: str, offset: int = 0) -> np.ndarray:
        tokens = self._table[_code_points(text)]
        if tokens.size and tokens.min() < 0:
            where = int((tokens < 0).argmax())
            raise ValueError(
                f"symbol {text[where]!r} at offset {offset + where:,} is not in the alphabet {self._brief()}"
            )
        return tokens

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        points = self._points[self.legal(tokens)]
        return [row.tobytes().decode("utf-32-le", "surrogatepass") for row in points]

    def describe(self) -> list[str]:
        return [f"{self.num_states:,} symbols: {self._brief()}"]

    def _brief(self) -> str:
        return repr(self.alphabet) if len(self.alphabet) <= 40 else shortened(list(self.alphabet), 30)


class Bytes(Text):
    """One token a byte: reads any file at all.

    >>> Bytes().encode("né")
    array([110, 195, 169], dtype=uint8)
    """

    num_states = 256

    def encode(self, text: str, offset: int = 0) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)

    def read(self, file: File, progress: Progress | None = None) -> Iterator[np.ndarray]:
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in file.chunks(progress))

    def describe(self) -> list[str]:
        return ["256 bytes"]

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        return [sequence.decode("utf-8", "replace") for sequence in self._raw(tokens)]

    def _raw(self, tokens: Int[Tensor, "b d"]) -> list[bytes]:
        return [row.tobytes() for row in self.legal(tokens).astype(np.uint8)]


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
        with as_value_error("definition must be the JSON of a tokenizer"):
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ValueError("definition must have a vocabulary, got an empty one")
        self.definition = definition
        self.num_states = max(vocabulary.values()) + 1  # ids may have gaps

    def encode(self, text: str, offset: int = 0) -> np.ndarray:
        with as_value_error("the tokenizer cannot read the text", advice=f": {_UNKNOWN}"):
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
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
                raise ValueError(
                    f"symbol {symbol!r} at offset {offset + where:,} is unknown to the tokenizer: {_UNKNOWN}"
                )


def alphabet_of(texts: Iterable[str]) -> str:
    """The distinct symbols of a text that comes in pieces, sorted."""
    seen = np.zeros(_CODE_POINTS, dtype=bool)
    for text in texts:
        seen[_code_points(text)] = True
    return seen.nonzero()[0].astype("<u4").tobytes().decode("utf-32-le")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _cut(text: str) -> int:
    """Where to end a piece so that no word is cut, if that can be.

    >>> _cut("one\\ntwo thr"), _cut("two thr"), _cut("three")
    (4, 3, 5)
    """
    line = text.rfind("\n") + 1
    word = text.rfind(" ")
    return line or (word if word > 0 else len(text))

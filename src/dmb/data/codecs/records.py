"""Records: sequences of any length up to a longest one, followed by padding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core.files import written_whole
from dmb.data.codecs.base import Codec
from dmb.data.codecs.text import Characters
from dmb.data.lengths import BLANK

_FASTA_LINE = 60  # residues


class Records(Codec):
    """One token per symbol, then padding, which is one more state. A record is a line of text.

    Args:
        alphabet: the symbols; token `k` stands for the `k`-th.
        longest: the number of positions.

    >>> codec = Records("ABC", longest=5)
    >>> tokens = codec.encode(["CAB", "ABBAC"])
    >>> tokens
    array([[2, 0, 1, 3, 3],
           [0, 1, 1, 0, 2]], dtype=uint8)
    >>> codec.decode(torch.from_numpy(tokens).long())
    ['CAB', 'ABBAC']
    """

    extension = ".txt"
    unit = "records of up to {:,} symbols"
    token = "symbol"
    gap = ""

    def __init__(self, alphabet: str, longest: int):
        if longest < 1:
            raise ValueError(f"longest must be at least 1, got {longest}")
        self._characters = Characters(alphabet)
        self.alphabet, self.longest, self.padding = alphabet, longest, len(alphabet)
        self.num_states = len(alphabet) + 1

    def encode(self, texts: list[str]) -> np.ndarray:
        """Tokens with padding; no text may be longer than `longest`."""
        lengths = np.array([len(text) for text in texts])
        tokens = np.full((len(texts), self.longest), self.padding, dtype=np.min_scalar_type(self.padding))
        try:
            tokens[np.arange(self.longest) < lengths[:, None]] = self._characters.encode("".join(texts))
        except ValueError:  # say where among the records, not among all symbols
            for row, text in enumerate(texts):
                unknown = [symbol for symbol in text if symbol not in self.alphabet]
                if unknown:
                    raise ValueError(f"symbol {unknown[0]!r} of record {row + 1:,} is not in the alphabet") from None
            raise
        return tokens

    def decode(self, tokens: Int[Tensor, "b d"]) -> list[str]:
        """Each record up to its padding."""
        known = torch.from_numpy(self.legal(tokens))
        ends = torch.where(known == self.padding, torch.arange(known.shape[1]), known.shape[1]).amin(-1)
        texts = self._characters.decode(known.clamp(max=self.padding - 1))
        return [text[:end] for text, end in zip(texts, ends.tolist(), strict=True)]

    def write(self, path: Path, tokens: Int[Tensor, "b d"]) -> None:
        """The records in the format of the data."""
        self.check_path(path)
        text = "".join(f"{self.written(number, record)}\n" for number, record in enumerate(self.decode(tokens), 1))
        with written_whole(path) as part:
            part.write_bytes(text.encode("utf-8", "surrogatepass"))

    def written(self, number: int, record: str) -> str:
        """One record as it stands in a file, without the last line break; records are numbered from 1."""
        return record

    def template(self, text: str, num_positions: int, blank: str = "_") -> Int[Tensor, " d"]:
        """Symbols with blanks, such as `MK__L`: every `blank` is one symbol, and the record may go on after it."""
        template = self._characters.template(text, num_positions, blank)
        template[: len(text)].masked_fill_(template[: len(text)] < 0, BLANK)
        return template

    def describe(self) -> list[str]:
        return self._characters.describe()

    def symbols(self, states: Int[Tensor, " k"]) -> list[str]:
        """Padding is nothing."""
        return ["" if state == self.padding else self.alphabet[state] for state in states.tolist()]

    def config(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet, "longest": self.longest}


class Fasta(Records):
    """Proteins or nucleic acids in FASTA; samples are called `sample_1`, `sample_2`, …."""

    extension = ".fasta"
    formats = (".fasta", ".fa", ".faa", ".fna")
    unit = "sequences of up to {:,} residues"
    token = "residue"

    def written(self, number: int, record: str) -> str:
        lines = [record[first : first + _FASTA_LINE] for first in range(0, len(record), _FASTA_LINE)]
        return "\n".join([f">sample_{number}", *lines])


class Smiles(Records):
    """Molecules in SMILES, one per line."""

    extension = ".smi"
    formats = (".smi", ".smiles")


class JsonLines(Records):
    """Strings as JSON, one per line; or objects with one of them.

    Args:
        alphabet: the symbols.
        longest: the number of positions.
        field: name of the string in an object; None for strings alone.
    """

    extension = ".jsonl"
    formats = (".jsonl",)

    def __init__(self, alphabet: str, longest: int, field: str | None = None):
        super().__init__(alphabet, longest)
        self.field = field

    def written(self, number: int, record: str) -> str:
        return json.dumps(record if self.field is None else {self.field: record}, ensure_ascii=False)

    def config(self) -> dict[str, Any]:
        return super().config() | {"field": self.field}

"""Records: sequences of any length up to a longest one, followed by padding."""

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core import checks
from dmb._core.configuration import from_json
from dmb._core.files import written_whole
from dmb.data.codecs.base import Codec, shortened
from dmb.data.codecs.text import Characters
from dmb.data.lengths import BLANK
from dmb.data.reading import as_value_error

NumberedLines = Iterable[tuple[int, str]]

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

    unit = "records of up to {:,} symbols"
    token = "symbol"
    gap = ""

    def __init__(self, alphabet: str, longest: int):
        checks.at_least(1, longest=longest)
        self._characters = Characters(alphabet)
        self.alphabet, self.longest, self.padding = alphabet, longest, len(alphabet)
        self.num_states = len(alphabet) + 1

    @classmethod
    def read(cls, lines: NumberedLines) -> tuple[list[str], dict[str, str | None], list[str]]:
        """The records of a file, options of their codec besides the alphabet and the longest, and notes for the user.

        `lines` are those that are not empty, with their numbers and without spaces at their end.
        """
        return [line for _, line in lines], {}, []

    def encode(self, texts: list[str]) -> np.ndarray:
        """Tokens with padding; no text may be longer than `longest`."""
        lengths = np.array([len(text) for text in texts])
        tokens = np.full((len(texts), self.longest), self.padding, dtype=np.min_scalar_type(self.padding))
        try:
            tokens[np.arange(self.longest) < lengths[:, None]] = self._characters.encode("".join(texts))
        except ValueError:  # say where among the records, not among all symbols
            unknown = ((each, k) for k, text in enumerate(texts, 1) for each in text if each not in self.alphabet)
            symbol, number = next(unknown)
            raise ValueError(f"symbol {symbol!r} of record {number:,} is not in the alphabet") from None
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


class Fasta(Records):
    """Proteins or nucleic acids in FASTA; samples are called `sample_1`, `sample_2`, …."""

    formats = (".fasta", ".fa", ".faa", ".fna")
    unit = "sequences of up to {:,} residues"
    token = "residue"

    @classmethod
    def read(cls, lines: NumberedLines) -> tuple[list[str], dict[str, str | None], list[str]]:
        """Sequences under headers that begin with `>`; lower case is read as upper case."""
        texts, first, lower, parts, name, at = list[str](), dict[str, int](), 0, list[str](), "", 0
        for number, line in chain(lines, [(0, ">")]):  # one more header ends the last sequence
            if line.startswith(">"):
                if at and not parts:
                    cure = "remove the header, or add its sequence"
                    raise ValueError(f"line {at:,}: {name[:40]!r} has no residues: {cure}")
                if at:
                    texts.append("".join(parts))
                name, at, parts = line[1:].strip(), number, []
                label = name.split(maxsplit=1)[0] if name else ""
                if label and label in first:
                    both = f"lines {first[label]:,} and {number:,}"
                    raise ValueError(f"{both} have the same name, {label[:40]!r}: rename or remove one")
                first[label] = number
                continue
            if not at:
                raise ValueError(
                    f"line {number:,} must be a header that begins with '>', got {line[:20]!r}: "
                    "if every line is a record, name the file .txt and give --recipe records"
                )
            residues = "".join(line.split())
            wrong = [letter for letter in residues if not (letter.isascii() and (letter.isalpha() or letter in "*-."))]
            if wrong:
                raise ValueError(f"line {number:,} must hold letters, '*', '-' or '.' only, got {wrong[0]!r}")
            parts.append(residues.upper())
            lower += sum(map(str.islower, residues))
        return texts, {}, [f"{lower:,} residues in lower case are read as upper case"] if lower else []

    def written(self, number: int, record: str) -> str:
        lines = [record[first : first + _FASTA_LINE] for first in range(0, len(record), _FASTA_LINE)]
        return "\n".join([f">sample_{number}", *lines])


class Smiles(Records):
    """Molecules in SMILES, one per line."""

    formats = (".smi", ".smiles")

    @classmethod
    def read(cls, lines: NumberedLines) -> tuple[list[str], dict[str, str | None], list[str]]:
        """The first field of every line."""
        texts = list[str]()
        for number, line in lines:
            first = line.split(maxsplit=1)[0]
            if not first.isascii():
                wrong = next(symbol for symbol in first if not symbol.isascii())
                raise ValueError(f"line {number:,} must begin with SMILES, which is ASCII, got {wrong!r}")
            texts.append(first)
        return texts, {}, []


class JsonLines(Records):
    """Strings as JSON, one per line; or objects with one of them.

    Args:
        alphabet: the symbols.
        longest: the number of positions.
        field: name of the string in an object; None for strings alone.
    """

    formats = (".jsonl",)

    def __init__(self, alphabet: str, longest: int, field: str | None = None):
        super().__init__(alphabet, longest)
        self.field = field

    @classmethod
    def read(cls, lines: NumberedLines) -> tuple[list[str], dict[str, str | None], list[str]]:
        """Strings, or objects with one string each, in the same field."""
        texts, others = list[str](), set[str]()
        place: str | None = None
        for number, line in lines:
            with as_value_error(f"line {number:,} is not JSON", ValueError):
                value = from_json(line)
            field: str | None = None
            if isinstance(value, dict):
                strings = [name for name, each in value.items() if isinstance(each, str)]
                if len(strings) != 1:
                    likely = json.dumps(max(strings, key=lambda name: len(value[name]), default=""))
                    cure = f"keep one of them in a new file, as by jq '.{likely}' OLD.jsonl > NEW.jsonl"
                    found = f"{len(strings)}, {shortened(strings)}: {cure}" if strings else "0 of them"
                    raise ValueError(f"line {number:,} must be a string, or an object with one string, got {found}")
                [field] = strings
                others |= value.keys() - {field}
                value = value[field]
            if not isinstance(value, str) or not value:
                raise ValueError(f"line {number:,} must be a string that is not empty, got {json.dumps(value)[:20]}")
            if texts and field != place:
                raise ValueError(f"line {number:,} must have its string in the same place as the lines before")
            place = field
            texts.append(value)
        dropped = [f"only the field {place!r} is read; dropped: {shortened(sorted(others))}"] if others else []
        return texts, {"field": place}, dropped

    def written(self, number: int, record: str) -> str:
        return json.dumps(record if self.field is None else {self.field: record}, ensure_ascii=False)

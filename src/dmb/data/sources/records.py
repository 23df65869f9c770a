"""Records of any length: FASTA, SMILES, JSON lines, and lines of text."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dmb.data.base import DataSet
from dmb.data.codecs import Fasta, JsonLines, Records, Smiles
from dmb.data.codecs.base import shortened
from dmb.data.reading import File, Progress, as_value_error, opened
from dmb.data.splits import split_rows

LONGEST, KEPT = 512, 0.995
"""By default records of up to `LONGEST` symbols are kept, or only this share of all, the shortest ones."""
MOST_SYMBOLS = 1 << 20
"""Of a line; more are likely not a line of records at all."""


class Found(NamedTuple):
    """What a file holds."""

    texts: list[str]
    kind: type[Records]
    notes: list[str]
    options: dict[str, str | None]
    """Of the codec, besides alphabet and length."""


def records(
    path: str | Path, longest: int | None = None, codec: Records | None = None, progress: Progress | None = None
) -> DataSet:
    """Records of different lengths, padded at the end, split 80 / 10 / 10 by a fixed permutation.

    The extension says how the file is read. `.fasta`, `.fa`, `.faa`, `.fna`: sequences under headers that begin with
    `>`; lower case is read as upper case. `.smi`, `.smiles`: the first field of every line. `.jsonl`: strings, or
    objects with one string each. Any other file: every line is a record. Empty lines are skipped.

    Args:
        path: of the file.
        longest: symbols of the longest record to keep; longer ones are dropped. Default: 512, or fewer if 99.5 % of the
            records are shorter.
        codec: one that exists already, such as a trained model's; symbols that it does not know are errors.
        progress: called with the bytes read so far and in all.
    """
    path = Path(path)
    file = opened(path)
    if longest is not None and longest < 1:
        raise ValueError(f"length must be at least 1, got {longest}")
    with as_value_error(f"{path}", ValueError):
        found = _READERS.get(path.suffix.lower(), _read_lines)(file, progress)
        if not found.texts:
            raise ValueError("at least 3 records are needed, got none")
        limit = (longest or _longest(found.texts)) if codec is None else codec.longest
        kept = [text for text in found.texts if len(text) <= limit]
        if len(kept) < 3:
            most = max(map(len, found.texts))
            raise ValueError(
                f"at least 3 records are needed, got {len(kept)} of at most {limit:,} symbols; "
                f"the longest of {len(found.texts):,} has {most:,}: give more records, or another length"
            )
        if codec is None:
            alphabet = "".join(sorted(set().union(*kept)))
            codec = found.kind(alphabet, max(map(len, kept)), **found.options)
        splits = split_rows(codec.encode(kept), codec.num_states)
    return DataSet(
        name=path.name,
        source=str(path.absolute()),
        codec=codec,
        **splits._asdict(),
        padding=codec.padding,
        notes=(*found.notes, *_notes(found.texts, kept, limit)),
    )


def _longest(texts: list[str]) -> int:
    lengths = sorted(map(len, texts))
    return min(LONGEST, lengths[math.ceil(KEPT * len(lengths)) - 1])


def _notes(texts: list[str], kept: list[str], limit: int) -> Iterator[str]:
    lengths = sorted(map(len, kept))
    yield f"lengths from {lengths[0]:,} to {lengths[-1]:,}, half of them up to {lengths[(len(lengths) - 1) // 2]:,}"
    if len(kept) < len(texts):
        yield f"{len(texts) - len(kept):,} of {len(texts):,} records have more than {limit:,} symbols, and are dropped"
    again = len(kept) - len(set(kept))
    if again:
        yield f"{again:,} records occur before in the file; copies may be in training and test data alike"


def _read_fasta(file: File, progress: Progress | None) -> Found:
    texts, first, lower, parts, name, at = list[str](), dict[str, int](), 0, list[str](), "", 0

    def end() -> None:
        if at and not parts:
            raise ValueError(f"line {at:,}: {name[:40]!r} has no residues: remove the header, or add its sequence")
        if at:
            texts.append("".join(parts))

    for number, line in _lines(file, progress):
        if line.startswith(">"):
            end()
            name, at, parts = line[1:].strip(), number, []
            label = name.split(maxsplit=1)[0] if name else ""
            if label and label in first:
                raise ValueError(
                    f"lines {first[label]:,} and {number:,} have the same name, {label[:40]!r}: rename or remove one"
                )
            first[label] = number
            continue
        if not at:
            raise ValueError(
                f"line {number:,} must be a header that begins with '>', got {line[:20]!r}: "
                "if every line is a record, name the file .txt and give --recipe records"
            )
        residues = "".join(line.split())
        wrong = [residue for residue in residues if not (residue.isascii() and (residue.isalpha() or residue in "*-."))]
        if wrong:
            raise ValueError(f"line {number:,} must hold letters, '*', '-' or '.' only, got {wrong[0]!r}")
        upper = residues.upper()
        lower += sum(old != new for old, new in zip(residues, upper, strict=True)) if upper != residues else 0
        parts.append(upper)
    end()
    notes = file.notes()
    if lower:
        notes.append(f"{lower:,} residues in lower case are read as upper case")
    return Found(texts, Fasta, notes, {})


def _read_smiles(file: File, progress: Progress | None) -> Found:
    texts = list[str]()
    for number, line in _lines(file, progress):
        first = line.split(maxsplit=1)[0]
        if not first.isascii():
            wrong = next(symbol for symbol in first if not symbol.isascii())
            raise ValueError(f"line {number:,} must begin with SMILES, which is ASCII, got {wrong!r}")
        texts.append(first)
    return Found(texts, Smiles, file.notes(), {})


def _read_lines(file: File, progress: Progress | None) -> Found:
    texts = [line for _, line in _lines(file, progress)]
    return Found(texts, Records, file.notes(), {})


def _read_json(file: File, progress: Progress | None) -> Found:
    texts, fields, others = list[str](), Counter[str | None](), set[str]()
    for number, line in _lines(file, progress):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number:,} is not JSON: {error}") from error
        field = None
        if isinstance(value, dict):
            strings = [name for name, each in value.items() if isinstance(each, str)]
            if len(strings) != 1:
                raise ValueError(
                    f"line {number:,} must be a string, or an object with one string, got {len(strings)} of them"
                )
            field, others = strings[0], others | (value.keys() - {strings[0]})
            value = value[field]
        if not isinstance(value, str) or not value:
            raise ValueError(f"line {number:,} must be a string that is not empty, got {json.dumps(value)[:20]}")
        fields[field] += 1
        if len(fields) > 1:
            raise ValueError(f"line {number:,} must have its string in the same place as the lines before")
        texts.append(value)
    notes = file.notes()
    if others:
        notes.append(f"only the field {next(iter(fields))!r} is read; dropped: {shortened(sorted(others))}")
    return Found(texts, JsonLines, notes, {"field": next(iter(fields), None)})


_READERS = {
    **dict.fromkeys(Fasta.formats, _read_fasta),
    **dict.fromkeys(Smiles.formats, _read_smiles),
    **dict.fromkeys(JsonLines.formats, _read_json),
}


def _lines(file: File, progress: Progress | None) -> Iterator[tuple[int, str]]:
    """Every line that is not empty, with its number, without spaces at its end."""
    for number, line in enumerate(file.lines(progress, longest=MOST_SYMBOLS + 1), 1):
        if len(line) > MOST_SYMBOLS:
            raise ValueError(f"line {number:,} has more than {MOST_SYMBOLS:,} symbols, too many for one record")
        if line.strip():
            yield number, line.rstrip()

"""Records of any length: FASTA, SMILES, JSON lines, and lines of text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dmb._core import checks
from dmb.data.base import DataSet
from dmb.data.codecs import Fasta, JsonLines, Records, Smiles
from dmb.data.reading import File, Progress, as_value_error, opened, suffix_of
from dmb.data.splits import split_rows

LONGEST, KEPT = 512, 0.995
"""By default records of up to `LONGEST` symbols are kept, or only this share of all, the shortest ones."""
MOST_SYMBOLS = 1 << 20
"""Of a line; more are likely not a line of records at all."""


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
    checks.at_least(1, length=1 if longest is None else longest)
    with as_value_error(f"{path}", ValueError):
        kind = next((kind for kind in (Fasta, Smiles, JsonLines) if suffix_of(path) in kind.formats), Records)
        texts, options, notes = kind.read(_lines(file, progress))
        if not texts:
            raise ValueError("at least 3 records are needed, got none")
        usual = min(LONGEST, int(np.quantile([*map(len, texts)], KEPT, method="inverted_cdf")))
        limit = (longest or usual) if codec is None else codec.longest
        kept = [text for text in texts if len(text) <= limit]
        if len(kept) < 3:
            most = max(map(len, texts))
            raise ValueError(
                f"at least 3 records are needed, got {len(kept)} of at most {limit:,} symbols; "
                f"the longest of {len(texts):,} has {most:,}: give more records, or another length"
            )
        if codec is None:
            alphabet = "".join(sorted(set().union(*kept)))
            codec = kind(alphabet, max(map(len, kept)), **options)
        splits = split_rows(codec.encode(kept), codec.num_states)
    return DataSet(
        name=path.name,
        source=str(path.absolute()),
        codec=codec,
        **splits._asdict(),
        padding=codec.padding,
        notes=(*file.notes(), *notes, *_notes(texts, kept, limit)),
    )


def _notes(texts: list[str], kept: list[str], limit: int) -> Iterator[str]:
    lengths = sorted(map(len, kept))
    yield f"lengths from {lengths[0]:,} to {lengths[-1]:,}, half of them up to {lengths[(len(lengths) - 1) // 2]:,}"
    if len(kept) < len(texts):
        yield f"{len(texts) - len(kept):,} of {len(texts):,} records have more than {limit:,} symbols, and are dropped"
    again = len(kept) - len(set(kept))
    if again:
        yield f"{again:,} records occur before in the file; copies may be in training and test data alike"


def _lines(file: File, progress: Progress | None) -> Iterator[tuple[int, str]]:
    """Every line that is not empty, with its number, without spaces at its end."""
    for number, line in enumerate(file.lines(progress, longest=MOST_SYMBOLS + 1), 1):
        if len(line) > MOST_SYMBOLS:
            raise ValueError(f"line {number:,} has more than {MOST_SYMBOLS:,} symbols, too many for one record")
        if line.strip():
            yield number, line.rstrip()

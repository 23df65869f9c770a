"""Are drawn records different from each other, new, and valid? Asked of real records as well, to say what is usual."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from dmb.app.evaluation.drawing import Advance, draw
from dmb.bridges import Bridge
from dmb.data import DataSet, Records
from dmb.data.codecs import Smiles

MOST_RECORDS = 1000
"""Records that are drawn and compared, unless told otherwise."""
_AT_ONCE = 4096  # training records


class Shares(NamedTuple):
    """Shares of records.

    >>> shares(["CC", "CC", "CO"], known={"CO"})
    Shares(different=0.6666666666666666, new=0.5, valid=None)
    """

    different: float
    """Records that remain if copies of each other are left out."""
    new: float
    """Of the different ones, those that are not in the training data."""
    valid: float | None
    """Records that a checker accepts; None without one."""

    def __str__(self) -> str:
        valid = "" if self.valid is None else f", {self.valid:.1%} valid"
        return f"{self.different:.1%} different, {self.new:.1%} of these new{valid}"


@dataclass(frozen=True, kw_only=True)
class RecordQuality:
    """Samples beside as many records of one split."""

    kind: ClassVar[str] = "records"

    split: str
    count: int
    seed: int
    samples: Shares
    real: Shares

    def records(self) -> dict[str, dict[str, Any]]:
        """What to store, by what was looked at."""
        common = {"split": self.split, "count": self.count, "seed": self.seed}
        found = {"samples": self.samples, f"{self.split} records": self.real}
        return {what: {"what": what} | common | shares._asdict() for what, shares in found.items()}

    def __str__(self) -> str:
        return f"{self.count:,} samples: {self.samples}; {self.count:,} records of {self.split}: {self.real}"


def record_quality(
    bridge: Bridge, data: DataSet, split: str = "test", *, count: int | None = None, seed: int = 0,
    advance: Advance | None = None,
) -> RecordQuality:  # fmt: skip
    """Draw as many records as there are in a split, at most 1,000 by default, and compare.

    Args:
        bridge: a model of records.
        data: the data that it learned.
        split: `train`, `validation` or `test`.
        count: how many, at most.
        seed: of the samples.
        advance: told how many samples are drawn, and of how many.
    """
    codec, part = data.codec, data.splits()[split]
    assert isinstance(codec, Records)
    count = min(count or MOST_RECORDS, len(part))
    known = {text for first in range(0, len(data.train), _AT_ONCE)
             for text in codec.decode(data.train[first : first + _AT_ONCE])}  # fmt: skip
    drawn = codec.decode(torch.cat(list(draw(bridge, count, seed=seed, advance=advance))))
    real, check = codec.decode(part[part.spread(count)]), checker(codec)
    return RecordQuality(
        split=split, count=count, seed=seed, samples=shares(drawn, known, check), real=shares(real, known, check)
    )


def shares(texts: list[str], known: set[str], check: Callable[[str], bool] | None = None) -> Shares:
    """How many of the texts differ, are not known, and pass a check."""
    different = set(texts)
    valid = None if check is None else sum(map(check, texts)) / len(texts)
    return Shares(len(different) / len(texts), len(different - known) / len(different), valid)


def checker(codec: Records) -> Callable[[str], bool] | None:
    """Tells valid records: SMILES that RDKit reads, if it is installed; None for all others."""
    if isinstance(codec, Smiles):
        with suppress(ImportError):
            from rdkit import Chem, RDLogger

            RDLogger.DisableLog("rdApp.*")  # a line per molecule that cannot be read
            return lambda text: Chem.MolFromSmiles(text) is not None
    return None

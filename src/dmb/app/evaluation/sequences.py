"""Are drawn records different from each other, new, and valid? Asked of real records as well, to say what is usual."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch

from dmb.app.evaluation.drawing import Stages, draw, unwatched
from dmb.bridges import Bridge
from dmb.data import DataSet, Records
from dmb.data.codecs import Smiles

MOST_RECORDS = 1000  # records that are drawn and compared, unless told otherwise
_AT_ONCE = 4096  # training records


@dataclass(frozen=True, kw_only=True)
class RecordQuality:
    """How many of some records differ, are new, and are valid.

    Args:
        split: the split that samples are to be like.
        what: `samples`, or the records of a split.
        count: number of these records.
        different: share of records that remain if copies of each other are left out.
        new: of the different ones, the share of those that are not in the training data.
        valid: share of records that a checker accepts; None without one.
        seed: of the samples.
        step: the step of the run's model, where a run has stored the result.
    """

    kind: ClassVar[str] = "records"

    split: str
    what: str
    count: int
    different: float
    new: float
    valid: float | None = None
    seed: int
    step: int | None = None

    def __str__(self) -> str:
        valid = "" if self.valid is None else f", {self.valid:.1%} valid"
        return f"{self.count:,} {self.what}: {self.different:.1%} different, {self.new:.1%} of these new{valid}"


def record_quality(
    bridge: Bridge, data: DataSet, split: str = "test", *, count: int | None = None, seed: int = 0,
    progress: Stages = unwatched,
) -> list[RecordQuality]:  # fmt: skip
    """Draw as many records as there are in a split, at most 1,000 by default, and look at both.

    Args:
        bridge: a model of records.
        data: the data that it learned.
        split: `train`, `validation` or `test`.
        count: how many, at most.
        seed: of the samples.
        progress: see `drawing.Stages`.
    """
    codec, part = data.codec, data.splits()[split]
    assert isinstance(codec, Records)
    count = min(count or MOST_RECORDS, len(part))
    known = {text for first in range(0, len(data.train), _AT_ONCE)
             for text in codec.decode(data.train[first : first + _AT_ONCE])}  # fmt: skip
    with progress("sampling") as advance:
        drawn = codec.decode(torch.cat(list(draw(bridge, count, seed=seed, progress=advance))))
    check, found = checker(codec), []
    for what, texts in (("samples", drawn), (f"{split} records", codec.decode(part[part.spread(count)]))):
        different, new, valid = shares(texts, known, check)
        found.append(
            RecordQuality(split=split, what=what, count=count, different=different, new=new, valid=valid, seed=seed)
        )
    return found


def shares(
    texts: list[str], known: set[str], check: Callable[[str], bool] | None = None
) -> tuple[float, float, float | None]:
    """The shares of the texts that differ, of these those that are not known, and of all those that pass a check.

    >>> shares(["CC", "CC", "CO"], known={"CO"})
    (0.6666666666666666, 0.5, None)
    """
    different = set(texts)
    valid = None if check is None else sum(map(check, texts)) / len(texts)
    return len(different) / len(texts), len(different - known) / len(different), valid


def checker(codec: Records) -> Callable[[str], bool] | None:
    """Tells valid records: SMILES that RDKit reads, if it is installed; None for all others."""
    if isinstance(codec, Smiles):
        with suppress(ImportError):
            from rdkit import Chem, RDLogger

            RDLogger.DisableLog("rdApp.*")  # a line per molecule that cannot be read
            return lambda text: Chem.MolFromSmiles(text) is not None
    return None

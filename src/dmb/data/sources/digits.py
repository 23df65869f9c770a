"""Handwritten digits, small enough to learn in a minute."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dmb.data.base import DataSet
from dmb.data.codecs import Grid
from dmb.data.splits import split_rows


def digits() -> DataSet:
    """1,797 images of 8 × 8 pixels in 17 shades, with the digit as label; they ship with scikit-learn.

    >>> data = digits()
    >>> data.num_positions, data.num_states, data.num_classes
    (64, 17, 10)
    >>> len(data.train), len(data.validation), len(data.test)
    (1437, 180, 180)
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError("digits ships with scikit-learn: pip install scikit-learn")
    table = _read(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz")
    splits = split_rows(table[:, :-1].astype(np.uint8), 17, table[:, -1])
    codec = Grid([8, 8], 17)
    return DataSet(name="digits", source="digits", codec=codec, **splits._asdict(), num_classes=10)


@cache
def _read(file: Path) -> np.ndarray:
    """The file itself: importing scikit-learn, with all that it imports, would take a second or more."""
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    table.setflags(write=False)
    return table

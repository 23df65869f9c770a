"""Handwritten digits, small enough to learn in a minute."""

from importlib import import_module

import numpy as np

from dmb.data.base import DataSet
from dmb.data.codecs import Grid
from dmb.data.partition import split_rows


def digits() -> DataSet:
    """1,797 images of 8 × 8 pixels in 17 shades, with the digit as label; they ship with scikit-learn.

    >>> data = digits()
    >>> data.num_positions, data.num_states, data.num_classes
    (64, 17, 10)
    >>> len(data.train), len(data.validation), len(data.test)
    (1437, 180, 180)
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError as error:
        raise ValueError("digits ships with scikit-learn: pip install scikit-learn") from error
    images, labels = datasets.load_digits(return_X_y=True)
    splits = split_rows(images.astype(np.uint8), 17, labels)
    codec = Grid([8, 8], 17)
    return DataSet(name="digits", source="digits", codec=codec, **splits._asdict(), num_classes=10)

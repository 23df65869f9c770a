"""Integer arrays in NumPy's own formats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dmb.data.base import DataSet
from dmb.data.codecs import Grid
from dmb.data.reading import arrays, as_value_error, existing
from dmb.data.splits import Rows, Splits, split_rows

PARTS = Splits._fields
MOST_STATES = 1 << 16

_BLOCK = 1 << 24


def array(
    source: str | Path | np.ndarray | Tensor | Sequence[Any],
    num_states: int | None = None,
    *,
    most_states: int = MOST_STATES,
) -> DataSet:
    """Integers of shape `[N, …]`, the first axis the examples.

    A `.npy` file is memory-mapped. A `.npz` holds either one array or three called `train`, `validation` and `test`;
    one array is split 80 / 10 / 10 by a fixed permutation.

    Args:
        source: a file, an array, a tensor or a list.
        num_states: all values lie in `[0, num_states)`. Default: one more than the largest.
        most_states: if `num_states` is not given, a value that is not below this is taken for a mistake.

    >>> data = array(np.arange(60).reshape(10, 2, 3) % 7)
    >>> data.num_positions, data.num_states, data.codec.shape
    (6, 7, [2, 3])
    """
    if not isinstance(source, str | Path):
        values = source.detach().cpu() if isinstance(source, Tensor) else source
        name, where, parts = "array", "", {"array": np.asanyarray(values)}
    else:
        path = existing(Path(source))
        name, where = path.name, str(path.absolute())
        with as_value_error(f"{path} cannot be read as an array"):
            parts = arrays(path)
            if len(parts) != 1 and sorted(parts) != sorted(PARTS):
                raise ValueError(f"it must hold one array, or {', '.join(PARTS)}, got {', '.join(parts) or 'none'}")
    parts = {key: _checked(f"{name}: {key}" if len(parts) > 1 else name, values) for key, values in parts.items()}
    if num_states is None:
        num_states = 1 + max(_largest(name, values, most_states) for values in parts.values())
    shapes = {values.shape[1:] for values in parts.values()}
    if len(shapes) > 1:
        raise ValueError(f"{name}: the splits must agree in shape, got {sorted(map(list, shapes))}")
    with as_value_error(f"{name}", ValueError):
        one, *others = parts.values()
        rows = (Rows(parts[part], num_states) for part in PARTS)
        splits = Splits(*rows) if others else split_rows(one, num_states)
    codec = Grid(list(shapes.pop()), num_states)
    return DataSet(name=name, source=where, codec=codec, **splits._asdict())


def _checked(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "b":
        values = values.view(np.uint8)
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got {values.dtype}: round it, or number its values from 0")
    if values.ndim < 2 or 0 in values.shape:
        raise ValueError(f"{name} must have shape [examples, positions, …] and not be empty, got {list(values.shape)}")
    return values


def _largest(name: str, values: np.ndarray, most_states: int) -> int:
    """The largest value, found a block at a time because `values` may be larger than memory."""
    rows = max(1, _BLOCK // (values.size // len(values)))
    largest = 0
    for first in range(0, len(values), rows):
        block = values[first : first + rows].reshape(-1, values.size // len(values))
        if block.min() < 0:
            raise ValueError(f"{name} must hold integers ≥ 0, got {_place(block, block < 0, first)}")
        largest = max(largest, int(block.max()))
        if largest >= most_states:
            raise ValueError(
                f"{name} must hold integers below {most_states:,}, got {_place(block, block >= most_states, first)}: "
                "correct it, or raise most_states"
            )
    return largest


def _place(block: np.ndarray, where: np.ndarray, first: int) -> str:
    row, position = np.argwhere(where)[0]
    return f"{block[row, position]:,} at row {first + row:,}, position {position:,}"

"""Data frames, of pandas, Polars or any other library that narwhals knows, as tables and back."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import narwhals as nw
import narwhals.selectors
import numpy as np

from dmb.data.columns import Value
from dmb.data.sources.table import Table, check_names


def read(frame: Any) -> Table:
    """The content of a data frame; nan, NaT and null are missing.

    >>> import pandas
    >>> content = read(pandas.DataFrame({"size": [1.5, None, 1.5]}))
    >>> content.codes.ravel().tolist(), content.distinct
    ([0, 1, 0], [[1.5, None]])
    """
    try:
        frame = nw.from_native(frame, eager_only=True)
    except TypeError as error:
        raise TypeError(f"a data frame of pandas or Polars is needed, got a {type(frame).__name__}") from error
    names = [str(name) for name in frame.columns]
    check_names(names)
    codes, distinct = np.empty((len(frame), len(names)), dtype=np.uint32), []
    for index, name in enumerate(frame.columns):
        try:
            codes[:, index], values = _encoded(frame[name])
        except (TypeError, ValueError):
            kind = frame[name].dtype
            rule = f"column {name!r} must hold numbers, booleans, dates or strings, got {kind}"
            raise ValueError(f"{rule}: convert it, or leave it out") from None
        distinct.append(values)
    return Table(names, codes, distinct, [])


def _encoded(series: nw.Series[Any]) -> tuple[np.ndarray, list[Value]]:
    """The number of each cell's value, in the order of their first occurrence, and these values."""
    cells = (None if is_missing(value) else value for value in series.to_list())
    known: dict[Any, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in cells], dtype=np.int64)
    return codes, [_plain(value) for value in known]


def _plain(value: Any) -> Any:
    """A value that a column can hold; a TypeError if there is none."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, str | int | float | date):
        raise TypeError(f"a cell must hold a number, a boolean, a date or text, got {value!r}")
    return value


def write(columns: dict[str, list[Value]], like: Any) -> Any:
    """A data frame with the library and the types of `like`, which may be empty; columns that it lacks come last."""
    template = nw.from_native(like, eager_only=True)
    found = []
    for name, values in columns.items():
        series = nw.new_series(name, values, backend=template.implementation)
        if name in template.columns:
            if template.implementation.is_pandas():
                dtype = like[name].dtype
                if not set(getattr(dtype, "categories", values)) >= {value for value in values if value is not None}:
                    dtype = "category"  # it has others than those of `like`, which a file did not tell
                series = nw.from_native(nw.to_native(series).astype(dtype), series_only=True)
            else:
                series = series.cast(template[name].dtype)
        found.append(series)
    return nw.to_native(nw.concat([series.to_frame() for series in found], how="horizontal"))


def coded(frame: Any) -> list[str]:
    """Columns whose type says that they are categories, though their values are numbers."""
    found = nw.from_native(frame, eager_only=True).select(nw.selectors.categorical())
    return [
        name
        for name in found.columns
        if any(isinstance(value, int | float) for value in found[name].unique().to_list())
    ]


def types(frame: Any) -> dict[str, Any]:
    """The types of a frame as JSON, from which `empty` makes them again: as pandas or else as narwhals calls them."""
    known, found = nw.from_native(frame, eager_only=True), {}
    for name, dtype in known.schema.items():
        own: Any = frame[name].dtype if known.implementation.is_pandas() else dtype
        about = {"dtype": str(own) if own is not dtype else type(dtype).__name__}
        for detail in ("categories", "ordered", "time_unit", "time_zone", "precision", "scale"):
            value = getattr(own, detail, None)
            if detail == "categories" and value is not None:
                value = value.to_list() if hasattr(value, "to_list") else list(value)
                value = value if all(isinstance(each, str | int | float) for each in value) else None
            about |= {} if value is None else {detail: value}
        found[name] = about
    return found


def empty(library: str, types: Mapping[str, Any]) -> Any:
    """A frame without rows, of a library that narwhals knows, with the types that `types` told.

    Earlier versions wrote types as text, as narwhals calls them, without details.
    """
    backend: Any = nw.Implementation(library)
    if library == "pandas" and not any(isinstance(about, str) for about in types.values()):
        pandas = backend.to_native_namespace()
        series = {name: pandas.Series(dtype=_pandas_type(pandas, **about)) for name, about in types.items()}
        return pandas.DataFrame(series)
    dtypes = {
        name: _type(about.partition("(")[0]) if isinstance(about, str) else _type(**about)
        for name, about in types.items()
    }
    return nw.from_dict({name: [] for name in types}, dtypes, backend=backend).to_native()


def _pandas_type(pandas: Any, dtype: str, **details: Any) -> Any:
    return pandas.CategoricalDtype(**details) if dtype == "category" else dtype


def _type(dtype: str, **details: Any) -> Any:
    known = getattr(nw, dtype, nw.String)
    return known(**details) if details else known


def is_missing(value: Any) -> bool:
    """Whether a cell of a frame is null, nan, NaT or NA."""
    return value is None or type(value).__name__ == "NAType" or value != value  # NA != NA is NA

"""Any data set by its name, file or folder."""

from pathlib import Path
from typing import Any

from dmb import data
from dmb.app.images.codes import is_codes, read_codes
from dmb.data import Codec, DataSet
from dmb.data.loading import check_codec, check_options
from dmb.data.reading import Progress


def kind_of(source: str | Path) -> str:
    """What kind of data: `text`, `table`, `array`, `images`, `records`; or `codes`, which `dmb tokenize` made."""
    return "codes" if is_codes(source) else data.kind_of(source)


def load(
    source: str | Path,
    *,
    kind: data.Kind | None = None,
    length: int | None = None,
    codec: Codec | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> DataSet:
    """As `dmb.data.load`, with its options; and a folder that `dmb tokenize` has made is the codes in it.

    >>> load("digits").name
    'digits'
    """
    if not is_codes(source):
        return data.load(source, kind=kind, length=length, codec=codec, progress=progress, **options)
    if kind is not None:
        raise ValueError(f"kind must be left out for codes, got {kind} for {source}")
    check_options(source, "codes", **options)
    found = read_codes(source, codec)
    check_codec(found, length, codec)
    return found

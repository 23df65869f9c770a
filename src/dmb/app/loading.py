"""Any data set by its name, file or folder."""

from collections.abc import Mapping
from pathlib import Path

from dmb import data
from dmb.app.images.codes import is_codes, read_codes
from dmb.data import Codec, DataSet
from dmb.data.kinds import HeldOut
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
    encoding: str = "characters",
    held_out: HeldOut = "spread",
    levels: int | None = None,
    size: int | None = None,
    most_states: int | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
    codec: Codec | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """As `dmb.data.load`, with its options; and a folder that `dmb tokenize` has made is the codes in it.

    >>> load("digits").name
    'digits'
    """
    if not is_codes(source):
        return data.load(
            source, kind=kind, length=length, encoding=encoding, held_out=held_out, levels=levels, size=size,
            most_states=most_states, kinds=kinds, bins=bins, codec=codec, progress=progress,
        )  # fmt: skip
    if kind is not None:
        raise ValueError(f"kind must be left out for codes, got {kind} for {source}")
    check_options(
        source, "codes", encoding=encoding, held_out=held_out, levels=levels, size=size, most_states=most_states,
        kinds=kinds, bins=bins,
    )  # fmt: skip
    found = read_codes(source, codec)
    check_codec(found, length, codec)
    return found

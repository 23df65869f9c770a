"""Any data set by its name, file or folder."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dmb import data
from dmb.app.tokenizer.codes import is_codes, read_codes
from dmb.data import Codec, DataSet
from dmb.data.loading import refuse_encoding, refuse_levels, refuse_unlike


def kind_of(source: str | Path) -> str:
    """What kind of data: `text`, `table`, `array`, `images`, `records`; or `codes`, which `dmb tokenize` made."""
    return "codes" if is_codes(source) else data.kind_of(source)


def load(
    source: str | Path,
    *,
    kind: data.Kind | None = None,
    length: int | None = None,
    encoding: str = "characters",
    levels: int | None = None,
    most_states: int | None = None,
    kinds: Mapping[str, str] | None = None,
    bins: int | None = None,
    codec: Codec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DataSet:
    """As `dmb.data.load`; and a folder that `dmb tokenize` has made is the codes in it.

    Args:
        source: a name, or a path.
        kind: read a file as this kind.
        length: tokens of a sequence of text, or of the longest record.
        encoding: of a text file.
        levels: a channel of an image has.
        most_states: that an array may have.
        kinds: of columns of a table by name, where the rules are wrong.
        bins: that a column of numbers may have.
        codec: a model's codec, to read other data in its tokens.
        progress: called with what is read so far and in all, if it takes more than a moment.

    >>> load("digits").name
    'digits'
    """
    if not is_codes(source):
        return data.load(
            source, kind=kind, length=length, encoding=encoding, levels=levels, most_states=most_states, kinds=kinds,
            bins=bins, codec=codec, progress=progress,
        )  # fmt: skip
    if kind is not None:
        raise ValueError(f"kind must be left out for codes, got {kind} for {source}")
    refuse_levels(source, levels)
    refuse_encoding(source, encoding)
    found = read_codes(source, codec)
    refuse_unlike(found, length, codec)
    return found

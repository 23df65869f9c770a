"""Any data set by its name, file or run."""

from collections.abc import Callable
from pathlib import Path

from dmb import data
from dmb.app.tokenizer.codes import codes, is_vqvae
from dmb.data import Codec, DataSet
from dmb.data.loading import refuse_encoding, refuse_levels, refuse_unlike


def kind_of(source: str | Path) -> str:
    """What kind of data: `text`, `table`, `array`, `images`; or `codes`, which `dmb tokenize` made."""
    return "codes" if is_vqvae(source) else data.kind_of(source)


def load(
    source: str | Path,
    *,
    length: int | None = None,
    encoding: str = "characters",
    levels: int | None = None,
    codec: Codec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DataSet:
    """As `dmb.data.load`; and the run folder of a VQ-VAE stands for the images that it was trained on, as its codes.

    Args:
        source: a name, or a path.
        length: tokens of a sequence of text.
        encoding: of a text file.
        levels: a channel of an image has.
        codec: a model's codec, to read other data in its tokens.
        progress: called with the number of images that a VQ-VAE has encoded, and of all; other data take no time.

    >>> load("digits").name
    'digits'
    """
    if not is_vqvae(source):
        return data.load(source, length=length, encoding=encoding, levels=levels, codec=codec)
    refuse_levels(source, levels)
    refuse_encoding(source, encoding)
    found = codes(source, codec=codec, progress=progress)
    refuse_unlike(found, length, codec)
    return found

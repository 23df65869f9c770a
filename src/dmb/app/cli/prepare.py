"""`dmb prepare`."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dmb import data
from dmb.app.cli.parsing import command
from dmb.app.display import counting, notes


def prepare(
    dataset: Annotated[Positional[Literal["text8", "cifar10"]], arg(metavar="{text8,cifar10}")],
    source: Annotated[Path | None, arg(name="from", metavar="PATH")] = None,
) -> int:
    """Download a data set (or read your own copy), check its digest, and store it under $DMB_DATA.

    Args:
        dataset: text8, the first 100,000,000 characters of a cleaned Wikipedia; or cifar10, 60,000 small photographs.
        source: your own copy: text8.zip or text8; cifar-10-binary.tar.gz, or a folder with x_train.npy, y_train.npy,
            x_test.npy and y_test.npy.
    """
    prepared = {"text8": data.prepare_text8, "cifar10": data.prepare_cifar10}[dataset]
    with counting(notes, f"preparing {dataset}") as progress:
        path = prepared(source, progress=progress)
    print(path)
    return 0


main = command(prepare)

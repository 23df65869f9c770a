"""`dmb impute`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.parsing import OnDevice, OwnRecipe, command
from dmb.app.display import counting, notes
from dmb.app.runs import Run
from dmb.data import Columns
from dmb.data.codecs.columns import write_cells
from dmb.data.reading import as_value_error, existing
from dmb.data.sources.table import read_table
from dmb.tables import TableModel
from dmb.training.devices import device


def impute(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    table: Annotated[Positional[Path], arg(metavar="FILE")],
    out: Annotated[Path, arg(metavar="FILE", aliases=["-o"])],
    draw: bool = False,
    seed: int = 0,
    accelerator: OnDevice = "auto",
    recipe: OwnRecipe = None,
) -> int:
    """Fill in the missing values of a table with a run's model; what is there stays as it is.

    Example: `dmb impute runs/people gaps.csv --out filled.csv`. Columns that the file lacks are added.

    Args:
        run: the run folder, of a table.
        table: the file with gaps, .csv or .parquet.
        out: the file to write, .csv or .parquet.
        draw: draw values from their joint distribution; if not, a number or date becomes its mean given what is known
            of its row (the nearest value, in a column of whole numbers), and any other value the likeliest one.
        seed: seed of draws.
    """
    folder = Run.open(run, recipe)
    codec = folder.codec
    if not isinstance(codec, Columns):
        raise ValueError(f"{run} is no model of a table: impute fills in tables, `dmb sample --template` other data")
    codec.check_path(out, "--out")
    model = TableModel.of(folder.bridge(device(accelerator)), codec)
    with counting(notes, "reading the table") as progress:
        content = read_table(existing(table), codec.names, progress)
    with as_value_error(str(table), ValueError):
        columns = model.filled(content, draw, seed)
    write_cells(out, columns)
    print(out)
    return 0


main = command(impute)

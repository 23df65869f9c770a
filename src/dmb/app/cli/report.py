"""`dmb report`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.parsing import command
from dmb.app.display import counting
from dmb.app.reports import write_report
from dmb.app.runs import Run


def report(run: Annotated[Positional[Path], arg(metavar="RUN")], seed: int = 0, recipe: str | None = None) -> int:
    """Write RUN/report.html: one self-contained page with the bound over time, what was learned, and samples.

    Args:
        run: the run folder.
        seed: of the samples on it.
        recipe: for a run of a recipe of your own: FILE.py:FUNCTION.
    """
    with counting(notes, "drawing the report") as progress:
        path = write_report(Run.open(run, recipe), seed=seed, progress=progress)
    print(path)
    return 0


main = command(report)

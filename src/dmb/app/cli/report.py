"""`dmb report`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.parsing import command
from dmb.app.display import counting
from dmb.app.report import write_report
from dmb.app.runs import Run


def report(run: Annotated[Positional[Path], arg(metavar="RUN")], seed: int = 0, recipe: str | None = None) -> int:
    """Write RUN/report.html: one self-contained page with results, curves, what was learned, and samples.

    Args:
        run: the run folder.
        seed: seed of the samples on the page.
        recipe: needed if the run was trained with your own recipe: FILE.py:FUNCTION.
    """
    with counting(notes, "drawing the report") as progress:
        path = write_report(Run.open(run, recipe), seed=seed, progress=progress)
    print(path)
    return 0


main = command(report)

"""`dmb report`."""

from dmb.app.cli.parsing import OwnRecipe, RunFolder, command
from dmb.app.display import counting, notes
from dmb.app.report import write_report
from dmb.app.runs import Run


def report(run: RunFolder, seed: int = 0, recipe: OwnRecipe = None) -> int:
    """Write RUN/report.html: one self-contained page with results, curves, what was learned, and samples.

    Args:
        seed: seed of the samples on the page.
    """
    with counting(notes, "drawing the report") as progress:
        path = write_report(Run.open(run, recipe), seed=seed, progress=progress)
    print(path)
    return 0


main = command(report)

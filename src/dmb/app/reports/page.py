"""The report: a run folder in, one HTML page out. What draws and renders is imported only when a page is made."""

from collections.abc import Callable
from pathlib import Path

from dmb.app.runs import Run
from dmb.files import written_whole


def write_report(run: Run, *, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write `report.html` into the run's folder, whole or not at all.

    Args:
        run: a run that has a model; evaluations are shown if there are any.
        seed: of the samples.
        progress: called with the number of steps done, and of all steps.
    """
    try:
        from jinja2 import Environment, FileSystemLoader

        from dmb.app.reports import examples, forward, likeness, results
    except ImportError as error:
        package = (error.name or "matplotlib").partition(".")[0]
        raise ValueError(f"a report needs {package}, which is missing: pip install {package}") from error
    from dmb.app.reports.contents import Contents
    from dmb.app.reports.symbols import printable

    samples = [examples.beside_data, results.quality, likeness.marginals, likeness.associations]
    parts = (
        ("results", "Results", [results.results]),
        ("curves", "Curves", [results.curves]),
        ("forward", "What is destroyed when, and what was learned", [forward.learned, examples.trajectories]),
        ("samples", "Samples", samples),
    )
    advance = progress or (lambda done, total: None)
    advance(0, len(parts) + 1)
    contents, sections = Contents(run, seed), []
    for done, (name, title, makers) in enumerate(parts, 1):
        advance(done, len(parts) + 1)
        if rows := [blocks for make in makers if (blocks := make(contents))]:
            sections.append((name, title, rows))
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    environment.finalize = lambda value: printable(value) if type(value) is str else value  # HTML is of another type
    page = environment.get_template("page.html").render(
        title=results.title(run), headline=results.headline(contents), sections=sections
    )
    with written_whole(run.path / "report.html") as file:
        file.write_text(page, encoding="utf-8")
    advance(len(parts) + 1, len(parts) + 1)
    return run.path / "report.html"

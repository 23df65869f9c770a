"""Reports: a run folder in, one self-contained HTML page out. What draws and renders is imported only for a page."""

from pathlib import Path

from dmb._core.files import written_whole
from dmb.app.runs import Run
from dmb.data.reading import Progress, ignore_progress


def write_report(*runs: Run, seed: int = 0, progress: Progress = ignore_progress) -> Path:
    """Write `report.html` into the run's folder, or into the folder that several runs are in; whole or not at all.

    Args:
        runs: runs that have a model; evaluations are shown if there are any.
        seed: of the samples.
        progress: called with the number of steps done, and of all steps.
    """
    try:
        from dmb.app.report import examples, forward, likeness, results
        from dmb.app.report.contents import PAGES, Contents
    except ImportError as error:
        package = (error.name or "matplotlib").partition(".")[0]
        raise ValueError(f"a report needs {package}, which is missing: pip install {package}") from error

    parts = (
        ("samples", "Samples", [examples.beside_data, examples.by_class]),
        ("results", "Bound", [results.results]),
        ("curves", "Curves", [results.curves]),
        ("likeness", "How like the data", [results.quality, likeness.marginals, likeness.associations]),
        ("forward", "What is destroyed when, and what was learned", [forward.learned, examples.trajectories]),
        ("settings", "Settings", [results.settings]),
    )
    done, total = 0, len(runs) * len(parts) + 1
    progress(done, total)
    found, sections = [Contents(run, seed) for run in runs], []
    if len(runs) > 1:
        sections.append(("compared", "Side by side", [[results.compared(found)]]))
    for contents in found:
        own = (contents.run.path.name,) if len(runs) > 1 else ()
        for name, title, makers in parts:
            done += 1
            progress(done, total)
            if rows := [blocks for make in makers if (blocks := make(contents))]:
                sections.append(("-".join([*own, name]), ": ".join([*own, title]), rows))
    page = PAGES.get_template("page.html").render(
        title=found[0].title, sentence=found[-1].sentence, headline=results.headline(found[-1]), sections=sections
    )
    path = (runs[0].path if len(runs) == 1 else runs[0].path.parent) / "report.html"
    with written_whole(path) as file:
        file.write_text(page, encoding="utf-8")
    progress(total, total)
    return path

"""The report: a run folder in, one HTML page out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dmb.app.display import duration
from dmb.app.reports import markup, numbers
from dmb.app.reports.contents import finite, gather
from dmb.app.reports.examples import sample_sheet, trajectories
from dmb.app.reports.learned import learned_rates
from dmb.app.reports.markup import Section, text
from dmb.app.reports.speeds import order_of_writing
from dmb.app.runs import Run
from dmb.files import written_whole

Progress = Callable[[int, int], None]


PARTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("results", "Results", numbers.results),
    ("bound", "Bound over time", numbers.over_time),
    ("rates", "Forward process and learned rates", learned_rates),
    ("speeds", "Speeds of positions", order_of_writing),
    ("trajectories", "Forward and reverse trajectories", trajectories),
    ("samples", "Samples", sample_sheet),
    ("marginals", "Marginals of data and samples", numbers.marginals),
    ("configuration", "Configuration", numbers.configuration),
)
"""Sections: an anchor, a title, and what makes the HTML; one without any is left out."""


def write_report(run: Run, *, seed: int = 0, progress: Progress | None = None) -> Path:
    """Write `report.html` into the run's folder, whole or not at all.

    Args:
        run: a run that has a model; evaluations are shown if there are any.
        seed: of the samples.
        progress: called with the number of steps done, and of all there are.
    """
    total = 1 + len(PARTS)

    def advance(done: int) -> None:
        if progress is not None:
            progress(done, total)

    advance(0)
    contents = gather(run, seed)
    sections = []
    for done, (anchor, title, part) in enumerate(PARTS, 1):
        advance(done)
        body = part(contents)
        if body:
            sections.append(Section(anchor, title, body))
    page = markup.document(_title(run), _head(run, numbers.headline(contents)), sections)
    path = run.path / "report.html"
    with written_whole(path) as file:
        file.write_text(page, encoding="utf-8")
    advance(total)
    return path


def _title(run: Run) -> str:
    """The recipe, and the data if they are not the recipe's namesake: a file without its folders."""
    source = Path(run.recipe.data.source).name
    return source if run.recipe.name == source else f"{run.recipe.name}: {source}"


def _head(run: Run, headline: str) -> str:
    metrics = run.metrics()
    last = metrics[-1] if metrics else {}
    title = f"<h1>{text(_title(run))}</h1>"
    facts = [f"begun {run.about['created']}"]
    for unit, name in (("step", "steps"), ("tokens", "tokens")):
        if unit in last:
            facts.append(f"{last[unit]:,} {name}")
    if finite(last.get("seconds")) is not None:
        facts.append(f"{duration(last['seconds'])} of training")
    return "\n".join([title, headline, markup.paragraph(text(" · ".join(facts)), "facts")])

"""The report: a run folder in, one HTML page out."""

from collections.abc import Callable
from pathlib import Path

from dmb.display import duration
from dmb.files import written_whole
from dmb.reports import markup
from dmb.reports.contents import Contents, finite, gather
from dmb.reports.examples import sample_sheet, trajectories
from dmb.reports.learned import learned_rates
from dmb.reports.markup import Section, number, text, with_error
from dmb.reports.numbers import configuration, marginals, over_time, results
from dmb.runs import Run

Progress = Callable[[int, int], None]

PARTS: tuple[tuple[str, str, Callable[[Contents], str]], ...] = (
    ("results", "Results", results),
    ("bound", "Bound over time", over_time),
    ("rates", "Forward process and learned rates", learned_rates),
    ("trajectories", "Forward and reverse trajectories", trajectories),
    ("samples", "Samples", sample_sheet),
    ("marginals", "Marginals of data and samples", marginals),
    ("configuration", "Configuration", configuration),
)


def write_report(run: Run, *, seed: int = 0, progress: Progress | None = None) -> Path:
    """Write `report.html` into the run's folder, whole or not at all.

    Args:
        run: a run that has a model; evaluations are shown if there are any.
        seed: of the samples.
        progress: called with the number of parts done, and of all there are.
    """
    advance = progress or (lambda done, total: None)
    advance(0, len(PARTS) + 1)
    contents = gather(run, seed)
    sections = []
    for done, (anchor, title, part) in enumerate(PARTS, 1):
        advance(done, len(PARTS) + 1)
        sections.append(Section(anchor, title, part(contents)))
    page = markup.document(_title(run), _head(contents), sections)
    path = run.path / "report.html"
    with written_whole(path) as file:
        file.write_text(page, encoding="utf-8")
    advance(len(PARTS) + 1, len(PARTS) + 1)
    return path


def _title(run: Run) -> str:
    """The recipe, and the data if they are not the recipe's namesake: a file without its folders."""
    source = Path(run.recipe.data.source).name
    return source if run.recipe.name == source else f"{run.recipe.name}: {source}"


def _head(contents: Contents) -> str:
    run, last = contents.run, contents.metrics[-1] if contents.metrics else {}
    title = f"<h1>{text(_title(run))}</h1>"
    facts = [f"begun {run.about['created']}"]
    if "step" in last:
        facts.append(f"{last['step']:,} steps")
    if "tokens" in last:
        facts.append(f"{last['tokens']:,} tokens")
    if finite(last.get("seconds")) is not None:
        facts.append(f"{duration(last['seconds'])} of training")
    return "\n".join([title, _headline(contents), markup.paragraph(text(" · ".join(facts)), "facts")])


def _headline(contents: Contents) -> str:
    """The figure of merit, beside what the marginals alone need."""
    found = contents.headline()
    if found is None:
        return markup.paragraph("No bound has been computed yet.", "headline")
    unigram = contents.unigram(found.split)
    line = f"<b>{text(with_error(found.bits, found.stderr))}</b> bits a token on {text(found.split)} data"
    if not unigram:
        return markup.paragraph(line, "headline")
    saving = 100 * (1 - found.bits / unigram)
    compared = f"{abs(saving):.1f} % {'saved' if saving >= 0 else 'lost'}"
    return markup.paragraph(f"{line}; marginals alone need {text(number(unigram))}: {compared}", "headline")

"""The model card: a run folder in, Markdown out, with front matter for the Hugging Face Hub. It evaluates nothing."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader

from dmb._core.files import written_whole
from dmb._core.pretrained import CARD, LIBRARY, TAGS
from dmb.app.display import duration
from dmb.app.evaluation import Likelihood
from dmb.app.recipes import command_line, public
from dmb.app.report.contents import MOVED, OpenRun
from dmb.app.runs import Run
from dmb.data.codecs import Columns, ImageCodec, Records, Text
from dmb.version import __version__

MARK = "<!-- Written by dmb card. Delete this line, and dmb card will not replace this file. -->"
# codecs, and the tag and the task of the Hub that they stand for
KINDS = (
    (Text, "text", "text-generation"), (Records, "sequences", "other"), (Columns, "table", "other"),
    (ImageCodec, "images", "unconditional-image-generation"),
)  # fmt: skip
ON_HUB = {"cifar10": "uoft-cs/cifar10"}  # built-in data that the Hub has
CARDS = Environment(
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True,
    finalize=lambda value: escaped(value) if type(value) is str else value,  # Markdown is of another type
)  # fmt: skip


def write_card(run: Run, path: Path | None = None, *, licence: str | None = None) -> Path:
    """Write the model card of a run, whole or not at all.

    Args:
        run: a run that has a model.
        path: the file; default: `README.md` in the run's folder. A file that this function did not write stays.
        licence: an identifier of the Hub, such as `mit`, `cc-by-4.0` or `other`; default: none is stated.
    """
    path = path or run.path / CARD
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{path} exists and was not written by dmb card: rename it, or choose another --out")
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise ValueError(f"license must be an identifier such as mit, apache-2.0 or other, got {licence!r}")
    text = render(run, licence)
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def render(run: Run, licence: str | None = None) -> str:
    """The card as text."""
    opened, name, folder = OpenRun(run), public(run.recipe.name), public(str(run.path))
    bounds = [b for b in opened.bounds.values() if opened.best is not None and b.step == opened.best.step]
    body = CARDS.get_template("card.jinja").render(
        run=run, opened=opened, bridge=opened.bridge, best=opened.best, name=opened.source or "data",
        bounds=[(bound, _evaluation(run, bound)) for bound in bounds], last=next(reversed(opened.records), None),
        process=opened.bridge.corruption.describe(), learned=_learned(opened), licence=licence, code=code, block=block,
        duration=duration, finite=math.isfinite, folder=shlex.quote(folder), version=__version__,
        mark=Markdown(MARK), command=command_line(run.recipe, run.path), own=repr(name) if ".py:" in name else None,
        size=sum(p.numel() for p in opened.bridge.network.parameters()),
    )  # fmt: skip
    return f"---\n{_front_matter(opened, bounds, licence)}---\n\n{body}\n"


def _front_matter(opened: OpenRun, bounds: Sequence[Likelihood], licence: str | None) -> str:
    tag, task = next(((tag, task) for kind, tag, task in KINDS if isinstance(opened.codec, kind)), ("arrays", "other"))
    hub = ON_HUB.get(opened.source)
    results = [
        EvalResult(
            task_type=task, dataset_type=hub or "other", dataset_name=one_line(opened.source or "data"),
            dataset_split=bound.split, metric_type=f"bits_per_{bound.token}", metric_value=round(bound.bits, 4),
            metric_name=f"upper bound on bits per {bound.token}, standard error {bound.stderr:.4f}",
        )
        for bound in bounds
    ]  # fmt: skip
    data = ModelCardData(
        library_name=LIBRARY, tags=[*TAGS, tag], license=licence, datasets=[hub] if hub else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=one_line(opened.run.path.resolve().name) or "model" if results else None,
        eval_results=results or None, pipeline_tag=None if task == "other" else task,
    )  # fmt: skip
    return f"{data.to_yaml()}\n"


def _evaluation(run: Run, bound: Likelihood) -> str:
    """The command that computes this bound again."""
    words = ["dmb", "evaluate", public(str(run.path)), "--split", bound.split]
    words += ["--samples", str(bound.samples), "--seed", str(bound.seed)]
    words += ["--sequences", str(bound.sequences)] if bound.sequences < bound.of_sequences else []
    return shlex.join(words)


def _learned(opened: OpenRun) -> str:
    """Which parts of the forward process training has moved."""
    found = []
    for name, what in (("alpha", "rates"), ("log_speeds", "speeds of positions")):
        change = opened.change(name)
        if change.max(initial=0.0) > MOVED:
            most = math.exp(min(change.max(), 700.0))
            changed = f"{(change > MOVED).sum():,} of {change.size:,} changed, by a factor of up to {most:.3g}"
            found.append(f"{what} ({changed})")
    return f"Learned: {' and '.join(found)}." if found else "Training did not change it."


class Markdown(str):
    """Text that is Markdown already."""


def escaped(text: str) -> str:
    r"""Text of the user's as Markdown of one line, in which nothing is markup.

    >>> print(escaped("a|b\n# <i>*c*</i>"))
    a\|b \# \<i\>\*c\*\</i\>
    """
    return re.sub(r"([\\`*_{}\[\]<>()#|~&$!])", r"\\\1", one_line(text))


def code(text: str) -> Markdown:
    """Text as a code span, whatever it holds.

    >>> print(code("a `b` c"))
    `` a `b` c ``
    """
    ticks = "`" * (1 + _longest_run(text))
    space = " " if "`" in text else ""
    return Markdown(f"{ticks}{space}{one_line(text)}{space}{ticks}")


def block(text: str, language: str) -> Markdown:
    """Text as a block of code, whatever it holds."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def one_line(text: str) -> str:
    """Text without line breaks and other characters that cannot be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())

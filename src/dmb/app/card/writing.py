"""The model card: a run folder in, Markdown out, with front matter for the Hugging Face Hub. It evaluates nothing."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dmb._core.files import written_whole
from dmb._core.pretrained import CARD, LIBRARY, TAGS
from dmb.app.card.markdown import Markdown, block, code, escaped, one_line
from dmb.app.display import duration
from dmb.app.recipes import command_line
from dmb.app.records import BoundResult, Record, best, read_bounds, read_images, read_metrics
from dmb.app.runs import Run
from dmb.bridges import Bridge
from dmb.data.codecs import Columns, ImageCodec, Records, Text
from dmb.version import __version__

MARK = "<!-- Written by dmb card. Delete this line, and dmb card will not replace this file. -->"
MOVED = 0.05
"""What has changed by a smaller factor in training has not moved."""
KINDS = (
    (Text, "text", "text-generation"), (Records, "sequences", "other"), (Columns, "table", "other"),
    (ImageCodec, "images", "unconditional-image-generation"),
)  # fmt: skip
"""Codecs, and the tag and the task of the Hub that they stand for."""
ON_HUB = {"cifar10": "uoft-cs/cifar10"}
"""Built-in data that the Hub has."""


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
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True)
    environment.finalize = lambda value: escaped(value) if type(value) is str else value
    bridge, records = run.bridge(), read_metrics(run.path)
    chosen = best(records)
    bounds = [b for b in read_bounds(run.path).values() if chosen is not None and b.step == chosen.step]
    name = source(run)
    body = environment.get_template("card.jinja").render(
        run=run, bridge=bridge, name=name, bounds=[(bound, _evaluation(run, bound)) for bound in bounds],
        best=chosen, last=records[-1] if records else None, images=read_images(run.path),
        process=bridge.corruption.describe(), learned=_learned(bridge, records), head=_head(bridge),
        licence=licence, code=code, block=block,
        duration=duration, finite=math.isfinite, folder=shlex.quote(_public(run.path)), version=__version__,
        mark=Markdown(MARK), command=_training(run),
        own=repr(run.recipe.name) if ".py:" in run.recipe.name else None,
        size=sum(p.numel() for p in bridge.network.parameters()),
        can_infill=bridge.believes_given,
    )  # fmt: skip
    return f"---\n{_front_matter(run, name, bounds, licence)}---\n\n{body}\n"


def source(run: Run) -> str:
    """The name of a run's data: a file without its folders."""
    return Path(run.recipe.data.source).name or "data"


def _front_matter(run: Run, name: str, bounds: Sequence[BoundResult], licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    tag, task = next(((tag, task) for kind, tag, task in KINDS if isinstance(run.codec, kind)), ("arrays", "other"))
    results = [
        EvalResult(
            task_type=task, dataset_type=ON_HUB.get(name, "other"), dataset_name=one_line(name),
            dataset_split=bound.split, metric_type=f"bits_per_{bound.token}", metric_value=round(bound.bits, 4),
            metric_name=f"upper bound on bits per {bound.token}, standard error {bound.stderr:.4f}",
        )
        for bound in bounds
    ]  # fmt: skip
    data = ModelCardData(
        library_name=LIBRARY, tags=[*TAGS, tag], license=licence, datasets=[ON_HUB[name]] if name in ON_HUB else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=one_line(run.path.resolve().name) or "model" if results else None, eval_results=results or None,
        pipeline_tag=None if task == "other" else task,
    )  # fmt: skip
    return f"{data.to_yaml()}\n"


def _public(path: str | Path) -> str:
    """A path as others may read it: without the folders of one machine."""
    return Path(path).name if Path(path).is_absolute() else str(path)


def _training(run: Run) -> str:
    """The command that trains such a model."""
    return command_line(run.recipe.changed(source=_public(run.recipe.data.source)), Path(_public(run.path)))


def _evaluation(run: Run, bound: BoundResult) -> str:
    """The command that computes this bound again."""
    words = ["dmb", "evaluate", _public(run.path), "--split", bound.split]
    words += ["--samples", str(bound.samples), "--seed", str(bound.seed)]
    words += ["--sequences", str(bound.sequences)] if bound.sequences < bound.of_sequences else []
    return shlex.join(words)


def _learned(bridge: Bridge, records: list[Record]) -> str:
    """Which parts of the forward process training has moved."""
    found = []
    for name, what in (("alpha", "rates"), ("log_speeds", "speeds of positions")):
        rows = [np.array(getattr(record, name)) for record in records if getattr(record, name)]
        if len(rows) < 2 or rows[0].shape != rows[-1].shape:
            continue
        first, last = (np.log(np.where(r > 0, r, 1.0)) if name == "alpha" else r for r in (rows[0], rows[-1]))
        moved = np.abs(last - first)
        if moved.max() > MOVED:
            most = math.exp(min(moved.max(), 700.0))
            found.append(
                f"{what} ({(moved > MOVED).sum():,} of {moved.size:,} changed, by a factor of up to {most:.3g})"
            )
    return f"Learned: {' and '.join(found)}." if found else "Training did not change it."


def _head(bridge: Bridge) -> str:
    if bridge.has_posterior:
        return "logits of the clean token given the other positions"
    return "log scores: ratios of probabilities of noisy tokens"

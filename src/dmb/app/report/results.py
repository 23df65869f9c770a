"""The parts of a report that are numbers: headline, results and settings, curves."""

import math
from typing import Any

import numpy as np

from dmb._core.configuration import from_json
from dmb.app.display import duration
from dmb.app.evaluation import Likelihood, RecordQuality, TableQuality
from dmb.app.records import Record, read_records, read_tables, validations
from dmb.app.report.contents import Block, Contents, OpenRun
from dmb.app.report.examples import address
from dmb.app.report.figures import BLUE, GREY, Line, as_block, over_calls, over_steps

# headers of tables, and the notes below them
ROWS = (
    "rows, compared with, shapes of columns, trends of pairs, classifier AUC, accuracy, nearer to training rows",
    """\
Shapes and trends: 1 is perfect. AUC: how well gradient boosting tells rows from real ones; 0.5: not at all. \
Accuracy: of gradient boosting trained on these rows, on real rows, for up to three columns; training rows \
show what real data give. Nearer to training rows than to held-out ones: 0.5 is no copying.""",
)
RECORDS = (
    "records, number, different, new, valid",
    "New: not in the training data, of those that are different. Valid: SMILES that RDKit can read.",
)


def headline(contents: OpenRun) -> tuple[str, str]:
    """The bound of the model in the folder, on test data if possible, else on validation data; and what it is."""
    best = contents.best
    found: list[tuple[str, Any]] = [(split, contents.bounds.get(split)) for split in ("test", "validation")]
    for split, result in [*found, ("validation", best)]:
        if best is not None and result is not None and result.step == best.step and math.isfinite(result.bits):
            bound, unigram, saved = _row(contents, split, result)
            saved = f"{saved[1:]} less" if saved.startswith("-") else f"{saved} saved"
            what = f"bits per {contents.codec.token} on {split} data"
            return bound, f"{what}; marginals alone need {unigram}: {saved}"
    return "", "No bound has been computed yet."


def results(contents: Contents) -> list[Block]:
    """Every bound with its error; how good reconstructions of images are, where codes are modelled."""
    best = contents.best
    rows = [
        [split + _outdated(contents, b.step), *_row(contents, split, b), f"{b.sequences:,} of {b.of_sequences:,}"]
        for split, b in sorted(contents.bounds.items())
    ]
    if best is not None:
        name = f"validation, in training (step {best.step:,})"
        rows.append([name, *_row(contents, "validation", best), ""])
    note = "± is one standard error. “Marginals alone”: each token on its own, by the marginals of the training data."
    note += "" if "test" in contents.bounds else " Run “dmb evaluate” for the bound on test data."
    header = ["data", f"bound, bits per {contents.codec.token}", "marginals alone", "saved", "sequences"]
    blocks = [Block(kind="table", body=(header, rows), note=note)] if rows else []
    folder = contents.run.path / "vqvae"
    if (folder / "sheet.png").is_file() and (folder / "summary.json").is_file():
        found = from_json((folder / "summary.json").read_text(encoding="utf-8"))
        about = (
            f"Images and their reconstructions: PSNR {found['psnr']:.2f} dB over test images; "
            f"{found['codes']:,} codes, perplexity {found['perplexity']:.1f}."
        )
        if alone := found.get("adversarial_steps"):
            about += f" For its last {alone:,} steps the decoder alone learned, against a discriminator of patches."
        shown = [("", address((folder / "sheet.png").read_bytes()))]
        blocks.append(Block(kind="pictures", title="Tokenizer", note=about, body=shown))
    return blocks


def settings(contents: Contents) -> list[Block]:
    """Data, model, training, image quality; and every setting."""
    recipe = contents.run.recipe.public()
    found = {"dmb": contents.run.about["version"], "name": recipe.name} | recipe.settings()
    return [Block(kind="facts", body=facts(contents)), Block(kind="settings", body=found.items())]


def compared(runs: list[Contents]) -> Block:
    """Bounds on test data and times of training of several runs on the same data."""
    rows = []
    for contents in runs:
        bound, seconds = contents.bounds.get("test"), contents.records[-1].seconds if contents.records else math.nan
        cells = ["–"] * 3 if bound is None else _row(contents, "test", bound)
        took = duration(seconds) if math.isfinite(seconds) else "–"
        rows.append([contents.run.path.name, contents.run.recipe.describe(contents.bridge), *cells, took])
    token = runs[0].run.codec.token
    header = ["run", "how it is trained", f"bound, bits per {token}", "marginals alone", "saved", "training"]
    return Block(kind="table", body=(header, rows), note="On test data; ± is one standard error.")


def quality(contents: Contents) -> list[Block]:
    """If `dmb evaluate --quality` was run: how like real rows or records samples are, beside what they could be."""

    def what(found: TableQuality | RecordQuality) -> str:
        return found.what + (_outdated(contents, found.step) if found.what == "samples" else "")

    def shown(share: float | None) -> str:
        return "–" if share is None else f"{share:.1%}"

    rows = [
        [
            what(each), f"{each.rows:,} rows of {each.split}", f"{each.shapes:.3f}", f"{each.pairs:.3f}",
            f"{each.auc:.3f} ± {each.auc_error:.3f}", "–" if math.isnan(each.accuracy) else f"{each.accuracy:.3f}",
            f"{each.copies:.3f}",
        ]
        for each in read_tables(contents.run.path)
    ]  # fmt: skip
    records = [
        [what(each), f"{each.count:,}", shown(each.different), shown(each.new), shown(each.valid)]
        for each in read_records(contents.run.path)
    ]
    tables = (("Samples beside real rows", ROWS, rows), ("Samples beside real records", RECORDS, records))
    return [
        Block(kind="table", title=title, note=note, body=(header.split(", "), found))
        for title, (header, note), found in tables
        if found
    ]


def curves(contents: Contents) -> list[Block]:
    """The bound on validation data and the training loss, over steps; each only if it has two points."""
    validation = [r for r in validations(contents.records) if math.isfinite(r.bits)]
    train = [r for r in contents.records if r.phase == "score" and math.isfinite(r.score_bits)]

    def values(records: list[Record], name: str) -> np.ndarray:
        return np.array([getattr(record, name) for record in records], dtype=float)

    blocks, step = [], values(validation, "step")
    if len(validation) > 1:
        line = Line("bound ± 2 standard errors", step, values(validation, "bits"), values(validation, "stderr"))
        drawn = over_steps([line], f"bits per {contents.codec.token}", level=_unigram(contents, "validation"))
        blocks.append(as_block(drawn, "bound", "Bound on validation data"))
    if len(train) > 1:
        seen = Line("training batches", values(train, "step"), values(train, "score_bits"), colour=GREY)
        unseen = Line("validation data", step, values(validation, "score_bits"), colour=BLUE)
        drawn = over_steps([seen, unseen], f"score part of the bound, bits per {contents.codec.token}", loss=True)
        note = "Where the curves diverge, the model overfits." if len(validation) > 1 else ""
        blocks.append(as_block(drawn, "loss", "Training loss", note))
    if found := [each for each in contents.few_calls if math.isfinite(each.bits)]:
        kinds = {each.how: [other for other in found if other.how == each.how] for each in found}
        figures = {
            how: np.array([(each.calls, each.bits, each.stderr) for each in same]).T for how, same in kinds.items()
        }
        lines = [Line(how, calls, bits, error) for how, (calls, bits, error) in figures.items()]
        own = contents.bounds.get(found[0].split)
        quantity = f"bits per {contents.codec.token} on {found[0].split}"
        drawn = over_calls(
            lines,
            "network calls per sample",
            quantity,
            level=own.bits if own and own.step == found[0].step else math.nan,
        )
        note = "The bound of what is sampled with so many network calls. Bounds that are infinite are left out."
        blocks.append(as_block(drawn, "calls", "Few calls", note))
    return blocks


def _row(contents: OpenRun, split: str, result: Likelihood | Record) -> list[str]:
    """The bound with its error, what the marginals alone need, and how much less the bound is."""
    bits, unigram = result.bits, _unigram(contents, split)
    error, saved = f" ± {result.stderr:.4f}" if math.isfinite(result.stderr) else "", 1 - bits / unigram
    cells = ((bits, f"{bits:.4f}{error}"), (unigram, f"{unigram:.4f}"), (saved, f"{100 * saved:.1f} %"))
    return [text if math.isfinite(value) else "–" for value, text in cells]


def _unigram(contents: OpenRun, split: str) -> float:
    return contents.run.about["unigram_bits"].get(split) or math.nan


def facts(contents: OpenRun) -> list[tuple[str, str]]:
    """What was trained on what, for how long; and how good images are, if that was evaluated."""
    bridge, run = contents.bridge, contents.run
    parts = (bridge.network, bridge.corruption)
    sizes = [f"{type(part).__name__} with {sum(p.numel() for p in part.parameters()):,} parameters" for part in parts]
    found = [
        ("Data", f"{contents.source}: {contents.kind}"),
        ("Model", ", ".join(sizes)),
    ]
    if contents.records:
        last = contents.records[-1]
        took = f", {duration(last.seconds)}" if math.isfinite(last.seconds) else ""
        found.append(("Training", f"{last.step:,} steps, {last.tokens:,} tokens{took}; begun {run.about['created']}"))
    for images in contents.images:
        how = f"{images.sampler}, {images.calls} calls"
        fid = f"{images.fid:.2f} of {images.images:,} samples to {images.split} images ({how})"
        fid += f"; training images {images.real:.2f}, after the codec {images.floor:.2f}"
        fid += "" if images.precision is None else f"; precision {images.precision:.3f}, recall {images.recall:.3f}"
        score = "" if images.inception_score is None else f"; Inception Score {images.inception_score:.2f}"
        found.append(("FID", fid + score + _outdated(contents, images.step)))
    return found


def _outdated(contents: OpenRun, step: int | None) -> str:
    """A word of warning, if another model has become the best since an evaluation."""
    return "" if contents.best is None or contents.best.step == step else f", of the model of step {step} (outdated)"

"""The parts of a report that are numbers: headline, results, the bound over time, marginals, the configuration."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmb.app.recipes import settings_of
from dmb.app.reports import figures, markup
from dmb.app.reports.contents import Contents, finite
from dmb.app.reports.figures import Curve, Group
from dmb.app.reports.marginals import Distance, distance, frequencies
from dmb.app.reports.markup import number, text, with_error
from dmb.app.runs import Run
from dmb.seeding import seeded

MOST_BARS, MOST_GROUPS = 200, 12
SPLITS = ("train", "validation", "test")


def headline(contents: Contents) -> str:
    """The figure of merit, beside what the marginals alone need."""
    found = contents.headline()
    if found is None:
        return markup.paragraph("No bound has been computed yet.", "headline")
    unigram = contents.unigram(found.split)
    line = f"<b>{text(with_error(found.bits, found.stderr))}</b> bits per token on {text(found.split)} data"
    if not unigram:
        return markup.paragraph(line, "headline")
    saving = 100 * (1 - found.bits / unigram)
    compared = f"{abs(saving):.1f} % {'saved' if saving >= 0 else 'lost'}"
    return markup.paragraph(f"{line}; marginals alone need {text(number(unigram))}: {compared}", "headline")


def results(contents: Contents) -> str:
    """Every bound with its error, by part; and how good the images are, if that was looked at."""
    header = ["data", "bound", "score part", "prior part", "marginals alone", "saved", "sequences"]
    found = contents.evaluations
    rows = [_row(with_step(split, found[split], contents.run), found[split]) for split in SPLITS if split in found]
    best = contents.run.best()
    if best:
        baseline = {"unigram_bits": contents.unigram("validation")}
        rows.append(_row(f"validation, best in training (step {best.get('step', 0):,})", best | baseline))
    if not rows:
        return _images(contents) or markup.paragraph("There are none yet.")
    note = (
        "Bits per token, ± one standard error over sequences; the bound is the sum of its two parts. “Marginals alone” "
        "is the cross-entropy of the data under the training data’s marginals, each token on its own."
    )
    missing = (
        ""
        if not found.keys().isdisjoint(SPLITS)
        else markup.paragraph("Run “dmb evaluate” for the bound on test data.", "note")
    )
    return markup.table(header, rows, "figures") + markup.paragraph(note, "note") + missing + _images(contents)


def over_time(contents: Contents) -> str:
    """The bound by part, over steps."""
    score, validation = contents.records("score", "step"), contents.records("validation", "step")
    if not score and not validation:
        return markup.paragraph("Nothing was logged.")
    starts: dict[Any, float] = {}
    for record in contents.metrics:
        starts.setdefault(record.get("cycle"), float(record.get("step", 0)))
    drawn = figures.bound(
        score=curve(score, "score_bits"),
        validation=curve(validation, "bits"),
        stderr=curve(validation, "stderr").value,
        prior=curve([record for record in contents.metrics if record.get("phase") != "validation"], "prior_bits"),
        validation_prior=curve(validation, "prior_bits"),
        cycles=sorted(starts.values()),
        unigram=contents.unigram("validation"),
    )
    return markup.figure(
        drawn, "bound",
        "Above: the score part of the bound on training batches, and the whole bound on validation data with the "
        "averaged weights. Below: the prior part J_Q, which Matrix-learning minimises under its estimate of the data’s "
        "marginals (grey) and as validation data pay it (blue). Dotted lines: a new cycle begins.",
    )  # fmt: skip


def marginals(contents: Contents) -> str:
    """How often each state occurs in data and in samples."""
    mu, samples = contents.marginals, contents.samples
    n, count, unit = mu.shape[1], len(samples), "samples"
    seen = frequencies(samples, max(n, contents.bridge.num_states))[:, :n]
    shared = len(mu) > 1 and bool((mu == mu[0]).all())
    lines = [_sentence(contents, distance(mu, samples, generator=seeded(contents.seed, "report", "floor")), count,
                       "averaged over positions")]  # fmt: skip
    if shared:
        pooled = distance(mu[:1], samples.reshape(-1, 1), generator=seeded(contents.seed, "report", "pooled"))
        lines.append(_sentence(contents, pooled, samples.numel(), "all positions taken together"))
        groups = [Group("", contents.symbols.labels(0)[:n], mu[0].numpy(), seen.mean(0).numpy())]
        count, unit = samples.numel(), "sampled tokens"
    else:
        groups = _groups(contents, mu.numpy(), seen.numpy())
    if sum(len(group.labels) for group in groups) <= MOST_BARS and len(groups) <= MOST_GROUPS:
        caption = "Frequencies in the training data and in samples; whiskers are two standard errors of sampling."
        drawn = figures.marginal_bars(groups, count, unit)
    else:
        caption = (
            "Every state of every position: its frequency in the training data and in samples. Square-root axes, on "
            "which sampling noise is equally wide everywhere; the band is two standard errors."
        )
        drawn = figures.marginal_scatter(
            np.concatenate([group.data for group in groups]), np.concatenate([group.samples for group in groups]), count
        )
    return "".join(map(markup.paragraph, lines)) + markup.figure(drawn, "marginals", caption)


def configuration(contents: Contents) -> str:
    """Every setting."""
    bridge = contents.bridge
    model = [
        ("network", sized(bridge.network)),
        ("process", sized(bridge.process)),
        ("positions × states", f"{bridge.num_positions:,} × {bridge.num_states:,}"),
    ]
    return settings_table(contents.run, model)


def settings_table(run: Run, model: Sequence[tuple[str, str]]) -> str:
    """What was run: the version, a few words on the model, and every setting."""
    settings = [(name, "none" if value is None else str(value)) for name, value in settings_of(run.recipe).items()]
    about = [("dmb", str(run.about["version"])), ("recipe", run.recipe.name)]
    return markup.table(["setting", "value"], [*about, *model, *settings], "settings")


def sized(module: Any) -> str:
    """What a module is, and how large."""
    return f"{type(module).__name__}, {sum(parameter.numel() for parameter in module.parameters()):,} parameters"


def curve(records: list[dict[str, Any]], name: str) -> Curve:
    """A figure of the metrics over steps, nan where there is none."""

    def column(key: str) -> np.ndarray:
        found = (finite(record.get(key)) for record in records)
        return np.array([np.nan if value is None else value for value in found], dtype=float)

    return Curve(column("step"), column(name))


def with_step(split: str, result: dict[str, Any], run: Run) -> str:
    """The split, and a warning if the model has got better since it was evaluated."""
    step = result.get("step")
    return split if step == run.best().get("step") else f"{split}, of the model at step {step:,} (outdated)"


def _row(name: str, result: dict[str, Any]) -> list[str]:
    bits, unigram = finite(result.get("bits")), finite(result.get("unigram_bits"))
    saved = "–" if bits is None or not unigram else f"{100 * (1 - bits / unigram):.1f} %"
    seen, everything = result.get("sequences"), result.get("of_sequences")
    sequences = "–" if seen is None else f"{seen:,}" if everything is None else f"{seen:,} of {everything:,}"
    parts = [number(finite(result.get(part))) for part in ("score_bits", "prior_bits", "unigram_bits")]
    return [name, with_error(bits, finite(result.get("stderr"))), *parts, saved, sequences]


def _images(contents: Contents) -> str:
    """The distances of samples and of training images to real ones; nothing if they were not asked for."""
    found = contents.evaluations.get("images", {})
    rows = [
        [with_step(split, found[split], contents.run), *_distances(found[split])] for split in SPLITS if split in found
    ]
    if not rows:
        return ""
    header = ["images", "FID", "floor", "real images", "Inception Score", "samples", "of each"]
    note = (
        "Fréchet Inception Distance to images of the data; it depends on how many there are of each kind. “Floor” is "
        "that of training images which the codec has made tokens and images again, and so of a perfect model; “real "
        "images” is that of the same ones as they are."
    )
    return markup.table(header, rows, "figures") + markup.paragraph(note, "note")


def _distances(result: dict[str, Any]) -> list[str]:
    names = ("fid", "floor", "real", "inception_score", "inception_score_deviation")
    *figures, deviation = ("–" if value is None else f"{value:.2f}" for value in map(finite, map(result.get, names)))
    figures[-1] += "" if deviation == "–" else f" ± {deviation}"
    images = result.get("images")
    how = f"{result.get('sampler', '–')}, {result.get('steps', '–')} steps"
    guidance = result.get("guidance", 1)
    how += "" if guidance == 1 else f", guidance {guidance:g}"
    return [*figures, how, "–" if images is None else f"{images:,}"]


def _groups(contents: Contents, mu: np.ndarray, seen: np.ndarray) -> list[Group]:
    """The states that each position has, with their names."""
    legal = contents.bridge.process.legal.expand(len(mu), -1)[:, : mu.shape[1]].cpu().numpy()
    names = getattr(contents.run.codec, "names", None) or [f"position {i}" for i in range(len(mu))]
    groups = []
    for i in range(len(mu)):
        labels = contents.symbols.labels(i)
        has = [state for state in range(mu.shape[1]) if legal[i, state] and state < len(labels)]
        groups.append(Group(names[i], [labels[state] for state in has], mu[i, has], seen[i, has]))
    return groups


def _sentence(contents: Contents, found: Distance, count: int, how: str) -> str:
    unit = "samples" if how.startswith("averaged") else "tokens"
    return (
        f"Total-variation distance between the data’s marginals and those of {count:,} {unit}, {text(how)}: "
        f"<b>{number(found.value)}</b>; as many independent draws from the data’s marginals would show "
        f"{number(found.floor)} ± {found.spread:.4f}."
    )

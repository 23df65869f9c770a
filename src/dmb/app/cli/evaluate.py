"""`dmb evaluate`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.display import counting
from dmb.app.evaluation import ImageQuality, Likelihood, RealImages, image_quality, likelihood
from dmb.app.runs import Run
from dmb.files import to_json
from dmb.training.engine import Accelerator, device


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    metrics: tuple[Literal["bound", "fid", "is"], ...] = ("bound",),
    split: Literal["train", "validation", "test"] = "test",
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    sequences: int | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    images: int | None = None,
    weights: Annotated[Path | None, arg(metavar="FILE")] = None,
    steps: int | None = None,
    sampler: Literal["ancestral", "first_hitting", "tweedie", "euler"] | None = None,
    guidance: float | None = None,
    seed: int = 0,
    accelerator: Accelerator = "auto",
    json_: Annotated[bool, arg(name="json")] = False,
) -> int:
    """Bound the bits per token that a run's model needs for data it has not seen; compare its images with real ones.

    Examples: `dmb evaluate RUN`; `dmb evaluate RUN --metrics bound fid --steps 128`.

    Args:
        run: the run folder.
        metrics: bound, with its standard error; for images, fid, and is: the Inception Score, which comes with fid.
        split: which part of the data.
        data: bound that split of another file, read with the run's own alphabet.
        sequences: bound so many, spread evenly, instead of all.
        samples: for the bound, network calls per sequence; default: 1.
        batch_size: for the bound, sequences per network call; default: 128.
        images: to sample for fid, and to compare with; default: 10000.
        weights: of the network that fid needs, if they are not in the data folder.
        steps: for fid, network calls per sample; default: 64.
        sampler: for fid, as in sample.
        guidance: for fid, how strongly to follow classes, which are as frequent as in training; default: 1.
        seed: of times, noise and samples.
        accelerator: cpu or cuda; auto takes a GPU if there is one.
        json_: print JSON.
    """
    if not metrics:
        raise ValueError("--metrics must name bound, fid or is, got none")
    bounding = {"sequences": sequences, "samples": samples, "batch_size": batch_size}
    comparing = {"images": images, "weights": weights}
    drawing = {"steps": steps, "sampler": sampler, "guidance": guidance}
    folder, where = Run.open(run), device(accelerator)
    if "bound" not in metrics:
        _refuse({"data": data, **bounding}, "--metrics bound only")
    if {"fid", "is"}.isdisjoint(metrics):
        _refuse({**comparing, **drawing}, "--metrics fid and is only")
    else:
        _refuse({"data": data}, "--metrics bound alone")
    results = _results(folder, where, metrics, split, _given(bounding), _given(comparing), _given(drawing), data, seed)
    step, found = folder.best().get("step"), dict[str, Any]()
    for result in results:
        if data is None:
            folder.add_evaluation(result, step)
        if not json_:
            print(result)
        found.update(vars(result))
    if json_:
        print(to_json(found))
    return 0


def _refuse(options: dict[str, Any], read_for: str) -> None:
    """Raise an error if one of these, which would not be read, was given."""
    for name, value in _given(options).items():
        raise ValueError(f"--{name.replace('_', '-')} is read for {read_for}, got {value}")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _results(
    folder: Run,
    where: str,
    metrics: tuple[str, ...],
    split: str,
    bounding: dict[str, Any],
    comparing: dict[str, Any],
    drawing: dict[str, Any],
    source: str | None,
    seed: int,
) -> Iterator[Likelihood | ImageQuality]:
    bridge = folder.bridge(where)
    with counting(notes, "reading the data") as progress:
        read = folder.data(source, progress=progress)
    real = None
    if not {"fid", "is"}.isdisjoint(metrics):  # now, so that what is wrong is found before the bound takes its time
        real = RealImages(read, split, score="is" in metrics, **comparing)
        real.rehearse(bridge, **drawing)
    if "bound" in metrics:
        marginals = folder.summary()["marginals"]
        with counting(notes, f"evaluating on {split}") as progress:
            result = likelihood(bridge, read, split, marginals=marginals, seed=seed, progress=progress, **bounding)
        yield result
    if real is not None:
        yield image_quality(bridge, real, seed=seed, progress=partial(counting, notes), **drawing)

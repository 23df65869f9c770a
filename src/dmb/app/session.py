"""A training session: a recipe in a run folder, watched, logged, and safe to interrupt."""

import os
import shlex
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dmb.app.display import Display, counting, duration
from dmb.app.recipes import Recipe
from dmb.app.runs import Run
from dmb.app.signals import Signals
from dmb.bridge import Bridge
from dmb.data import DataSet
from dmb.training import Engine, TrainingSettings
from dmb.training.engine import engine, exit_now

MODEL = ("data.", "process.", "network.", "head")
"""Prefixes of the settings that define a model: these cannot change during a run."""


def session(
    recipe: Recipe, path: Path, *, resume: bool, console: Console, own: str | None = None, **options: Any
) -> int:
    """Train in the folder `path`; 0, or 128 plus the number of the signal that stopped it.

    One of several processes ends here with that code, and does not return.

    Args:
        recipe: what to train, on what, and how.
        path: the run folder: a new one, or an old one to continue.
        resume: continue what is there.
        console: where to show progress.
        own: the user's own recipe of a run to continue; see `Run.open`.
        options: of `dmb.training.engine`.
    """
    # find mistakes before several processes are started, which would all report them
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    with counting(console if first else Console(quiet=True), "reading the data") as progress:
        if resume:
            run = Run.open(path, own)
            _refuse_another_model(run.recipe, recipe)
            data = run.data(progress=progress)
        else:
            Run.refuse_existing(path)
            data = recipe.data.load(progress=progress)
    model = recipe.build(data)
    fabric = engine(**options)
    recipe.check(model, data, fabric)
    path = Path(fabric.broadcast(str(path)))  # its name may be the time, which differs between machines
    chief = fabric.is_global_zero
    with ExitStack() as stack:
        problem = None
        if chief:
            try:
                run = Run.open(path, own) if resume else Run.create(path, recipe, data)
                stack.enter_context(run.locked())
            except ValueError as error:
                problem = str(error)
        problem = fabric.broadcast(problem)  # or the others would wait for one that has left
        if problem is not None:
            raise ValueError(problem)
        signals = stack.enter_context(Signals())
        if chief:
            _announce(console, path, recipe, data, model, fabric, resume)
        reports = recipe.train(model, data, fabric=fabric, folder=path, resume=resume, stop=signals)
        if chief:
            run.change(recipe)
            baseline = recipe.baseline(run.about["unigram_bits"]["validation"])
            display = stack.enter_context(Display(console, data.codec, baseline).shown())
        report = None
        for report in reports:
            if chief:
                run.log(report)
                display.update(report)
    number = max(fabric.broadcast(signals.heeded, src=rank) for rank in range(fabric.world_size))
    if chief and report is None and not number:
        _say(console, "nothing left to do: for a longer run, raise --cycles or --score-steps, or set --patience 0")
    if chief and number:
        again = ["dmb", "resume", str(path), *([] if own is None else ["--recipe", own])]
        _say(console, f"stopped at a checkpoint; continue with: {shlex.join(again)}")
    code = 128 + number if number else 0
    if fabric.world_size > 1:
        exit_now(code)
    return code


def expected_seconds(model: Bridge, data: DataSet, settings: TrainingSettings) -> float:
    """Estimated time of all steps of Score-learning on this device, from one trial step that is discarded."""
    rows = torch.arange(min(settings.sequences // settings.accumulate, len(data.train)))
    x_0 = data.train[rows].to(model.device)
    label = data.train.labels(rows) if model.num_classes else None
    options: dict[str, Any] = {} if model.ordered is None else {"orders": settings.orders}
    generator = torch.Generator(model.device).manual_seed(0)
    seconds = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            model.loss(x_0, label=label, generator=generator, **options).mean().backward()
            seconds.append(time.perf_counter() - began)
    model.zero_grad(set_to_none=True)
    return 1.2 * seconds[-1] * settings.accumulate * settings.total_steps  # a fifth for optimiser and evaluations


def _refuse_another_model(before: Recipe, now: Recipe) -> None:
    changed = [name for name in before.differences(now) if name.startswith(MODEL)]
    if changed:
        names = ", ".join(changed)
        raise ValueError(f"{names} cannot change during a run: start another run with dmb train")


def _announce(
    console: Console, path: Path, recipe: Recipe, data: DataSet, model: Bridge, fabric: Engine, resume: bool
) -> None:
    """Print how the data were read, what will be trained, and how long it will take."""
    first, *others = data.describe()
    for line in (f"{data.name}: {first}", *others):
        _say(console, line)
    weights = sum(parameter.numel() for parameter in model.network.parameters())
    lasts = ""
    if fabric.world_size == 1 and not resume and str(fabric.device) == "cpu":
        seconds = expected_seconds(model, data, recipe.training)
        limit = recipe.training.minutes
        lasts = f", about {duration(seconds if limit is None else min(seconds, 60 * limit))}"
    _say(console, f"recipe {Path(recipe.name).name}: {weights:,} weights, {recipe.describe(data)}{lasts}")
    _say(console, f"{'continuing' if resume else 'training'} {path}; Ctrl-C stops, dmb resume {path} continues")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)

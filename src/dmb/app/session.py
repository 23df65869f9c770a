"""A training session: a recipe in a run folder, watched, logged, and safe to interrupt."""

import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from dmb.app.display import Display, counting
from dmb.app.recipes import Recipe, settings_of
from dmb.app.runs import Run
from dmb.app.signals import Signals
from dmb.data import DataSet
from dmb.training.engine import engine, exit_now


def session(recipe: Recipe, path: Path, *, resume: bool, console: Console, **options: Any) -> int:
    """Train in the folder `path`; 0, or 128 plus the number of the signal that stopped it.

    One of several processes ends here with that code, and does not return.

    Args:
        recipe: what to train, on what, and how.
        path: the run folder: a new one, or an old one to go on with.
        resume: go on with what is there.
        console: where to show progress.
        options: of `dmb.training.engine`.
    """
    # what can be wrong is found out before there are several processes to say so
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # of several processes one is enough to show it
    with counting(console if first else Console(quiet=True), "reading the data") as progress:
        if resume:
            run = Run.open(path)
            _refuse_another_model(run.recipe, recipe)
            data = run.data(progress=progress)
        else:
            Run.refuse_existing(path)
            data = recipe.data.load(progress=progress)
    model = recipe.build(data)
    fabric = engine(**options)
    recipe.check(model, data, fabric)
    path = Path(fabric.broadcast(str(path)))  # its name may be the time, which is another on each machine
    chief = fabric.is_global_zero
    with ExitStack() as stack:
        problem = None
        if chief:
            try:
                run = Run.open(path) if resume else Run.create(path, recipe, data)
                stack.enter_context(run.locked())
            except ValueError as error:
                problem = str(error)
        problem = fabric.broadcast(problem)  # or the others would wait for one that has left
        if problem is not None:
            raise ValueError(problem)
        signals = stack.enter_context(Signals())
        reports = recipe.train(model, data, fabric=fabric, folder=path, resume=resume, stop=signals)
        if chief:
            run.change(recipe)
            _announce(console, path, recipe, data, resume)
            baseline = recipe.baseline(run.about["unigram_bits"]["validation"])
            display = stack.enter_context(Display(console, data.codec, baseline).shown())
        for report in reports:
            if chief:
                run.log(report)
                display.update(report)
    number = max(fabric.broadcast(signals.heeded, src=rank) for rank in range(fabric.world_size))
    if chief and number:
        again = shlex.join(["dmb", "train", recipe.name, "--out", str(path), "--resume"])
        _say(console, f"stopped at a checkpoint; go on with: {again}")
    code = 128 + number if number else 0
    if fabric.world_size > 1:
        exit_now(code)
    return code


def _refuse_another_model(before: Recipe, now: Recipe) -> None:
    old, new = settings_of(before), settings_of(now)
    changed = [name for name in old if name.startswith(before.fixed) and old[name] != new.get(name)]
    if changed:
        raise ValueError(f"{', '.join(changed)} cannot change in the middle of a run; begin another with a new --out")


def _announce(console: Console, path: Path, recipe: Recipe, data: DataSet, resume: bool) -> None:
    _say(console, f"{'going on with' if resume else 'training'} {path}: {recipe.describe(data)}")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)

"""A training session: a recipe in a run folder, watched, logged, and safe to interrupt."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from dmb.data import DataSet, load
from dmb.display import Display
from dmb.recipes import Recipe, settings_of
from dmb.runs import Run
from dmb.training import engine, train

# what a run is made of: with another of these it would be another run
FIXED = ("data.", "process.", "network.", "head")


def session(recipe: Recipe, path: Path, *, resume: bool, console: Console, **options: Any) -> int:
    """Train in the folder `path`; 0, or 128 plus the number of the signal that stopped it.

    Args:
        recipe: what to train, on what, and how.
        path: the run folder: a new one, or an old one to go on with.
        resume: go on with what is there.
        console: where to show progress.
        options: of `dmb.training.engine`.
    """
    # what can be wrong is found out before there are several processes to say so
    if resume:
        _refuse_another_model(Run.open(path).recipe, recipe)
    else:
        Run.refuse_existing(path)
    data = load(recipe.data.source, length=recipe.data.length, encoding=recipe.data.encoding)
    bridge = recipe.build(data)
    fabric = engine(**options)
    path = Path(fabric.broadcast(str(path)))  # its name may be the time, which is another on each machine
    with ExitStack() as stack:
        run, display = None, None
        if fabric.is_global_zero:
            run = Run.open(path) if resume else Run.create(path, recipe, data)
            stack.enter_context(run.locked())
        caught = stack.enter_context(_signals())
        reports = train(
            bridge, data, recipe.training, fabric=fabric, folder=path, resume=resume, stop=lambda: bool(caught)
        )
        if run is not None:
            run.change(recipe)
            _announce(console, path, recipe, data, resume)
            baseline = run.about["unigram_bits"]["validation"]
            display = stack.enter_context(Display(console, data.codec, baseline, recipe.training.minutes).shown())
        for report in reports:
            if run is not None and display is not None:
                run.log(report)
                display.update(report)
    if run is not None and caught:
        _say(console, f"stopped at a checkpoint; go on with: dmb train {recipe.name} --out {path} --resume")
    return 128 + caught[0] if caught else 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While the block runs, a first SIGINT or SIGTERM is noted in the list; a second Ctrl-C acts as ever."""
    caught: list[int] = []

    def note(number: int, _: object) -> None:
        caught.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_another_model(before: Recipe, now: Recipe) -> None:
    old, new = settings_of(before), settings_of(now)
    changed = [name for name in old if name.startswith(FIXED) and old[name] != new[name]]
    if changed:
        raise ValueError(f"{', '.join(changed)} cannot change in the middle of a run; begin another with a new --out")


def _announce(console: Console, path: Path, recipe: Recipe, data: DataSet, resume: bool) -> None:
    settings = recipe.training
    _say(
        console,
        f"{'going on with' if resume else 'training'} {path}: {data.name}, {data.num_positions} positions, "
        f"{data.num_states} states; {settings.cycles} cycles of {settings.matrix_steps} + {settings.score_steps} steps",
    )


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)

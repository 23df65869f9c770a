"""A training session: a recipe in a run folder, watched, logged, and safe to interrupt."""

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dmb.app.display import Display, counting, duration, of_first_process, say
from dmb.app.evaluation import likelihood
from dmb.app.locks import working_in
from dmb.app.recipes import Recipe
from dmb.app.records import validations
from dmb.app.runs import Run
from dmb.app.signals import Signals
from dmb.bridges import Bridge
from dmb.data import DataSet, Picture, Text
from dmb.training import BridgeLearner, Engine, Fact, Trainer, TrainingReport, TrainingSettings
from dmb.training.devices import engine, exit_now

MODEL = ("data.", "process.", "order.", "network.", "head")
"""Prefixes of the settings that define a model: these cannot change during a run."""
MANY_PIXELS = 1000
"""Tokens of an image above which its pixels take long to learn."""


def session(
    recipe: Recipe,
    path: Path,
    *,
    resume: bool,
    console: Console,
    own: str | None = None,
    launch: Callable[[], Engine] = engine,
) -> int:
    """Train in the folder `path`; 0, or 128 plus the number of the signal that stopped it.

    One of several processes ends here with that code, and does not return.

    Args:
        recipe: what to train, on what, and how.
        path: the run folder: a new one, or an old one to continue.
        resume: continue what is there.
        console: where to show progress.
        own: the user's own recipe of the run, if any; see `Run.open`.
        launch: starts the engine, and with it other processes, once mistakes have been found.
    """
    # find mistakes before several processes are started, which would all report them
    with counting(of_first_process(console), "reading the data") as progress:
        if resume:
            run = Run.open(path, own)
            if changed := [name for name in run.recipe.differences(recipe) if name.startswith(MODEL)]:
                raise ValueError(f"{', '.join(changed)} cannot change during a run: start another run with dmb train")
            data = run.data(progress=progress)
        else:
            Run.check_free(path)
            data = recipe.data.load(progress=progress)
    model = recipe.build(data)
    fabric = launch()
    recipe.check(model, data, fabric)
    path = Path(fabric.broadcast(str(path)))  # its name may be the time, which differs between machines
    chief, again = fabric.is_global_zero, ["dmb", "resume", str(path), *([] if own is None else ["--recipe", own])]

    def begin() -> None:
        nonlocal run
        run = Run.open(path, own) if resume else Run.create(path, recipe, data)

    with ExitStack() as stack:
        signals = stack.enter_context(alone_in(path, fabric, begin))
        # `recipe.check` has made the checks of `train`
        trainer = Trainer(BridgeLearner(model, data, recipe.training, fabric), path, resume, signals)
        if resume and recipe.training.total_steps > run.recipe.training.total_steps:
            trainer.progress.stale = 0  # whoever asks for more steps wants them, although patience has ended the others
        reports = trainer.run()
        if chief:
            _announce(console, path, recipe, data, model, fabric, resume, shlex.join(again))
            kept = run.recipe.training.minutes if resume else recipe.training.minutes
            run.change(recipe.changed(minutes=kept))  # how long this call may last says nothing about the next
            baseline = Fact("marginals alone", f"{data.unigram_bits(data.validation):.4f}", "bits")
            display = stack.enter_context(Display(console, data.codec, baseline).shown())
        report = None
        for report in reports:
            if chief:
                run.log(report)
                display.update(report)
    number = stopped_by(signals, fabric, console, again)
    if chief and not number:
        say(console, f"nothing left to do: {_ended(run)}" if report is None else _finished(run, report))
        # other data than text are split at random
        if report is not None and isinstance(data.codec, Text) and (line := unlike(run, data, str(fabric.device))):
            say(console, line)
    return ended(number, fabric)


@contextmanager
def alone_in(path: Path, fabric: Engine, begin: Callable[[], None] = lambda: None) -> Iterator[Signals]:
    """While the block runs, no other processes train in the folder `path`, and signals only ask these to stop.

    `begin` prepares the folder, in the first process; what is wrong with it is a ValueError in all of them.
    """
    with ExitStack() as stack:
        problem = None
        if fabric.is_global_zero:
            try:
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(working_in(path))  # first: of two that start at one moment, one is refused
                begin()
            except OSError as error:
                problem = f"cannot write to {path}: {error.strerror or error}"
            except ValueError as error:
                problem = str(error)
        problem = fabric.broadcast(problem)  # or the others would wait for one that has left
        if problem is not None:
            raise ValueError(problem)
        yield stack.enter_context(Signals())


def stopped_by(signals: Signals, fabric: Engine, console: Console, again: list[str]) -> int:
    """The signal that any of the processes heeded, after a word on how to continue; 0 if none did."""
    number = max(fabric.broadcast(signals.heeded, src=rank) for rank in range(fabric.world_size))
    if fabric.is_global_zero and number:
        say(console, f"stopped at a checkpoint; continue with: {shlex.join(again)}")
    return number


def ended(number: int, fabric: Engine) -> int:
    """The exit code after this signal, or 0; one of several processes ends here with it, and does not return."""
    code = 128 + number if number else 0
    if fabric.world_size > 1:
        exit_now(code)
    return code


def introduce(console: Console, data: DataSet) -> None:
    """Print how the data were read."""
    first, *others = data.describe()
    say(console, "\n".join([f"{data.name}: {first}", *others]))


def expected_seconds(model: Bridge, data: DataSet, settings: TrainingSettings) -> float:
    """Estimated time of all steps of Score-learning on a CPU, from trial steps of a copy.

    There are up to five of them, in about a second: a single one may be slow by chance.
    """
    trial = BridgeLearner(model, data, replace(settings, compile=False), engine(accelerator="cpu"))
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 6 and sum(seconds) < 1):
        began = time.perf_counter()
        trial.score_step()
        seconds.append(time.perf_counter() - began)
    return 1.2 * statistics.median(seconds[1:]) * settings.total_steps  # the first warms up; a fifth for evaluations


def unlike(run: Run, data: DataSet, device: str) -> str | None:
    """A warning if the bits of training and validation data differ by more than three standard errors."""
    best = run.best()
    if best is None:
        return None
    train = likelihood(run.bridge(device), data, "train", sequences=run.recipe.training.evaluate_sequences)
    if abs(best.bits - train.bits) > 3 * math.hypot(best.stderr, train.stderr):
        return (
            f"warning: {train.in_words()}: validation data differ from it by more than their errors allow, so the "
            "model knows training data by heart, or the two are of different kinds"
        )
    return None


def _finished(run: Run, last: TrainingReport) -> str:
    """Why a run has ended, if not with its last step; its result, and the commands to use next."""
    best, path = run.best(), shlex.quote(str(run.path))
    if best is None:
        return f"ended before the first evaluation: dmb resume {path} continues"
    bound = f"{best.bits:.4f} ± {best.stderr:.4f} bits per {run.codec.token} on validation data, at step {best.step:,}"
    early = ""
    if last.step < last.total_steps:
        early = "time is up" if last.seconds_left == 0 else f"stopped early: {_ended(run)}"
        early += f"; dmb resume {path} --minutes 5 would continue\n" if last.seconds_left == 0 else "\n"
    return f"{early}best model: {bound}\nnow try: dmb evaluate {path} · dmb sample {path} · dmb report {path}"


def _ended(run: Run) -> str:
    """Why a run has ended, and how to train for longer."""
    settings, evaluated = run.recipe.training, validations(run.metrics())
    stale = next((number for number, record in enumerate(reversed(evaluated)) if record.improved), len(evaluated))
    if 0 < settings.patience <= stale:
        return f"{stale} evaluations have not improved; --patience {2 * stale}, or 0 (no limit), continues"
    if evaluated and evaluated[-1].cycle + 1 < settings.cycles:
        return f"the bound has fallen below --tolerance {settings.tolerance}; --tolerance 0 continues"
    return f"all steps are done; --cycles {2 * settings.cycles} trains for twice as long"


def _announce(
    console: Console, path: Path, recipe: Recipe, data: DataSet, model: Bridge, fabric: Engine, resume: bool, again: str
) -> None:
    """Print how the data were read, what will be trained, and how long it will take."""
    introduce(console, data)
    weights = sum(parameter.numel() for parameter in model.network.parameters())
    limit, total = 60 * (recipe.training.minutes or math.inf), recipe.training.total_steps
    steps, lasts = (f"{total:,}", "") if limit == math.inf else (f"up to {total:,}", f", at most {duration(limit)}")
    if fabric.world_size == 1 and not resume and str(fabric.device) == "cpu":
        seconds = expected_seconds(model, data, recipe.training)
        fitting = float(f"{total * limit / seconds:.2g}")  # two digits
        steps = f"{total:,}" if seconds <= limit else f"about {fitting:,.0f} of {total:,}"
        lasts = f", about {duration(min(seconds, limit))}"
    say(console, f"recipe {Path(recipe.name).name}: {weights:,} weights, {recipe.describe(model, steps)}{lasts}")
    square = isinstance(data.codec, Picture) and data.codec.shape[0] == data.codec.shape[1]  # what tokenize takes
    if square and data.num_positions > MANY_PIXELS and not resume:
        size = [] if recipe.data.size is None else ["--size", str(recipe.data.size)]
        tokenize = shlex.join(["dmb", "tokenize", recipe.data.source, *size, "--out", "codes"])
        say(console, f"large images take far less time as codes: {tokenize}, then dmb train codes")
    say(console, f"{'continuing' if resume else 'training'} {path}; Ctrl-C stops, {again} continues")

"""Algorithm 1 from top to bottom: its phases, evaluation, checkpoints, time limits, stopping and resuming."""

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from dmb._core.pretrained import WEIGHTS
from dmb.bridges import Bridge
from dmb.data.base import DataSet
from dmb.training.checkpoint import Checkpoint, Checkpoints
from dmb.training.devices import Engine, averaged, engine, skips_bad_steps
from dmb.training.reporting import Report, TrainingReport
from dmb.training.settings import TrainingOptions, TrainingSettings, settings_from, spelled_out
from dmb.training.state import BridgeLearner, Learner

EVALUATE_SHARE, EVALUATION_SHARE = 0.1, 0.2
"""With a time limit, the model is also evaluated after this share of it; evaluations take about that share at most."""
RUNNING_STEPS = 50
"""Over how many steps the mean that is compared with ε_score runs; before that many it is compared with nothing."""


@spelled_out
def train(
    bridge: Bridge,
    data: DataSet,
    settings: TrainingSettings | None = None,
    *,
    fabric: Engine | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    **options: Unpack[TrainingOptions],
) -> Iterator[TrainingReport]:
    """Run Algorithm 1, yielding reports; progress and logging are up to the caller.

    From the first evaluation on, `bridge` holds the averaged weights with the best bound on validation data so far;
    training itself works on copies.

    Args:
        bridge: the model to train.
        data: batches come from `data.train`, evaluation uses `data.validation`.
        settings: all settings at once; or give them one by one as `options`.
        fabric: the engine, launched. Default: one device, a GPU if there is one.
        folder: where to write checkpoints and the best model. Default: nowhere.
        resume: continue from the newest checkpoint in `folder`, if there is one.
        stop: called after every step; when it returns True, a checkpoint is saved and training ends.
        options: fields of `TrainingSettings`, which explains them.

    >>> import dmb
    >>> data = dmb.data.digits()
    >>> process = dmb.BridgeProcess.from_marginals(data.marginals())
    >>> bridge = dmb.MarkovBridge(process, dmb.MLP(process.num_states, process.num_positions, width=32, blocks=1))
    >>> reports = list(dmb.train(bridge, data, cycles=1, score_steps=20, matrix_steps=2, log_every=10))
    >>> [(report.phase, report.step) for report in reports]
    [('matrix', 0), ('matrix', 0), ('score', 10), ('score', 20), ('validation', 20)]
    """
    if settings is not None and options:
        raise ValueError("give settings or single options, not both")
    settings = settings or settings_from(options)
    if not isinstance(data, DataSet):
        cure = "make one with dmb.data.load(path) or dmb.data.array(tokens)"
        raise ValueError(f"data must be a DataSet, got a {type(data).__name__}: {cure}")
    fabric = fabric or engine()
    check_trainable(bridge, data, settings, fabric, options)
    if folder is not None:
        bridge.check_round_trip()
    return Trainer(BridgeLearner(bridge, data, settings, fabric), folder, resume, stop).run()


def check_trainable(
    bridge: Bridge, data: DataSet, settings: TrainingSettings, fabric: Engine, chosen: Collection[str] = ()
) -> None:
    """A ValueError if this bridge cannot be trained on these data with these settings; see `Bridge.check_settings`."""
    if data.num_positions != bridge.num_positions:
        raise ValueError(f"data has {data.num_positions} positions, the bridge {bridge.num_positions}")
    share = fabric.world_size * settings.accumulate * (settings.orders + settings.fitting_singles)
    if settings.batch_size % share:
        rule = f"a multiple of processes × (orders + singles) × accumulate = {share}"
        raise ValueError(f"batch_size must be {rule}, got {settings.batch_size}")
    if settings.matrix_objective != "prior" and skips_bad_steps(fabric):
        raise ValueError("rates are not learned on the bound in float16: choose precision bf16-mixed or 32-true")
    bridge.check_settings(settings, chosen)


class EndsEarly(Exception):
    """Raised after a step: its phase is the last, because of the time, of no improvement, or of the caller."""


class Trainer:
    """Algorithm 1. Every phase is a method; `run` reads like the paper's listing.

    Args:
        learner: the model in training.
        folder: where to write checkpoints, from the start on, and the best model. A model that is there without a
            checkpoint is never written over. Default: nowhere.
        resume: continue from the newest checkpoint, if there is one.
        stop: called after every step; when it returns True, a checkpoint is saved and training ends.
    """

    def __init__(
        self,
        learner: Learner,
        folder: Path | str | None = None,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ):
        self.learner, self.fabric, self.settings = learner, learner.fabric, learner.settings
        self.folder, self.checkpoints, newest = None, None, None
        if folder is not None:
            self.folder = Path(folder)
            self.checkpoints = Checkpoints(self.folder / "checkpoints", self.settings.keep)
            newest = _newest(self.folder, self.checkpoints, resume)
        self._begins = newest is None
        step = None if newest is None else newest.state["step"]
        if self.fabric.world_size > 1 and self.fabric.broadcast(step) != step:
            raise ValueError("all processes must see the same run folder: put it on a disk that they share")
        if newest is not None:
            try:
                learner.restore(newest)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"the checkpoint does not fit this model: {error}") from error
            if self.folder is not None and learner.progress.best_step is not None:
                learner.best.load_tensors(type(learner.best).from_pretrained(self.folder).tensors())
        self.progress = progress = learner.progress
        if progress.share >= 1:  # its time was up: what it is given now is a schedule of its own
            progress.share = 0.0
        self._stop, self._asked, self._limit = stop or (lambda: False), False, 60 * (self.settings.minutes or 0.0)
        self._first_step, self._first_share = progress.step, progress.schedule(self.settings.total_steps)
        self._before = progress.seconds
        # of the time that `minutes` allows: the share that is used, and that after which an evaluation is due
        self._used, self._due = 0.0, EVALUATE_SHARE
        self._began, self._cpu_began = time.perf_counter() - self._before, time.process_time() - progress.cpu_seconds

    def run(self) -> Iterator[Any]:
        """Train from where the run stands, yielding reports."""
        if self._begins:
            self._save()  # from now on a model without a checkpoint means that checkpoints were deleted
        with suppress(EndsEarly):
            self._check_patience()
            while not self.converged():  # lines 2 and 15 to 17
                yield from self.matrix_learning()  # lines 4 to 8: J_Q
                yield from self.score_learning()  # lines 9 to 13: J_score
                self.estimate_marginals()  # line 14: Eq. 10
        if not self._asked:
            yield from self.calibration()

    # -- the phases ---------------------------------------------------------------------------------------------------

    def matrix_learning(self) -> Iterator[Any]:
        """Lower `J_Q` in the rates, while the network stays as it is.

        Reports are spaced by powers of ten, because `J_Q` falls like a power of the steps; the first one has the rates
        before the first step.
        """
        learner, progress, report = self.learner, self.progress, None
        if progress.phase == "matrix" and progress.phase_step == 0 and not learner.matrix_is_over():
            report = learner.matrix_report()
        while progress.phase == "matrix" and not learner.matrix_is_over():
            learner.matrix_step()
            progress.phase_step += 1
            if learner.matrix_is_over() or _is_power_of_ten(progress.phase_step):
                report = learner.matrix_report()
            yield from self._after_step(report, counts=False)
            report = None

    def score_learning(self) -> Iterator[Any]:
        """Lower `J_score` in the network (Eq. 8), while the forward process stays as it is, and evaluate now and then.

        It ends after `score_steps`, or as soon as the running mean of `J_score` is below `ε_score`.
        """
        learner, progress, settings = self.learner, self.progress, self.settings
        if progress.phase == "matrix":  # what the cycle before has reached says nothing about this one
            progress.phase, progress.phase_step, progress.running_bits = "score", 0, None
        since = progress.step, time.perf_counter()
        while not self._score_is_over():
            bits, gradient_norm = learner.score_step()
            progress.step += 1
            progress.phase_step += 1
            before = bits if progress.running_bits is None else progress.running_bits
            progress.running_bits = before + (bits - before) / RUNNING_STEPS
            progress.seen_bits += bits
            progress.seen_steps += 1
            logs, report = progress.step % settings.log_every == 0, None
            if logs:
                speed = (progress.step - since[0]) / (time.perf_counter() - since[1])
                report = learner.score_report(progress.seen_bits / progress.seen_steps, speed, gradient_norm)
                progress.seen_bits, progress.seen_steps = 0.0, 0
            evaluates = progress.step % settings.evaluate_every == 0 or self._score_is_over()
            yield from self._after_step(report, evaluates)
            if logs or evaluates:
                since = progress.step, time.perf_counter()

    def estimate_marginals(self) -> None:
        """Begin the next cycle, if there is one, with the model's own marginals as the new `p_0`."""
        progress = self.progress
        progress.cycle, progress.phase, progress.phase_step = progress.cycle + 1, "matrix", 0
        if not self.converged():
            self.learner.estimate_marginals()

    def converged(self) -> bool:
        """Whether all cycles are done, or J_score + J_Q was below ε when the last one ended."""
        progress, running = self.progress, self.progress.running_bits
        between = progress.phase == "matrix" and progress.phase_step == 0
        low = between and running is not None and progress.prior_bits + running < self.settings.tolerance
        return low or progress.cycle >= self.settings.cycles

    def calibration(self) -> Iterator[Any]:
        """The last phase, of the best model alone: what it still needs, unless that has been done."""
        progress = self.progress
        if progress.finished_step == progress.best_step:
            return
        for report in self.learner.calibrate(self._at_best):
            if report is not None:
                self._write()
                progress.finished_step = progress.best_step
                yield self._stamped(report)
                self._save()
            elif self._over_processes([float(self._stop())])[0]:
                return

    def _score_is_over(self) -> bool:
        progress, running = self.progress, self.progress.running_bits
        known = running is not None and progress.phase_step >= RUNNING_STEPS
        low = known and running < self.settings.score_tolerance
        return low or progress.phase_step >= self.settings.score_steps

    # -- after every step ---------------------------------------------------------------------------------------------

    def _after_step(self, report: Report | None, evaluates: bool = False, counts: bool = True) -> Iterator[Any]:
        """Its report, an evaluation and a checkpoint if they are due; an `EndsEarly` if training ends here.

        Time that is up ends training after a step that `counts` only, and then with an evaluation.
        """
        progress = self.progress
        self._asked, out_of_time = self._interrupted()
        out_of_time = out_of_time and counts
        if report is not None:
            yield self._stamped(report)
        planned = evaluates
        evaluates = (evaluates or out_of_time or (counts and self._used >= self._due)) and (
            progress.evaluated_step != progress.step
        )
        if evaluates:
            before, stale = self._elapsed(), progress.stale
            yield self._stamped(self._evaluated())
            if not planned and progress.stale:  # patience counts evaluations that lie some steps apart
                progress.stale = stale
            if self._limit:
                took = self._over_processes([(self._elapsed() - before) / self._limit])[0]
                self._due = self._used + took + max(EVALUATE_SHARE, took / EVALUATION_SHARE)
        if out_of_time:
            progress.share = 1.0
        if evaluates or self._asked or out_of_time:
            self._save()
        if self._asked or out_of_time:
            raise EndsEarly
        self._check_patience()

    def _evaluated(self) -> Report:
        """Evaluate, and keep the model if it is the best so far."""
        progress = self.progress
        loss, report = self.learner.evaluate()
        improved = progress.best is None or math.isnan(progress.best) or loss < progress.best
        progress.evaluated_step, progress.stale = progress.step, 0 if improved else progress.stale + 1
        if improved:
            progress.best, progress.best_step = loss, progress.step
            self.learner.hand_over()
            self._write()
        return replace(report, improved=improved)

    def _write(self) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            self.learner.best.write(self.folder)

    def _check_patience(self) -> None:
        if 0 < self.settings.patience <= self.progress.stale:
            raise EndsEarly

    def _at_best(self) -> Checkpoint | None:
        """The checkpoint of the best step, if there is one that can be read."""
        step = self.progress.best_step
        return None if self.checkpoints is None or step is None else self.checkpoints.at(step)

    def _elapsed(self) -> float:
        """Seconds of this call; those of the run are noted."""
        self.progress.seconds = time.perf_counter() - self._began
        self.progress.cpu_seconds = time.process_time() - self._cpu_began
        return self.progress.seconds - self._before

    def _stamped(self, report: Report) -> Report:
        """`report` with its place and time."""
        progress, total = self.progress, self.settings.total_steps
        elapsed, done, left = self._elapsed(), progress.step - self._first_step, None
        if done:
            left = elapsed / done * max(0, total - progress.step)
            if self._limit:
                left = max(0.0, min(left, self._limit - elapsed))
        progress.reports += 1
        return replace(
            report,
            index=progress.reports - 1,
            step=progress.step,
            total_steps=total,
            seconds=progress.seconds,
            cpu_seconds=progress.cpu_seconds,
            seconds_left=left,
        )

    def _interrupted(self) -> tuple[bool, bool]:
        """Whether the caller asks to stop, and whether time is up; all processes agree, and on the schedule too."""
        used = self._elapsed() / self._limit if self._limit else 0.0
        asked, used = self._over_processes([float(self._stop()), used])
        if self._limit:
            self._used = used
            share = self._first_share + (1 - self._first_share) * min(1.0, used)
            self.progress.share = max(self.progress.share, share)
        return asked > 0, used > 1

    def _over_processes(self, values: list[float]) -> list[float]:
        """The mean of each value over all processes."""
        return averaged(self.fabric, torch.tensor(values, dtype=torch.float64, device=self.fabric.device)).tolist()

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        self._elapsed()
        checkpoint = self.learner.checkpoint()
        if self.fabric.is_global_zero:
            self.checkpoints.save(self.progress.step, checkpoint, self.progress.best_step)
        self.fabric.barrier()


def _newest(folder: Path, checkpoints: Checkpoints, resume: bool) -> Checkpoint | None:
    """The checkpoint to continue from; None to begin; a ValueError if that would lose what is there."""
    if not checkpoints.steps():
        if (folder / WEIGHTS).is_file():
            raise ValueError(
                f"{folder} holds a trained model, {WEIGHTS}, but no checkpoint, so training would begin anew and "
                f"write over it: restore {checkpoints.folder}, choose another folder, or move {WEIGHTS} away"
            )
        return None
    if not resume:
        raise ValueError(f"{folder} already holds a run: resume it, or choose another folder")
    newest = checkpoints.newest()
    if newest is None:
        raise ValueError(f"no checkpoint in {folder} can be read, so the run cannot continue: start another one")
    return newest


def _is_power_of_ten(step: int) -> bool:
    return step >= 10 and 10 ** (len(str(step)) - 1) == step

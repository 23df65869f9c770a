"""The training loop: steps, reports, evaluations, checkpoints, time limits, stopping and resuming."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from dmb._core.pretrained import WEIGHTS
from dmb.training.checkpoint import Checkpoint, Checkpoints
from dmb.training.engine import Engine, averaged
from dmb.training.reporting import Report


@dataclass
class Progress:
    """How far a run has come. With the tensors and the settings it decides all that follows."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reports: int = 0
    best: float | None = None
    """The lowest loss of an evaluation so far."""
    best_step: int | None = None
    evaluated_step: int | None = None
    finished_step: int | None = None
    """The best step, if its model has been finished, see `Learner.finish`."""
    stale: int = 0
    """Evaluations since the best one."""
    share: float = 0.0
    """How much of its schedule the run has used up by the clock, if its time is limited; 1 is all."""

    def schedule(self, total_steps: int) -> float:
        """Where in [0, 1] the schedule of the learning rate is: as far as the steps are, or the clock if that is ahead.

        >>> Progress(step=3).schedule(10), Progress(step=3, share=0.5).schedule(10)
        (0.3, 0.5)
        """
        return max(min(1.0, self.step / total_steps), self.share)

    def warmth(self, warmup: int) -> float:
        """The share of the learning rate, in (0, 1], that this step has while it rises over `warmup` steps.

        If time is limited, warming up takes at most a tenth of it: else short runs would spend most of it so.

        >>> Progress(step=3).warmth(10), Progress(step=3, share=0.08).warmth(10)
        (0.4, 0.8)
        """
        return min(1.0, max((self.step + 1) / max(1, warmup), 10 * self.share))


class Step(NamedTuple):
    """What a learner says after a step."""

    report: Report | None = None
    evaluate: bool = False
    """Whether an evaluation is due."""
    counts: bool = True
    """Whether it was a step that training is measured in; time that is up ends training after such a step only."""


class Evaluation(NamedTuple):
    """What a learner says of its model."""

    loss: float
    """What the best model has the lowest of."""
    report: Report


@runtime_checkable
class Learner(Protocol):
    """A model in training. All processes call its methods together."""

    progress: Any
    """A `Progress`, or a subclass of it."""
    settings: Any
    """Has `total_steps`, `minutes`, `patience` and `keep`."""

    def steps(self) -> Iterator[Step]:
        """Train step by step, from where `progress` stands to the end."""

    def evaluate(self) -> Evaluation:
        """Evaluate on validation data."""

    def keep(self, folder: Path | None) -> None:
        """Give the current model, the best so far, to the caller; with a folder, write it there too."""

    def fetch(self, folder: Path) -> None:
        """Give the caller the model that `keep` wrote."""

    def finish(self, folder: Path | None, best: Callable[[], Checkpoint | None]) -> Iterator[Report | None]:
        """After training: what the best model still needs, a part at a time; None, then a report when it is done.

        The model is changed, and written to `folder`, with the report only; nothing is done if there is no report.
        `best` reads the checkpoint of the best step, from which this is the same however often it is interrupted.
        """

    def checkpoint(self) -> Checkpoint:
        """All that a resumed run needs."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the saved state; a KeyError, RuntimeError, TypeError or ValueError if it is of another model."""


class Loop:
    """Trains a learner, from the newest checkpoint if it is resumed.

    Args:
        learner: the model in training.
        fabric: the engine.
        folder: where to write checkpoints, from the start on, and the best model. A model that is there without a
            checkpoint is never written over. Default: nowhere.
        resume: continue from the newest checkpoint, if there is one.
        stop: called after every step; when it returns True, a checkpoint is saved and training ends.
    """

    def __init__(
        self,
        learner: Learner,
        fabric: Engine,
        folder: Path | str | None = None,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ):
        self.learner, self.fabric, self.folder = learner, fabric, None if folder is None else Path(folder)
        self._stop, self._limit = stop or (lambda: False), 60 * (learner.settings.minutes or 0.0)
        self.checkpoints, newest = None, None
        if self.folder is not None:
            self.checkpoints = Checkpoints(self.folder / "checkpoints", learner.settings.keep)
            newest = self._newest(self.folder, self.checkpoints, resume)
        self._begins = newest is None
        step = None if newest is None else newest.state["step"]
        if fabric.world_size > 1 and fabric.broadcast(step) != step:
            raise ValueError("all processes must see the same run folder: put it on a disk that they share")
        if newest is not None:
            try:
                learner.restore(newest)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"the checkpoint does not fit this model: {error}") from error
            if self.folder is not None and learner.progress.best_step is not None:
                learner.fetch(self.folder)
        progress = learner.progress
        if progress.share >= 1:  # its time was up: what it is given now is a schedule of its own
            progress.share = 0.0
        self._first_step, self._first_share = progress.step, progress.schedule(learner.settings.total_steps)
        self._before, self._cpu_before = progress.seconds, progress.cpu_seconds
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def run(self) -> Iterator[Any]:
        """Train, and finish the best model, yielding reports."""
        if self._begins:
            self._save()  # from now on a model without a checkpoint means that checkpoints were deleted
        if (yield from self._trained()):
            yield from self._finished()

    def _trained(self) -> Generator[Any, None, bool]:
        """Train, yielding reports; False if the caller asks to stop before the end."""
        progress = self.learner.progress
        if self._impatient():
            return True
        for step in self.learner.steps():
            asked, out_of_time = self._interrupted()
            out_of_time = out_of_time and step.counts
            if step.report is not None:
                yield self._stamped(step.report)
            evaluate = (step.evaluate or out_of_time) and progress.evaluated_step != progress.step
            if evaluate:
                yield self._stamped(self._evaluated())
            if out_of_time:
                progress.share = 1.0
            if evaluate or asked or out_of_time:
                self._save()
            if asked:
                return False
            if out_of_time or self._impatient():
                return True
        return True

    def _finished(self) -> Iterator[Any]:
        """Finish the best model, unless that has been done."""
        progress = self.learner.progress
        if progress.finished_step == progress.best_step:
            return
        for report in self.learner.finish(self.folder, self._best):
            if report is not None:
                progress.finished_step = progress.best_step
                yield self._stamped(report)
                self._save()
            elif self._over_processes([float(self._stop())])[0]:
                return

    def _best(self) -> Checkpoint | None:
        """The checkpoint of the best step, if there is one that can be read."""
        return None if self.checkpoints is None else self.checkpoints.at(self.learner.progress.best_step)

    @staticmethod
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

    def _evaluated(self) -> Report:
        progress = self.learner.progress
        loss, report = self.learner.evaluate()
        improved = progress.best is None or math.isnan(progress.best) or loss < progress.best
        progress.evaluated_step, progress.stale = progress.step, 0 if improved else progress.stale + 1
        if improved:
            progress.best, progress.best_step = loss, progress.step
            self.learner.keep(self.folder)
        return replace(report, improved=improved)

    def _impatient(self) -> bool:
        return 0 < self.learner.settings.patience <= self.learner.progress.stale

    def _elapsed(self) -> float:
        """Seconds of this call."""
        return time.perf_counter() - self._began

    def _stamped(self, report: Report) -> Report:
        """`report` with its place and time."""
        progress, total = self.learner.progress, self.learner.settings.total_steps
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
            seconds=self._before + elapsed,
            cpu_seconds=self._cpu_before + time.process_time() - self._cpu_began,
            seconds_left=left,
        )

    def _interrupted(self) -> tuple[bool, bool]:
        """Whether the caller asks to stop, and whether time is up; all processes agree, and on the schedule too."""
        used = self._elapsed() / self._limit if self._limit else 0.0
        asked, used = self._over_processes([float(self._stop()), used])
        if self._limit:
            share = self._first_share + (1 - self._first_share) * min(1.0, used)
            self.learner.progress.share = max(self.learner.progress.share, share)
        return asked > 0, used > 1

    def _over_processes(self, values: list[float]) -> list[float]:
        """The mean of each value over all processes."""
        return averaged(self.fabric, torch.tensor(values, dtype=torch.float64, device=self.fabric.device)).tolist()

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        progress = self.learner.progress
        progress.seconds = self._before + self._elapsed()
        progress.cpu_seconds = self._cpu_before + time.process_time() - self._cpu_began
        checkpoint = self.learner.checkpoint()
        if self.fabric.is_global_zero:
            self.checkpoints.save(progress.step, checkpoint, progress.best_step)
        self.fabric.barrier()

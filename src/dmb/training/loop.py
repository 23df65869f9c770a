"""What all training has in common: a clock, a caller who may stop it, and checkpoints to go on from."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from dmb.training.checkpoint import Checkpoint, Checkpoints
from dmb.training.engine import Engine, averaged


@runtime_checkable
class Learns(Protocol):
    """What a loop needs of a learner."""

    progress: Any
    """Has `step`, `seconds`, `cpu_seconds` and `best_step`."""

    def checkpoint(self) -> Checkpoint: ...

    def restore(self, checkpoint: Checkpoint) -> None: ...


def checkpoints_in(folder: Path | str | None, keep: int, resume: bool) -> Checkpoints | None:
    """Where checkpoints go; a ValueError if there are some that are not to be gone on from."""
    checkpoints = None if folder is None else Checkpoints(Path(folder) / "checkpoints", keep)
    if checkpoints is not None and checkpoints.steps() and not resume:
        raise ValueError(f"{folder} holds a run already: resume it, or choose another folder")
    return checkpoints


class Loop:
    """A learner on its way, from the newest checkpoint if it is to go on from one.

    Args:
        learner: what learns.
        fabric: the engine.
        checkpoints: where to keep them. Default: nowhere.
        resume: go on from the newest, if there is one.
        minutes: the time limit, if there is one.
        stop: asked whether to stop.
    """

    def __init__(
        self,
        learner: Learns,
        fabric: Engine,
        checkpoints: Checkpoints | None,
        resume: bool,
        minutes: float | None,
        stop: Callable[[], bool] | None,
    ):
        self._learner, self.fabric, self.checkpoints = learner, fabric, checkpoints
        self._minutes, self._stop = minutes, stop or (lambda: False)
        newest = checkpoints.newest() if checkpoints is not None and resume else None
        step = None if newest is None else newest.state["step"]
        if fabric.world_size > 1 and fabric.broadcast(step) != step:
            raise ValueError("all processes must see the same run folder: put it on a disk that they share")
        if newest is not None:
            learner.restore(newest)
            if minutes is not None and learner.progress.seconds >= 60 * minutes:
                raise ValueError(f"the run has used up its {minutes:g} minutes; give it more")
        self._started = time.perf_counter() - learner.progress.seconds
        self._cpu_started = time.process_time() - learner.progress.cpu_seconds

    @property
    def best_folder(self) -> Path | None:
        """Where the best model so far is, if there is one."""
        if self.checkpoints is None or self._learner.progress.best_step is None:
            return None
        return self.checkpoints.folder.parent

    def seconds(self) -> float:
        """Time spent on the run so far."""
        return time.perf_counter() - self._started

    def cpu_seconds(self) -> float:
        """Processor time spent on the run so far, by all threads of this process; a busy machine does not add to it."""
        return time.process_time() - self._cpu_started

    def interrupted(self) -> tuple[bool, bool]:
        """Whether the caller asks to stop, and whether time is up; all processes agree."""
        asked, out_of_time = self._stop(), self._minutes is not None and self.seconds() > 60 * self._minutes
        if self.fabric.world_size == 1:
            return asked, out_of_time
        flags = torch.tensor([asked, out_of_time], dtype=torch.float32, device=self.fabric.device)
        flags = averaged(self.fabric, flags)
        return bool(flags[0] > 0), bool(flags[1] > 0)

    def save(self) -> None:
        """Keep a checkpoint."""
        if self.checkpoints is None:
            return
        progress = self._learner.progress
        progress.seconds, progress.cpu_seconds = self.seconds(), self.cpu_seconds()
        checkpoint = self._learner.checkpoint()
        if self.fabric.is_global_zero:
            self.checkpoints.save(progress.step, checkpoint, progress.best_step)
        self.fabric.barrier()

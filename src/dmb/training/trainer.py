"""Algorithm 1: the two phases in turn, with evaluation, checkpoints and a way to stop and go on."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from dmb.bridge import Bridge
from dmb.data.base import DataSet
from dmb.losses import Bound
from dmb.processes import BridgeProcess
from dmb.seeding import seeded
from dmb.training.checkpoint import Checkpoints
from dmb.training.engine import Engine, averaged, engine, gathered
from dmb.training.fitness import refuse_unfit
from dmb.training.learner import Learner, TrainingState
from dmb.training.loop import Loop, checkpoints_in
from dmb.training.phases import matrix_phase, score_phase
from dmb.training.reporting import AnyReport, Fact
from dmb.training.settings import TrainingSettings, settings_from

MOST_RATES_LOGGED = 4096


@dataclass(frozen=True, kw_only=True)
class TrainingReport(AnyReport):
    """What happened since the report before. Bits are bits per token; steps are those of Score-learning in all cycles.

    The sample is one, always from the same random numbers.
    """

    phases: ClassVar[dict[str, str]] = {
        "score": "Score-learning",
        "matrix": "Matrix-learning",
        "validation": "validation",
    }

    phase: Literal["matrix", "score", "validation"]
    cycle: int
    tokens: int
    """Tokens seen in Score-learning so far."""
    prior_bits: float
    """J_Q under the estimate p_0."""
    score_bits: float | None = None
    """Mean J_score of the training batches since the report before (phase `score`)."""
    tokens_per_second: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation: Bound | None = None
    """The bound on validation data with the averaged weights (phase `validation`)."""
    alpha: list[float] | None = None
    """Rates of a bridge in the order of its clocks, averaged over positions whose clock runs, or what else its process
    learns (phases `matrix` and `validation`)."""
    log_speeds: list[float] | None = None
    """The logarithm of each position's speed, if positions have speeds (phase `validation`)."""

    @property
    def bits(self) -> float:
        """The bound on validation data if this report has one; else what is known: `J_Q`, and the training loss."""
        if self.validation is not None:
            return self.validation.bits_per_token
        return self.prior_bits + (self.score_bits or 0.0)

    def record(self) -> dict[str, Any]:
        """The report as JSON, without the sample."""
        names = ("phase", "cycle", "step", "tokens", "seconds", "cpu_seconds", "prior_bits", "score_bits",
                 "tokens_per_second", "gradient_norm", "learning_rate", "alpha", "log_speeds")  # fmt: skip
        record = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.validation is not None:
            record |= {
                "bits": self.validation.bits_per_token,
                "stderr": self.validation.stderr,
                "score_bits": self.validation.score_bits,
                "prior_bits": self.validation.prior_bits,
                "improved": self.improved,
            }
        return record

    def line(self) -> str:
        head = f"cycle {self.cycle}  {self.counter()}"
        if self.validation is not None:
            best = "  best so far" if self.improved else ""
            return f"{head}  bound {self._bound()} bits per token{best}"
        if self.score_bits is None:
            return f"{head}  J_Q {self.prior_bits:.5f} bits per token"
        return f"{head}  loss {self.bits:.4f}"

    def place(self) -> list[Fact]:
        return [Fact("cycle", str(self.cycle)), Fact("phase", self.phases[self.phase])]

    def facts(self) -> list[Fact]:
        if self.validation is not None:
            return [Fact("bound", self._bound(), "bits", main=True)]
        if self.score_bits is None:
            return [Fact("J_Q", f"{self.prior_bits:.5f}", "bits")]
        return [Fact("loss", f"{self.bits:.4f}", "bits"), Fact("speed", self.speed)]

    @property
    def speed(self) -> str:
        return f"{self.tokens_per_second or 0:,.0f} tokens/s" if self.phase == "score" else ""

    def _bound(self) -> str:
        assert self.validation is not None
        return f"{self.validation.bits_per_token:.4f} ± {self.validation.stderr:.4f}"


def train(
    bridge: Bridge,
    data: DataSet,
    settings: TrainingSettings | None = None,
    *,
    fabric: Engine | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    **options: Any,
) -> Iterator[TrainingReport]:
    """Run Algorithm 1, yielding reports; the caller owns progress and logging.

    From the first evaluation on, `bridge` holds the averaged weights that have done best on validation data so far;
    training itself works on copies.

    Args:
        bridge: what to train.
        data: what on; batches from `data.train`, evaluation on `data.validation`.
        settings: all settings at once; or give them one by one as `options`.
        fabric: the engine, launched. Default: one device of the best kind there is.
        folder: where to keep checkpoints and the best model. Default: nowhere.
        resume: go on from the newest checkpoint in `folder`, if there is one.
        stop: asked after every step; when it says True a checkpoint is saved and training ends.
        options: fields of `TrainingSettings`.

    >>> import dmb
    >>> data = dmb.data.digits()
    >>> process = dmb.BridgeProcess.from_marginals(data.marginals())
    >>> bridge = dmb.Bridge(process, dmb.MLP(process.num_states, process.num_positions, width=32, blocks=1))
    >>> reports = list(dmb.train(bridge, data, cycles=1, score_steps=20, matrix_steps=2, log_every=10))
    >>> [(report.phase, report.step) for report in reports]
    [('matrix', 0), ('score', 10), ('score', 20), ('validation', 20)]
    """
    if settings is not None and options:
        raise ValueError("give settings, or single options, not both")
    settings = settings or settings_from(options)
    fabric = fabric or engine()
    refuse_unfit(bridge, data, settings, fabric)
    if folder is not None:
        bridge.description()  # refuses, before anything is trained, a network that could not be saved
    checkpoints = checkpoints_in(folder, settings.keep, resume)
    return _Trainer(bridge, data, settings, fabric, checkpoints, resume, stop).run()


class _Trainer:
    def __init__(
        self,
        bridge: Bridge,
        data: DataSet,
        settings: TrainingSettings,
        fabric: Engine,
        checkpoints: Checkpoints | None,
        resume: bool,
        stop: Callable[[], bool] | None,
    ):
        self.bridge, self.data, self.settings, self.fabric = bridge, data, settings, fabric
        self.learner = Learner(bridge, settings, fabric)
        self.loop = Loop(self.learner, fabric, checkpoints, resume, settings.minutes, stop)
        if self.loop.best_folder is not None:
            best = Bridge.from_pretrained(self.loop.best_folder)
            bridge.process.set_marginals(best.process.p_0)
            bridge.load_state_dict(best.state_dict())
        self._since = (self.progress.step, time.perf_counter())

    @property
    def progress(self) -> TrainingState:
        return self.learner.progress

    def run(self) -> Iterator[TrainingReport]:
        """Lines 2 to 18 of Algorithm 1."""
        settings, progress = self.settings, self.progress
        while progress.cycle < settings.cycles and not self._converged():
            if progress.phase == "matrix":
                by_paths = self.bridge.ordered is not None  # which have no prior that would depend on p_0
                if progress.cycle > 0 and progress.phase_step == 0 and settings.reestimate and not by_paths:
                    self.learner.reestimate_marginals()
                for _ in matrix_phase(self.learner, self.data.train):
                    asked, _ = self.loop.interrupted()  # if time is up, there is a first step of Score-learning yet
                    if asked:
                        return self.loop.save()
                if progress.phase_step > 0:
                    yield self._report("matrix", alpha=self._alpha())
                progress.phase, progress.phase_step = "score", 0
            self._since = (progress.step, time.perf_counter())
            for step in score_phase(self.learner, self.data.train):
                progress.seen_bits += step.loss_bits
                progress.seen_steps += 1
                asked, out_of_time = self.loop.interrupted()
                if progress.step % settings.log_every == 0:
                    yield self._score_report(step.gradient_norm)
                if progress.step % settings.evaluate_every == 0 or out_of_time:
                    yield self._evaluate()
                    self.loop.save()
                    self._since = (progress.step, time.perf_counter())
                if out_of_time:
                    return None
                if asked:
                    return self.loop.save()
            if progress.evaluated_step != progress.step:
                yield self._evaluate()
            progress.cycle, progress.phase, progress.phase_step = progress.cycle + 1, "matrix", 0
            self.loop.save()
        return None

    def _converged(self) -> bool:
        """Whether J_score + J_Q was below ε when the last cycle ended."""
        progress = self.progress
        between = progress.phase == "matrix" and progress.phase_step == 0
        running = progress.running_bits
        return between and running is not None and progress.prior_bits + running < self.settings.tolerance

    def _report(self, phase: Literal["matrix", "score", "validation"], **parts: Any) -> TrainingReport:
        progress, settings = self.progress, self.settings
        progress.reports += 1
        if self.learner.joint:  # the rates have moved since the report before
            progress.prior_bits = self.learner.prior_bits()
        return TrainingReport(
            index=progress.reports - 1,
            phase=phase,
            cycle=progress.cycle,
            step=progress.step,
            total_steps=settings.total_steps,
            tokens=progress.step * settings.batch_size * self.data.num_positions,
            seconds=self.loop.seconds(),
            cpu_seconds=self.loop.cpu_seconds(),
            prior_bits=progress.prior_bits,
            **parts,
        )

    def _score_report(self, gradient_norm: float) -> TrainingReport:
        progress = self.progress
        now, (step, then) = time.perf_counter(), self._since
        self._since = (progress.step, now)
        tokens = (progress.step - step) * self.settings.batch_size * self.data.num_positions
        mean = progress.seen_bits / progress.seen_steps
        progress.seen_bits, progress.seen_steps = 0.0, 0
        return self._report(
            "score",
            score_bits=mean,
            tokens_per_second=tokens / (now - then),
            gradient_norm=gradient_norm,
            learning_rate=self.learner.learning_rate,
        )

    def _evaluate(self) -> TrainingReport:
        """The bound on validation data, each process on its share, with the averaged weights; and one sample."""
        progress, settings, fabric = self.progress, self.settings, self.fabric
        split, world = self.data.validation, fabric.world_size
        chosen = split.spread(settings.evaluate_sequences)
        if len(chosen) < world:
            raise ValueError(f"validation data must have a sequence for each of {world} processes, got {len(chosen)}")
        rows = chosen[: len(chosen) // world * world].chunk(world)[fabric.global_rank]
        label = split.labels(rows) if self.bridge.num_classes else None
        bound = self.learner.averaged.bound(
            split[rows].to(fabric.device),
            label=None if label is None else label.to(fabric.device),
            batch_size=max(1, settings.batch_size // world // settings.accumulate),
            generator=seeded(settings.seed, "validation", fabric.global_rank, device=fabric.device),
        )
        if world > 1:
            score, prior = gathered(fabric, bound.score), gathered(fabric, bound.prior)
            variance = averaged(fabric, torch.tensor(bound.variance, device=fabric.device)).item()
            bound = Bound(score, prior, bound.num_positions, variance)
        sample = self.learner.averaged.sample(
            1,
            steps=settings.chain_steps,
            generator=seeded(settings.seed, "sample", device=fabric.device),
        )
        improved = progress.best_bits is None or bound.bits_per_token < progress.best_bits
        if improved:
            progress.best_bits, progress.best_step = bound.bits_per_token, progress.step
            self.learner.hand_over(self.bridge)
            if self.loop.best_folder is not None and fabric.is_global_zero:
                self.bridge.write(self.loop.best_folder)
        progress.evaluated_step = progress.step
        return self._report(
            "validation", validation=bound, improved=improved, sample=sample.cpu(), alpha=self._alpha(),
            log_speeds=self._log_speeds(),
        )  # fmt: skip

    def _alpha(self) -> list[float] | None:
        alpha = self.learner.process.learned()
        if alpha is None or alpha.shape[1] > MOST_RATES_LOGGED:
            return None
        alpha = alpha.detach()
        return (alpha.sum(0) / (alpha > 0).sum(0).clamp(min=1)).tolist()

    def _log_speeds(self) -> list[float] | None:
        process = self.learner.process
        own = process.clocks.log_speeds if isinstance(process, BridgeProcess) else None
        if own is None or len(own) > MOST_RATES_LOGGED:
            return None
        speeds = process.log_speeds  # with whatever rates of their own positions have besides
        return (own if speeds is None else speeds).tolist()

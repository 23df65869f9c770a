"""Algorithm 1: the two phases in turn, with evaluation and checkpoints; it can be stopped and resumed."""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from dmb._core.seeding import seeded
from dmb.bridges import Bridge
from dmb.data.base import DataSet
from dmb.objectives.bound import Bound
from dmb.training.calibration import calibration, can_be_calibrated
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged, engine, gathered
from dmb.training.fitness import refuse_unfit
from dmb.training.learner import Learner, fill
from dmb.training.loop import Evaluation, Loop, Step
from dmb.training.phases import matrix_is_over, matrix_phase, score_is_over, score_phase
from dmb.training.reporting import Fact, Report
from dmb.training.settings import TrainingSettings, settings_from

AWAKE = 1e-3
"""A clock counts as awake if its rate is above this share of the highest."""


@dataclass(frozen=True, kw_only=True)
class TrainingReport(Report):
    """What happened since the previous report. Bits are per token; steps are those of Score-learning in all cycles.

    `sample` is a single sequence, always drawn with the same random numbers.
    """

    phases: ClassVar[dict[str, str]] = {
        "score": "Score-learning",
        "matrix": "Matrix-learning",
        "validation": "validation",
        "calibration": "calibration",
    }

    phase: Literal["matrix", "score", "validation", "calibration"]
    token: str = "token"
    """What the data call a token."""
    cycle: int
    tokens: int
    """Number of training tokens in Score-learning so far."""
    prior_bits: float
    """J_Q on the training data's marginals, with p_T from the estimate p_0."""
    matrix_step: int | None = None
    """Steps of Matrix-learning in this cycle so far (phase `matrix`)."""
    marginal_bits: float | None = None
    """KL(μ || p_0) of the training data's marginals and their estimate (Eq. 10; phases `matrix` and `validation`)."""
    score_bits: float | None = None
    """Mean J_score of the training batches since the previous report (phase `score`)."""
    tokens_per_second: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation: Bound | None = None
    """The bound on validation data: with the averaged weights (phase `validation`), or of the best model after its
    calibration (phase `calibration`)."""
    share_error: float | None = None
    """The largest difference between the share of a state in a column and its mean probability before the last round
    (phase `calibration`)."""
    alpha: list[float] | None = None
    """Rates of a bridge in the order of its clocks, averaged over positions whose clock runs, or the other learned
    parameters of its process (phases `matrix` and `validation`)."""
    log_speeds: list[float] | None = None
    """The logarithm of each position's speed, if positions have speeds (phase `validation`)."""

    @property
    def bits(self) -> float:
        """The bound on validation data if this report has one; otherwise `J_Q` plus the training loss, if known."""
        if self.validation is not None:
            return self.validation.bits_per_token
        return self.prior_bits + (self.score_bits or 0.0)

    def record(self) -> dict[str, Any]:
        record = super().record()
        del record["token"]
        bound = record.pop("validation", None)
        if bound is not None:
            record |= {"bits": bound.bits_per_token, "stderr": bound.stderr}
            record |= {"score_bits": bound.score_bits, "prior_bits": bound.prior_bits}
        return record

    def place(self) -> list[Fact]:
        return [Fact("cycle", str(self.cycle))]

    def facts(self) -> list[Fact]:
        if self.validation is not None:
            bound = f"{self.validation.bits_per_token:.4f} ± {self.validation.stderr:.4f}"
            facts = [Fact("bound", bound, f"bits per {self.token}", main=self.phase == "validation")]
            return facts if self.share_error is None else [*facts, Fact("error of shares", f"{self.share_error:.2g}")]
        if self.score_bits is None:
            facts = [Fact("J_Q", f"{self.prior_bits:.3g}", f"bits per {self.token}")]
            if self.alpha:
                awake = sum(rate > AWAKE * max(self.alpha) for rate in self.alpha)
                facts.append(Fact("clocks awake", f"{awake} of {len(self.alpha)}"))
            return facts
        return [Fact("loss", f"{self.bits:.4f}"), Fact("speed", f"{self.tokens_per_second:,.0f}", f"{self.token}s/s")]


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
        options: fields of `TrainingSettings`.

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
    refuse_unfit(bridge, data, settings, fabric)
    if folder is not None:
        bridge.check_round_trip()
    return Loop(Algorithm1(bridge, data, settings, fabric), fabric, folder, resume, stop).run()


class Algorithm1(Learner):
    """Trains a bridge by Algorithm 1, as a learner for the training loop.

    Args:
        bridge: the model to train.
        data: the data to train on.
        settings: settings of training.
        fabric: the engine, launched.
    """

    def __init__(self, bridge: Bridge, data: DataSet, settings: TrainingSettings, fabric: Engine):
        super().__init__(bridge, settings, fabric, data.marginals())
        self.bridge, self.data = bridge, data
        self._since = (0, time.perf_counter())

    def steps(self) -> Iterator[Step]:
        """Lines 2 to 18 of Algorithm 1."""
        settings, progress = self.settings, self.progress
        while progress.cycle < settings.cycles and not self._converged():
            if progress.phase == "matrix":
                # if lengths differ, chains would have to end
                estimable = self.bridge.has_prior and self.bridge.lengths is None
                if progress.cycle > 0 and progress.phase_step == 0 and settings.reestimate and estimable:
                    self.reestimate_marginals()
                begins = progress.phase_step == 0 and not matrix_is_over(self)
                report = self._matrix_report() if begins else None  # the rates before the first step
                for _ in matrix_phase(self, self.data.train):
                    if matrix_is_over(self) or _is_power_of_ten(progress.phase_step):
                        report = self._matrix_report()
                    yield Step(report, counts=False)
                    report = None
                progress.phase, progress.phase_step = "score", 0
            self._since = (progress.step, time.perf_counter())
            for seen in score_phase(self, self.data.train):
                progress.seen_bits += seen.loss_bits
                progress.seen_steps += 1
                logged = self._score_report(seen.gradient_norm) if progress.step % settings.log_every == 0 else None
                evaluate = progress.step % settings.evaluate_every == 0 or score_is_over(self)
                yield Step(logged, evaluate)
                if evaluate:
                    self._since = (progress.step, time.perf_counter())
            progress.cycle, progress.phase, progress.phase_step = progress.cycle + 1, "matrix", 0

    def evaluate(self) -> Evaluation:
        """The bound on validation data with the averaged weights, and one sample."""
        settings, fabric, bound = self.settings, self.fabric, self._bound(self.averaged)
        sample = self.averaged.sample(
            1,
            calls=max(settings.chain_calls, self.averaged.least_calls),
            generator=seeded(settings.seed, "sample", device=fabric.device),
        )
        report = self._report(
            "validation", validation=bound, sample=sample.cpu(), marginal_bits=self.marginal_bits(),
            **self.model.learned(),
        )  # fmt: skip
        return Evaluation(bound.bits_per_token, report)

    def keep(self, folder: Path | None) -> None:
        """Give the averaged weights to the bridge."""
        self.hand_over(self.bridge)
        if folder is not None and self.fabric.is_global_zero:
            self.bridge.write(folder)

    def fetch(self, folder: Path) -> None:
        self.bridge.load_state_dict(Bridge.from_pretrained(folder).state_dict())

    def finish(self, folder: Path | None, best: Callable[[], Checkpoint | None]) -> Iterator[TrainingReport | None]:
        """Calibrate the best model, if its columns are written in one order."""
        if not can_be_calibrated(self.bridge):
            return
        model, checkpoint, errors = copy.deepcopy(self.bridge).to(self.fabric.device), best(), list[float]()
        if checkpoint is not None:  # the model in the folder may have been calibrated, just before a kill
            fill(model.network, checkpoint.under("average"))
        for error in calibration(model, self.data.train, self.fabric):
            errors.append(error)
            yield None
        self.bridge.load_state_dict(model.state_dict())
        if folder is not None and self.fabric.is_global_zero:
            self.bridge.write(folder)
        yield self._report("calibration", validation=self._bound(model), share_error=errors[-1])

    def _bound(self, model: Bridge) -> Bound:
        """The bound on validation data, each process on its share."""
        settings, fabric = self.settings, self.fabric
        split, world = self.data.validation, fabric.world_size
        chosen = split.spread(settings.evaluate_sequences)
        if len(chosen) < world:
            raise ValueError(f"validation data must have a sequence for each of {world} processes, got {len(chosen)}")
        rows = chosen[: len(chosen) // world * world].chunk(world)[fabric.global_rank]
        label = split.labels(rows) if self.bridge.num_classes else None
        bound = model.bound(
            split[rows].to(fabric.device),
            label=None if label is None else label.to(fabric.device),
            batch_size=max(1, settings.batch_size // world // settings.accumulate),
            generator=seeded(settings.seed, "validation", fabric.global_rank, device=fabric.device),
            **self.estimator.bound,
        )
        if world > 1:
            score, prior = gathered(fabric, bound.score), gathered(fabric, bound.prior)
            variance = averaged(fabric, torch.tensor(bound.variance, device=fabric.device)).item()
            tokens = None if bound.tokens is None else gathered(fabric, bound.tokens.double()).long()
            bound = Bound(score, prior, bound.num_positions, variance, tokens)
        return bound

    def _converged(self) -> bool:
        """Whether J_score + J_Q was below ε when the last cycle ended."""
        progress = self.progress
        between = progress.phase == "matrix" and progress.phase_step == 0
        running = progress.running_bits
        return between and running is not None and progress.prior_bits + running < self.settings.tolerance

    def _report(self, phase: Literal["matrix", "score", "validation", "calibration"], **parts: Any) -> TrainingReport:
        progress, settings = self.progress, self.settings
        if self.joint:  # the rates have moved since the report before
            progress.prior_bits = self.prior_bits()
        tokens = round(progress.step * settings.batch_size * self.bridge.mean_length)
        return TrainingReport(
            phase=phase, token=self.data.codec.token, cycle=progress.cycle, tokens=tokens,
            prior_bits=progress.prior_bits, **parts,
        )  # fmt: skip

    def _matrix_report(self) -> TrainingReport:
        self.progress.prior_bits = self.prior_bits()
        learned, step = self.model.learned(), self.progress.phase_step
        return self._report("matrix", matrix_step=step, marginal_bits=self.marginal_bits(), **learned)

    def _score_report(self, gradient_norm: float) -> TrainingReport:
        progress = self.progress
        now, (step, then) = time.perf_counter(), self._since
        self._since = (progress.step, now)
        tokens = (progress.step - step) * self.settings.batch_size * self.bridge.mean_length
        mean = progress.seen_bits / progress.seen_steps
        progress.seen_bits, progress.seen_steps = 0.0, 0
        return self._report(
            "score",
            score_bits=mean,
            tokens_per_second=tokens / (now - then),
            gradient_norm=gradient_norm,
            learning_rate=self.learning_rate,
        )


def _is_power_of_ten(step: int) -> bool:
    """Reports of Matrix-learning are spaced by these: J_Q falls like a power of the steps."""
    return step >= 10 and 10 ** (len(str(step)) - 1) == step

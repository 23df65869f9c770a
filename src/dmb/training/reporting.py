"""Reports of training, for logs, for the terminal, and to estimate the remaining time."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs import Codec
from dmb.objectives.bound import Bound

AWAKE = 1e-3
"""A clock counts as awake if its rate is above this share of the highest."""


class Fact(NamedTuple):
    """One figure, with its name and unit."""

    name: str
    value: str
    unit: str = ""
    main: bool = False
    """Whether the best model is chosen by this figure."""

    def __str__(self) -> str:
        return f"{self.name} {self.value} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What happened since the previous report. A learner fills in its figures; the trainer adds step and time.

    Args:
        index: Number of reports before this one, including those before an interruption.
        step: Number of steps so far.
        seconds: Time of the run so far, including that before an interruption.
        cpu_seconds: Processor time of the run so far.
        seconds_left: Remaining time at the speed of this call, or until its time limit; None if not known yet.
        improved: Whether the model is the best so far (phase `validation`).
        sample: Tokens of the data's codec that show what the model can do (phase `validation`).

    >>> report = Report(phase="validation", step=20, total_steps=100, seconds=3.0, improved=True)
    >>> report.line()
    'step     20/100  validation  best so far'
    >>> report.record()
    {'phase': 'validation', 'step': 20, 'seconds': 3.0, 'cpu_seconds': 0.0, 'improved': True}
    """

    phases: ClassVar[dict[str, str]] = {"train": "training", "validation": "validation"}  # for display, in this order

    phase: str
    index: int = 0
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds_left: float | None = None
    improved: bool = False
    sample: Int[Tensor, "b d"] | None = None

    def facts(self) -> list[Fact]:
        """The figures of the report."""
        return []

    def place(self) -> list[Fact]:
        """Its place in training, besides the step."""
        return []

    def shown(self, codec: Codec) -> str:
        """The sample as text for a terminal."""
        assert self.sample is not None
        return codec.decode(self.sample[:1])[0]

    def record(self) -> dict[str, Any]:
        """All numbers of the report, for JSON."""
        left_out = {"index", "total_steps", "seconds_left", "sample"}
        if self.phase != "validation":
            left_out.add("improved")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return {name: value for name, value in values.items() if value is not None}

    def line(self) -> str:
        """The report in one line."""
        width = max(map(len, self.phases.values()))
        counter = f"step {self.step:>6}/{self.total_steps}  {self.phases[self.phase]:<{width}}"
        best = ["best so far"] if self.improved else []
        return "  ".join([*map(str, self.place()), counter, *map(str, self.facts()), *best])


@dataclass(frozen=True, kw_only=True)
class TrainingReport(Report):
    """What happened since the previous report. Bits are per token; steps are those of Score-learning in all cycles.

    `sample` is a single sequence, always drawn with the same random numbers.

    Args:
        token: What the data call a token.
        tokens: Number of training tokens in Score-learning so far.
        prior_bits: J_Q on the training data's marginals, with p_T from the estimate p_0.
        matrix_step: Steps of Matrix-learning in this cycle so far (phase `matrix`).
        marginal_bits: KL(μ || p_0) of the training data's marginals and their estimate (Eq. 10; phases `matrix` and
            `validation`).
        score_bits: Mean J_score of the training batches since the previous report (phase `score`).
        validation: The bound on validation data: with the averaged weights (phase `validation`), or of the best model
            after its calibration (phase `calibration`).
        share_error: The largest difference between the share of a state in a column and its mean probability before the
            last round (phase `calibration`).
        alpha: Rates of a bridge in the order of its clocks, averaged over positions whose clock runs, or the other
            learned parameters of its process (phases `matrix` and `validation`).
        log_speeds: The logarithm of each position's speed, if positions have speeds (phase `validation`).
    """

    phases: ClassVar[dict[str, str]] = {
        "score": "Score-learning",
        "matrix": "Matrix-learning",
        "validation": "validation",
        "calibration": "calibration",
    }

    phase: Literal["matrix", "score", "validation", "calibration"]
    token: str = "token"
    cycle: int
    tokens: int
    prior_bits: float
    matrix_step: int | None = None
    marginal_bits: float | None = None
    score_bits: float | None = None
    tokens_per_second: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    validation: Bound | None = None
    share_error: float | None = None
    alpha: list[float] | None = None
    log_speeds: list[float] | None = None

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

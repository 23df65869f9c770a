"""Reports of any kind of training, for logs, for the terminal, and to estimate the remaining time."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs import Codec


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
    """What happened since the previous report. A learner fills in its figures; the loop adds step and time.

    >>> report = Report(phase="validation", step=20, total_steps=100, seconds=3.0, improved=True)
    >>> report.line()
    'step     20/100  validation  best so far'
    >>> report.record()
    {'phase': 'validation', 'step': 20, 'seconds': 3.0, 'cpu_seconds': 0.0, 'improved': True}
    """

    phases: ClassVar[dict[str, str]] = {"train": "training", "validation": "validation"}
    """The names of phases for display, in the order of display."""

    phase: str
    index: int = 0
    """Number of reports before this one, including those before an interruption."""
    step: int = 0
    """Number of steps so far."""
    total_steps: int = 0
    seconds: float = 0.0
    """Time of the run so far, including that before an interruption."""
    cpu_seconds: float = 0.0
    """Processor time of the run so far."""
    seconds_left: float | None = None
    """Remaining time at the speed of this call, or until its time limit; None if not known yet."""
    improved: bool = False
    """Whether the model is the best so far (phase `validation`)."""
    sample: Int[Tensor, "b d"] | None = None
    """Tokens of the data's codec that show what the model can do (phase `validation`)."""

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

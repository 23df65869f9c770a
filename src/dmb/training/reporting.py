"""What a run tells while it trains, whatever it trains: enough to log it, to show it, and to say when it will end."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Int
from torch import Tensor

from dmb.data.codecs import Codec


class Fact(NamedTuple):
    """One figure, in words."""

    name: str
    value: str
    unit: str = ""
    main: bool = False
    """Whether it is the one that the best model is chosen by."""

    def __str__(self) -> str:
        return f"{self.name} {self.value} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What happened since the report before. A learner says what it has seen; the loop adds where and when.

    >>> report = Report(phase="validation", step=20, total_steps=100, seconds=3.0, improved=True)
    >>> report.line()
    'step     20/100  validation  best so far'
    >>> report.record()
    {'phase': 'validation', 'step': 20, 'seconds': 3.0, 'cpu_seconds': 0.0, 'improved': True}
    """

    phases: ClassVar[dict[str, str]] = {"train": "training", "validation": "validation"}
    """The phases in words, in the order that a table of their facts has."""

    phase: str
    index: int = 0
    """How many reports came before it, those before an interruption included."""
    step: int = 0
    """Steps so far."""
    total_steps: int = 0
    seconds: float = 0.0
    """Time spent on the run so far, that before an interruption included."""
    cpu_seconds: float = 0.0
    """Processor time of the same."""
    seconds_left: float | None = None
    """Time to go at the pace of this call, or until its time is up; None as long as there is no pace."""
    improved: bool = False
    """Whether the model is the best so far (phase `validation`)."""
    sample: Int[Tensor, "b d"] | None = None
    """Tokens of the data's codec that show what the model can do (phase `validation`)."""

    def facts(self) -> list[Fact]:
        """What it says, in words."""
        return []

    def place(self) -> list[Fact]:
        """Where in training it was made, besides the step."""
        return []

    def shown(self, codec: Codec) -> str:
        """What there is to see of the sample in a terminal."""
        assert self.sample is not None
        return codec.decode(self.sample[:1])[0]

    def record(self) -> dict[str, Any]:
        """The report as JSON: every number that it has."""
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

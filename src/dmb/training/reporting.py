"""What a run tells while it trains, whatever it trains: enough to log it, to show it, and to choose the best model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class AnyReport(ABC):
    """What happened since the report before."""

    phases: ClassVar[dict[str, str]]
    """The phases in words, in the order that a table of their facts has."""
    caption: ClassVar[str] = "a sample"
    """What `shown` shows."""

    index: int
    """How many reports came before it, those before an interruption included."""
    phase: str
    step: int
    """Steps so far."""
    total_steps: int
    seconds: float
    """Time spent on the run so far, that before an interruption included."""
    cpu_seconds: float
    """Processor time of the same."""
    improved: bool = False
    """Whether the model is the best so far (phase `validation`)."""
    sample: Int[Tensor, "b d"] | None = None
    """Tokens of the data's codec that show what the model can do (phase `validation`)."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The report as JSON, without the sample."""

    @abstractmethod
    def line(self) -> str:
        """The report in one line, but for the speed."""

    @abstractmethod
    def place(self) -> list[Fact]:
        """Where in training it was made."""

    @abstractmethod
    def facts(self) -> list[Fact]:
        """What it says."""

    @property
    def speed(self) -> str:
        """How fast training goes; empty for what is not a part of its steady pace."""
        return ""

    def shown(self, codec: Codec) -> str:
        """What there is to see of the sample in a terminal."""
        assert self.sample is not None
        return codec.decode(self.sample[:1])[0]

    def counter(self) -> str:
        """The step and the phase, as wide in every report."""
        width = max(map(len, self.phases.values()))
        return f"step {self.step:>6}/{self.total_steps}  {self.phases[self.phase]:<{width}}"

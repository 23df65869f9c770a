"""Everything a report is made of: what the run folder holds, and samples of its model."""

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from dmb.app.reports.names import names_of
from dmb.app.reports.symbols import Symbols
from dmb.app.reports.trajectories import effort, reverse_path
from dmb.app.runs import Run
from dmb.bridge import Bridge
from dmb.processes import ForwardProcess
from dmb.samplers import State
from dmb.schedules import Canonical
from dmb.seeding import seeded

WHOLE = 1e-6
"""Share of tokens that a whole path leaves unmasked at the end, in reports; in truth it is 0."""


class Headline(NamedTuple):
    """The bound that a report begins with."""

    split: str
    bits: float
    stderr: float | None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the parts of a report draw from."""

    run: Run
    bridge: Bridge
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    marginals: Float[Tensor, "d n"]
    examples: Int[Tensor, "e d"]
    symbols: Symbols
    reverse: list[State]
    """States of the samples on their way from noise to data."""
    steps: int
    """Network calls per sample."""
    seed: int

    @property
    def samples(self) -> Int[Tensor, "b d"]:
        return self.reverse[-1].x

    @property
    def whole_paths(self) -> bool:
        """Whether the model goes by whole paths, and the times of samples are shares of masked tokens."""
        return self.bridge.ordered is not None

    @cached_property
    def process(self) -> ForwardProcess:
        """The forward process, in the time of the samples: by whole paths its own schedule means nothing."""
        process = self.bridge.process
        if self.whole_paths:
            process = copy.deepcopy(process)
            process.schedule = Canonical(survival=WHOLE).bind(process.stage_mass)
        return process

    def records(self, phase: str, *names: str) -> list[dict[str, Any]]:
        """Metrics of a phase that have all of `names`."""
        return [record for record in self.metrics if record.get("phase") == phase and all(n in record for n in names)]

    def headline(self) -> Headline | None:
        """The model's bound on test data if there is one, else on validation data, else the one seen in training."""
        best = self.run.best()
        for split in ("test", "validation"):
            result = self.evaluations.get(split, {})
            bits = finite(result.get("bits"))
            if bits is not None and result.get("step") == best.get("step"):
                return Headline(split, bits, finite(result.get("stderr")))
        bits = finite(best.get("bits"))
        return None if bits is None else Headline("validation", bits, finite(best.get("stderr")))

    def unigram(self, split: str) -> float | None:
        """What the training data's marginals alone need on `split`, bits per token."""
        return finite(self.run.about["unigram_bits"].get(split))


def gather(run: Run, seed: int) -> Contents:
    """Read the folder and draw the samples."""
    bridge = run.bridge()
    summary = run.summary()
    samples, steps = effort(bridge)
    return Contents(
        run=run,
        bridge=bridge,
        metrics=run.metrics(),
        evaluations=run.evaluations(),
        marginals=summary["marginals"],
        examples=summary["examples"],
        symbols=Symbols(run.codec, names_of(bridge.process), bridge.num_states),
        reverse=reverse_path(bridge, samples, steps, generator=seeded(seed, "report", "samples", device=bridge.device)),
        steps=steps,
        seed=seed,
    )


def finite(value: Any) -> float | None:
    """`value` if it is a number like others.

    >>> finite(1), finite(float("nan")), finite(None)
    (1.0, None, None)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None

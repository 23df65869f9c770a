"""Everything a report is made of: what the run folder holds, and samples of its model."""

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.bridge import Bridge
from dmb.numerics import seeded
from dmb.reports.symbols import Symbols
from dmb.reports.trajectories import effort, reverse_path
from dmb.runs import Run
from dmb.samplers import State


class Headline(NamedTuple):
    """The bound that a report begins with."""

    split: str
    bits: float
    stderr: float | None


class Baseline(NamedTuple):
    """What the marginals alone need, and on which data if not on those in question."""

    bits: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the parts of a report draw from."""

    run: Run
    bridge: Bridge
    version: str
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    marginals: Float[Tensor, "d n"]
    examples: Int[Tensor, "e d"]
    symbols: Symbols
    reverse: list[State]
    """States of the samples on their way from noise to data."""
    steps: int
    """Network calls a sample."""
    seed: int

    @property
    def samples(self) -> Int[Tensor, "b d"]:
        return self.reverse[-1].x

    @property
    def mask_token(self) -> int | None:
        return getattr(self.bridge.process, "mask_token", None)

    def records(self, phase: str, *names: str) -> list[dict[str, Any]]:
        """Metrics of a phase that have all of `names`."""
        return [record for record in self.metrics if record.get("phase") == phase and all(n in record for n in names)]

    def best(self) -> dict[str, Any] | None:
        """The validation during training that did best."""
        found = [record for record in self.records("validation", "bits") if finite(record["bits"]) is not None]
        return min(found, key=lambda record: record["bits"], default=None)

    def headline(self) -> Headline | None:
        """The bound on test data if there is one, else on validation data, else the best seen in training."""
        for split in ("test", "validation"):
            result = self.evaluations.get(split, {})
            bits = finite(result.get("bits"))
            if bits is not None:
                return Headline(split, bits, finite(result.get("stderr")))
        best = self.best()
        return None if best is None else Headline("validation", best["bits"], finite(best.get("stderr")))

    def unigram(self, split: str) -> Baseline | None:
        """The baseline for `split`; if it was not evaluated, the entropy of the training data's marginals."""
        bits = finite(self.evaluations.get(split, {}).get("unigram_bits"))
        if bits is not None:
            return Baseline(bits, "")
        entropy = torch.special.entr(self.marginals.double()).sum(-1).mean().item() / math.log(2)
        return Baseline(entropy, " (on training data)") if math.isfinite(entropy) and entropy > 0 else None


def gather(run: Run, seed: int) -> Contents:
    """Read the folder and draw the samples."""
    bridge = run.bridge()
    summary = run.summary()
    samples, steps = effort(bridge)
    return Contents(
        run=run,
        bridge=bridge,
        version=str(json.loads((run.path / "run.json").read_text(encoding="utf-8")).get("version")),
        metrics=run.metrics(),
        evaluations=run.evaluations(),
        marginals=summary["marginals"],
        examples=summary["examples"],
        symbols=Symbols(run.codec, getattr(bridge.process, "mask_token", None)),
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

"""Everything a report is made of: what the run folder holds, and samples of its model."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from dmb.app.records import (
    BoundResult,
    ImageResult,
    Record,
    RecordResult,
    TableResult,
    best,
    read_bounds,
    read_images,
    read_metrics,
    read_records,
    read_tables,
)
from dmb.app.reports.sampling import effort, reverse_path
from dmb.app.reports.symbols import Symbols
from dmb.app.runs import Run
from dmb.bridge import Bridge
from dmb.data.codecs import Rows, View
from dmb.processes import ForwardProcess
from dmb.samplers import State
from dmb.schedules import Canonical
from dmb.seeding import seeded


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a section. What `body` is depends on the kind: see `page.html`."""

    kind: Literal["figure", "table", "facts", "settings", "bars", "pictures", "path", "texts"]
    body: Any
    title: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the sections of a report draw from."""

    run: Run
    bridge: Bridge
    records: list[Record]
    bounds: dict[str, BoundResult]
    images: dict[str, ImageResult]
    tables: list[TableResult]
    sequences: list[RecordResult]
    marginals: Float[Tensor, "d n"]
    examples: Int[Tensor, "e d"]
    best: Record | None
    """The evaluation that the model in the folder comes from."""
    reverse: list[State]
    """States of the samples on their way from noise to data."""
    steps: int
    """Network calls per sample."""
    seed: int

    @property
    def samples(self) -> Int[Tensor, "b d"]:
        return self.reverse[-1].x

    @cached_property
    def view(self) -> View:
        """How examples are shown."""
        return self.run.codec.view(self.examples[:1])

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns of a table; None for other data, in which a token means the same at every position."""
        return self.view.columns if isinstance(self.view, Rows) else None

    @cached_property
    def symbols(self) -> Symbols:
        return Symbols(self.run.codec, self.bridge.process)

    @cached_property
    def process(self) -> ForwardProcess:
        return in_time_of_samples(self.bridge)


def in_time_of_samples(bridge: Bridge) -> ForwardProcess:
    """The forward process, in the time of the samples: by whole paths its own schedule means nothing."""
    process = bridge.process
    if bridge.ordered is not None:
        process = copy.deepcopy(process)
        process.schedule = Canonical(survival=1e-6).bind(process.stage_mass)  # in truth nothing survives
    return process


def gather(run: Run, seed: int) -> Contents:
    """Read the folder and draw the samples."""
    bridge, summary, records = run.bridge(), run.summary(), read_metrics(run.path)
    (samples, steps), generator = effort(bridge), seeded(seed, "report", "samples", device=bridge.device)
    return Contents(
        run=run, bridge=bridge, records=records, best=best(records), bounds=read_bounds(run.path),
        images=read_images(run.path), tables=read_tables(run.path), sequences=read_records(run.path),
        marginals=summary["marginals"], examples=summary["examples"],
        reverse=reverse_path(bridge, samples, steps, generator=generator), steps=steps, seed=seed,
    )  # fmt: skip

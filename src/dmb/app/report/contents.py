"""Everything a report is made of: what the run folder holds, and samples of its model."""

from dataclasses import dataclass
from typing import Any, Literal

from dmb._core.seeding import seeded
from dmb.app.records import best, read_bounds, read_images, read_metrics, read_records, read_tables
from dmb.app.report.sampling import effort, reverse_path
from dmb.app.report.symbols import Symbols
from dmb.app.runs import Run
from dmb.data.codecs import Cells


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a section. What `body` is depends on the kind: see `page.html`."""

    kind: Literal["figure", "table", "facts", "settings", "bars", "pictures", "path", "texts"]
    body: Any
    title: str = ""
    note: str = ""


class Contents:
    """What the sections of a report draw from: reads the folder, and draws samples with `seed`."""

    def __init__(self, run: Run, seed: int):
        summary = run.summary()
        self.run, self.seed, self.bridge, self.records = run, seed, run.bridge(), read_metrics(run.path)
        self.best = best(self.records)
        """The evaluation that the model in the folder comes from."""
        self.bounds, self.images = read_bounds(run.path), read_images(run.path)
        self.tables, self.sequences = read_tables(run.path), read_records(run.path)
        self.marginals, self.examples = summary["marginals"], summary["examples"]
        self.view = run.codec.view(self.examples[:1])
        """How examples are shown."""
        self.columns = self.view.columns if isinstance(self.view, Cells) else None
        """Names of the columns of a table; None for other data, in which a token means the same at every position."""
        self.symbols = Symbols(run.codec, self.bridge.states)
        samples, self.calls = effort(self.bridge)
        generator = seeded(seed, "report", "samples", device=self.bridge.device)
        self.reverse = reverse_path(self.bridge, samples, self.calls, generator=generator)
        """States of the samples on their way from noise to data, after some of the `calls` network calls."""
        self.samples = self.reverse[-1].x

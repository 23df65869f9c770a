"""What a page about a run is made of: all that its folder holds, samples of its model, and pieces of HTML."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from dmb._core.seeding import seeded
from dmb.app.records import best, read_bounds, read_calls, read_images, read_metrics
from dmb.app.report.symbols import Symbols, printable
from dmb.app.runs import Run
from dmb.bridges import Bridge
from dmb.data.codecs import Cells, Images
from dmb.sampling import State

# states of a path that a page shows, and how many samples a report may have
SHOWN, SAMPLES = 8, (256, 64, 32, 16, 8, 4)
MOVED = 0.05  # what has changed by a smaller factor in training has not moved
# of all samples: floating-point operations, some seconds on two cores; and numbers in their posterior
BUDGET, LARGEST = 5e11, 2**22
PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
    finalize=lambda value: printable(value) if type(value) is str else value,  # HTML is of another type
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a section. What `body` is depends on the kind: see `block.html`."""

    kind: Literal["figure", "table", "facts", "settings", "bars", "pictures", "path", "film", "texts"]
    body: Any
    title: str = ""
    note: str = ""


def html(*blocks: Block) -> Markup:
    """The blocks as HTML, in which all that they say is escaped."""
    template = PAGES.get_template("block.html")
    return Markup("").join(Markup(template.render(block=block)) for block in blocks)


class OpenRun:
    """A run with its model, what it has recorded, and how its data look.

    Args:
        run: a run that has a model.
        device: where to compute.
    """

    def __init__(self, run: Run, device: str = "cpu"):
        summary = run.summary()
        self.run, self.codec, self.bridge, self.records = run, run.codec, run.bridge(device), read_metrics(run.path)
        self.source = Path(run.recipe.data.source).name  # a file without its folders
        self.best = best(self.records)  # the evaluation that the model in the folder comes from
        self.bounds, self.images = read_bounds(run.path), read_images(run.path)
        self.few_calls = read_calls(run.path, self.best)
        self.learned = float(run.about["sequences"] or math.inf)  # the number of training sequences
        self.marginals, self.examples = summary["marginals"], summary["examples"]
        self.view = run.codec.view(self.examples[:1])  # how examples are shown
        # names of the columns of a table; None for other data, in which a token means the same at every position
        self.columns = self.view.columns if isinstance(self.view, Cells) else None
        self.symbols = Symbols(run.codec, self.bridge.states)
        names = run.about["class_names"]
        self.classes = [names[k] if k < len(names) else str(k) for k in range(self.bridge.num_classes)]

    @property
    def title(self) -> str:
        """The recipe, and the data if they are not the recipe's namesake."""
        name = self.run.recipe.name
        return name if self.source in ("", name) else f"{name}: {self.source}"

    @property
    def kind(self) -> str:
        """What the data are, in a few words."""
        positions, states = self.bridge.num_positions, f" of {self.codec.num_states:,} states"
        if isinstance(self.view, Images):
            _, height, width, _ = self.view.pixels.shape
            codes = f", {positions} codes each" if positions < height * width else ""
            return f"images of {width} × {height} pixels{codes}"
        return self.codec.unit.format(positions) + (states if self.columns is None else "")

    @property
    def sentence(self) -> str:
        """What the model is."""
        classes = f" in {len(self.classes)} classes" if self.classes else ""
        return f"A generative model of {self.source}: {self.kind}{classes}. {self.bridge.corruption.describe()}"

    def change(self, name: str) -> Float[np.ndarray, " k"]:
        """How much `alpha` (its logarithm; 0 where it is or was 0) or `log_speeds` have changed in training."""
        rows = [np.array(getattr(record, name)) for record in self.records if getattr(record, name)]
        if not rows or rows[0].shape != rows[-1].shape:
            return np.zeros(0)
        first, last = rows[0], rows[-1]
        if name == "alpha":
            runs = (first > 0) & (last > 0)
            first, last = (np.log(np.where(runs, rates, 1.0)) for rates in (first, last))
        return np.abs(last - first)


class Contents(OpenRun):
    """What the sections of a report draw from: an open run, and samples drawn with `seed`."""

    def __init__(self, run: Run, seed: int):
        super().__init__(run)
        samples, self.calls = effort(self.bridge)
        self.seed, generator = seed, seeded(seed, "report", "samples", device=self.bridge.device)
        # states of the samples on their way from noise to data, after some of the `calls` network calls
        self.reverse = reverse_path(self.bridge, samples, self.calls, generator=generator)
        self.samples = self.reverse[-1].x


def effort(bridge: Bridge) -> tuple[int, int]:
    """The most samples that the budget allows, and network calls for them; a pure function of the model's size."""
    parameters = sum(parameter.numel() for parameter in bridge.network.parameters())
    positions, states = bridge.num_positions, bridge.num_states
    for samples in SAMPLES:
        calls = bridge.calls_within(max(16, samples))
        cost = samples * (2 * parameters * bridge.weight_uses(calls) + 100 * states * calls * positions)
        if cost <= BUDGET and samples * positions * states <= LARGEST:
            break
    return samples, calls


def reverse_path(bridge: Bridge, samples: int, calls: int, *, generator: torch.Generator) -> list[State]:
    """Samples on their way from noise to data: of the `calls + 1` states some, the first and the last among them."""
    kept = set(torch.linspace(0, calls, min(SHOWN, calls + 1)).round().int().tolist())
    states = enumerate(bridge.trajectory(samples, calls=calls, generator=generator))
    return [State(state.t, state.x.cpu()) for index, state in states if index in kept]

"""One run of a comparison: a row with a seed, in an ordinary run folder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dmb.app.comparison.rows import Row
from dmb.app.recipes import Recipe, settings_of
from dmb.app.runs import Run
from dmb.pretrained import WEIGHTS


class Progress(NamedTuple):
    """How far a run has come."""

    step: int
    """Of Score-learning, as of the newest report."""
    bits: float | None
    """The newest bound on validation data; None before the first."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to be trained and evaluated. What is there of it is read from its folder, whoever has made it."""

    row: Row
    seed: int
    recipe: Recipe
    """With the settings of the row, and the seed."""
    path: Path
    """The run folder."""
    arguments: tuple[str, ...]
    """What `dmb train` is called with, besides the folder."""
    sequences: int
    """Test sequences to evaluate."""
    samples: int
    """Network calls for each of them."""

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.row.name} seed {self.seed}"

    @property
    def log(self) -> Path:
        """Where its commands write to."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def steps(self) -> int:
        """Steps of Score-learning in all."""
        return self.recipe.training.total_steps

    def refuse_another(self) -> None:
        """A ValueError if there is something else in the folder than this run."""
        if not (self.path / "run.json").exists():
            Run.refuse_existing(self.path)
            return
        there = Run.open(self.path).recipe
        found, wanted = ({"recipe": recipe.name} | settings_of(recipe) for recipe in (there, self.recipe))
        differ = [f"{name}={found[name]}, not {wanted[name]}" for name in wanted if found[name] != wanted[name]]
        if differ:
            raise ValueError(f"{self.path} is another run, with {'; '.join(differ)}: choose another --out")

    def commands(self) -> list[list[str]]:
        """What is still to be done, one command after the other; nothing if the run is finished."""
        dmb = [sys.executable, "-m", "dmb"]
        train = [*dmb, "train", "--out", str(self.path), "--resume", *self.arguments]
        evaluate = [*dmb, "evaluate", str(self.path), "--sequences", str(self.sequences)]
        evaluate += ["--samples", str(self.samples), "--seed", "0"]
        if not self._trained():
            return [train, evaluate]
        return [] if self._evaluated() else [evaluate]

    def progress(self) -> Progress:
        """How far it has come."""
        metrics = self._metrics()
        bounds = [record["bits"] for record in metrics if record["phase"] == "validation"]
        return Progress(metrics[-1]["step"] if metrics else 0, bounds[-1] if bounds else None)

    def _trained(self) -> bool:
        """Whether the last step was evaluated: the last thing that training does."""
        evaluated = [record["step"] for record in self._metrics() if record["phase"] == "validation"]
        return evaluated[-1:] == [self.steps] and (self.path / WEIGHTS).is_file()

    def _evaluated(self) -> bool:
        """Whether the best model was, on as many test sequences as wanted, as often, and with the same noise."""
        run = Run.open(self.path)
        test = run.evaluations().get("test", {})
        wanted = {"sequences": self.sequences, "samples": self.samples, "seed": 0, "step": run.best().get("step")}
        return all(test.get(name) == value for name, value in wanted.items())

    def _metrics(self) -> list[dict[str, Any]]:
        return Run.open(self.path).metrics() if (self.path / "run.json").is_file() else []

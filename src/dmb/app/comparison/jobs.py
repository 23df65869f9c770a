"""One run of a comparison: a row with a seed, in an ordinary run folder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dmb.app.comparison.rows import Row
from dmb.app.recipes import Recipe
from dmb.app.records import best, read_bounds, read_metrics, validations
from dmb.app.runs import Run
from dmb.files import to_json, written_whole
from dmb.pretrained import WEIGHTS

Task = Literal["train", "resume", "evaluate"]


@dataclass(frozen=True)
class Job:
    """A run of `recipe`, which has the settings of the row and the seed, in the run folder `path`.

    What is left to do is read from the folder, no matter who made it.
    """

    row: Row
    seed: int
    recipe: Recipe
    path: Path
    sequences: int
    samples: int

    def __str__(self) -> str:
        return f"{self.row.name} seed {self.seed}"

    @property
    def log(self) -> Path:
        """The output of its commands."""
        return Path(f"{self.path}.log")

    def refuse_another(self) -> None:
        """Raise a ValueError if the folder holds anything else than this run."""
        if (self.path / "run.json").exists():
            self.recipe.refuse_another(Run.open(self.path).recipe, f"{self.path} is another run")
        else:
            Run.refuse_existing(self.path)

    def write_recipe(self) -> None:
        """Write the file that `dmb train` reads."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(Path(f"{self.path}.json")) as part:
            part.write_text(to_json(self.recipe.to_json(), indent=2) + "\n", encoding="utf-8")

    def command(self, task: Task) -> list[str]:
        """The command line of a task."""
        evaluation = ["--sequences", f"{self.sequences}", "--samples", f"{self.samples}", "--seed", "0"]
        words = {
            "train": ["train", "--recipe", f"{self.path}.json", "--out", f"{self.path}"],
            "resume": ["resume", f"{self.path}"],
            "evaluate": ["evaluate", f"{self.path}", *evaluation],
        }
        return [sys.executable, "-m", "dmb", *words[task]]

    def task(self) -> Task | None:
        """What to do next; None if the run is finished."""
        if not (self.path / "run.json").is_file():
            return "train"
        records = read_metrics(self.path)
        ends = [record.step for record in validations(records)[-1:]]  # training ends with an evaluation
        if ends != [self.recipe.training.total_steps] or not (self.path / WEIGHTS).is_file():
            return "resume"
        saved, test = best(records), read_bounds(self.path).get("test")
        wanted = (self.sequences, self.samples, 0, saved.step if saved else None)
        return None if test and (test.sequences, test.samples, test.seed, test.step) == wanted else "evaluate"

    def step(self) -> int:
        """Steps of Score-learning so far."""
        return max((record.step for record in read_metrics(self.path)), default=0)

"""What is to be compared: which rows, with how many seeds, and all that they share."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.rows import Row, rows_for
from dmb.app.recipes import Recipe
from dmb.data import DataSet
from dmb.version import __version__

RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison in the folder `out`, as `plan` makes it: each row is run with the seeds 0 to `seeds - 1`.

    `recipe` is what all rows share, `commands` what the user typed: more than once if rows or seeds were added later.
    Every run takes `steps` of Score-learning, and is evaluated on `sequences` of the test data, `samples` times each.
    """

    out: Path
    recipe: Recipe
    commands: tuple[str, ...]
    data: DataSet
    rows: tuple[Row, ...]
    seeds: int
    steps: int
    sequences: int
    samples: int

    def jobs(self) -> list[Job]:
        """All runs: those of the first seed come first, so that there soon is something of every row."""
        return [self.job(row, seed) for seed in range(self.seeds) for row in self.rows]

    def job(self, row: Row, seed: int) -> Job:
        """One run."""
        recipe = row.apply(self.recipe, self.data, self.steps)
        recipe = replace(recipe, training=replace(recipe.training, seed=seed))
        return Job(row, seed, recipe, self.out / row.name / f"seed-{seed}", self.sequences, self.samples)

    def to_json(self) -> dict[str, Any]:
        """All but the data."""
        plain = {name: getattr(self, name) for name in ("commands", "seeds", "steps", "sequences", "samples")}
        rows = [row.name for row in self.rows]
        return {"version": __version__, "recipe": self.recipe.to_json(), "rows": rows, **plain}

    def with_earlier(self) -> "Plan":
        """The plan with the rows and seeds that its folder has already; a ValueError if those share other settings."""
        file = self.out / RESULTS
        if not file.is_file():
            return self
        try:
            found = json.loads(file.read_text(encoding="utf-8"))["comparison"]
            there = replace(self, recipe=Recipe.from_json(found["recipe"]), steps=found["steps"], seeds=found["seeds"])
            rows, commands = _chosen(self.data, found["rows"]), tuple(found["commands"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is not one of this version: {error}; choose another --out") from error
        rows = tuple(dict.fromkeys(self.rows + rows))
        for row in rows:
            self.job(row, 0).recipe.refuse_another(there.job(row, 0).recipe, f"{self.out} is another comparison")
        commands = tuple(dict.fromkeys(commands + self.commands))
        return replace(self, rows=rows, seeds=max(self.seeds, there.seeds), commands=commands)


def plan(
    recipe: Recipe,
    *,
    out: Path,
    command: str,
    rows: Collection[str] = (),
    fixed: Collection[str] = (),
    seeds: int = 3,
    steps: int | None = None,
    sequences: int | None = None,
    samples: int = 1,
) -> Plan:
    """A plan whose rows can all be run, and share what they are to share.

    Args:
        recipe: what all rows share.
        out: the folder of the comparison.
        command: what the user typed, to be printed below the table.
        rows: their names. Default: all that make sense for the data.
        fixed: dotted names of settings that no row may change, such as `training.batch_size`.
        seeds: runs of every row.
        steps: of Score-learning in a run. Default: those of the recipe.
        sequences: test sequences to evaluate. Default: all.
        samples: network calls for each of them.
    """
    steps = recipe.training.total_steps if steps is None else steps
    for name, value in {"seeds": seeds, "steps": steps, "sequences": sequences, "samples": samples}.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if "training.seed" in fixed:
        raise ValueError("seed cannot be set in a comparison: --seeds says how many there are, from 0")
    for name in ("minutes", "patience", "tolerance", "score_tolerance"):
        if value := getattr(recipe.training, name):
            raise ValueError(f"{name} must be off in a comparison, whose runs all take the same steps; got {value}")
    data = recipe.data.load()
    sequences = min(sequences or len(data.test), len(data.test))
    made = Plan(out=out, recipe=recipe, commands=(command,), data=data, rows=_chosen(data, rows), seeds=seeds,
                steps=steps, sequences=sequences, samples=samples)  # fmt: skip
    for row in made.rows:
        whole = row.apply(recipe, data, steps)
        for name in recipe.differences(whole).keys() & set(fixed):
            raise ValueError(f"{name} cannot be set: the row {row.name} has a value of its own for it")
        if whole.training.total_steps != steps:
            cycles = whole.training.cycles
            raise ValueError(f"--steps must be a multiple of {cycles} for the row {row.name}, got {steps}")
        whole.build(data)  # find what cannot be built now, and not in run after run
    return made


def _chosen(data: DataSet, names: Collection[str]) -> tuple[Row, ...]:
    known = {row.name: row for row in rows_for(data)}
    for name in names:
        if name not in known:
            raise ValueError(f"no row called {name!r}: there are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))

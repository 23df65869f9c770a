"""What is to be compared: which rows, with how many seeds, and all that they share."""

import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dmb.app.comparison.jobs import Job
from dmb.app.comparison.rows import Row, rows_for
from dmb.app.recipes import Recipe, override, settings_of
from dmb.data import DataSet
from dmb.files import to_json, written_whole
from dmb.version import __version__

FILE = "comparison.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison in the folder `out`. `plan` makes one, and checks it."""

    out: Path
    recipe: Recipe
    """What all rows share."""
    source: str | None
    """`--data`, as given."""
    shared: tuple[str, ...]
    """`--set`, as given."""
    data: DataSet
    rows: tuple[Row, ...]
    seeds: int
    """Every row is run with the seeds 0 to `seeds - 1`."""
    steps: int
    """Of Score-learning, in every run."""
    sequences: int | None
    """Test sequences to evaluate; None for all."""
    samples: int
    """Network calls for each of them."""

    @property
    def test_sequences(self) -> int:
        """How many that are."""
        return min(self.sequences or len(self.data.test), len(self.data.test))

    def recipe_of(self, row: Row, seed: int) -> Recipe:
        """What the run of `row` with `seed` trains."""
        return override(self.recipe, [*row.settings, f"seed={seed}"])

    def jobs(self) -> list[Job]:
        """All runs: those of the first seed come first, so that there soon is something of every row."""
        data = () if self.source is None else ("--data", self.source)
        return [
            Job(
                row=row,
                seed=seed,
                recipe=self.recipe_of(row, seed),
                path=self.out / row.name / f"seed-{seed}",
                arguments=(self.recipe.name, *data, "--set", *self.shared, *row.settings, f"seed={seed}"),
                sequences=self.test_sequences,
                samples=self.samples,
            )
            for seed in range(self.seeds)
            for row in self.rows
        ]

    def command(self) -> str:
        """The command line that runs it, or goes on with it."""
        words = ["dmb", "compare", self.recipe.name, "--out", str(self.out)]
        words += [] if self.source is None else ["--data", self.source]
        words += ["--rows", *(row.name for row in self.rows), "--seeds", str(self.seeds), "--steps", str(self.steps)]
        words += [] if self.sequences is None else ["--sequences", str(self.sequences)]
        words += [] if self.samples == 1 else ["--samples", str(self.samples)]
        return shlex.join(words + (["--set", *self.shared] if self.shared else []))

    def to_json(self) -> dict[str, Any]:
        """What the folder says about itself."""
        return {
            "version": __version__,
            "command": self.command(),
            "recipe": self.recipe.to_json(),
            "data": self.source,
            "set": list(self.shared),
            "rows": [asdict(row) for row in self.rows],
            "seeds": self.seeds,
            "steps": self.steps,
            "sequences": self.sequences,
            "samples": self.samples,
        }

    def write(self) -> None:
        """Write down in the folder what it is."""
        with written_whole(self.out / FILE) as part:
            part.write_text(to_json(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def with_earlier(self) -> "Plan":
        """The plan, with the rows and seeds that its folder has already; a ValueError if those share something else."""
        file = self.out / FILE
        if not file.is_file():
            return self
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            recipe, steps, seeds = Recipe.from_json(before["recipe"]), before["steps"], before["seeds"]
            rows = [Row(row["name"], row["title"], tuple(row["settings"])) for row in before["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} does not describe a comparison: {error}") from error
        found, wanted = ({"recipe": each.name} | settings_of(each) for each in (recipe, self.recipe))
        for name in set.intersection(*(_fixed(self.recipe, row) for row in self.rows)):
            del found[name], wanted[name]  # every row has its own
        found["steps"], wanted["steps"] = steps, self.steps
        differ = [f"{name}={found[name]}, not {wanted[name]}" for name in wanted if found[name] != wanted[name]]
        if differ:
            raise ValueError(f"{self.out} is another comparison, with {'; '.join(differ)}: choose another --out")
        asked = {row.name for row in self.rows}
        return replace(
            self, rows=(*self.rows, *(row for row in rows if row.name not in asked)), seeds=max(self.seeds, seeds)
        )


def plan(
    recipe: Recipe,
    *,
    out: Path,
    source: str | None = None,
    shared: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    seeds: int = 3,
    steps: int | None = None,
    sequences: int | None = None,
    samples: int = 1,
) -> Plan:
    """A plan in which all is well: every row can be run, and all rows share what they are to share.

    Args:
        recipe: what all rows share, with `shared` and `source` applied.
        out: the folder of the comparison.
        source: the data, as the command line has them. Default: those of the recipe.
        shared: settings, as the command line has them.
        names: of rows. Default: all that make sense for the data.
        seeds: how many.
        steps: of Score-learning in a run. Default: the recipe's.
        sequences: test sequences to evaluate. Default: all.
        samples: network calls for each of them.
    """
    steps = recipe.training.total_steps if steps is None else steps
    for name, value in {"seeds": seeds, "steps": steps, "sequences": sequences, "samples": samples}.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    _refuse_early_ends(recipe)
    data = recipe.data.load()
    made = Plan(
        out=out, recipe=recipe, source=source, shared=shared, data=data, rows=_chosen(rows_for(data, steps), names),
        seeds=seeds, steps=steps, sequences=sequences, samples=samples,
    )  # fmt: skip
    for row in made.rows:
        _refuse_conflicts(recipe, shared, row)
        whole = made.recipe_of(row, 0)
        if whole.training.total_steps != steps:
            cycles = whole.training.cycles
            raise ValueError(f"--steps must be a multiple of {cycles} for the row {row.name}, got {steps}")
        whole.build(data)  # what cannot be built is found out here, and not in run after run
    return made


def _chosen(rows: list[Row], names: tuple[str, ...]) -> tuple[Row, ...]:
    known = {row.name: row for row in rows}
    for name in names:
        if name not in known:
            raise ValueError(f"no row called {name!r}: there are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def _refuse_early_ends(recipe: Recipe) -> None:
    """All rows take the same steps: neither a clock nor a tolerance may end one before."""
    training = recipe.training
    for name, value in {"minutes": training.minutes, "tolerance": training.tolerance,
                        "score_tolerance": training.score_tolerance}.items():  # fmt: skip
        if value:
            raise ValueError(f"{name} must be off in a comparison, whose runs all take the same steps; got {value}")


def _refuse_conflicts(recipe: Recipe, shared: tuple[str, ...], row: Row) -> None:
    for assignment in shared:
        setting = _setting(recipe, assignment)
        if setting == "training.seed":
            raise ValueError("seed cannot be shared: --seeds says how many there are, from 0")
        if setting in _fixed(recipe, row):
            raise ValueError(f"{setting} cannot be shared: the row {row.name} has a value of its own for it")


def _fixed(recipe: Recipe, row: Row) -> set[str]:
    """The settings that a row has its own values of, the seed included."""
    return {_setting(recipe, assignment) for assignment in (*row.settings, "seed=0")}


def _setting(recipe: Recipe, assignment: str) -> str:
    """The full name of the setting that `name=value` changes."""
    name = assignment.partition("=")[0].strip()
    return next(full for full in settings_of(recipe) if full == name or full.endswith(f".{name}"))

"""What is to be compared: which rows, with how many seeds, and the run of each in a folder of its own."""

import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from dmb._core.configuration import from_json, typed
from dmb._core.files import read_sizes, write_json
from dmb._core.pretrained import WEIGHTS
from dmb.app.compare.rows import ROWS, Row
from dmb.app.evaluation import Likelihood, SamplerBound
from dmb.app.recipes import DataChoice, NetworkChoice, ProcessChoice, Recipe
from dmb.app.recipes.choices import BY_TIMES
from dmb.app.records import Record, best, read_all_calls, read_bounds, read_metrics, validations
from dmb.app.runs import Run
from dmb.bridges import OrderedBridge
from dmb.data import DataSet
from dmb.training import TrainingSettings

RESULTS, MOST_SEEDS = "results.json", 1000
PLAIN = ("commands", "seeds", "steps", "sequences", "samples", "calls", "sampler")
TURNS = "order.order"
"""In the file of a model whose columns are written in one order, so that its training ends with a calibration."""
Task = Literal["train", "resume", "evaluate"]


@dataclass(frozen=True)
class Job:
    """The run of a row with a seed in the run folder `path`. What is left to do is read from there, whoever made it."""

    row: Row
    seed: int
    recipe: Recipe
    path: Path
    sequences: int
    samples: int
    calls: tuple[int, ...]
    sampler: tuple[str, ...]
    grid: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.row.name} seed {self.seed}"

    def check_same(self) -> None:
        """Raise a ValueError if the folder holds anything else than this run."""
        if (self.path / "run.json").exists():
            self.recipe.check_same(Run.open(self.path).recipe, f"{self.path} is another run")
        else:
            Run.check_free(self.path)

    def write_recipe(self) -> None:
        """Write the file that `dmb train` reads."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(f"{self.path}.json"), self.recipe.to_json())

    def command(self, task: Task) -> list[str]:
        """The command line of a task."""
        evaluation = ["--sequences", f"{self.sequences}", "--samples", f"{self.samples}", "--seed", "0"]
        if task == "evaluate" and (missing := self.missing_calls()):
            evaluation += ["--calls", *map(str, missing), "--sampler", *self.sampler, "--grid", *self.grid]
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
        calibrated = any(record.phase == "calibration" and saved and record.step >= saved.step for record in records)
        if self.recipe.network.network == "columns" and TURNS in read_sizes(self.path / WEIGHTS) and not calibrated:
            return "resume"
        return None if test and self._is_wanted(test, saved) and not self.missing_calls() else "evaluate"

    def bounds(self) -> list[SamplerBound]:
        """The bounds at the wanted numbers of calls that are known, by sampler and grid."""
        saved, order = best(read_metrics(self.path)), list(product(self.sampler, self.grid, self.calls))
        known = {
            (each.sampler, each.grid, each.calls): each
            for each in read_all_calls(self.path)
            if each.split == "test" and self._is_wanted(each, saved)
        }
        return [known[each] for each in order if each in known]

    def missing_calls(self) -> list[int]:
        """The numbers of calls at which a bound is missing."""
        known = Counter(each.calls for each in self.bounds())
        return [number for number in self.calls if known[number] < len(self.sampler) * len(self.grid)]

    def _is_wanted(self, found: Likelihood | SamplerBound, saved: Record | None) -> bool:
        wanted = (self.sequences, self.samples, 0, saved.step if saved else None)
        return (found.sequences, found.samples, found.seed, found.step) == wanted

    def step(self) -> int:
        """Steps of Score-learning so far."""
        return max((record.step for record in read_metrics(self.path)), default=0)


@dataclass(frozen=True)
class Plan:
    """A comparison in the folder `out`: rows that share `recipe`, each with the seeds 0 to `seeds - 1`.

    A run takes `steps` of Score-learning, and is evaluated on `sequences` of the test data, `samples` times each; and
    so is what it samples with these numbers of `calls`, by its usual sampler and those of `sampler` that it has.
    """

    recipe: Recipe
    data: DataSet
    out: Path
    commands: list[str]  # one, and those of earlier rows
    rows: tuple[Row, ...]
    seeds: int
    steps: int
    sequences: int
    samples: int
    calls: list[int] = field(default_factory=list)
    sampler: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.seeds > MOST_SEEDS:
            raise ValueError(f"--seeds must be at most {MOST_SEEDS}, got {self.seeds}")

    def jobs(self) -> list[Job]:
        """All runs: those of the first seed come first, so that there soon is something of every row."""
        jobs = []
        for seed, row in product(range(self.seeds), self.rows):
            recipe = row.apply(self.recipe, self.data, self.steps).changed(seed=seed)
            path, grids = self.out / row.name / f"seed-{seed}", row.grids if self.data.lengths is None else ()
            first, *others = _step_samplers(recipe)
            samplers = first, *(name for name in others if name in self.sampler)
            few = tuple(self.calls), samplers, ("canonical", *grids)
            jobs.append(Job(row, seed, recipe, path, self.sequences, self.samples, *few))
        return jobs

    def to_json(self) -> dict[str, Any]:
        """All but the data."""
        plain = {name: getattr(self, name) for name in PLAIN}
        return {"recipe": self.recipe.to_json(), "rows": [row.name for row in self.rows], **plain}

    def with_earlier(self) -> "Plan":
        """The plan with the rows and seeds that its folder has already; a ValueError if those share other settings."""
        file = self.out / RESULTS
        if not file.is_file():
            return self
        try:
            found = from_json(file.read_text(encoding="utf-8"))["comparison"]
            recipe, rows = Recipe.from_json(found["recipe"]), _chosen(self.data, found["rows"])
            there = typed(Plan, found | {"recipe": recipe, "rows": rows, "data": self.data, "out": self.out})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} was made by another version or from other data: {error}; choose another --out"
            ) from error
        rows = tuple(dict.fromkeys(self.rows + there.rows))
        for row in rows:
            old, new = (row.apply(plan.recipe, plan.data, plan.steps) for plan in (there, self))
            new.check_same(old, f"{self.out} is another comparison")
        commands = [*dict.fromkeys(there.commands + self.commands)]
        calls, sampler = sorted({*self.calls, *there.calls}), [*dict.fromkeys(there.sampler + self.sampler)]
        return replace(
            self, rows=rows, seeds=max(self.seeds, there.seeds), commands=commands, calls=calls, sampler=sampler
        )  # fmt: skip


def plan(
    recipe: Recipe, *, out: Path, command: str, rows: Collection[str] = (), fixed: Collection[str] = (), seeds: int = 3,
    steps: int | None = None, sequences: int | None = None, samples: int = 1, calls: Collection[int] = (),
    sampler: Collection[str] = (),
) -> Plan:  # fmt: skip
    """A plan whose rows can all be run. Default: rows that fit the data, steps of the recipe, all test sequences.

    Args:
        command: what the user typed, to be printed below the table.
        fixed: dotted names of settings that no row may change, such as `training.batch_size`.
    """
    steps = recipe.training.total_steps if steps is None else steps
    numbers = {"seeds": seeds, "steps": steps, "sequences": sequences, "samples": samples}
    for name, value in (numbers | {"calls": min(calls, default=None)}).items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if sampler and not calls:
        raise ValueError("--sampler is for bounds at numbers of network calls: give --calls, too")
    if "training.seed" in fixed:
        raise ValueError("seed cannot be set in a comparison: --seeds N uses the seeds 0 to N - 1")
    for name in ("minutes", "patience", "tolerance", "score_tolerance"):
        if value := getattr(recipe.training, name):
            raise ValueError(f"{name} must be off in a comparison, because all runs take the same steps; got {value}")
    recipe = _plain(recipe, fixed)
    data = recipe.data.load()
    sequences = min(sequences or len(data.test), len(data.test))
    made = Plan(
        recipe, data, out, [command], _chosen(data, rows), seeds, steps, sequences, samples, sorted({*calls}),
        [*sampler],
    )  # fmt: skip
    wanted = {row: row.apply(recipe, data, steps) for row in made.rows}
    for name in fixed:
        if all(name.rpartition(".")[2] in own.meaningless() for own in wanted.values()):
            raise ValueError(f"{name} cannot be set: it means nothing to any row")
    for row, own in wanted.items():
        for name in recipe.differences(own).keys() & set(fixed):
            raise ValueError(f"{name} cannot be set: the row {row.name} sets it itself")
        if own.training.total_steps != steps:
            raise ValueError(f"--steps must be a multiple of {own.training.cycles} for the row {row.name}, got {steps}")
        own.build(data)  # find what cannot be built now, and not in run after run
    return made


def _plain(recipe: Recipe, fixed: Collection[str]) -> Recipe:
    """The recipe without the file that it came from: runs get it as JSON, which brings no code.

    All rows learn from whole sequences, unless the user says otherwise: it is their bounds that are compared. Which of
    them learn by whole paths, which learn an order, and how rates are learned is for them to say.
    """
    for name, kind in {"data": DataChoice, "process": ProcessChoice, "network": NetworkChoice}.items():
        if type(section := getattr(recipe, name)) is not kind:
            got = type(section).__name__
            raise ValueError(f"{name} must be a {kind.__name__} to be compared, whose settings rows change; got {got}")
    plain = TrainingSettings()
    rates = {name: getattr(plain, name) for name in ("start", "adapt_times", "matrix_clip", "matrix_weight_decay")}
    settings = BY_TIMES | rates | {"infill": recipe.training.infill or 0.0, "learn": "log", "schedule": "loglinear"}
    settings["network"] = {"columns": "mlp", "ordered": "transformer", "causal": "transformer"}.get(
        recipe.network.network, recipe.network.network
    )
    own = {name.rpartition(".")[2] for name in fixed}
    settings = {name: value for name, value in settings.items() if name not in own}
    return replace(recipe, name=recipe.name.rpartition(":")[2]).changed(**settings)


def _step_samplers(recipe: Recipe) -> tuple[str, ...]:
    """The samplers of the model that take a number of calls, the default first."""
    if "write_order" not in recipe.meaningless():
        return OrderedBridge.step_samplers
    return ("ancestral", "tweedie", "euler") if recipe.head == "mean" else ("tweedie", "euler")


def _chosen(data: DataSet, names: Collection[str]) -> tuple[Row, ...]:
    known = {row.name: row for row in ROWS if row.fits(data)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no row called {unknown[0]!r}: choose from {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))

"""`dmb compare`."""

import shlex
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from dmb.app import recipes
from dmb.app.cli.console import notes
from dmb.app.cli.recipe import changed
from dmb.app.recipes import Recipe
from dmb.app.recipes.differences import differences


def compare(
    recipe: Annotated[Positional[str], arg(metavar="RECIPE")],
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    rows: Annotated[tuple[str, ...], arg(metavar="NAME")] = (),
    seeds: int = 3,
    steps: int | None = None,
    sequences: int | None = None,
    samples: int = 1,
    workers: int | None = None,
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = (),
    list_: Annotated[bool, arg(name="list")] = False,
) -> int:
    """Train masked, uniform and learned forward processes with several seeds, and make one table of them.

    Examples: `dmb compare digits`; `dmb compare pydocs --data novel.txt --rows mdlm mean-descending --seeds 5`.

    Every run is an ordinary run folder, FOLDER/<row>/seed-<number>. Results are in FOLDER: table.md, curves.png and
    results.json. Stop it with Ctrl-C at any moment; the same command goes on where it was, and with more rows or seeds
    adds to what is there.

    Args:
        recipe: what all rows share.
        data: train on this instead; see train.
        out: the folder of the comparison; default: runs/compare-<recipe>.
        rows: compare these; default: all that make sense for the data.
        seeds: runs of every row, with the seeds 0, 1, …
        steps: of Score-learning in every run; default: as many as the recipe has.
        sequences: test sequences to evaluate, spread evenly; default: all.
        samples: network calls for each of them; where test data are few, more make the bound surer.
        workers: runs side by side; default: as many as there are cores, or one on a GPU.
        set: change settings of all rows.
        list_: print the rows with the settings they change, and do nothing.
    """
    from dmb.app import comparison  # slow to import, and no other command needs it

    chosen = recipes.recipe(recipe)
    if not isinstance(chosen, Recipe):
        raise ValueError(f"forward processes are compared, which {recipe} has none of: choose the recipe of a bridge")
    shared, out = changed(chosen, data, set), out or Path("runs") / f"compare-{recipe}"
    settings = recipes.settings_of(shared)
    names = [assignment.partition("=")[0].strip() for assignment in set]
    fixed = {next(full for full in settings if full == name or full.endswith(f".{name}")) for name in names}
    words = ["dmb", "compare", recipe, "--out", str(out), "--seeds", str(seeds)]
    words += [word for option, value in {"data": data, "steps": steps, "sequences": sequences}.items()
              if value is not None for word in (f"--{option}", str(value))]  # fmt: skip
    words += ["--samples", str(samples)] if samples != 1 else []
    words += (["--rows", *rows] if rows else []) + (["--set", *set] if set else [])
    plan = comparison.plan(
        shared, out=out, command=shlex.join(words), rows=rows, fixed=fixed, seeds=seeds, steps=steps,
        sequences=sequences, samples=samples,
    )  # fmt: skip
    if list_:
        for row in plan.rows:
            changes = differences(plan.recipe, row.apply(plan.recipe, plan.data, plan.steps))
            print(f"{row.name}: {row.title}\n    {' '.join(f'{name}={new}' for name, (_, new) in changes.items())}")
        return 0
    if workers is None:
        workers = 1 if torch.cuda.is_available() else comparison.cores()
    return comparison.compare(plan, workers=workers, console=notes)

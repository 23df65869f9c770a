"""`dmb compare`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dmb.app.cli.settings import first_look, with_settings
from dmb.app.display import notes
from dmb.app.recipes import as_flags


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Train masked, uniform and learned forward processes with several seeds, and compare them in one table.

    Examples: `dmb compare digits`; `dmb compare novel.txt --rows mdlm paths-learned --seeds 5 --width 64`.

    Every run is an ordinary run folder, FOLDER/<row>/seed-<number>. Results are in FOLDER: table.md, results.json,
    curves.png and, with --calls, calls.png. Ctrl-C stops it at any time; the same command continues. With further rows,
    seeds or calls, it adds to the table. The settings below are shared by all rows.

    Args:
        path: What to train on; see dmb train.
        recipe: The settings that all rows share; see dmb train.
        out: The folder of the comparison; default: runs/compare-<data>.
        rows: The rows to compare; default: all rows that suit the data.
        seeds: Runs per row, with seeds 0, 1, …
        steps: Steps of Score-learning in every run; default: those of the recipe.
        sequences: Test sequences to evaluate, spread evenly; default: all.
        samples: Network calls per test sequence; with few test data, more calls make the bound more precise.
        calls: Also compute the bound of what is sampled with each of these numbers of network calls.
        sampler: Sampling algorithms of --calls, beside the usual one of each model, where a model has them.
        workers: Number of runs at the same time; default: the number of cores, or one on a GPU.
        list: Print the rows with their settings, then exit.
    """

    path: Annotated[Positional[str | None], arg(metavar="DATA", help_behavior_hint="")] = None
    recipe: Annotated[str | None, arg(metavar="RECIPE", help_behavior_hint="")] = None
    out: Annotated[Path | None, arg(metavar="FOLDER", aliases=["-o"], help_behavior_hint="")] = None
    rows: Annotated[tuple[str, ...], arg(metavar="ROW", help_behavior_hint="")] = ()
    seeds: int = 3
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    sequences: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    samples: int = 1
    calls: Annotated[tuple[int, ...], arg(metavar="INT", help_behavior_hint="")] = ()
    sampler: Annotated[tuple[Literal["ancestral", "tweedie", "euler"], ...], arg(help_behavior_hint="")] = ()
    workers: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    list: bool = False


def main(arguments: list[str]) -> int:
    """Compare."""
    shared, arguments = first_look(Compare, arguments)
    shared = shared.changed(patience=0)  # all rows take the same steps
    flags, wanted = with_settings(Compare, shared, arguments)

    import torch  # slow to import, like the next

    from dmb.app import compare as comparison

    changed = shared.differences(wanted)
    out = flags.out or Path("runs") / f"compare-{Path(wanted.data.source).stem}"
    options = {
        name: getattr(flags, name) for name in ("rows", "seeds", "steps", "sequences", "samples", "calls", "sampler")
    }
    given = {name: value for name, value in options.items() if value not in (None, ())}
    words = ["dmb", "compare", wanted.data.source, "--recipe", wanted.name, "--out", str(out)]
    fixed = set(changed) - {"network.network", "network.placed"}  # rows with whole paths choose their own network
    command = shlex.join([*words, *as_flags(given | changed)])
    plan = comparison.plan(wanted, out=out, command=command, fixed=fixed, **options)
    if flags.list:
        for row in plan.rows:
            changes = wanted.differences(row.apply(plan.recipe, plan.data, plan.steps))
            print(f"{row.name}: {row.title}\n    {' '.join(as_flags(changes))}")
        return 0
    workers = flags.workers
    if workers is None:
        workers = 1 if torch.cuda.is_available() else comparison.cores()
    return comparison.compare(plan, workers=workers, console=notes)

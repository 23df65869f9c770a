"""`dmb compare`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.settings import first_look, with_settings
from dmb.app.recipes import Recipe, as_flags

DESCRIPTION = """\
Train masked, uniform and learned forward processes with several seeds, and compare them in one table.

Examples: `dmb compare digits`; `dmb compare novel.txt --rows mdlm paths-learned --seeds 5 --width 64`.

Every run is an ordinary run folder, FOLDER/<row>/seed-<number>. Results are in FOLDER: table.md, curves.png and
results.json. Ctrl-C stops it at any time; the same command continues. With further rows or seeds, it adds to the table.
"""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """What to compare, and where to write it. The settings below are shared by all rows."""

    path: Annotated[Positional[str | None], arg(metavar="DATA", help_behavior_hint="")] = None
    """What to train on; see dmb train."""
    recipe: Annotated[str | None, arg(metavar="RECIPE", help_behavior_hint="")] = None
    """The settings that all rows share; see dmb train."""
    out: Annotated[Path | None, arg(metavar="FOLDER", aliases=["-o"], help_behavior_hint="")] = None
    """The folder of the comparison; default: runs/compare-<data>."""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW", help_behavior_hint="")] = ()
    """The rows to compare; default: all rows that suit the data."""
    seeds: int = 3
    """Runs per row, with seeds 0, 1, …"""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Steps of Score-learning in every run; default: those of the recipe."""
    sequences: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Test sequences to evaluate, spread evenly; default: all."""
    samples: int = 1
    """Network calls per test sequence; with few test data, more calls make the bound more precise."""
    workers: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Number of runs at the same time; default: the number of cores, or one on a GPU."""
    list: bool = False
    """Print the rows with their settings, then exit."""


def main(arguments: list[str]) -> int:
    """Compare."""
    shared, arguments = first_look(_parsed, arguments)
    shared = shared.changed(patience=0)  # all rows take the same steps
    flags, wanted = _parsed(shared, arguments)

    import torch  # slow to import, like the next

    from dmb.app import compare as comparison

    changed = shared.differences(wanted)
    fixed = set(changed) - {"network.network", "network.placed"}  # rows with whole paths choose their own network
    out = flags.out or Path("runs") / f"compare-{Path(wanted.data.source).stem}"
    plan = comparison.plan(
        wanted, out=out, command=_command(flags, wanted, out, as_flags(changed)), rows=flags.rows, seeds=flags.seeds,
        steps=flags.steps, sequences=flags.sequences, samples=flags.samples, fixed=fixed,
    )  # fmt: skip
    if flags.list:
        for row in plan.rows:
            changes = wanted.differences(row.apply(plan.recipe, plan.data, plan.steps))
            print(f"{row.name}: {row.title}\n    {' '.join(as_flags(changes))}")
        return 0
    workers = flags.workers
    if workers is None:
        workers = 1 if torch.cuda.is_available() else comparison.cores()
    return comparison.compare(plan, workers=workers, console=notes)


def _command(flags: Compare, wanted: Recipe, out: Path, settings: list[str]) -> str:
    """The command that makes the table, to be printed below it."""
    words = ["dmb", "compare", wanted.data.source, "--recipe", wanted.name, "--out", str(out)]
    words += ["--rows", *flags.rows] if flags.rows else []
    given = {"seeds": flags.seeds, "steps": flags.steps, "sequences": flags.sequences, "samples": flags.samples}
    return shlex.join(words + as_flags({name: value for name, value in given.items() if value is not None}) + settings)


def _parsed(default: Recipe, arguments: list[str]) -> tuple[Compare, Recipe]:
    return with_settings(Compare, default, arguments, prog="dmb compare", description=DESCRIPTION)

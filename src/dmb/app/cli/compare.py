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
Train masked, uniform and learned forward processes with several seeds, and make one table of them.

Examples: `dmb compare digits`; `dmb compare novel.txt --rows mdlm paths-learned --seeds 5 --width 64`.

Every run is an ordinary run folder, FOLDER/<row>/seed-<number>. Results are in FOLDER: table.md, curves.png and
results.json. Stop it with Ctrl-C at any moment; the same command continues, and with more rows or seeds it adds to what
is there.
"""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """What to compare, and where to put it. Settings below are those that all rows share."""

    path: Annotated[Positional[str | None], arg(metavar="DATA")] = None
    """What to train on; see dmb train."""
    recipe: str | None = None
    """The settings that all rows share; see dmb train."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The folder of the comparison; default: runs/compare-<data>."""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW")] = ()
    """Compare these; default: all that make sense for the data."""
    seeds: int = 3
    """Runs of every row, with the seeds 0, 1, …"""
    steps: int | None = None
    """Steps of Score-learning in every run; default: as many as the recipe has."""
    sequences: int | None = None
    """Test sequences to evaluate, spread evenly; default: all."""
    samples: int = 1
    """Network calls for each of them; where test data are few, more make the bound more precise."""
    workers: int | None = None
    """Runs side by side; default: as many as there are cores, or one on a GPU."""
    list: bool = False
    """Print the rows with their settings, and do nothing."""


def main(arguments: list[str]) -> int:
    """Compare."""
    shared, arguments = first_look(_parsed, arguments)
    flags, wanted = _parsed(shared, arguments)

    import torch  # slow to import, like the next

    from dmb.app import comparison

    changed = shared.differences(wanted)
    fixed = set(changed) - {"network.network", "network.placed"}  # rows by whole paths have networks of their own
    out = flags.out or Path("runs") / f"compare-{Path(wanted.data.source).stem}"
    plan = comparison.plan(
        wanted, out=out, command=_command(flags, wanted, out, as_flags(changed)), rows=flags.rows, seeds=flags.seeds,
        steps=flags.steps, sequences=flags.sequences, samples=flags.samples, fixed=fixed,
    )  # fmt: skip
    if flags.list:
        for row in plan.rows:
            changes = wanted.differences(row.apply(wanted, plan.data, plan.steps))
            print(f"{row.name}: {row.title}\n    {' '.join(as_flags(changes))}")
        return 0
    workers = flags.workers or (1 if torch.cuda.is_available() else comparison.cores())
    return comparison.compare(plan, workers=workers, console=notes)


def _command(flags: Compare, wanted: Recipe, out: Path, settings: list[str]) -> str:
    """The command that makes the table, for below it."""
    words = ["dmb", "compare", wanted.data.source, "--recipe", wanted.name, "--out", str(out)]
    words += ["--rows", *flags.rows] if flags.rows else []
    given = {"seeds": flags.seeds, "steps": flags.steps, "sequences": flags.sequences, "samples": flags.samples}
    return shlex.join(words + as_flags({name: value for name, value in given.items() if value is not None}) + settings)


def _parsed(default: Recipe, arguments: list[str]) -> tuple[Compare, Recipe]:
    return with_settings(Compare, default, arguments, prog="dmb compare", description=DESCRIPTION)

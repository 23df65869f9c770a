"""`dmb train`."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.settings import first_look, with_settings
from dmb.app.recipes import Recipe, as_flags
from dmb.app.runs import Run
from dmb.app.session import session
from dmb.training.engine import Accelerator, Precision, Strategy

DESCRIPTION = """\
Train a model of discrete data, by Algorithm 1 of the paper.

The type of the data decides the recipe, that is, the default settings. Every setting is a flag. Examples:
`dmb train novel.txt`; `dmb train survey.csv --minutes 5`; `dmb train tokens.npy --width 128 --cycles 4`;
`dmb train proteins.fasta`; `dmb train photos/`; `dmb train digits --head score`;
`dmb train digits --help` for the defaults for digits.

Ctrl-C stops training at any time; `dmb resume RUN` continues it.
"""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where to compute."""

    accelerator: Accelerator = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    devices: int = 1
    """Number of processes per machine."""
    nodes: int = 1
    """Number of machines, under torchrun or SLURM."""
    strategy: Strategy = "auto"
    """ddp copies the network to every process, fsdp splits it among them; auto is ddp for more than one process."""
    precision: Precision = "32-true"
    """Precision of the network; the loss is never computed below float32."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """What to train, and where to write it."""

    path: Annotated[Positional[str | None], arg(metavar="DATA", help_behavior_hint="")] = None
    """A file (text, .csv, .parquet, .fasta, .smi, .jsonl, .npy, .npz), a folder of images or codes,
    or built-in data: digits, pydocs, text8, cifar10, markov."""
    recipe: Annotated[str | None, arg(metavar="RECIPE", help_behavior_hint="")] = None
    """The settings to start from; default: those that suit the data. Give a name (digits, text, table, array,
    sequences, records, images, codes, text8, text8_paper, codes_paper), a run folder, or FILE.py:FUNCTION."""
    out: Annotated[Path | None, arg(metavar="RUN", aliases=["-o"], help_behavior_hint="")] = None
    """The run folder; default: runs/<data>-<time>."""
    resume: bool = False
    """Continue the run in --out, if it exists, with its settings; for jobs that a scheduler restarts."""
    show: bool = False
    """Print every setting as a flag, then exit."""
    devices: Devices = field(default_factory=Devices)


def main(arguments: list[str]) -> int:
    """Train."""
    chosen, arguments = first_look(_parsed, arguments)
    flags, wanted = _parsed(chosen, arguments)
    if flags.resume and flags.out is None:
        raise ValueError("--resume needs --out: give the folder of the run to continue")
    going_on = flags.out is not None and flags.resume and (flags.out / "run.json").exists()
    own = flags.recipe if flags.recipe is not None and ".py:" in flags.recipe else None
    if flags.out is not None and going_on:
        there, source = Run.open(flags.out, own).recipe, wanted.data.source
        if flags.path is not None and source != there.data.source:
            raise ValueError(f"{flags.out} is a run on {there.data.source}, not on {source}: choose another --out")
        _, wanted = _parsed(there, arguments)
    if flags.show:
        print("\n".join(shown(wanted)))
        return 0
    path = flags.out or new_folder(wanted)
    return session(wanted, path, resume=going_on, console=notes, own=own, **vars(flags.devices))


def shown(wanted: Recipe) -> list[str]:
    """Every setting as a flag, one per line."""
    settings = wanted.settings()
    del settings["data.source"]
    return [" ".join(as_flags({name: value})) for name, value in settings.items()]


def new_folder(wanted: Recipe) -> Path:
    """The default run folder."""
    return Path("runs") / f"{Path(wanted.data.source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _parsed(default: Recipe, arguments: list[str]) -> tuple[Train, Recipe]:
    return with_settings(Train, default, arguments, prog="dmb train", description=DESCRIPTION)

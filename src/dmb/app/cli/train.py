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

What the data are decides the recipe, the settings to start from; every setting is a flag. Examples:
`dmb train novel.txt`; `dmb train survey.csv --minutes 5`; `dmb train tokens.npy --width 128 --cycles 4`;
`dmb train photos/`; `dmb train digits --head score`; `dmb train digits --help` for the settings of digits.

Stop it with Ctrl-C at any moment; `dmb resume RUN` continues where it was.
"""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where to compute."""

    accelerator: Accelerator = "auto"
    """cpu or cuda; auto takes a GPU if there is one."""
    devices: int = 1
    """Processes on each machine."""
    nodes: int = 1
    """Machines, under torchrun or SLURM."""
    strategy: Strategy = "auto"
    """ddp copies the network to every process, fsdp shares it out among them."""
    precision: Precision = "32-true"
    """What the network computes in; the loss never below float32."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """What to train, and where to put it."""

    path: Annotated[Positional[str | None], arg(metavar="DATA")] = None
    """A file (text, .csv, .parquet, .npy, .npz), a folder of images or of codes, or built-in data: digits, pydocs,
    text8, cifar10, markov."""
    recipe: str | None = None
    """The settings to start from: digits, text, table, array, sequences, images, codes, text8, text8_paper,
    codes_paper; those of a run folder; or FILE.py:FUNCTION. Default: as fits the data."""
    out: Annotated[Path | None, arg(metavar="RUN")] = None
    """The run folder; default: runs/<data>-<time>."""
    resume: bool = False
    """Continue the run in --out if it is there already, with its settings; for jobs that a scheduler starts again."""
    show: bool = False
    """Print every setting as a flag, and do nothing."""
    devices: Devices = field(default_factory=Devices)


def main(arguments: list[str]) -> int:
    """Train."""
    chosen, arguments = first_look(_parsed, arguments)
    flags, wanted = _parsed(chosen, arguments)
    if flags.resume and flags.out is None:
        raise ValueError("--resume needs --out: which run is to be continued?")
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
    """Where to put a run, if the user does not say."""
    return Path("runs") / f"{Path(wanted.data.source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _parsed(default: Recipe, arguments: list[str]) -> tuple[Train, Recipe]:
    return with_settings(Train, default, arguments, prog="dmb train", description=DESCRIPTION)

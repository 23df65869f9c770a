"""`dmb train`."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb import training
from dmb.app.cli.parsing import OnDevice
from dmb.app.cli.settings import first_look, with_settings
from dmb.app.display import notes
from dmb.app.recipes import RECIPES, Recipe, as_flags
from dmb.data.kinds import NAMES
from dmb.training.settings import Precision, Strategy

PATH = (
    "A file (text, .csv, .parquet, .fasta, .smi, .jsonl, .npy, .npz), a folder of images or codes, or built-in data: "
    f"{', '.join(NAMES)}."
)
RECIPE = (
    "The settings to start from; default: those that suit the data. Give a name "
    f"({', '.join(RECIPES)}), a run folder, or FILE.py:FUNCTION."
)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where to compute.

    Args:
        devices: Number of processes per machine.
        nodes: Number of machines, under torchrun or SLURM.
        strategy: ddp copies the network to every process, fsdp splits it among them; auto is ddp for more than one
            process.
        precision: Precision of the network; the loss is never computed below float32.
    """

    accelerator: OnDevice = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"
    precision: Precision = "32-true"

    def launch(self) -> "training.Engine":
        """The engine on these devices."""
        return training.engine(**vars(self))


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model of discrete data, by Algorithm 1 of the paper.

    The type of the data decides the recipe, that is, the default settings. Every setting is a flag. Examples:
    `dmb train novel.txt`; `dmb train survey.csv --minutes 5`; `dmb train tokens.npy --width 128 --cycles 4`;
    `dmb train proteins.fasta`; `dmb train photos/`; `dmb train digits --head score`;
    `dmb train digits --help` for the defaults for digits.

    Ctrl-C stops training at any time; `dmb resume RUN` continues it.

    Args:
        out: The run folder; default: runs/<data>-<time>.
        resume: Continue the run in --out, if it exists, with its settings; for jobs that a scheduler restarts.
        show: Print every setting as a flag, then exit.
    """

    path: Annotated[Positional[str | None], arg(metavar="DATA", help=PATH, help_behavior_hint="")] = None
    recipe: Annotated[str | None, arg(metavar="RECIPE", help=RECIPE, help_behavior_hint="")] = None
    out: Annotated[Path | None, arg(metavar="RUN", aliases=["-o"], help_behavior_hint="")] = None
    resume: bool = False
    show: bool = False
    devices: Devices = field(default_factory=Devices)


def main(arguments: list[str]) -> int:
    """Train."""
    chosen, arguments = first_look(Train, arguments)
    flags, wanted = with_settings(Train, chosen, arguments)
    if flags.resume and flags.out is None:
        raise ValueError("--resume needs --out: give the folder of the run to continue")
    from dmb.app.runs import Run  # with torch, for which --help does not wait
    from dmb.app.session import session

    going_on = flags.out is not None and flags.resume and (flags.out / "run.json").exists()
    own = flags.recipe if flags.recipe is not None and ".py:" in flags.recipe else None
    if flags.out is not None and going_on:
        source, chosen = wanted.data.source, Run.open(flags.out, own).recipe
        if flags.path is not None and source != chosen.data.source:
            raise ValueError(f"{flags.out} is a run on {chosen.data.source}, not on {source}: choose another --out")
        _, wanted = with_settings(Train, chosen, arguments)
    base = chosen.adapted_to(wanted)
    if base != chosen:
        _, wanted = with_settings(Train, base, arguments)
    base.check_changes(wanted)
    if flags.show:
        print("\n".join(shown(wanted)))
        return 0
    path = flags.out or new_folder(wanted)
    return session(wanted, path, resume=going_on, console=notes, own=own, launch=flags.devices.launch)


def shown(wanted: Recipe) -> list[str]:
    """Every setting as a flag, one per line."""
    settings = wanted.settings()
    del settings["data.source"]
    return [" ".join(as_flags({name: value})) for name, value in settings.items()]


def new_folder(wanted: Recipe) -> Path:
    """The default run folder."""
    return Path("runs") / f"{Path(wanted.data.source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"

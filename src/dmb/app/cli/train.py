"""`dmb train`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app import recipes
from dmb.app.cli.console import notes
from dmb.app.cli.recipe import changed, new_folder
from dmb.app.runs import Run
from dmb.app.session import session
from dmb.training.engine import Accelerator, Precision, Strategy


def train(
    recipe: Annotated[Positional[str], arg(metavar="RECIPE")],
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    out: Annotated[Path | None, arg(metavar="RUN")] = None,
    resume: bool = False,
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = (),
    show: bool = False,
    accelerator: Accelerator = "auto",
    devices: int = 1,
    nodes: int = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
) -> int:
    """Train a bridge by Algorithm 1 on built-in data or on your own.

    Recipes: digits, pydocs, text8, text8_paper; table for a CSV or Parquet file; pixels for images; cifar10
    or cifar10_paper for the codes that `dmb tokenize` makes of images.

    Examples: `dmb train digits`; `dmb train pydocs --data novel.txt`; `dmb train table --data survey.csv`;
    `dmb train text8 --set minutes=15 head=score`;
    `torchrun --nproc-per-node 8 -m dmb train text8_paper --devices 8`.

    Stop it with Ctrl-C at any moment; the same command with --out RUN --resume goes on where it was.

    Args:
        recipe: the settings to start from.
        data: train on this instead: digits, cifar10, pydocs, text8, markov; a file of text, .npy, .npz, .csv or
            .parquet; a folder of images; or the codes of images that tokenize made.
        out: the run folder; default: runs/<recipe>-<time>.
        resume: go on with the run in --out from its newest checkpoint, with its settings; start it if there is none.
        set: change settings, for example cycles=2 learning_rate=3e-4 order=descending; see --show.
        show: print every setting with its value, and do nothing.
        accelerator: cpu or cuda; auto takes a GPU if there is one.
        devices: processes on each machine.
        nodes: machines, under torchrun or SLURM.
        strategy: ddp copies the network to every process, fsdp shares it out among them.
        precision: what the network computes in; the loss never below float32.
    """
    chosen = recipes.recipe(recipe)
    if resume and out is None:
        raise ValueError("--resume needs --out: which run is to go on?")
    going_on = resume and out is not None and (out / "run.json").exists()
    if going_on and out is not None:
        chosen = Run.open(out).recipe
        if chosen.name != recipe:
            raise ValueError(f"{out} is a run of the recipe {chosen.name}, not of {recipe}")
    chosen = changed(chosen, data, set)
    if show:
        for name, value in recipes.settings_of(chosen).items():
            print(f"{name}={str(value).lower() if value is None or isinstance(value, bool) else value}")
        return 0
    if chosen.data.source == recipes.VQ_RUN:  # if it were there, it would have its full path
        raise ValueError(
            f"{recipe} learns the codes of a VQ-VAE, and there is none in {recipes.VQ_RUN}: "
            f"make it with dmb tokenize cifar10 --out {recipes.VQ_RUN}, or say where it is with --data FOLDER"
        )
    return session(
        chosen, out or new_folder(chosen), resume=going_on, console=notes,
        accelerator=accelerator, devices=devices, nodes=nodes, strategy=strategy, precision=precision,
    )  # fmt: skip

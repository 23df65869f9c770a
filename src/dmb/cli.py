"""The command line. Every command explains itself with `--help`."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
import tyro
from rich.console import Console
from tyro.conf import Positional, arg

from dmb import data, recipes
from dmb.data import BUILT_IN
from dmb.display import counting
from dmb.evaluation import (
    CodecQuality,
    ImageQuality,
    Likelihood,
    RealImages,
    Reconstruction,
    codec_quality,
    draw,
    image_quality,
    likelihood,
    reconstruction,
)
from dmb.files import to_json
from dmb.recipes import AnyRecipe, Recipe, VQRecipe
from dmb.reports import write_report
from dmb.runs import Run
from dmb.session import session
from dmb.training.engine import Accelerator, Precision, Strategy, device
from dmb.version import __version__

R = TypeVar("R", bound=AnyRecipe)

notes = Console(stderr=True)  # everything but results, so that results can be piped


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    arguments = _sets_joined(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments == ["--version"]:
        print(f"dmb {__version__}")
        return
    commands = (quickstart, prepare, train, evaluate, sample, report, compare)
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            {command.__name__: command for command in commands},
            prog="dmb",
            description="Generative modelling of discrete data with a learned forward process.",
            args=arguments,
        )
    except (ValueError, OSError) as error:
        _fail(error, 2)
    except FloatingPointError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    else:
        sys.exit(code)


def quickstart(out: Path | None = None, seed: int = 0) -> int:
    """Train, evaluate, sample and report on built-in data: scikit-learn's digits, about two minutes on two cores.

    Args:
        out: the run folder to make; runs/digits-<time> unless given.
        seed: of everything random.
    """
    recipe = recipes.override(recipes.digits(), [f"seed={seed}"])
    path = out or _new_folder(recipe)
    code = session(recipe, path, resume=False, console=notes)
    if code:
        return code
    evaluate(path)
    sample(path, n=2)
    return report(path)


def prepare(
    dataset: Annotated[Positional[Literal["text8", "cifar10"]], arg(metavar="{text8,cifar10}")],
    source: Annotated[Path | None, arg(name="from", metavar="PATH")] = None,
) -> int:
    """Download a data set (or take it from your own copy), check its digest, and keep it under $DMB_DATA.

    Args:
        dataset: text8, the first 100,000,000 characters of a cleaned Wikipedia; or cifar10, 60,000 small photographs.
        source: if you have it already: text8.zip or text8; cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or a folder
            with x_train.npy, y_train.npy, x_test.npy and y_test.npy.
    """
    prepared = {"text8": data.prepare_text8, "cifar10": data.prepare_cifar10}[dataset]
    with counting(notes, f"preparing {dataset}") as progress:
        path = prepared(source, progress=progress)
    print(path)
    return 0


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
    """Train a bridge by Algorithm 1, or a VQ-VAE, on built-in data or on your own.

    Recipes: digits, pydocs, text8, text8_paper; table for a CSV or Parquet file; vqvae for images, and cifar10 or
    cifar10_paper for a bridge over its codes.

    Examples: `dmb train digits`; `dmb train pydocs --data novel.txt`; `dmb train table --data survey.csv`;
    `dmb train text8 --set minutes=15 head=score`; `dmb train vqvae --out runs/vqvae`, then `dmb train cifar10`;
    `torchrun --nproc-per-node 8 -m dmb train text8_paper --devices 8`.

    Stop it with Ctrl-C at any moment; the same command with --out RUN --resume goes on where it was.

    Args:
        recipe: the settings to start from.
        data: train on this instead: digits, cifar10, pydocs, text8, markov; a file of text, .npy, .npz, .csv or
            .parquet; a folder of images; or the run folder of a VQ-VAE, for the codes of its images.
        out: the run folder; runs/<recipe>-<time> unless given.
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
    chosen = _changed(chosen, data, set)
    if show:
        for name, value in recipes.settings_of(chosen).items():
            print(f"{name}={str(value).lower() if value is None or isinstance(value, bool) else value}")
        return 0
    if chosen.data.source == recipes.VQ_RUN:  # if it were there, it would have its full path
        raise ValueError(
            f"{recipe} learns the codes of a VQ-VAE, and there is none in {recipes.VQ_RUN}: "
            f"train it with dmb train vqvae --out {recipes.VQ_RUN}, or say where it is with --data RUN"
        )
    return session(
        chosen, out or _new_folder(chosen), resume=going_on, console=notes,
        accelerator=accelerator, devices=devices, nodes=nodes, strategy=strategy, precision=precision,
    )  # fmt: skip


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    metrics: tuple[Literal["bound", "fid", "is"], ...] = ("bound",),
    split: Literal["train", "validation", "test"] = "test",
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    images: int | None = None,
    weights: Annotated[Path | None, arg(metavar="FILE")] = None,
    steps: int | None = None,
    sampler: Literal["ancestral", "first_hitting", "tweedie", "euler"] | None = None,
    guidance: float | None = None,
    seed: int = 0,
    accelerator: Accelerator = "auto",
    json_: Annotated[bool, arg(name="json")] = False,
) -> int:
    """Bound the bits a token that a run's model needs for data it has not seen; compare its images with real ones.

    Examples: `dmb evaluate RUN`; `dmb evaluate RUN --metrics bound fid --steps 128`.

    Of a VQ-VAE: how well images come back from its codes, in place of the bound, and with fid, the floor that it sets
    for bridges over its codes.

    Args:
        run: the run folder.
        metrics: bound, with its standard error; for images, fid, and is: the Inception Score, which comes with fid.
        split: which part of the data.
        data: bound that split of another file, read with the run's own alphabet.
        sequences: bound (or bring back) so many, spread evenly, instead of all.
        samples: network calls a sequence.
        batch_size: sequences a network call.
        images: to sample for fid, and to compare with; 10000 unless given.
        weights: of the network that fid needs, if they are not in the data folder.
        steps: for fid, network calls a sample; 64 unless given.
        sampler: for fid, as in sample.
        guidance: for fid, how strongly to follow classes, which are as frequent as in training; 1 unless given.
        seed: of times, noise and samples.
        accelerator: cpu or cuda; auto takes a GPU if there is one.
        json_: print JSON.
    """
    if not metrics:
        raise ValueError("--metrics must name bound, fid or is, got none")
    with_images = not {"fid", "is"}.isdisjoint(metrics)
    asked = {"images": images, "weights": weights, "steps": steps, "sampler": sampler, "guidance": guidance}
    for name, value in asked.items():
        if value is not None and not with_images:
            raise ValueError(f"--{name} is read for --metrics fid only, got {value}")
    if data is not None and with_images:
        raise ValueError(f"--data is read for --metrics bound only, got {data}")
    folder, where = Run.open(run), device(accelerator)
    count = 10_000 if images is None else images
    results: Iterator[Likelihood | Reconstruction | CodecQuality]
    if isinstance(folder.recipe, VQRecipe):
        for name, given in {"data": data, "steps": steps, "sampler": sampler, "guidance": guidance}.items():
            if given is not None:
                raise ValueError(f"--{name} is read for a bridge only, and {run} is a VQ-VAE; got {given}")
        if "is" in metrics:
            raise ValueError(f"the Inception Score is one of samples, and {run} is a VQ-VAE: it has none")
        results = _of_vqvae(folder, where, metrics, split, sequences, count, weights)
    else:
        drawing = {"steps": 64 if steps is None else steps, "guidance": 1.0 if guidance is None else guidance}
        results = _of_bridge(
            folder, where, metrics, split, {"sequences": sequences, "samples": samples, "batch_size": batch_size},
            count, weights, {**drawing, "sampler": sampler}, data, seed,
        )  # fmt: skip
    step, found = folder.best().get("step"), dict[str, Any]()
    for result in results:
        if data is None:
            folder.add_evaluation(result, step)
        if not json_:
            print(result)
        found.update(vars(result))
    if json_:
        print(to_json(found))
    return 0


def _of_bridge(
    folder: Run,
    where: str,
    metrics: tuple[str, ...],
    split: str,
    bounding: dict[str, Any],
    images: int,
    weights: Path | None,
    drawing: dict[str, Any],
    source: str | None,
    seed: int,
) -> Iterator[Likelihood | ImageQuality]:
    bridge = folder.bridge(where)
    with counting(notes, "reading the data") as progress:
        read = folder.data(source, progress=progress)
    real = None
    if not {"fid", "is"}.isdisjoint(metrics):  # now, so that what is wrong is found before the bound takes its time
        real = RealImages(read, split, images=images, weights=weights, score="is" in metrics)
        real.rehearse(bridge, **drawing)
    if "bound" in metrics:
        marginals = folder.summary()["marginals"]
        with counting(notes, f"evaluating on {split}") as progress:
            result = likelihood(bridge, read, split, marginals=marginals, seed=seed, progress=progress, **bounding)
        yield result
    if real is not None:
        yield image_quality(bridge, real, seed=seed, progress=partial(counting, notes), **drawing)


def _of_vqvae(
    folder: Run,
    where: str,
    metrics: tuple[str, ...],
    split: str,
    sequences: int | None,
    images: int,
    weights: Path | None,
) -> Iterator[Reconstruction | CodecQuality]:
    vqvae, real = folder.vqvae(where), None
    if "fid" in metrics:
        with counting(notes, "encoding the images") as progress:
            real = RealImages(data.load(folder.path, progress=progress), split, images=images, weights=weights)
    if "bound" in metrics:
        with counting(notes, f"evaluating on {split}") as progress:
            result = reconstruction(vqvae, folder.data(), split, images=sequences, progress=progress)
        yield result
    if real is not None:
        yield codec_quality(real, device=vqvae.device, progress=partial(counting, notes))


def sample(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    n: Annotated[int, arg(aliases=["-n"])] = 8,
    steps: int | None = None,
    sampler: Literal["ancestral", "first_hitting", "tweedie", "euler"] | None = None,
    template: str | None = None,
    blank: str = "_",
    label: int | None = None,
    guidance: float = 1.0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
    accelerator: Accelerator = "auto",
    json_: Annotated[bool, arg(name="json")] = False,
) -> int:
    """Draw samples from a run's model, or fill in the blanks of a template.

    Examples: `dmb sample RUN --template "the ____ of"`; `dmb sample RUN -n 1000 --out more.csv`;
    `dmb sample RUN --template "colour=red"` for a table.

    Args:
        run: the run folder.
        n: how many.
        steps: network calls a sample; 64 unless given.
        sampler: ancestral (exact at any step size) unless given; tweedie for a score head.
        template: what is known; blanks and whatever is missing at the end are filled in.
        blank: the symbol that stands for a blank.
        label: class, for a model that knows classes.
        guidance: how strongly to follow the class; 1 is the model's own.
        temperature: below 1, likelier samples than the model's own.
        top_p: draw from the nucleus of this mass only.
        seed: of everything random.
        out: write to a file in the data's own format (.txt, .csv, .parquet, .npy, .png) instead of printing.
        accelerator: cpu or cuda; auto takes a GPU if there is one.
        json_: print JSON: tokens, and text as read.
    """
    folder = Run.open(run)
    bridge = folder.bridge(device(accelerator))
    if n < 1:
        raise ValueError(f"-n must be at least 1, got {n}")
    if out is not None:
        folder.codec.check_path(out)
        if json_:
            raise ValueError("--json prints, --out writes: choose one")
    known = None if template is None else folder.codec.template(template, bridge.num_positions, blank)
    labels = None if label is None else torch.full((n,), label)
    with counting(notes, "sampling") as progress:
        parts = draw(
            bridge, n, labels=labels, seed=seed, advance=progress, steps=steps, sampler=sampler, guidance=guidance,
            temperature=temperature, top_p=top_p, template=known,
        )  # fmt: skip
        tokens = torch.cat(list(parts))
    if out is not None:
        folder.codec.write(out, tokens)
        print(out)
    elif json_:
        print(to_json({"tokens": tokens.tolist(), "text": folder.codec.decode(tokens)}))
    else:
        print("\n\n".join(folder.codec.decode(tokens)))
    return 0


def report(run: Annotated[Positional[Path], arg(metavar="RUN")], seed: int = 0) -> int:
    """Write RUN/report.html: one self-contained page with the bound over time, what was learned, and samples.

    Of a VQ-VAE, it shows the error over time, images beside what comes back of them, and the use of the codes.

    Args:
        run: the run folder.
        seed: of the samples on it.
    """
    with counting(notes, "drawing the report") as progress:
        path = write_report(Run.open(run), seed=seed, progress=progress)
    print(path)
    return 0


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
        out: the folder of the comparison; runs/compare-<recipe> unless given.
        rows: compare these; all that make sense for the data, unless given.
        seeds: runs of every row, with the seeds 0, 1, …
        steps: of Score-learning in every run; as many as the recipe has, unless given.
        sequences: test sequences to evaluate, spread evenly; all, unless given.
        samples: network calls for each of them; where test data are few, more make the bound surer.
        workers: runs side by side; as many as there are cores, unless given, or one on a GPU.
        set: change settings of all rows.
        list_: print the rows with their settings, and do nothing.
    """
    from dmb import comparison  # slow to import, and no other command needs it

    chosen = recipes.recipe(recipe)
    if not isinstance(chosen, Recipe):
        raise ValueError(f"forward processes are compared, which {recipe} has none of: choose the recipe of a bridge")
    plan = comparison.plan(
        _changed(chosen, data, set), out=out or Path("runs") / f"compare-{recipe}", source=data,
        shared=set, names=rows, seeds=seeds, steps=steps, sequences=sequences, samples=samples,
    )  # fmt: skip
    if list_:
        for row in plan.rows:
            print(f"{row.name}: {row.title}\n    {' '.join(row.settings)}")
        return 0
    if workers is None:
        workers = 1 if torch.cuda.is_available() else comparison.cores()
    return comparison.compare(plan, workers=workers, console=notes)


def _changed(recipe: R, source: str | None, assignments: tuple[str, ...]) -> R:
    """The recipe with other data and settings; a file by its full path, for the run is to find it from any folder."""
    if source is not None:
        recipe = replace(recipe, data=replace(recipe.data, source=source))
    recipe = recipes.override(recipe, assignments)
    source = recipe.data.source
    if source not in BUILT_IN and Path(source).exists():
        recipe = replace(recipe, data=replace(recipe.data, source=str(Path(source).resolve())))
    return recipe


def _sets_joined(arguments: list[str]) -> list[str]:
    """Several `--set` as one, which is all that the parser takes.

    >>> _sets_joined(["train", "digits", "--set", "a=1", "--show", "--set", "b=2", "c=3"])
    ['train', 'digits', '--show', '--set', 'a=1', 'b=2', 'c=3']
    """
    others: list[str] = []
    assignments: list[str] = []
    taking = False
    for argument in arguments:
        taking = argument == "--set" or (taking and not argument.startswith("--"))
        if argument != "--set":
            (assignments if taking else others).append(argument)
    return [*others, "--set", *assignments] if assignments or "--set" in arguments else others


def _new_folder(recipe: AnyRecipe) -> Path:
    return Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _fail(error: object, code: int) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes one is enough to say it
        print(f"dmb: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

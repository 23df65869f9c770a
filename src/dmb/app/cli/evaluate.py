"""`dmb evaluate`."""

from functools import partial
from itertools import product
from typing import Annotated, Any

from tyro.conf import arg

from dmb._core.files import to_json
from dmb.app.cli.parsing import AsJson, GridName, OnDevice, OwnRecipe, RunFolder, SamplerName, Split, command
from dmb.app.display import counting, notes, say
from dmb.app.evaluation import likelihood, order_used, record_quality, sampler_bound, table_quality
from dmb.app.runs import Run, of_step
from dmb.data import Columns, Records
from dmb.training.devices import device


def evaluate(
    run: RunFolder,
    split: Split = "test",
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    calls: Annotated[tuple[int, ...], arg(metavar="INT", help_behavior_hint="")] = (),
    sampler: Annotated[tuple[SamplerName, ...], arg(help_behavior_hint="")] = (),
    grid: tuple[GridName, ...] = ("canonical",),
    accelerator: OnDevice = "auto",
    quality: bool = False,
    recipe: OwnRecipe = None,
    json_: AsJson = False,
) -> int:
    """Compute an upper bound on the bits per token that a run's model needs for unseen data, with its standard error.

    Examples: `dmb evaluate RUN`; `dmb evaluate RUN --sequences 500 --samples 4`; `dmb evaluate RUN --data sequel.txt`;
    `dmb evaluate RUN --calls 1 4 16 64`. The result is stored in RUN/evaluation.json. For a table, `--quality` also
    compares samples with unseen rows; for the quality of images see `dmb fid`.

    Args:
        split: which part of the data to evaluate.
        data: evaluate this part of another file instead, read with the run's alphabet.
        sequences: number of sequences to evaluate, spread evenly over the split; default: all.
        samples: network calls per sequence; more calls reduce the error due to random times and noise.
        batch_size: sequences per network call.
        seed: seed of times and noise.
        calls: also compute the bound of what `dmb sample --calls` draws with each of these numbers of network calls,
            and the seconds that a sample takes.
        sampler: the sampling algorithms of --calls; default: ancestral, or tweedie for a score head.
        grid: how much each of --calls does: canonical, about the same; uniform in time; cosine, little at first; best,
            the group sizes that cost least on validation data (ARDM), for models that write in random order.
        quality: also compare samples of a table with rows of the split: shapes of columns, trends of pairs, how well a
            classifier tells them apart, what can be learned from them, and whether they are copies; beside independent
            columns and the training rows themselves. Of records: how many differ, are new, and are valid (SMILES, if
            RDKit is installed).
        json_: print the result as JSON.
    """
    folder = Run.open(run, recipe)
    if quality and not isinstance(folder.codec, Columns | Records):
        raise ValueError(
            f"--quality is for tables and records, and {run} is no model of them: leave it out, "
            "or use dmb fid for images"
        )
    if quality and data is not None:
        raise ValueError(f"--quality compares with the run's own training rows: leave out --data, got {data}")
    if calls and min(calls) < 1:
        raise ValueError(f"--calls must be at least 1, got {min(calls)}")
    for name, plain in (("--sampler", not sampler), ("--grid", grid == ("canonical",))):
        if not plain and not calls:
            raise ValueError(f"{name} is for bounds at numbers of network calls: give --calls, too")
    evaluated, bridge = folder.best(), folder.bridge(device(accelerator))
    # mistakes are found before hours of work
    samplers = [bridge.step_sampler(name) for name in sampler or (None,)]
    grids = {name: folder.grid(bridge, name) for name in grid}
    with counting(notes, "reading the data") as progress:
        read = folder.data(data, progress=progress)
    with counting(notes, f"evaluating on {split}") as progress:
        result = likelihood(
            bridge, read, split, marginals=folder.summary()["marginals"], sequences=sequences, samples=samples,
            batch_size=batch_size, seed=seed, progress=progress,
        )  # fmt: skip
    step, more = of_step(evaluated), dict[str, Any]()
    if not json_ or not (calls or quality):
        print(to_json(vars(result) | step) if json_ else result, flush=True)
    if data is None:
        folder.add_evaluation(result, evaluated)
    for chosen, name, number in dict.fromkeys(product(samplers, grid, calls)):
        for line in order_used(bridge, number):
            say(notes, line)
        with counting(notes, f"evaluating {number} calls") as progress:
            bound = sampler_bound(
                bridge, read, split, calls=number, sampler=chosen, grid=grids[name](number), sequences=sequences,
                samples=samples, batch_size=batch_size, seed=seed, progress=progress,
            )  # fmt: skip
        more.setdefault(bound.kind, []).append(vars(bound) | step)
        if not json_:
            print(bound, flush=True)
        if data is None:
            folder.add_evaluation(bound, evaluated)
    if quality:
        compare = table_quality if isinstance(read.codec, Columns) else record_quality
        compared = compare(bridge, read, split, count=sequences, seed=seed, progress=partial(counting, notes))
        more["quality"] = {each.what: vars(each) | step for each in compared}
        if not json_:
            print(*compared, sep="\n", flush=True)
        folder.add_evaluation(compared, evaluated)
    if json_ and more:
        print(to_json(vars(result) | step | more), flush=True)
    return 0


main = command(evaluate)

"""`dmb evaluate`."""

from functools import partial
from typing import Annotated

from tyro.conf import arg

from dmb._core.files import to_json
from dmb.app.cli.parsing import AsJson, OnDevice, OwnRecipe, RunFolder, Split, command
from dmb.app.display import counting, notes
from dmb.app.evaluation import likelihood, record_quality, table_quality
from dmb.app.runs import Run, of_step
from dmb.data import Columns, Records
from dmb.training.engine import device


def evaluate(
    run: RunFolder,
    split: Split = "test",
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    accelerator: OnDevice = "auto",
    quality: bool = False,
    recipe: OwnRecipe = None,
    json_: AsJson = False,
) -> int:
    """Compute an upper bound on the bits per token that a run's model needs for unseen data, with its standard error.

    Examples: `dmb evaluate RUN`; `dmb evaluate RUN --sequences 500 --samples 4`; `dmb evaluate RUN --data sequel.txt`.
    The result is stored in RUN/evaluation.json. For a table, `--quality` also compares samples with unseen rows; for
    the quality of images see `dmb fid`.

    Args:
        split: which part of the data to evaluate.
        data: evaluate this part of another file instead, read with the run's alphabet.
        sequences: number of sequences to evaluate, spread evenly over the split; default: all.
        samples: network calls per sequence; more calls reduce the error due to random times and noise.
        batch_size: sequences per network call.
        seed: seed of times and noise.
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
    evaluated, bridge = folder.best(), folder.bridge(device(accelerator))
    with counting(notes, "reading the data") as progress:
        read = folder.data(data, progress=progress)
    with counting(notes, f"evaluating on {split}") as progress:
        result = likelihood(
            bridge, read, split, marginals=folder.summary()["marginals"], sequences=sequences, samples=samples,
            batch_size=batch_size, seed=seed, progress=progress,
        )  # fmt: skip
    if not (quality and json_):
        print(to_json(vars(result) | of_step(evaluated)) if json_ else result, flush=True)
    if data is None:
        folder.add_evaluation(result, evaluated)
    if quality:
        compare = table_quality if isinstance(read.codec, Columns) else record_quality
        compared = compare(bridge, read, split, count=sequences, seed=seed, progress=partial(counting, notes))
        if json_:
            step = of_step(evaluated)
            parts = {each.what: vars(each) | step for each in compared}
            print(to_json(vars(result) | step | {"quality": parts}), flush=True)
        else:
            print(*compared, sep="\n", flush=True)
        folder.add_evaluation(compared, evaluated)
    return 0


main = command(evaluate)

"""`dmb evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.parsing import command
from dmb.app.display import counting
from dmb.app.evaluation import likelihood
from dmb.app.runs import Run
from dmb.files import to_json
from dmb.training.engine import Accelerator, device


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    split: Literal["train", "validation", "test"] = "test",
    data: Annotated[str | None, arg(metavar="PATH")] = None,
    sequences: int | None = None,
    samples: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    accelerator: Accelerator = "auto",
    recipe: str | None = None,
    json_: Annotated[bool, arg(name="json")] = False,
) -> int:
    """Bound the bits per token that a run's model needs for data it has not seen, with the standard error.

    Examples: `dmb evaluate RUN`; `dmb evaluate RUN --sequences 500 --samples 4`; `dmb evaluate RUN --data sequel.txt`.
    The result is kept in RUN/evaluation.json. For the quality of images see `dmb fid`.

    Args:
        run: the run folder.
        split: which part of the data.
        data: bound that split of another file, read with the run's own alphabet.
        sequences: how many to evaluate, spread evenly over the split; default: all.
        samples: network calls per sequence; more of them reduce the error that stems from times and noise.
        batch_size: sequences per network call.
        seed: of times and noise.
        accelerator: cpu or cuda; auto takes a GPU if there is one.
        recipe: for a run of a recipe of your own: FILE.py:FUNCTION.
        json_: print JSON.
    """
    folder = Run.open(run, recipe)
    evaluated, bridge = folder.best(), folder.bridge(device(accelerator))
    with counting(notes, "reading the data") as progress:
        read = folder.data(data, progress=progress)
    with counting(notes, f"evaluating on {split}") as progress:
        result = likelihood(
            bridge, read, split, marginals=folder.summary()["marginals"], sequences=sequences, samples=samples,
            batch_size=batch_size, seed=seed, progress=progress,
        )  # fmt: skip
    print(to_json(vars(result)) if json_ else result)
    if data is None:
        folder.add_evaluation(result, evaluated)
    return 0


main = command(evaluate)

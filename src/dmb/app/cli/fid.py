"""`dmb fid`."""

from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from dmb._core.files import to_json
from dmb.app.cli.parsing import AsJson, OnDevice, OwnRecipe, RunFolder, SamplerName, Split, command
from dmb.app.display import counting, notes
from dmb.app.evaluation import ImageQuality, RealImages, image_qualities
from dmb.app.runs import Run, of_step
from dmb.training.devices import device


def fid(
    run: RunFolder,
    split: Split = "test",
    images: int | None = None,
    calls: Annotated[tuple[int, ...], arg(metavar="INT", help_behavior_hint="")] = (),
    sampler: SamplerName | None = None,
    guidance: float = 1.0,
    score: bool = False,
    weights: Annotated[Path | None, arg(metavar="FILE")] = None,
    seed: int = 0,
    nearest: Annotated[Path | None, arg(metavar="FILE")] = None,
    accelerator: OnDevice = "auto",
    recipe: OwnRecipe = None,
    json_: AsJson = False,
) -> int:
    """Compare a model's images with real ones: the Fréchet Inception Distance, beside that of a perfect model.

    Also precision and recall: the shares of samples that lie among real images, and of real images among samples.
    Examples: `dmb fid RUN`; `dmb fid RUN --images 2500 --calls 16 64`. The result is stored in RUN/evaluation.json.

    Args:
        split: the part of the data to compare with.
        images: number of samples, and of real images; default: 10,000, or as many as there are if they are fewer. FIDs
            for different numbers cannot be compared.
        calls: network calls per sample; default: 64. Several numbers are evaluated one after the other.
        sampler: as in dmb sample; default: ancestral, or tweedie for a score head. first_hitting has no
            number of calls.
        guidance: how strongly to follow classes, which are as frequent as in training; 1: as trained.
        score: also compute the Inception Score, which needs weights with a classifier.
        weights: weights of the Inception network, if they are not in the data folder. A TorchScript file can run code
            of its own when it is opened: give one only if you trust it. A .pth file cannot.
        seed: seed of the samples.
        nearest: also write this picture: the first 100 samples (of the last number of calls), each beside the training
            image whose features are nearest to its own, of as many as there are samples.
        json_: print the result as JSON; a list of results for several numbers of calls.
    """
    folder = Run.open(run, recipe)
    evaluated, bridge = folder.best(), folder.bridge(device(accelerator))
    with counting(notes, "reading the data") as progress:
        data = folder.data(progress=progress)
    real = RealImages(data, split, images=images, weights=weights, score=score)
    if nearest is not None:
        real.codec.check_path(nearest, "--nearest")
    numbers, results = [*dict.fromkeys(calls or (None,))], list[ImageQuality]()
    for result in image_qualities(
        bridge, real, numbers, sampler=sampler, guidance=guidance, seed=seed, nearest=nearest,
        progress=partial(counting, notes),
    ):  # fmt: skip
        results.append(result)
        if not json_:
            print(result, flush=True)
        folder.add_evaluation(results if len(numbers) > 1 else result, evaluated)
    if json_:
        every = [vars(result) | of_step(evaluated) for result in results]
        print(to_json(every if len(numbers) > 1 else every[0]), flush=True)
    return 0


main = command(fid)

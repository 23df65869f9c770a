"""Everything the report of a VQ-VAE is made of: what the run folder holds, and what the model makes of images."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb.app.recipes import VQRecipe
from dmb.app.runs import Run
from dmb.app.tokenizer import VQVAE, psnr
from dmb.data import DataSet, ImageCodec, Split

MOST_IMAGES = 1000
"""Test images that a report looks at."""

_CHUNKS = 10  # that images are looked at in
STEPS = 2 * _CHUNKS
"""Of the work that `gather` tells of."""


class Encoded(NamedTuple):
    """What images become."""

    tokens: Int[Tensor, "k d"]
    of_images: int | None
    """How many there are to choose from, if that is known."""
    psnr: float | None = None
    """Of what comes back of them, in decibels, if that was looked at."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the parts of a report draw from."""

    run: Run
    vqvae: VQVAE
    metrics: list[dict[str, Any]]
    examples: UInt8[Tensor, "e h w c"]
    """A few validation images."""
    validation: Encoded
    """Those that training looked at; the examples, if the data cannot be read."""
    test: Encoded | None
    """None if the data cannot be read."""
    problem: str
    """Why they cannot."""


def gather(run: Run, advance: Callable[[int], None]) -> Contents:
    """Read the folder, and encode images of the data if they are still there; `advance` is told the steps done."""
    assert isinstance(run.recipe, VQRecipe)
    vqvae, examples = run.vqvae(), _images(run.codec, run.summary()["examples"])
    validation, test, problem = Encoded(vqvae.encode(examples), None), None, ""
    try:
        data = run.data()
    except (ValueError, OSError) as error:
        problem = str(error)
    else:
        steps = count(1)

        def seen(split: Split, most: int) -> Iterator[UInt8[Tensor, "b h w c"]]:
            for images in _chunks(data, split, most):
                yield images
                advance(next(steps))

        most = run.recipe.training.evaluate_images
        tokens = torch.cat([vqvae.encode(images) for images in seen(data.validation, most)])
        validation = Encoded(tokens, len(data.validation))
        parts = [(images, vqvae.encode(images)) for images in seen(data.test, MOST_IMAGES)]
        images, tokens = map(torch.cat, zip(*parts, strict=True))
        test = Encoded(tokens, len(data.test), psnr(images, vqvae.decode(tokens)))
    return Contents(
        run=run,
        vqvae=vqvae,
        metrics=run.metrics(),
        examples=examples,
        validation=validation,
        test=test,
        problem=problem,
    )


def _chunks(data: DataSet, split: Split, most: int) -> Iterator[UInt8[Tensor, "b h w c"]]:
    """So many images, spread evenly over a split, in `_CHUNKS` parts at most."""
    rows = split.spread(most)
    for part in rows.split(math.ceil(len(rows) / _CHUNKS)):
        yield _images(data.codec, split[part])


def _images(codec: Any, tokens: Int[Tensor, "b d"]) -> UInt8[Tensor, "b h w c"]:
    assert isinstance(codec, ImageCodec)
    return torch.from_numpy(codec.images(tokens))

"""The parts of a report on a VQ-VAE."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dmb.app.reports import markup, pictures
from dmb.app.reports.autoencoder import figures
from dmb.app.reports.autoencoder.contents import Contents, Encoded
from dmb.app.reports.contents import finite
from dmb.app.reports.markup import number, text
from dmb.app.reports.numbers import SPLITS, curve, settings_table, sized, with_step
from dmb.app.tokenizer import perplexity

MOST_TILES = 256
"""Codes that are shown as pictures."""


def headline(contents: Contents) -> str:
    """How near images come back, and how many codes it takes."""
    best = contents.run.best()
    ratio, used = finite(best.get("psnr")), finite(best.get("perplexity"))
    if ratio is None or used is None:
        return markup.paragraph("No validation images have been looked at yet.", "headline")
    codes = f"{used:,.0f} codes in use of {contents.vqvae.codes:,}"
    return markup.paragraph(f"<b>{ratio:.2f} dB</b> PSNR on validation data; {codes}", "headline")


def results(contents: Contents) -> str:
    """PSNR and perplexity, of validation and of test images; and the FID that is the floor, if it was looked at."""
    best, codes, rows = contents.run.best(), contents.vqvae.codes, []
    if best:
        name = f"validation, best in training (step {best.get('step', 0):,})"
        images = "–" if contents.problem else _looked_at(contents.validation)
        rows.append([name, number(finite(best.get("psnr")), 2), number(finite(best.get("perplexity")), 1), images])
    if contents.test is not None:
        used = perplexity(contents.test.tokens, codes)
        rows.append(["test", number(contents.test.psnr, 2), number(used, 1), _looked_at(contents.test)])
    table = markup.table(["data", "PSNR, dB", f"codes in use, of {codes:,}", "images"], rows, "figures")
    note = (
        "PSNR is 10 log₁₀(255² / mean squared error), the mean being over all values of all images. “Codes in use” is "
        "the perplexity of the codes: so many codes that are all equally frequent would be as hard to predict. Images "
        "are spread evenly over the data."
    )
    parts = [table if rows else markup.paragraph("There are none yet."), markup.paragraph(note, "note")]
    parts.append(_floor(contents))
    if contents.problem:
        parts.append(markup.paragraph(f"There are no figures of test images: {text(contents.problem)}.", "note"))
    return "".join(parts)


def _floor(contents: Contents) -> str:
    """The distances of training images to others, before and after the codes; nothing if they were not asked for."""
    found = contents.run.evaluations().get("images", {})
    rows = [
        [with_step(split, found[split], contents.run), number(finite(found[split].get("floor")), 2),
         number(finite(found[split].get("real")), 2), f"{found[split].get('images', 0):,}"]
        for split in SPLITS if split in found
    ]  # fmt: skip
    if not rows:
        return ""
    note = (
        "Fréchet Inception Distance to images of the data, of training images after they were codes and as they are. "
        "The first is the floor: what a perfect model of the codes would reach. Both depend on how many images there "
        "are, and say little if there are no more than the network has features, 2,048."
    )
    return markup.table(
        ["compared with", "floor", "real images", "images of each"], rows, "figures"
    ) + markup.paragraph(note, "note")


def over_time(contents: Contents) -> str:
    """The reconstruction loss, PSNR and perplexity, over steps."""
    training, validation = (
        [record for record in contents.metrics if record.get("phase") == phase and "step" in record]
        for phase in ("train", "validation")
    )
    if not training and not validation:
        return markup.paragraph("Nothing was logged.")
    drawn = figures.learning(
        training=curve(training, "reconstruction"),
        validation=curve(validation, "reconstruction"),
        psnr=curve(validation, "psnr"),
        perplexity=curve(validation, "perplexity"),
        codes=contents.vqvae.codes,
        best=finite(contents.run.best().get("step")),
    )
    return markup.figure(
        drawn, "learning",
        "Above: the reconstruction loss, 16 times the mean squared error of values in [0, 1], on training batches and "
        "on validation images. Below, of the same validation images: PSNR, and the perplexity of their "
        "codes. Dotted: the step that the model comes from.",
    )  # fmt: skip


def reconstructions(contents: Contents) -> str:
    """Validation examples, and what comes back of them."""
    back = contents.vqvae.reconstruct(contents.examples)
    drawn = pictures.sheet(_painted(contents.examples), _painted(back), ("validation data", "what comes back"))
    vqvae = contents.vqvae
    caption = f"{len(back)} validation images, and the same after they were {vqvae.grid} × {vqvae.grid} codes."
    return markup.figure(drawn, "sheet", caption)


def codebook(contents: Contents) -> str:
    """How often each code occurs in validation images, and what the most frequent look like."""
    vqvae, tokens = contents.vqvae, contents.validation.tokens
    counts = tokens.flatten().bincount(minlength=vqvae.codes)
    used, unused = perplexity(tokens, vqvae.codes), int((counts == 0).sum())
    few = ", the ones kept in the run folder" if contents.problem else ""
    caption = (
        f"How often each of the {vqvae.codes:,} codes occurs in {len(tokens):,} validation images{few}. "
        f"Codes never used: {unused:,}. Perplexity: {used:.1f}."
    )
    shown = counts.argsort(descending=True, stable=True)[: min(MOST_TILES, vqvae.codes - unused)]
    # what a code looks like depends on its neighbours, and at the edges on there being none
    alone, edge = vqvae.decode(shown[:, None].expand(-1, vqvae.num_positions)), vqvae.size // 4
    alone = alone[:, edge : vqvae.size - edge, edge : vqvae.size - edge]
    which = f"{len(shown):,} most frequent codes" if len(shown) == MOST_TILES else f"{len(shown):,} codes that occur"
    tiles = (
        f"The {which}, row by row, the most frequent first: the middle of the image that is decoded if the code is at "
        "every position."
    )
    return markup.figure(figures.usage((counts / counts.sum()).numpy()), "usage", caption) + markup.figure(
        pictures.tiles(_painted(alone)), "tiles", tiles
    )


def configuration(contents: Contents) -> str:
    """Every setting."""
    vqvae = contents.vqvae
    model = [
        ("model", sized(vqvae)),
        ("images", _times([vqvae.size, vqvae.size, vqvae.channels])),
        ("codes of an image", f"{_times([vqvae.grid, vqvae.grid])} out of {vqvae.codes:,}"),
    ]
    return settings_table(contents.run, model)


def _looked_at(encoded: Encoded) -> str:
    return f"{len(encoded.tokens):,} of {encoded.of_images:,}"


def _painted(images: UInt8[Tensor, "k h w c"]) -> Float[np.ndarray, "k h w 3"]:
    return torch.broadcast_to(images / 255, (*images.shape[:3], 3)).numpy()


def _times(sizes: Iterable[int]) -> str:
    return " × ".join(map(str, sizes))

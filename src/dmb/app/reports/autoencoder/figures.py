"""Figures of a VQ-VAE: how it learned, and how often its codes are used."""

import numpy as np
from matplotlib.figure import Figure

from dmb.app.reports.drawing import BLUE, GREY, INK, ORANGE, WIDTH, gridlines, styled
from dmb.app.reports.figures import Curve
from dmb.app.reports.scales import Values, limit, span

_DASHED = (0, (5, 3))


@styled
def learning(
    *, training: Curve, validation: Curve, psnr: Curve, perplexity: Curve, codes: int, best: float | None
) -> Figure:
    """Reconstruction loss, PSNR and perplexity, one below the other.

    Args:
        training: reconstruction loss of training batches.
        validation: the same of validation images.
        psnr: of validation images, in decibels.
        perplexity: of their codes.
        codes: how many there are.
        best: the step that the model comes from.
    """
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1.4, 1, 1]})
    loss, ratio, used = panels
    loss.plot(*training, color=GREY, linewidth=1.1, label="training")
    for axes, curve in zip(panels, (validation, psnr, perplexity), strict=True):
        axes.plot(*curve, color=BLUE, marker="o", markersize=3.5, label="validation")
    limit(loss, training.value, validation.value)
    span(ratio, psnr.value)
    most = used.axhline(codes, color=ORANGE, linestyle=_DASHED, linewidth=1.2, label="all codes, equally often")
    used.set_ylim(0, 1.08 * codes)
    loss.legend(handles=[*loss.lines, most], loc="upper right", ncols=3, bbox_to_anchor=(1, 1.13), borderaxespad=0)
    for axes, name in zip(panels, ("reconstruction loss", "PSNR, dB", "codes in use"), strict=True):
        axes.set_ylabel(name)
        gridlines(axes)
        if best is not None:
            axes.axvline(best, color=INK, linewidth=0.8, linestyle=":", alpha=0.6)
    used.set_xlabel("steps")
    last = np.nanmax(np.concatenate([training.step, validation.step, [0.0]]))
    used.set_xlim(-0.02 * last, 1.02 * last or 1.0)
    return figure


@styled
def usage(frequency: Values) -> Figure:
    """How often each code occurs, from the most frequent to the rarest."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes, codes = figure.subplots(), len(frequency)
    axes.stairs(np.sort(frequency)[::-1], np.arange(codes + 1) + 0.5, fill=True, color=BLUE)
    axes.axhline(1 / codes, color=ORANGE, linestyle=_DASHED, linewidth=1.2, label="all codes, equally often")
    axes.set_xlim(0.5, codes + 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("codes, the most frequent first")
    axes.set_ylabel("frequency")
    axes.legend(loc="upper right")
    gridlines(axes)
    return figure

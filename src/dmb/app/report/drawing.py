"""How our figures look, and how they get into a page."""

import io
import re
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK = "#0b0c0e"  # becomes the colour of the page's own text, so that one figure serves light and dark
BLUE, ORANGE, GREEN, GREY = "#2e86c8", "#d9662b", "#3f9a62", "#8a929b"  # legible on white and on black
COLOURS = (BLUE, ORANGE, GREEN, "#9a6fc4", "#b8921f", "#cf5b94", "#2fa3a3", "#6c7ba8")
WIDTH = 6.4  # inches

STYLE: dict[Any, Any] = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.labelsize": 9, "axes.titlesize": 9.5,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6,
    "axes.axisbelow": True,  # the grid lies behind the data
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlelocation": "left",
    "lines.linewidth": 1.4, "axes.unicode_minus": True, "axes.formatter.use_mathtext": False,
    "svg.fonttype": "none",  # text stays text: small, sharp, searchable, and in any script the reader's fonts know
    "svg.hashsalt": "dmb", "image.composite_image": False, "image.interpolation": "none",
}  # fmt: skip
styled = mpl.rc_context(STYLE)
"""Decorates what draws a figure, so that it has our style and global settings stay as they are."""


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element: no prolog, no addresses of schemas, ids that begin with `name`."""
    svg = _rendered(figure, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def tag(match: re.Match[str]) -> str:
        text = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", match[0])
        text = re.sub(r'((?<=\s)id="|url\(#|href="#)', rf"\g<1>{name}-", text)
        text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)  # the family is the page's
        text = re.sub(r" font-family: [^;\"]*;", "", text)
        return text.replace(INK, "currentColor")

    return re.sub(r"<[^>]+>", tag, svg).strip()  # within tags only: what the data say stays as it is


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a picture on white."""
    return _rendered(figure, "png", dpi=dpi, facecolor="white")


@styled
def _rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # the browser has other fonts than the one that measures
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not support .* natively")
        figure.savefig(file, format=kind, bbox_inches="tight", pad_inches=0.04, **options)
    return file.getvalue()

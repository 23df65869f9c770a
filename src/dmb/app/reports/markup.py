"""HTML: every piece of text is escaped on its way in, and the page asks nothing of the network."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from dmb.app.reports.drawing import to_svg
from dmb.app.reports.symbols import SHADES, printable


class Section(NamedTuple):
    """A part of the page; `body` is HTML."""

    id: str
    title: str
    body: str


def text(value: object) -> str:
    """Any value as text of a page."""
    return html.escape(printable(str(value)))


def number(value: float | None, digits: int = 4) -> str:
    """A number to `digits` places; a dash if there is none. One that would round to 0 is given in powers of ten.

    >>> number(2.0), number(5.56e-05), number(float("nan"))
    ('2.0000', '5.56e-05', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    small = 0 < abs(value) < 0.5 * 10.0 ** (2 - digits)
    return f"{value:.2e}" if small else f"{value:.{digits}f}"


def time(t: float) -> str:
    """A time to 3 places, or in powers of ten if it is so small that they would all be 0.

    >>> time(0.0), time(0.25), time(3.6e-131)
    ('0.000', '0.250', '4e-131')
    """
    return f"{t:.3f}" if t == 0 or t >= 5e-4 else f"{t:.0e}"


def with_error(value: float | None, stderr: float | None) -> str:
    """`value ± standard error`, or what there is of it."""
    shown = number(value)
    return shown if shown == "–" or number(stderr) == "–" else f"{shown} ± {stderr:.4f}"


def paragraph(content: str, kind: str = "") -> str:
    """HTML as a paragraph."""
    return f'<p class="{kind}">{content}</p>' if kind else f"<p>{content}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts, which scrolls if it is wider than the screen."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def figure(drawn: Figure, name: str, caption: str) -> str:
    """A figure with its caption, which is text; the svg's ids begin with `name`."""
    least = min(480, round(96 * drawn.get_figwidth()))  # below it letters are too small, so a phone scrolls
    attributes = f'role="img" aria-label="{text(caption)}" style="min-width: {least}px"'
    svg = to_svg(drawn, name).replace("<svg", f"<svg {attributes}", 1)
    return f'<figure><div class="wide">{svg}</div><figcaption>{text(caption)}</figcaption></figure>'


def path(times: Sequence[float], rows: Sequence[Sequence[str]], dim: Sequence[Sequence[bool]], gap: str = "") -> str:
    """One sequence at several times, a line each; tokens that are `dim` in grey, names in a colour of their own.

    Args:
        times: of the lines.
        rows: symbols of each line.
        dim: which of them are grey.
        gap: follows every symbol.
    """
    shown = [time(t) for t in times]
    width = max(map(len, shown))
    lines = [
        f'<span class="time">t = {t:>{width}}</span>  {_line(row, grey, gap)}'
        for t, row, grey in zip(shown, rows, dim, strict=True)
    ]
    return '<pre class="path">' + "\n".join(lines) + "</pre>"


def path_table(
    header: Sequence[str], times: Sequence[float], rows: Sequence[Sequence[str]], dim: Sequence[Sequence[bool]]
) -> str:
    """`path`, for sequences that are rows of a table."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in ["t", *header])
    body = "".join(
        f"<tr><td>{time(t)}</td>"
        + "".join(f"<td>{_token(*cell)}</td>" for cell in zip(row, grey, strict=True))
        + "</tr>\n"
        for t, row, grey in zip(times, rows, dim, strict=True)
    )
    return f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def blocks(texts: Sequence[str]) -> str:
    """Sequences of text, a block each."""
    # a browser drops a line break right after <pre>, so one that belongs to the text needs another before it
    escaped = [text(block) for block in texts]
    shown = ["\n" + block if block.startswith("\n") else block for block in escaped]
    return '<div class="blocks">' + "\n".join(f"<pre>{block}</pre>" for block in shown) + "</div>"


def beside(left: str, right: str, titles: tuple[str, str]) -> str:
    """Two pieces of HTML side by side, or below each other on a narrow screen."""
    parts = "".join(f"<div><h3>{text(name)}</h3>{part}</div>" for name, part in zip(titles, (left, right), strict=True))
    return f'<div class="beside">{parts}</div>'


def document(title: str, head: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    contents = "".join(f'<li><a href="#{part.id}">{text(part.title)}</a></li>' for part in sections)
    body = "\n".join(
        f'<section id="{part.id}">\n<h2>{text(part.title)}</h2>\n{part.body}\n</section>' for part in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{CSS}</style>
</head>
<body>
<header>
{head}
</header>
<nav aria-label="contents"><ol>{contents}</ol></nav>
<main>
{body}
</main>
</body>
</html>
"""


def _line(row: Sequence[str], dim: Sequence[bool], gap: str) -> str:
    """Runs of tokens that look alike share one element: a page has thousands of tokens."""
    pieces: list[str] = []
    start = 0
    for end in range(1, len(row) + 1):
        if end == len(row) or (dim[end], row[end] in SHADES) != (dim[start], row[start] in SHADES):
            pieces.append(_token("".join(symbol + gap for symbol in row[start:end]), dim[start]))
            start = end
    return "".join(pieces)


def _token(symbol: str, dim: bool) -> str:
    if dim and symbol.strip() and SHADES.issuperset(symbol.replace(" ", "")):
        return f'<span class="mask">{symbol}</span>'
    return f'<span class="dim">{text(symbol)}</span>' if dim else text(symbol)


CSS = """
:root { --ink: #1c2126; --dim: #a3acb5; --soft: #f3f5f7; --line: #dde2e7; --paper: #ffffff; --link: #1f6fa8;
        --mask: #d9662b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7eb; --dim: #66707a; --soft: #1d2227; --line: #343b42; --paper: #14171a; --link: #6db5ea; }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 50rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .5rem 0; }
.headline { font-size: 1.15rem; }
.headline b { font-size: 1.5rem; font-weight: 650; }
.facts, figcaption, .note { font-size: .88rem; opacity: .82; }
a { color: var(--link); }
nav ol { margin: 1.2rem 0 0; padding: .7rem 1rem .7rem 2.2rem; background: var(--soft); border-radius: .5rem;
         columns: 15rem; font-size: .92rem; }
figure { margin: 1rem 0 1.6rem; }
figcaption { margin-top: .3rem; }
.wide { overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
         white-space: nowrap; }
.figures td:nth-child(n+2), .figures th:nth-child(n+2) { text-align: right; padding-left: .8rem; padding-right: 0; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
.settings td, .rows td, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas,
                              "DejaVu Sans Mono", monospace; }
.rows, pre { font-size: .8rem; }
pre { margin: 0; line-height: 1.45; }
pre.path { overflow-x: auto; padding: .6rem .8rem; margin: .5rem 0; background: var(--soft); border-radius: .4rem; }
.path .time { opacity: .7; user-select: none; }
.dim { color: var(--dim); }
.mask { color: var(--mask); }
.blocks { max-height: 34rem; overflow: auto; }
.blocks pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .3rem .6rem; margin: .3rem 0;
              background: var(--soft); border-radius: .3rem; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr)); gap: 0 1.2rem; }
.beside > div { min-width: 0; }
.beside .wide { max-height: 34rem; overflow: auto; }
@media print { .blocks, .beside .wide { max-height: none; } nav { display: none; } }
"""

"""Formulas as MathML, which browsers draw themselves: no script, no web font, no picture."""

import html

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
    for name in node["ids"]:
        writer.body.append(f'<span id="{name}"></span>')
    writer.body.append(f'<div class="formula">{_converted(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _converted(node: nodes.Node, *, as_block: bool) -> str:
    tex = node.astext()
    try:
        return tex2mathml(tex, as_block=as_block)
    except Exception as error:  # a formula can be wrong in any way
        logging.getLogger(__name__).warning("cannot convert the formula %s: %s", tex, error, location=node)
        return f"<code>{html.escape(tex)}</code>"

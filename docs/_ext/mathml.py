"""Formulas as MathML, which browsers draw themselves: no script, no web font, no picture.

They are those between dollars, those of the directive `math`, and code in the notation of `formulas`. Such code is
displayed if it stands alone in a paragraph.
"""

import html
from collections.abc import Iterator

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from formulas import to_tex
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml` and the notation."""
    app.add_transform(PlainFormulas)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class PlainFormulas(SphinxTransform):
    """Replaces code that is a formula; not in titles, of which menus are made."""

    default_priority = 500

    def apply(self, **kwargs: object) -> None:
        """Go through a page."""
        for node in [*self.document.findall(_is_code)]:
            tex = to_tex(node.astext())
            if tex is None or any(isinstance(above, nodes.title) for above in _above(node)):
                continue
            parent, formula = node.parent, nodes.math(tex, tex)
            node.replace_self(formula)
            alone = isinstance(parent, nodes.paragraph) and parent.astext().replace(tex, "").strip(" .,:;") == ""
            if alone and len(tex) > 8 and len(parent) <= 2 and not isinstance(parent.parent, nodes.entry):
                parent.replace_self(nodes.math_block(tex, tex, nowrap=False, number=None, label=None))


def _is_code(node: nodes.Node) -> bool:
    if isinstance(node, pending_xref):
        return node.get("reftype") == "obj" and not node.get("refexplicit")
    return isinstance(node, nodes.literal) and not isinstance(node.parent, pending_xref | nodes.reference)


def _above(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


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

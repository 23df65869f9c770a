"""What a Markdown page says differently on GitHub: links to files beside `docs/`, and a blank line after a snippet."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx


PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
OUTSIDE = re.compile(r"\]\((?:\.\./)*(" + "|".join(map(re.escape, PAGES)) + r")\)")
LAST_LINE = re.compile(r"\n\n```$", re.MULTILINE)
"""Doctest takes the end of a snippet for output, unless there is a blank line."""


def setup(app: "Sphinx") -> dict[str, bool]:
    """Rewrite pages, and the files that they include, before they are parsed."""
    app.connect("source-read", lambda _, name, source: _rewrite(source))
    app.connect("include-read", lambda _, path, name, source: _rewrite(source))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _rewrite(source: list[str]) -> None:
    whole = OUTSIDE.sub(lambda found: f"]({PAGES[found[1]]})", source[0])
    source[0] = LAST_LINE.sub("\n```", whole)

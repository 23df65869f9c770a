"""Docstrings as reStructuredText: sections become lists of fields, all else is valid as it is."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


SECTIONS = {"Args:": "param", "Attributes:": "ivar"}
ENTRY = re.compile(r"^    (\w+): (.*)")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Convert docstrings before they are parsed."""
    app.connect("autodoc-process-docstring", _processed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _processed(app: "Sphinx", what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = with_fields(lines)


def with_fields(lines: list[str]) -> list[str]:
    """The lines, with a field for every entry of a section.

    >>> with_fields(["A sum.", "", "Args:", "    x: a number.", "    y: another,", "        or none.", "", "More."])
    ['A sum.', '', ':param x: a number.', ':param y: another,', '        or none.', '', 'More.']
    """
    for heading, field in SECTIONS.items():
        if heading not in lines:
            continue
        begin = lines.index(heading)
        end = next((at for at in range(begin + 1, len(lines)) if lines[at] and lines[at][0] != " "), len(lines))
        section = [ENTRY.sub(rf":{field} \1: \2", line) for line in lines[begin + 1 : end]]
        lines = lines[:begin] + section + lines[end:]
    return lines

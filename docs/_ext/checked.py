"""Check the pages once they are written: every internal link leads somewhere, and nothing is loaded from elsewhere.

Each mistake is a warning of Sphinx, so that `-W` makes the build fail.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx


LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
IN_STYLE = re.compile(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """The names of a page's places, its links, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.loaded = set[str](), list[str](), list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADED.get(tag, "")):
            self.loaded.append(values[LOADED[tag]])


def setup(app: "Sphinx") -> dict[str, bool]:
    """Check after a build that succeeded."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _finished(app: "Sphinx", error: Exception | None) -> None:
    from sphinx.util import logging

    if error is None and app.builder.format == "html":
        for mistake in mistakes(Path(app.outdir)):
            logging.getLogger(__name__).warning(mistake)


def mistakes(site: Path) -> list[str]:
    """What is wrong with the pages in a folder, one line each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = list[str]()
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {address} from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name} links to {address}, which does not exist")
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{name} links to {address}, but the page has no such place")
    for path in site.rglob("*.css"):
        for address in IN_STYLE.findall(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)} loads {address} from elsewhere")
    return found

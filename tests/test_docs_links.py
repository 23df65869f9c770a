"""Links between the Markdown pages lead somewhere, and the check of the built site finds links that do not."""

import importlib.util
import itertools
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]


@cache
def parsed(page):
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def targets(page):
    """Where the links and pictures of a page lead, without those to the web."""
    children = [child for token in parsed(page) for child in token.children or ()]
    found = [
        child.attrs.get("href") or child.attrs.get("src") for child in children if child.type in ("link_open", "image")
    ]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page):
    """The names that GitHub gives to a page's headings."""
    tokens, seen, names = parsed(page), Counter(), set()
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            words = "".join(child.content for child in inline.children)
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            names.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    broken = []
    for target in targets(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.is_file() or (anchor and anchor not in anchors(file.resolve())):
            broken.append(target)
    assert not broken


def test_every_page_is_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {
        line.strip() for block in re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL) for line in block.splitlines()
    }
    pages = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in PAGES if (ROOT / "docs") in p.parents}
    assert pages - {"index"} <= listed


@pytest.fixture
def checked():
    spec = importlib.util.spec_from_file_location("checked", ROOT / "docs" / "_ext" / "checked.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_of_the_site_finds_broken_links_and_what_is_loaded_from_elsewhere(checked, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="more/b.html#end">b</a><a href="https://x.y">web</a>')
    (tmp_path / "more" / "b.html").write_text('<p id="end"></p><a href="../a.html#top">a</a><a href="#end">here</a>')
    assert checked.mistakes(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="more/c.html">c</a><a href="more/b.html#no">b</a><script src="https://x.y/z.js"></script>'
    )
    (tmp_path / "style.css").write_text("@import url(https://fonts.x/y.css); a { background: url(data:x) }")
    assert sorted(checked.mistakes(tmp_path)) == [
        "a.html links to more/b.html#no, but the page has no such place",
        "a.html links to more/c.html, which does not exist",
        "a.html loads https://x.y/z.js from elsewhere",
        "more/b.html links to ../a.html#top, but the page has no such place",
        "style.css loads https://fonts.x/y.css from elsewhere",
    ]

"""HTML of samples and films: what it says, and that nothing in it is HTML but ours."""

from html.parser import HTMLParser

import pytest
import torch

from app.serve.conftest import EVIL
from dmb.app.serve import marked
from dmb.app.serve.film import Film
from dmb.app.serve.options import Options

TAGS = {"div", "b", "span", "p", "table", "tr", "th", "td", "img", "figure", "figcaption", "dl", "dt", "dd", "section",
        "h4", "i", "em"}  # fmt: skip


class Page(HTMLParser):
    """Text and classes of a piece of HTML, all of whose elements are known and closed."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.pieces = "", [], []
        self.feed(str(text))  # Markup would escape what it says
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        assert {name for name, _ in attributes} <= {"class", "style", "title", "src", "alt"}
        self.pieces.append([dict(attributes).get("class", ""), ""])
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.pieces[-1][1] += data


@pytest.fixture
def film(playgrounds):
    """A function that draws, by the name of a run."""

    def made(name, template=None):
        film = Film(template)
        *_, last = playgrounds[name].draw(Options(n=3, calls=6), template, film)
        return film, playgrounds[name].certainty(film, 0), last.x

    return made


def test_symbols_that_are_html_are_shown_as_symbols(playgrounds):
    playground = playgrounds["text"]
    tokens = playground.codec.template("<a>&'\" bb<a>", 12)[None]
    page = Page(marked.samples(playground, tokens, torch.arange(12) < 4))
    assert page.text == "1<a>&'\" bb<a>"
    assert ["filled", "'\" bb<a>"] in page.pieces


def test_a_frame_shows_every_symbol_with_what_the_model_thinks_of_it(playgrounds, film):
    template = playgrounds["text"].codec.template("<<>>", 12)
    taken, certainty, _ = film("text", template)
    html = marked.frame(playgrounds["text"], taken, 2, 0, certainty, "certainty")
    page = Page(html)
    cells = [(look.split()[0], cell) for look, cell in page.pieces if look.split()[:1] in (["given"], ["sure"])]
    assert [look for look, _ in cells] == ["given"] * 4 + ["sure"] * 8
    symbols = playgrounds["text"].symbols.rows(taken.of(0)[2][None])[0]
    assert [cell for _, cell in cells] == symbols
    assert f"--c:{certainty.probability[2, 5]:.2f}" in html


def test_colours_by_order_are_stronger_the_earlier_a_position_was_decided(playgrounds, film):
    taken, certainty, _ = film("text")
    html = marked.frame(playgrounds["text"], taken, len(taken) - 1, 0, certainty, "order")
    strength = [float(part[:4]) for part in html.split("--c:")[1:]]
    decided = taken.decided(0).tolist()
    assert sorted(range(12), key=lambda k: (decided[k], k)) == sorted(range(12), key=lambda k: (-strength[k], k))
    first = marked.frame(playgrounds["text"], taken, 0, 0, certainty, "order")
    assert all(
        (float(part[:4]) > 0) == (when == 0) for part, when in zip(first.split("--c:")[1:], decided, strict=True)
    )


def test_a_table_shows_the_values_of_its_file(playgrounds, film):
    playground = playgrounds["table"]
    _, _, x = film("table")
    page = Page(marked.samples(playground, x))
    assert "a<b" in page.text
    for column in playground.codec.cells(x):
        for value in column:
            assert {None: "missing", "": "(empty)"}.get(value, str(value)) in page.text


def test_values_that_are_html_are_shown_as_values(playgrounds):
    x = playgrounds["table"].examples[:20]
    html = marked.samples(playgrounds["table"], x)
    assert EVIL in Page(html).text
    assert "<script" not in html


@pytest.mark.parametrize("name", ["text", "table", "digits"])
def test_every_kind_has_samples_films_and_noise_of_closed_elements(playgrounds, film, name):
    playground, (taken, certainty, x) = playgrounds[name], film(name)
    for html in (
        marked.samples(playground, x),
        marked.noise(playground, playground.noisy(1, 0.5), 0.5),
        marked.way(playground, playground.way(1)),
        *(
            marked.frame(playground, taken, 3, 1, known, by)
            for known in (certainty, None)
            for by in ("order", "certainty")
        ),
    ):
        Page(html)


def test_facts_and_bars_escape_names_and_values():
    evil = "'\"><img src=x onerror=boo()>"
    for html in (marked.facts([(evil, evil)]), marked.bars(evil, [evil], [1.0], [0.5], evil)):
        assert evil in Page(html).text
        assert "<img" not in html

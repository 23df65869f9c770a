"""HTML of samples and films: what it says, and that nothing in it is HTML but ours."""

from html.parser import HTMLParser

import pytest
import torch

from app.serve.conftest import EVIL
from dmb.app.evaluation import SamplerBound
from dmb.app.report.contents import Block, html
from dmb.app.report.shares import Bar
from dmb.app.serve import marked
from dmb.app.serve.actions import Actions
from dmb.app.serve.model import Film
from dmb.app.serve.options import Options
from dmb.app.serve.page import kind_of

pytestmark = pytest.mark.filterwarnings("ignore")  # those of gradio's imports

TAGS = {"div", "h4", "span", "p", "table", "thead", "tbody", "tr", "th", "td", "img", "figure", "figcaption", "dl", "dt", "dd",
        "h3", "i"}  # fmt: skip


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
        assert {name for name, _ in attributes} <= {"class", "style", "title", "src", "alt", "scope"}
        self.pieces.append([dict(attributes).get("class", ""), ""])
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.pieces.append(["", ""])

    def handle_data(self, data):
        self.text += data
        self.pieces[-1][1] += data


@pytest.fixture
def film(playgrounds):
    """A function that draws, by the name of a run."""

    def made(name, template=None):
        film = Film(None if template is None else template >= 0)
        *_, last = playgrounds[name].draw(Options(n=3, calls=6), template, film)
        return film, playgrounds[name].certainty(film, 0), last.x

    return made


def test_symbols_that_are_html_are_shown_as_symbols(playgrounds):
    playground = playgrounds["text"]
    tokens = playground.codec.template("<a>&'\" bb<a>", 12)[None]
    page = Page(html(marked.samples(playground, tokens, torch.arange(12) < 4)))
    assert page.text.strip() == "1<a>&'\" bb<a>"
    assert ["filled", "'\" bb<a>"] in page.pieces


def test_a_frame_shows_every_symbol_with_what_the_model_thinks_of_it(playgrounds, film):
    template = playgrounds["text"].codec.template("<<>>", 12)
    taken, certainty, _ = film("text", template)
    shown = html(marked.frame(playgrounds["text"], taken, 2, 0, certainty, "certainty"))
    page = Page(shown)
    cells = [(look.split()[0], cell) for look, cell in page.pieces if look.split()[:1] in (["given"], ["sure"])]
    assert [look for look, _ in cells] == ["given"] * 4 + ["sure"] * 8
    symbols = playgrounds["text"].symbols.rows(taken.of(0)[2][None])[0]
    assert [cell for _, cell in cells] == symbols
    assert f"--c:{certainty.probability[2, 5]:.2f}" in shown


def test_colours_by_order_are_stronger_the_earlier_a_position_was_decided(playgrounds, film):
    taken, certainty, _ = film("text")
    last = html(marked.frame(playgrounds["text"], taken, len(taken) - 1, 0, certainty, "order"))
    strength = [float(part[:4]) for part in last.split("--c:")[1:]]
    decided = taken.decided(0).tolist()
    assert sorted(range(12), key=lambda k: (decided[k], k)) == sorted(range(12), key=lambda k: (-strength[k], k))
    first = html(marked.frame(playgrounds["text"], taken, 0, 0, certainty, "order"))
    assert all(
        (float(part[:4]) > 0) == (when == 0) for part, when in zip(first.split("--c:")[1:], decided, strict=True)
    )


def test_a_table_shows_the_values_of_its_file(playgrounds, film):
    playground = playgrounds["table"]
    _, _, x = film("table")
    page = Page(html(marked.samples(playground, x)))
    assert "a<b" in page.text
    for column in playground.codec.cells(x):
        for value in column:
            assert {None: "missing", "": "(empty)"}.get(value, str(value)) in page.text


def test_values_that_are_html_are_shown_as_values(playgrounds):
    x = playgrounds["table"].examples[:20]
    shown = html(marked.samples(playgrounds["table"], x))
    assert EVIL in Page(shown).text
    assert "<script" not in shown


@pytest.mark.parametrize("name", ["text", "table", "digits"])
def test_every_kind_has_samples_films_and_noise_of_closed_elements(playgrounds, film, name, tmp_path):
    playground, (taken, certainty, x) = playgrounds[name], film(name)
    for known in (certainty, None):
        for by in ("order", "certainty"):
            Page(html(marked.frame(playground, taken, 3, 1, known, by)))
    Page(html(marked.samples(playground, x)))
    noise = Page(Actions(kind_of(playground), [], tmp_path).noise(1, 0.5, 0))
    assert "noisy copies have changed" in noise.text
    assert "One example all the way to noise" in noise.text


def test_beside_the_slider_stands_what_is_known_of_so_many_calls(playgrounds, tmp_path, monkeypatch):
    playground = playgrounds["text"]
    common = {"split": "test", "sampler": "ancestral", "stderr": 0.1, "impossible": 0.0, "seconds": 0.1}
    common |= {"sequences": 4, "of_sequences": 4, "samples": 1, "seed": 0, "token": "letter"}
    bounds = [SamplerBound(calls=calls, bits=bits, **common) for calls, bits in ((4, 2.5), (64, 2.25))]
    said = Actions(kind_of(playground), ["calls", "sampler", "temperature"], tmp_path).estimate
    assert "bits" not in said(5, "ancestral", 1)
    monkeypatch.setattr(playground, "few_calls", bounds)
    assert "What is drawn, at 4 calls: 2.50 bits per letter, 2.25 at 64." in said(5, "ancestral", 1)
    assert "bits" not in said(5, "tweedie", 1)
    assert "bits" not in said(5, "ancestral", 0.9)


def test_facts_and_bars_escape_names_and_values():
    evil = "'\"><img src=x onerror=boo()>"
    bars = Block(kind="bars", title=evil, body=[(evil, [Bar(evil, 1.0, 0.5)])], note=evil)
    for shown in (html(Block(kind="facts", body=[(evil, evil)])), html(bars)):
        assert evil in Page(shown).text
        assert "<img" not in shown

"""What visitors give, by the kind of data: texts, values of columns, and pictures painted over."""

import asyncio
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dmb
from app.report.making import photographs, recipe, table as tables, untrained
from app.serve.conftest import EVIL, table_data
from dmb.app.serve.model import Playground
from dmb.tables.rows import draw

pytestmark = pytest.mark.filterwarnings("ignore")  # those of gradio's imports


@pytest.fixture
def kind(playgrounds):
    from dmb.app.serve.page import kind_of

    return lambda name: kind_of(playgrounds[name])


def test_text_is_a_template_with_blanks(kind):
    text = kind("text")
    codec = text.playground.codec
    assert torch.equal(text.template("<a__b"), codec.template("<a__b", 12))
    assert (text.template("") == -1).all()
    with pytest.raises(ValueError, match="must have at most 12 positions, got 13"):
        text.template("a" * 13)
    with pytest.raises(ValueError, match="must have at most 112 characters, got 10,000,000"):
        text.template("a" * 10**7)
    with pytest.raises(ValueError, match="symbol 'x' at offset 0"):
        text.template("x")


def test_the_first_template_is_an_example_with_a_blank_middle(kind):
    text = kind("text")
    tokens = text.template(text.example())
    assert torch.equal(tokens[:4], text.playground.examples[0, :4])
    assert (tokens[4:8] == -1).all()
    assert torch.equal(tokens[8:], text.playground.examples[0, 8:])


def test_a_visitor_cannot_name_a_file(tmp_path, kind, monkeypatch):
    from dmb.app.serve.kinds import TextKind

    data = dmb.data.array(np.random.default_rng(0).integers(0, 5, (60, 4)))
    playground = Playground(untrained(tmp_path / "run", recipe(), data))
    sequences = TextKind(playground)
    assert sequences.template("3, _ 1").tolist() == [3, -1, 1, -1]
    np.save(tmp_path / "mine.npy", np.zeros(4, dtype=np.int64))
    monkeypatch.chdir(tmp_path)
    assert playground.codec.template("mine.npy", 4).tolist() == [0] * 4  # a user of the command line can
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("a file was opened"))
    for path in ("mine.npy", str(tmp_path / "mine.npy"), "../mine.npy", "1,2\nmine.npy", "/etc/passwd.png"):
        with pytest.raises(ValueError, match=r"must hold whole numbers and blanks|at most \d+ characters"):
            sequences.template(path)


def test_columns_take_values_to_choose_from_and_values_that_are_typed(kind):
    table = kind("table")
    codec = table.playground.codec
    assert table.template("", "", "").tolist() == [-1, -1, -1]
    [typed] = codec.template("size=7", 3)[:1].tolist()
    assert table.template("7", EVIL, "no").tolist() == [
        typed,
        codec.columns[1].labels.index(EVIL),
        codec.columns[2].labels.index("no"),
    ]
    label = codec.columns[0].display_name(3)
    assert table.template(label, "", None).tolist() == [3, -1, -1]
    with pytest.raises(ValueError, match="column 'colour' must be one of"):
        table.template("", "green", "")
    with pytest.raises(ValueError, match="must be text"):
        table.template("", {"a": 1}, "")


def test_a_beginning_stands_for_the_only_value_that_begins_so(kind):
    table = kind("table")
    for typed in ("bl", "BLU", "(any)bl"):
        assert table.template("", typed, "").tolist() == table.template("", "blue", "").tolist()
    assert table.template("(any)", None, "").tolist() == [-1, -1, -1]


def test_a_number_that_is_typed_stays_as_it_was_typed(tmp_path):
    from dmb.app.serve.table import TableKind

    rng = np.random.default_rng(0)
    data = tables(tmp_path, ["length", "kind"], [[f"{x:.1f}", "ab"[int(x > 40)]] for x in rng.normal(40, 9, 2000)])
    kind = TableKind(Playground(untrained(tmp_path / "run", recipe(mask=True, floor=0.0), data)))
    [state] = kind.codec.columns[0].states(["47.3"])
    assert " to " in kind.codec.columns[0].labels[state]
    template = kind.template("47.3", "")
    assert template.tolist() == [state, -1]
    rows = torch.tensor([[state, 0], [state, 1]]).repeat(8, 1)
    assert set(kind.codec_for("47.3", "").cells(rows)[0]) == {47.3}
    assert len(set(kind.codec_for(kind.codec.columns[0].labels[state], "").cells(rows)[0])) > 1  # all of the bin


def test_distributions_are_the_shares_of_what_is_drawn(kind):
    table = kind("table")
    template = table.template("", "red", "")
    p, how = table.conditionals(template)
    rows = draw(table.playground.bridge, template.expand(20_000, -1), torch.Generator().manual_seed(0))
    for place, column in enumerate(table.codec.columns):
        counts = torch.bincount(rows[:, place], minlength=len(column)).double().numpy() / len(rows)
        error = np.sqrt(counts * (1 - counts) * (1 / len(rows) + 1 / 1024)) + 1e-3
        assert (np.abs(p[place] - counts) < 5 * error).all()
    assert "by the model" in how
    assert [round(float(each.sum()), 6) for each in p] == [1.0, 1.0, 1.0]
    html = table.distributions("", "red", "")
    assert "<h3>size</h3>" in html
    assert "<h3>a&lt;b</h3>" in html
    assert "colour" not in html


@pytest.mark.parametrize("options", [{}, {"mask": True, "floor": 0.5}], ids=str)
def test_without_a_mask_as_the_only_noise_distributions_are_counted(tmp_path, options):
    from dmb.app.serve.table import TableKind

    table = TableKind(Playground(untrained(tmp_path / "run", recipe(**options), table_data(tmp_path))))
    template = table.template("", "red", "")
    p, how = table.conditionals(template)
    assert how == "counted in 256 samples"
    assert p[1][template[1]] == 1
    assert all((each * 256 == np.round(each * 256)).all() for each in p)


def test_bars_of_numbers_have_the_probability_of_all_bins(kind):
    from dmb.app.report.shares import groups_of, mean_of

    column = kind("table").playground.codec.columns[0]
    rng = np.random.default_rng(0)
    p, usual = rng.dirichlet(np.ones(len(column))), np.full(len(column), 1 / len(column))
    bars = groups_of(column, usual).bars(usual, p)
    assert (sum(bar.samples for bar in bars), sum(bar.data for bar in bars)) == (pytest.approx(1), pytest.approx(1))
    assert mean_of(column, p) == f"mean {p @ np.array(column.means(), dtype=float):.4g}"


def painted(background, erased, scale=1):
    layer = np.zeros((*erased.shape, 4), dtype=np.uint8)
    layer[erased] = [217, 102, 43, 255]
    layer = layer.repeat(scale, axis=0).repeat(scale, axis=1)
    return {"background": background, "layers": [layer], "composite": background}


def test_brushed_tokens_are_blank_and_others_are_those_of_the_picture(kind):
    images = kind("digits")
    tokens = images.playground.examples[5]
    erased = np.zeros((8, 8), dtype=bool)
    erased[2:5, 1:7] = True
    picture = images.enlarged(tokens)
    assert picture.shape == (320, 320, 3)
    value = painted(picture, erased, 40)
    for exact in (tokens.tolist(), None):  # known, or read off the picture
        template = images.template(value, exact)
        assert torch.equal(template < 0, torch.from_numpy(erased.ravel()))
        assert torch.equal(template[template >= 0], tokens[template >= 0])


def test_a_touch_of_the_brush_erases_nothing(kind):
    images = kind("digits")
    value = painted(images.enlarged(images.playground.examples[0]), np.zeros((8, 8), dtype=bool), 40)
    value["layers"][0][0:12, 0:40, 3] = 255  # three tenths of a token, and no more than a twentieth of its neighbour
    value["layers"][0][12:14, 40:80, 3] = 255
    assert (images.template(value, None) < 0).nonzero().ravel().tolist() == [0]


def test_uploads_of_any_size_and_mode_become_tokens(kind):
    images = kind("digits")
    white = np.full((31, 77, 4), 255, dtype=np.uint8)
    assert (images.template(painted(white, np.zeros((31, 77), dtype=bool)), None) == 16).all()
    assert (
        images.template(painted(np.zeros((3, 3, 3), dtype=np.uint8), np.zeros((3, 3), dtype=bool)), None) == 0
    ).all()
    for wrong in (None, 7, {"background": None}, {"layers": []}):
        with pytest.raises(ValueError, match="there is no picture"):
            images.template(wrong, None)
    with pytest.raises(ValueError, match="at most 4,096 × 4,096 pixels"):
        images.template({"background": np.zeros((1, 5000, 4), dtype=np.uint8)}, None)


def test_of_an_upload_the_middle_is_read(kind):
    images = kind("digits")
    tokens = images.playground.examples[5]
    picture = np.pad(images.enlarged(tokens), ((0, 0), (80, 80), (0, 0)), constant_values=255)
    erased = np.zeros((8, 12), dtype=bool)
    erased[3, :3] = True
    template = images.template(painted(picture, erased, 40), None)
    assert (template < 0).nonzero().ravel().tolist() == [24]  # what lies beside it has no tokens
    assert torch.equal(template[template >= 0], tokens[template >= 0])


def test_colour_pictures_are_read_by_channel(tmp_path):
    from dmb.app.serve.images import ImageKind

    data = dmb.data.load(photographs(tmp_path / "photos"), levels=4)
    images = ImageKind(Playground(untrained(tmp_path / "run", recipe(), data)))
    tokens = images.playground.examples[1]
    erased = np.array([[True, False, False, False], [False, False, False, True]])
    template = images.template(painted(images.enlarged(tokens), erased, 80), None)
    assert torch.equal(template < 0, torch.from_numpy(erased.ravel().repeat(3)))
    assert torch.equal(template[template >= 0], tokens[template >= 0])


@pytest.mark.parametrize("name", ["text", "table", "digits"])
def test_samples_are_written_in_the_format_of_the_data(kind, name, tmp_path):
    each = kind(name)
    values = [None] * {"text": 1, "table": 3, "digits": 0}[name]
    codec = each.codec_for(*values)
    codec.write(tmp_path / f"samples{codec.extension}", each.playground.examples[:3])
    assert os.listdir(tmp_path) == [f"samples{each.playground.codec.extension}"]


def test_strokes_that_are_sent_and_never_used_are_limited(playgrounds):
    import gradio as gr

    from dmb.app.serve.images import ImageKind

    kind = ImageKind(playgrounds["digits"])

    async def made():  # in a loop of its own, or gradio makes some that nobody closes
        with gr.Blocks():
            kind.inputs()

    asyncio.run(made())
    stored = kind.editor.blob_storage

    def send(name, index, size):
        data = {"id": name, "type": "layer", "index": index}
        kind.editor.accept_blobs(SimpleNamespace(data=data, files=[("blob", bytes(size))]))

    assert kind.editor.get_config()["server_fns"] == ["accept_blobs"]
    for wrong in ("17", "1000000", "-1"):
        with pytest.raises(ValueError, match=f"layer must lie between 0 and 16, got {int(wrong):,}"):
            send("a", wrong, 9)
    for k in range(40):
        send(f"b{k}", "0", 4_000_000)
        send("same", str(k % 17), 4_000_000)
    assert sum(len(layer) for blobs in stored.values() for layer in blobs.layers) <= 128 << 20
    assert {"same", "b39"} <= set(stored)

import dataclasses

import numpy as np
import pytest

import dmb
from dmb.app import recipes
from dmb.app.compare.plan import _plain
from dmb.app.compare.rows import ROWS
from dmb.training import engine


def text(folder):
    rng = np.random.default_rng(0)
    (folder / "letters.txt").write_text("".join(f"{rng.choice([*'bdf'])}{rng.choice([*'aei '])}" for _ in range(400)))
    return dmb.data.text(folder / "letters.txt", length=8)


def columns(folder):
    rng = np.random.default_rng(1)
    rows = [f"{rng.choice([*'rgbcmy'])},{rng.integers(2)}" for _ in range(60)]
    (folder / "table.csv").write_text("\n".join(["colour,size", *rows]))
    return dmb.data.table(folder / "table.csv")


def shades(folder):
    return dmb.data.array(np.random.default_rng(2).integers(0, 17, (60, 2, 3)))


def few(states):
    def make(folder):
        return dmb.data.array(np.arange(120).reshape(60, 2) % states)

    return make


GOLDEN = {
    "sedd-uniform": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.process": "uniform", "head": "score", "training.adapt_times": False},
    "sedd-absorb": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "score", "training.adapt_times": False},
    "mean-uniform": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.process": "uniform", "head": "mean"},
    "mdlm": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean"},
    "tokenwise": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.process": "tokenwise"},
    "dmb-published": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "unscaled_score", "training.adapt_times": False},
    "dmb-still": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 0, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "unscaled_score", "training.adapt_times": False},
    "dmb-paced": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "unscaled_score", "process.schedule": "paced", "training.adapt_times": False},
    "dmb-tied": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": True, "process.order": "descending", "head": "unscaled_score", "training.adapt_times": False},
    "dmb-tied-still": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 0, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": True, "process.order": "descending", "head": "unscaled_score", "training.adapt_times": False},
    "mean-live": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "mean", "process.schedule": "paced"},
    "mean-loglinear": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "mean"},
    "mean-still": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 0, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "descending", "head": "mean"},
    "mean-tied": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": True, "process.order": "descending", "head": "mean", "process.schedule": "paced"},
    "mean-tied-still": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 0, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": True, "process.order": "descending", "head": "mean"},
    "mean-ascending": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "ascending", "head": "mean", "process.schedule": "paced"},
    "mean-nested": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.init": "nested", "process.schedule": "canonical", "head": "mean"},
    "learned-descending": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.order": "descending", "process.floor": 0.00206},
    "learned-ascending": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.order": "ascending", "process.floor": 0.0286},
    "learned-live": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.order": "descending", "process.floor": 0.0667, "process.learn": "linear", "training.matrix_learning_rate": 0.001},
    "learned-turns": {"training.score_steps": 20, "training.matrix_steps": 2, "training.cycles": 10, "training.reestimate": False, "training.matrix_objective": "bound", "process.schedule": "canonical", "head": "mean", "process.order": "descending", "process.floor": 0.00206},
    "learned-varying": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.process": "varying", "process.order": "ascending", "process.floor": 0.0286},
    "learned-nested": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.init": "nested"},
    "learned-mask": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.order": "descending", "process.mask": True, "process.floor": 0.00206},
    "paths": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "ordered"},
    "paths-learned": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "ordered", "order.write_order": "learned", "training.matrix_objective": "joint", "training.orders": 2, "training.singles": 6, "training.matrix_learning_rate": 0.1},
    "streams": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "ordered", "order.write_order": "streams"},
    "streams-learned": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "ordered", "order.write_order": "learned_streams", "training.matrix_objective": "joint", "training.orders": 2, "training.singles": 6, "training.matrix_learning_rate": 0.1},
    "blocks": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "ordered", "order.write_order": "blocks", "training.any_order": 0.0},
    "autoregressive": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.placed": True, "network.network": "causal"},
    "mean-tree": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.process": "tree", "process.grouping": "value", "process.schedule": "canonical", "head": "mean"},
    "mean-natural": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 150, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "natural", "head": "mean", "process.schedule": "paced"},
    "mean-natural-still": {"training.score_steps": 100, "training.cycles": 2, "training.matrix_steps": 0, "training.matrix_learning_rate": 0.001, "training.matrix_weight_decay": 0.01, "training.matrix_clip": 1.0, "training.start": "random", "process.learn": "linear", "process.init": "gather", "process.floor": 0.0, "process.tied": False, "process.order": "natural", "head": "mean"},
    "learned-natural": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "training.matrix_objective": "joint", "process.schedule": "canonical", "head": "mean", "process.order": "natural", "process.floor": 0.0286},
}  # fmt: skip
"""Every setting that a row has a value of its own for, with 200 steps, on grey levels."""
OF_COLUMNS = {
    "columns": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.network": "columns", "order.write_order": "fixed", "training.any_order": 0.0},
    "columns-learned": {"training.score_steps": 200, "training.cycles": 1, "training.matrix_steps": 0, "process.mask": True, "process.init": "gather", "process.floor": 0.0, "head": "mean", "network.network": "columns", "order.write_order": "learned", "training.matrix_objective": "joint", "training.orders": 2, "training.singles": 6, "training.matrix_learning_rate": 0.1},
}  # fmt: skip
"""The same for rows that only tables have."""
FLOORS = {
    0.00206: {"text": 0.00619, "columns": 0.00773},
    0.0286: {"text": 0.0857, "columns": 0.107},
    0.0667: {"text": 0.2, "columns": 0.25},
}
"""The same floors, by the data's number of states."""


TIED = {"dmb-tied", "dmb-tied-still", "mean-tied", "mean-tied-still"}
"""Rows that need positions with the same number of states."""


def by_name(data):
    return {row.name: row for row in ROWS if row.fits(data)}


def put(recipe, settings):
    """The recipe with these values, one by one."""
    for name, value in settings.items():
        section, _, leaf = name.rpartition(".")
        part = dataclasses.replace(getattr(recipe, section) if section else recipe, **{leaf: value})
        recipe = dataclasses.replace(recipe, **{section: part}) if section else part
    return recipe


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))


@pytest.mark.parametrize("base", ["digits", "text_gather", "text8_paper"])
def test_a_row_changes_these_settings_and_no_others(base, tmp_path):
    rows = by_name(shades(tmp_path))
    assert list(rows) == list(GOLDEN)
    for name, row in rows.items():
        assert row.apply(recipes.recipe(base), shades(tmp_path), 200) == put(recipes.recipe(base), GOLDEN[name]), name


@pytest.mark.parametrize("data", [text, columns], ids=lambda make: make.__name__)
def test_floors_groups_and_places_go_by_the_data(data, tmp_path):
    kind, data = data.__name__, data(tmp_path)
    for name, row in by_name(data).items():
        wanted = dict((GOLDEN | OF_COLUMNS)[name])
        if "process.floor" in wanted:
            wanted["process.floor"] = FLOORS.get(wanted["process.floor"], {}).get(kind, 0.0)
        if "process.grouping" in wanted:
            wanted["process.grouping"] = "cooccurrence"
        if kind == "text":
            wanted.pop("network.placed", None)  # stays as it is
            wanted.setdefault("process.tied", True)  # windows of text begin anywhere
        for base in (recipes.recipe("digits"), recipes.recipe("codes_paper")):
            assert row.apply(base, data, 200) == put(base, wanted), name


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (shades, set()),
        (text, {"mean-natural", "mean-natural-still", "learned-natural"}),
        (columns, {"mean-natural", "mean-natural-still", "learned-natural", "mean-tree", "streams", "streams-learned", "blocks", *TIED}),
        (few(3), {"mean-nested", "learned-nested"}),
        (few(2), {"mean-nested", "learned-nested", "learned-descending", "learned-ascending", "learned-turns",
                  "learned-varying", "learned-natural", "learned-live"}),
    ],
    ids=["shades", "text", "columns", "three", "two"],
)  # fmt: skip
def test_rows_that_make_no_sense_for_the_data_are_left_out(data, missing, tmp_path):
    assert set(GOLDEN) - set(by_name(data(tmp_path))) == missing


@pytest.mark.parametrize("data", [text, columns, shades], ids=lambda make: make.__name__)
def test_every_row_makes_a_bridge_that_can_be_trained(data, tmp_path):
    data, fabric = data(tmp_path), engine(accelerator="cpu")
    plain = _plain(put(recipes.recipe("digits"), {"network.width": 8, "network.blocks": 1}), ())
    for row in by_name(data).values():
        recipe = row.apply(plain, data, 10)
        bridge = recipe.build(data)
        recipe.check(bridge, data, fabric)
        assert bridge.loss(data.train[:4]).isfinite().all(), row.name


def test_only_rows_that_say_so_mask_whatever_the_recipe(tmp_path):
    data, plain = columns(tmp_path), _plain(recipes.recipe("table"), ())
    masks = {name for name, row in by_name(data).items() if row.apply(plain, data, 200).build(data).num_states > 6}
    assert masks == {"sedd-absorb", "mdlm", "tokenwise", "learned-mask", "paths", "paths-learned", "autoregressive",
                     *OF_COLUMNS}  # fmt: skip


def test_trees_say_what_they_go_by(tmp_path):
    assert by_name(text(tmp_path))["mean-tree"].title == "bridge, tree of clusters by cooccurrence, fixed, mean head"
    assert by_name(shades(tmp_path))["mean-tree"].title == "bridge, tree of clusters by value, fixed, mean head"


def test_uniform_noise_is_compared_whatever_the_columns(tmp_path):
    data = columns(tmp_path)
    assert data.state_counts.tolist() == [6, 2]
    assert "sedd-uniform" in by_name(data)

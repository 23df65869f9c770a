import numpy as np
import pytest

import dmb
from dmb.app import recipes
from dmb.app.comparison.rows import rows_for
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


def by_name(data):
    return {row.name: row for row in rows_for(data, 10)}


@pytest.mark.parametrize("data", [text, columns, shades], ids=lambda make: make.__name__)
def test_every_row_makes_a_bridge_that_can_be_trained(data, tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    data, fabric = data(tmp_path), engine(accelerator="cpu")
    for row in by_name(data).values():
        recipe = recipes.override(recipes.digits(), ["width=8", "blocks=1", *row.settings])
        bridge = recipe.build(data)
        recipe.check(bridge, data, fabric)
        assert bridge.loss(data.train[:4]).isfinite().all(), row.name


def test_trees_go_by_neighbours_or_by_value_and_columns_have_none(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    assert "grouping=cooccurrence" in by_name(text(tmp_path))["mean-tree"].settings
    assert "grouping=value" in by_name(shades(tmp_path))["mean-tree"].settings
    assert "mean-tree" not in by_name(columns(tmp_path))


def test_uniform_noise_is_compared_whatever_the_columns(tmp_path):
    data = columns(tmp_path)
    assert data.state_counts.tolist() == [6, 2]
    assert "sedd-uniform" in by_name(data)

import json

import numpy as np
import pytest
import torch

import dmb
from dmb.app import recipes
from dmb.app.recipes import Recipe, as_flags, command_line, recipe_for, register


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_survives_json(name):
    recipe = recipes.recipe(name)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_what_is_no_recipe_is_said():
    config = recipes.recipe("digits").to_json()
    with pytest.raises(ValueError, match="not a recipe: 'process'"):
        Recipe.from_json({name: value for name, value in config.items() if name != "process"})
    with pytest.raises(ValueError, match=r"not a recipe: .*colour"):
        Recipe.from_json(config | {"network": {"colour": 3}})


def test_only_what_is_named_changes():
    before = recipes.recipe("digits")
    after = before.changed(width=8, seed=3, head="score")
    assert before.differences(after) == {"network.width": 8, "training.seed": 3, "head": "score"}
    with pytest.raises(ValueError, match="no setting called girth: choose from head"):
        before.changed(girth=3)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_command_line_of_a_recipe_names_what_was_changed(name):
    recipe = recipes.recipe(name)
    assert command_line(recipe).split() == ["dmb", "train", recipe.data.source, "--recipe", name]
    changed = recipe.changed(speeds=not recipe.process.speeds, learning_rate=7e-4, seed=5)
    speeds = "--no-speeds" if recipe.process.speeds else "--speeds"
    assert command_line(changed).split()[5:] == [speeds, "--learning-rate", "0.0007", "--seed", "5"]
    assert as_flags({"network.placed": False, "data.length": None}) == ["--no-placed", "--length", "None"]


def test_a_recipe_of_ones_own_is_known_by_name():
    @register
    def mine():
        return recipes.recipe("digits").changed(width=7)

    try:
        assert recipes.recipe("mine").network.width == 7
    finally:
        del recipes.RECIPES["mine"]


def test_a_recipe_comes_out_of_a_file(tmp_path):
    wanted = recipes.recipe("digits").changed(width=7)
    (tmp_path / "mine.json").write_text(json.dumps(wanted.to_json()))
    assert recipes.recipe(str(tmp_path / "mine.json")) == wanted
    for content in ("", "[]", '{"name": 3}', '{"name": "digits"}'):
        (tmp_path / "broken.json").write_text(content)
        with pytest.raises(ValueError, match="recipe"):
            recipes.recipe(str(tmp_path / "broken.json"))
    (tmp_path / "hostile.json").write_text(json.dumps(wanted.to_json() | {"name": "evil.py:run"}))
    with pytest.raises(ValueError, match=r"give --recipe evil\.py:run instead"):  # no code is run unasked
        recipes.recipe(str(tmp_path / "hostile.json"))


@pytest.mark.parametrize(("body", "message"), [("1 / 0", "ZeroDivisionError"), ("small = 3", "has no function called"),
                                               ("def small(): return 3", "must return"), ("", "no function called")])  # fmt: skip
def test_a_file_that_makes_no_recipe_is_told(tmp_path, body, message):
    file = tmp_path / f"own{abs(hash(body))}.py"
    file.write_text(body)
    with pytest.raises(ValueError, match=message):
        recipes.recipe(f"{file}:small")


def test_built_in_data_have_recipes():
    names = {"digits": "digits", "pydocs": "text", "markov": "text", "text8": "text8", "cifar10": "images"}
    assert {source: recipe_for(source).name for source in names} == names


def test_no_two_settings_share_a_name():
    recipe = recipes.recipe("digits")
    names = [name.rpartition(".")[2] for name in recipe.settings()]
    assert len(set(names)) == len(names)  # so that every name is a flag


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"process": "uniform"}, dmb.UniformProcess),
        ({"order": "descending", "tied": True}, dmb.BridgeProcess),
        ({"mask": True, "floor": 0.0, "schedule": "canonical"}, dmb.BridgeProcess),
        ({"init": "match"}, dmb.BridgeProcess),
        ({"init": "nested", "process": "varying"}, dmb.BridgeProcess),
        ({"schedule": "geometric", "init": "uniform"}, dmb.BridgeProcess),
        ({"process": "tree", "grouping": "value", "schedule": "canonical"}, dmb.BridgeProcess),
        ({"process": "tree", "grouping": "frequency", "stages": 2, "tied": True}, dmb.BridgeProcess),
        ({"process": "tree", "clusters": "6,2", "ratio": 2.0}, dmb.BridgeProcess),
        ({"process": "tokenwise", "schedule": "linear"}, dmb.TokenwiseMasking),
        ({"network": "transformer", "width": 16, "heads": 2, "classes": True}, dmb.BridgeProcess),
        ({"head": "score"}, dmb.BridgeProcess),
    ],
)
def test_every_choice_builds_a_bridge_that_has_a_loss(settings, expected):
    data = dmb.data.digits()
    bridge = recipes.recipe("digits").changed(**{"width": 16, "blocks": 1} | settings).build(data)
    assert isinstance(bridge.process, expected)
    label = data.train.labels(slice(4)) if bridge.network.num_classes else None
    assert bridge.loss(data.train[:4], label=label).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "hierarchy", "clocks", "names"),
    [
        ({"process": "bridge"}, dmb.Line, dmb.Steady, 0),
        ({"process": "varying", "mask": True}, dmb.Line, dmb.Varying, 1),
        (
            {"process": "tree", "grouping": "value"},
            dmb.Tree,
            dmb.Steady,
            16,
        ),  # 8 pairs, 4, 2 and 1 of those, and the root
        ({"process": "tree", "grouping": "frequency", "stages": 2}, dmb.Tree, dmb.Steady, 2),
        ({"process": "tree", "clusters": "6,2"}, dmb.Tree, dmb.Steady, None),
    ],
)
def test_the_settings_of_a_process_choose_its_hierarchy_and_its_clocks(settings, hierarchy, clocks, names):
    process = recipes.recipe("digits").changed(**settings).process.build(dmb.data.digits())
    assert isinstance(process.hierarchy, hierarchy)
    assert isinstance(process.clocks, clocks)
    assert names is None or process.names == names
    assert process.num_states == 17 + process.names


def test_clusters_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="clusters must be whole numbers separated by commas, got '6;2'"):
        recipes.recipe("digits").changed(process="tree", clusters="6;2").build(dmb.data.digits())


def test_uniform_noise_serves_columns_with_different_numbers_of_states(tmp_path):
    file = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    file.write_text("\n".join(["colour,size"] + [f"{rng.choice([*'rgb'])},{rng.integers(2)}" for _ in range(60)]))
    data = dmb.data.table(file)
    bridge = recipes.recipe("table").changed(process="uniform", width=16, blocks=1).build(data)
    assert bridge.process.legal.sum(-1).tolist() == [3, 2]
    assert bridge.loss(data.train[:4]).isfinite().all()


@pytest.mark.long
def test_the_papers_network_has_its_size():
    process = dmb.BridgeProcess.from_marginals(torch.full((256, 27), 1 / 27), tied=True)
    data = dmb.data.markov()
    with torch.device("meta"):  # sizes without numbers
        network = recipes.recipe("text8_paper").network.build(process, data)
    assert 8e7 < sum(p.numel() for p in network.parameters()) < 1e8


def test_a_query_starts_from_its_neighbours_along_every_axis_and_columns_have_none(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["colour,size"] + [f"{'rgb'[k % 3]},{k % 2}" for k in range(60)]))
    ordered = {
        "network": "ordered",
        "mask": True,
        "init": "gather",
        "floor": 0.0,
        "tied": False,
        "width": 8,
        "heads": 2,
        "blocks": 1,
    }
    for data, distances in ((dmb.data.digits(), [1, 8]), (dmb.data.markov(), [1]), (dmb.data.table(file), [])):
        network = recipes.recipe("sequences").changed(**ordered).build(data).network
        assert network.config()["beside"] == distances


def test_conditioning_on_classes_needs_classes():
    with pytest.raises(ValueError, match="class labels"):
        recipes.recipe("text").changed(classes=True, source="markov").build(dmb.data.markov())


@pytest.mark.parametrize("name", ["digits", "text", "table", "array", "records"])
def test_data_that_may_be_few_are_not_learned_by_heart(name):
    training = recipes.recipe(name).training
    assert 0 < training.patience * training.evaluate_every < training.total_steps

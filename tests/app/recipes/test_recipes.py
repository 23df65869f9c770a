import json

import numpy as np
import pytest

import dmb
from dmb.app import recipes
from dmb.app.recipes import Recipe, override, settings_of


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_survives_json(name):
    recipe = recipes.recipe(name)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_what_is_no_recipe_is_said():
    config = recipes.digits().to_json()
    with pytest.raises(ValueError, match="not a recipe: 'process'"):
        Recipe.from_json({name: value for name, value in config.items() if name != "process"})
    with pytest.raises(ValueError, match=r"not a recipe: .*colour"):
        Recipe.from_json(config | {"network": {"colour": 3}})


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("training.cycles=7", 7),
        ("learning_rate=3e-4", 3e-4),
        ("data.length=none", None),
        ("length=32", 32),
        ("compile=True", True),
        ("minutes=1.5", 1.5),
        ("head=score", "score"),
        ("encoding=bytes", "bytes"),
        ("weight_decay_until=800000", 800_000),
    ],
)
def test_a_setting_is_read_as_its_type(assignment, value):
    name = assignment.partition("=")[0].rpartition(".")[2]
    changed = settings_of(override(recipes.text8(), [assignment]))
    found = [changed[full] for full in changed if full.rpartition(".")[2] == name]
    assert found == [value]
    assert [type(v) for v in found] == [type(value)]


def test_only_what_is_named_changes():
    before, after = settings_of(recipes.digits()), settings_of(override(recipes.digits(), ["width=8", "seed=3"]))
    assert {name for name in before if before[name] != after[name]} == {"network.width", "training.seed"}


def test_no_two_settings_share_a_name_and_how_to_train_comes_last():
    recipe = recipes.digits()
    names = [name.rpartition(".")[2] for name in settings_of(recipe)]
    assert len(set(names)) == len(names)
    sections = [name.partition(".")[0] for name in settings_of(recipe)]
    assert sections == sorted(sections, key=lambda section: section == "training")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["process=uniform"], dmb.UniformProcess),
        (["order=descending", "tied=true"], dmb.BridgeProcess),
        (["mask=true", "floor=0", "schedule=canonical"], dmb.BridgeProcess),
        (["init=match"], dmb.BridgeProcess),
        (["init=nested", "process=varying"], dmb.BridgeProcess),
        (["schedule=geometric", "init=uniform"], dmb.BridgeProcess),
        (["process=tree", "grouping=value", "schedule=canonical"], dmb.BridgeProcess),
        (["process=tree", "grouping=frequency", "stages=2", "tied=true"], dmb.BridgeProcess),
        (["process=tree", "clusters=6,2", "ratio=2"], dmb.BridgeProcess),
        (["process=tokenwise", "schedule=linear"], dmb.TokenwiseMasking),
        (["network=transformer", "width=16", "heads=2", "classes=true"], dmb.BridgeProcess),
        (["head=score"], dmb.BridgeProcess),
    ],
)
def test_every_choice_builds_a_bridge_that_has_a_loss(settings, expected):
    data = dmb.data.digits()
    bridge = override(recipes.digits(), ["width=16", "blocks=1", *settings]).build(data)
    assert isinstance(bridge.process, expected)
    label = data.train.labels(slice(4)) if bridge.network.num_classes else None
    assert bridge.loss(data.train[:4], label=label).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "hierarchy", "clocks", "names"),
    [
        (["process=bridge"], dmb.Line, dmb.Steady, 0),
        (["process=varying", "mask=true"], dmb.Line, dmb.Varying, 1),
        (["process=tree", "grouping=value"], dmb.Tree, dmb.Steady, 16),  # 8 pairs, 4, 2 and 1 of those, and the root
        (["process=tree", "grouping=frequency", "stages=2"], dmb.Tree, dmb.Steady, 2),
        (["process=tree", "clusters=6,2"], dmb.Tree, dmb.Steady, None),
    ],
)
def test_the_settings_of_a_process_choose_its_hierarchy_and_its_clocks(settings, hierarchy, clocks, names):
    process = override(recipes.digits(), settings).process.build(dmb.data.digits())
    assert isinstance(process.hierarchy, hierarchy)
    assert isinstance(process.clocks, clocks)
    assert names is None or process.names == names
    assert process.num_states == 17 + process.names


def test_clusters_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="clusters must be whole numbers with commas in between, got '6;2'"):
        override(recipes.digits(), ["process=tree", "clusters=6;2"]).build(dmb.data.digits())


def test_uniform_noise_serves_columns_with_different_numbers_of_states(tmp_path):
    file = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    file.write_text("\n".join(["colour,size"] + [f"{rng.choice([*'rgb'])},{rng.integers(2)}" for _ in range(60)]))
    data = dmb.data.table(file)
    bridge = override(recipes.table(), ["process=uniform", "width=16", "blocks=1"]).build(data)
    assert bridge.process.legal.sum(-1).tolist() == [3, 2]
    assert bridge.loss(data.train[:4]).isfinite().all()


def test_the_papers_network_has_its_size():
    process = dmb.BridgeProcess.from_marginals(dmb.data.markov(length=256).marginals()[:, :27], tied=True)
    network = recipes.text8_paper().network.build(process)
    assert 8e7 < sum(p.numel() for p in network.parameters()) < 1e8


def test_conditioning_on_classes_needs_classes():
    with pytest.raises(ValueError, match="class labels"):
        override(recipes.pydocs(), ["classes=true", "source=markov"]).build(dmb.data.markov())

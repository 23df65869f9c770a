import json

import pytest

import dmb
from dmb import recipes
from dmb.recipes import Recipe, override, settings_of


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_survives_json(name):
    recipe = recipes.recipe(name)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


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


def test_no_two_settings_share_a_name():
    names = [name.rpartition(".")[2] for name in settings_of(recipes.digits())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["process=uniform"], dmb.UniformProcess),
        (["order=descending", "tied=true"], dmb.BridgeProcess),
        (["mask=true", "floor=0", "schedule=canonical"], dmb.BridgeProcess),
        (["init=match"], dmb.BridgeProcess),
        (["schedule=geometric", "parametrisation=softplus", "init=uniform"], dmb.BridgeProcess),
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


def test_the_papers_network_has_its_size():
    process = dmb.BridgeProcess.from_marginals(dmb.data.markov(length=256).marginals()[:, :27], tied=True)
    network = recipes.text8_paper().network.build(process)
    assert 8e7 < sum(p.numel() for p in network.parameters()) < 1e8


def test_conditioning_on_classes_needs_classes():
    with pytest.raises(ValueError, match="class labels"):
        override(recipes.pydocs(), ["classes=true", "source=markov"]).build(dmb.data.markov())

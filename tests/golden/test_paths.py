"""Figures by whole paths and of recipes, and model folders, recorded by version 0.2 before there were two models."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import dmb
from dmb import orders
from dmb._core import numerics
from dmb.app.recipes import Recipe, choices, recipe
from golden import paths
from golden.figures import generator
from golden.test_golden import assert_equal_to_rounding

HERE = Path(__file__).parent
FOLDERS = HERE / "version_0.2"
KINDS = {
    "any_order": orders.Random, "smooth": orders.Smooth, "free": orders.Free, "in_turn": orders.Fixed,
    "causal": orders.Fixed, "rates_for_speeds": orders.Free, "table": orders.Fixed, "records": orders.Smooth,
    "drawn_times": None, "drawn_times_with_speeds": None,
}  # fmt: skip


def queries_only(network):
    super(dmb.OrderedTransformer, network)._add_neighbours()
    network.content_neighbours = None


FIXED = ("in turn", "in_turn", "table")


@pytest.fixture
def as_recorded(request, monkeypatch):
    """Version 0.2 drew an order of columns too, by speeds so far apart that it was the same each time.

    And only queries started from the tokens beside them, in a sequence from the nearest.
    """
    plain, distances = orders.Fixed.turns, choices._distances
    monkeypatch.setattr(dmb.OrderedTransformer, "_add_neighbours", queries_only)
    monkeypatch.setattr(choices, "_distances", lambda axes: [1] if len(axes) == 1 else distances(axes))

    def turns(self, batch, *, given=None, generator=None):
        numerics.exponential((batch, self.num_positions), generator=generator, device=self.order.device)
        return plain(self, batch, given=given)

    if request.node.callspec.params["name"] in FIXED:
        monkeypatch.setattr(orders.Fixed, "turns", turns)


@cache
def recorded(file):
    return json.loads(file.read_text())


@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("name", paths.MODELS)
def test_losses_gradients_bounds_and_samples_are_those_recorded(name):
    assert_equal_to_rounding(paths.of_a_model(name), recorded(HERE / "recorded_paths.json")["models"][name], name)


@pytest.mark.long
@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("name", paths.RECIPES)
def test_a_few_steps_of_a_recipe_end_in_the_weights_recorded(name, tmp_path):
    found = paths.of_a_recipe(name, tmp_path)
    assert_equal_to_rounding(found, recorded(HERE / "recorded_paths.json")["recipes"][name], name)


@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("name", KINDS)
def test_a_folder_of_version_0_2_has_the_bound_and_the_samples_that_it_had(name, tmp_path):
    expected, kind = recorded(FOLDERS / "recorded.json")[name], KINDS[name]
    bridge = dmb.Bridge.from_pretrained(FOLDERS / name)
    assert isinstance(bridge, dmb.MarkovBridge if kind is None else dmb.OrderedBridge)
    assert kind is None or type(bridge.order) is kind
    bridge.write(tmp_path)
    for model in (bridge, dmb.Bridge.from_pretrained(tmp_path)):
        bound = model.bound(torch.tensor(expected["x"]), generator=generator(3))
        assert bound.score.tolist() == pytest.approx(expected["score"], rel=1e-6)
        assert bound.prior.tolist() == pytest.approx(expected["prior"], rel=1e-6)
        assert model.sample(4, generator=generator(4)).tolist() == expected["sample"]


@pytest.mark.parametrize(("name", "kind"), [("drawn_times", dmb.MarkovBridge), ("smooth", dmb.OrderedBridge)])
def test_a_folder_of_version_0_1_has_the_bound_that_it_had(name, kind):
    """Written by the last commit of 0.1."""
    expected, bridge = (
        recorded(HERE / "version_0.1" / "recorded.json")[name],
        kind.from_pretrained(HERE / "version_0.1" / name),
    )
    bound = bridge.bound(torch.tensor(expected["x"]), generator=generator(3))
    assert bound.score.tolist() == pytest.approx(expected["score"], rel=1e-6)
    assert bound.prior.tolist() == pytest.approx(expected["prior"], rel=1e-6)


@pytest.mark.parametrize("name", recorded(FOLDERS / "recipes.json"))
def test_a_recipe_of_version_0_2_is_read_as_the_one_of_today(name):
    today = recipe(name)
    if today.order.write_order == "learned_streams":  # learned for one call per position then
        today = today.changed(write_order="learned")
    assert Recipe.from_json(recorded(FOLDERS / "recipes.json")[name]) == today

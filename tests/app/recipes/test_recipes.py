import json

import numpy as np
import pytest
import torch

import dmb
from dmb.app import recipes
from dmb.app.recipes import Recipe, as_flags, command_line, recipe_for, register
from dmb.training import engine


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
    changed = recipe.changed(tied=not recipe.process.tied, learning_rate=7e-4, seed=5)
    tied = "--no-tied" if recipe.process.tied else "--tied"
    assert command_line(changed).split()[5:] == [tied, "--learning-rate", "0.0007", "--seed", "5"]
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
    plain = {"process": "uniform", "write_order": None, "network": "mlp", "width": 16, "blocks": 1}
    bridge = recipes.recipe("table").changed(**plain).build(data)
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
    for data, distances in ((dmb.data.digits(), [1, 8]), (dmb.data.markov(), [1, 2, 3]), (dmb.data.table(file), [])):
        network = recipes.recipe("sequences").changed(**ordered, write_order="learned").build(data).network
        assert network.config()["beside"] == distances


def written(folder, columns, rows=60):
    """A table of numbers and categories."""
    rng = np.random.default_rng(0)
    frame = {f"c{k}": rng.random(rows).round(4) if k % 3 == 0 else rng.integers(0, 3, rows) for k in range(columns)}
    lines = [",".join(frame), *(",".join(map(str, row)) for row in zip(*frame.values(), strict=True))]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


@pytest.mark.parametrize("columns", [4, 33])
def test_a_file_and_a_frame_have_the_same_model_of_a_table(columns, tmp_path):
    file = written(tmp_path, columns)
    data, recipe = dmb.data.table(file), recipe_for(str(file))
    by_file, by_frame = recipe.build(data), dmb.TableModel()._untrained(data)
    assert by_file.to_config() == by_frame.to_config()
    assert isinstance(by_file, dmb.OrderedBridge if columns == 4 else dmb.MarkovBridge)
    assert by_file.corruption.state_dict().keys() == by_frame.corruption.state_dict().keys()
    recipe.check(by_file, data, engine(accelerator="cpu"))
    assert by_file.infill_share(recipe.training) == (0.25 if columns == 4 else 0.0)
    if columns == 4:
        assert by_file.estimator(recipe.training).bound["any_order"] == 0.5


def test_the_columns_of_a_table_are_written_from_first_to_last(tmp_path):
    bridge = recipes.recipe("table").changed(width=8, blocks=1).build(dmb.data.table(written(tmp_path, 4)))
    assert bridge.turns(3).tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize(
    ("rows", "columns", "steps"),
    [(60, 4, 400), (12_800, 4, 800), (200_000, 4, 1500), (200_000, 30, 1000), (60, 33, 1000)],
)
def test_a_table_is_trained_for_as_long_as_its_size_needs(rows, columns, steps, tmp_path):
    (tmp_path / "table.csv").write_text(",".join(f"c{k}" for k in range(columns)) + "\n" * rows)
    assert recipe_for(str(tmp_path / "table.csv")).training.score_steps == steps


def test_a_file_that_is_no_table_is_reported_when_it_is_read(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert recipe_for(str(tmp_path / "broken.parquet")) == recipes.recipe("table")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match=r"empty.csv is empty"):
        recipe_for(str(tmp_path / "empty.csv"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": "mlp"}, "write_order must be None for a MLP, which follows no order"),
        ({"process": "uniform"}, "network=columns needs a mask"),
        ({"mask": False}, "network=columns needs a mask"),
    ],
    ids=str,
)
def test_what_does_not_follow_an_order_is_refused_one(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        recipes.recipe("table").changed(**settings).build(dmb.data.table(written(tmp_path, 4)))


@pytest.mark.parametrize("settings", [{"write_order": "fixed"}, {"network": "columns"}], ids=str)
def test_columns_and_orders_are_for_networks_that_have_them(settings):
    with pytest.raises(ValueError, match=r"table|write_order must be None"):
        recipes.recipe("digits").changed(**settings).build(dmb.data.digits())


def test_records_are_learned_by_whole_paths_and_have_lengths(tmp_path):
    (tmp_path / "x.fasta").write_text("".join(f">{k}\n{'MKV' * (k % 4 + 1)}\n" for k in range(40)))
    data, recipe = dmb.data.load(tmp_path / "x.fasta"), recipe_for(str(tmp_path / "x.fasta"))
    bridge = recipe.changed(width=8, heads=2, blocks=1).build(data)
    recipe.check(bridge, data, engine(accelerator="cpu"))
    assert isinstance(bridge, dmb.OrderedBridge)
    assert bridge.lengths is not None
    assert bridge.infill_share(recipe.training) == 0.25


@pytest.mark.parametrize(
    ("name", "length", "budgets"),
    [("text", 64, (4, 8, 16, 32, 64)), ("text8", 256, (4, 8, 16, 32, 64, 256)), ("text", 11, (4, 8, 11)),
     ("text", 3, (3,))],
)  # fmt: skip
def test_texts_have_an_order_for_few_calls_and_one_for_a_call_per_letter_all_of_them_trained(name, length, budgets):
    recipe, data = recipes.recipe(name).changed(source="markov", length=length), dmb.data.markov(length=length)
    bridge = recipe.changed(width=8, heads=2, blocks=1).build(data)
    estimator = bridge.estimator(recipe.training)
    assert (bridge.order.budgets, estimator.score["calls"], bridge.usual_calls) == (budgets, budgets, length)
    assert (bridge.infill_share(recipe.training), estimator.score["learn_order"]) == (0.25, True)
    # what is sampled by default is one position after the other, along the text
    torch.nn.init.constant_(bridge.order.weights, 40.0)
    assert bridge.turns(1).tolist() == [[*range(length)]]


@pytest.mark.parametrize(("calls", "used"), [(1, 1), (4, 4), (7, 4), (20, 8)])
def test_few_calls_fill_in_a_template_in_streams_through_its_blanks(calls, used):
    recipe = recipes.recipe("text").changed(source="markov", length=11, width=8, heads=2, blocks=1)
    bridge = recipe.build(dmb.data.markov(length=11))
    template = torch.tensor([-1, 3, -1, -1, 1, -1, -1, -1, -1, -1, 2])
    x = bridge.sample(5, calls=calls, template=template)
    assert (x[:, template >= 0] == template[template >= 0]).all()
    given = template[None] >= 0
    call = bridge.call_of(bridge.turns(1, calls=calls, given=given), calls, given)
    assert (call.max() + 1, (call[given] == -1).all()) == (used, True)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_blocks_go_from_left_to_right_in_the_size_that_was_set(size):
    order = recipes.recipe("text").changed(write_order="blocks", block_size=size, length=8).order
    built = order.build(dmb.data.markov(length=8))
    assert isinstance(built, dmb.orders.Blocks)
    assert (built.turns(50) // size == torch.arange(8) // size).all()
    assert size == 1 or len(built.turns(50).unique(dim=0)) > 1


def test_conditioning_on_classes_needs_classes():
    with pytest.raises(ValueError, match="class labels"):
        recipes.recipe("text").changed(classes=True, source="markov").build(dmb.data.markov())


@pytest.mark.parametrize("name", ["digits", "text", "table", "array", "records"])
def test_data_that_may_be_few_are_not_learned_by_heart(name):
    training = recipes.recipe(name).training
    assert 0 < training.patience * training.evaluate_every < training.total_steps


@pytest.mark.parametrize(("rows", "width"), [(400, 16), (1200, 32), (20_000, 128)])
def test_a_table_has_weights_as_its_rows_allow(tmp_path, rows, width):
    (tmp_path / "t.csv").write_text("a,b\n" + "1,x\n" * rows)
    assert recipe_for(str(tmp_path / "t.csv")).network.width == width

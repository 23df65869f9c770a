import json
import math
import re

import numpy as np
import pytest
import scipy.integrate
import torch

import dmb
from dmb import grouping
from dmb.app.recipes import DataChoice, NetworkChoice, ProcessChoice, Recipe
from dmb.app.reports import curves, figures, pictures, write_report
from dmb.app.reports.drawing import to_svg
from dmb.app.reports.learned import clock_intensities, rate_matrix
from dmb.app.reports.names import names_of
from dmb.app.reports.survival import survival_by_position, survival_by_state
from dmb.app.reports.symbols import Symbols
from dmb.app.runs import Run
from dmb.data import Characters

TIMES = np.array([0.0, 0.3, 0.75, 1.0])
CHANGED = 0.999 * TIMES
"""`1 - exp(-σ̄(t))` under `LogLinear`."""

# -- what is destroyed when -------------------------------------------------------------------------------------------


def test_under_gather_every_state_but_the_top_survives_like_a_mask():
    process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.1, 0.4, 0.2, 0.3]]), floor=0.0)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [3, 2, 0]  # by frequency; 1, the most frequent, is on top and never left
    assert np.allclose(chance, 1 - CHANGED, atol=1e-6)


def test_under_uniform_noise_a_state_is_left_at_the_rate_at_which_others_are_drawn():
    process = dmb.UniformProcess(5, 3)
    states, chance = survival_by_state(process, TIMES)
    assert sorted(states.tolist()) == [0, 1, 2]
    assert np.allclose(chance, (1 - CHANGED) ** (2 / 3))
    assert survival_by_position(process, TIMES) is None


def tokenwise():
    """Two positions, of which the first lacks state 2."""
    return dmb.TokenwiseMasking(
        torch.tensor([[1.0, 2.0, 7.0], [2.0, 4.0, 1.0]]),
        legal=torch.tensor([[True, True, False, True], [True, True, True, True]]),
        marginals=torch.tensor([[0.25, 0.75, 0.0, 0.0], [0.5, 0.3, 0.2, 0.0]]),
    )


def test_survival_is_averaged_over_the_positions_that_have_a_state_and_leaves_out_the_mask():
    states, chance = survival_by_state(tokenwise(), TIMES)
    assert states.tolist() == [1, 0, 2]
    expected = [1 - (CHANGED**2 + CHANGED**4) / 2, 1 - (CHANGED + CHANGED**2) / 2, 1 - CHANGED]
    assert np.allclose(chance, expected, atol=1e-6)


def test_states_that_mean_something_else_at_each_position_are_not_averaged():
    states, chance = survival_by_state(tokenwise(), TIMES, pooled=False, most=4)
    assert states.tolist() == [1, 4, 5, 0]
    assert np.allclose(chance, [1 - CHANGED**2, 1 - CHANGED**2, 1 - CHANGED**4, 1 - CHANGED], atol=1e-6)


def test_positions_are_weighted_by_the_marginals_of_their_states():
    expected = [
        1 - 0.25 * CHANGED - 0.75 * CHANGED**2,
        1 - 0.5 * CHANGED**2 - 0.3 * CHANGED**4 - 0.2 * CHANGED,
    ]
    assert np.allclose(survival_by_position(tokenwise(), TIMES), expected, atol=1e-6)


def test_a_state_that_one_position_never_leaves_stays_there_and_does_not_count_in_its_mean():
    rank = torch.tensor([[0, 1], [1, 0]])
    marginals = torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    process = dmb.BridgeProcess(dmb.Line(rank), dmb.Steady(torch.tensor([[1.0], [2.0]])), marginals=marginals)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [1, 0]
    assert np.allclose(chance, [(1 + (1 - CHANGED) ** 2) / 2, (1 - CHANGED + 1) / 2], atol=1e-6)
    assert np.allclose(survival_by_position(process, TIMES), [1 - CHANGED, (1 - CHANGED) ** 2], atol=1e-6)


def test_in_canonical_time_the_mean_over_all_tokens_falls_on_a_straight_line():
    mu = torch.tensor([[0.5, 0.3, 0.2]])
    padded = torch.nn.functional.pad(mu, (0, 1))
    process = dmb.TokenwiseMasking(torch.tensor([[0.3, 1.0, 6.0]]), schedule=dmb.Canonical(), marginals=padded)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [0, 1, 2]
    assert np.allclose(mu.double().numpy()[0] @ chance, 1 - CHANGED, atol=1e-6)


# -- rates ------------------------------------------------------------------------------------------------------------


def varying():
    """Two positions with orders of their own; no two clocks are alike."""
    clocks = dmb.Varying(torch.tensor([[0.5, 2.0], [1.0, 0.1]]))
    with torch.no_grad():
        clocks.raw_profile.copy_(torch.arange(16.0).view(2, 4, 2).sin())
    return dmb.BridgeProcess(dmb.Line(torch.tensor([[0, 1, 2], [2, 0, 1]])), clocks).double()


def speed(u, mixture):
    """Of a clock of unit rate, from the formula of each profile."""
    s = 1 - math.exp(-u)
    late = [p * s ** (p - 1) * math.exp(-u) / (1 - s**p) for p in (1, 2, 4)]
    return float(np.dot(mixture, [*late, math.exp(-u)]))


def test_intensities_of_varying_clocks_are_the_integrals_of_their_speeds():
    process, end = varying(), -math.log(1e-3)
    shown = clock_intensities(process)
    mixtures = torch.softmax(torch.arange(16.0).double().view(2, 4, 2).sin(), 1).numpy()
    tokens = [[0, 1, 2], [1, 2, 0]]  # in rank order
    for position, rates in enumerate([[0.5, 2.0], [1.0, 0.1]]):
        assert np.isnan(shown[position, tokens[position][0]])
        for k, rate in enumerate(rates):
            total, _ = scipy.integrate.quad(speed, 0, end, args=(mixtures[position, :, k],))
            assert shown[position, tokens[position][k + 1]] == pytest.approx(rate * total, rel=1e-5)


def test_the_mean_rate_matrix_of_varying_clocks_leads_to_where_they_lead():
    process = varying()
    for position in range(2):
        Q, order = rate_matrix(process, position)
        dense = process.to_dense(1.0)[position].detach()[order][:, order]
        assert torch.allclose(torch.matrix_exp(-math.log(1e-3) * torch.from_numpy(Q)), dense, atol=1e-6)


# -- trees ------------------------------------------------------------------------------------------------------------

PARENTS = [[5, 5, 6, 6, 7, 7, 7, 7], [6, 5, 5, 6, 7, 7, 7, 7]]
"""{{0, 1}, {2, 3}, 4} at one position, {{1, 2}, {0, 3}, 4} at the other."""


def tree(rows=2):
    rates = torch.tensor([[0.5, 3.0, 1.0], [2.0, 0.0, 0.7]])[:rows]
    hierarchy = dmb.Tree(torch.tensor(PARENTS)[:rows], names=3)
    return dmb.BridgeProcess(hierarchy, dmb.Steady(rates), num_positions=2).double()


def test_only_the_nodes_of_a_tree_with_something_below_them_have_clocks():
    shown, total = clock_intensities(tree()), -math.log(1e-3)
    assert np.isnan(shown[:, :5]).all()
    # of two clocks at one depth the later belongs to the state that comes first
    assert np.allclose(shown[:, 5:] / total, [[3.0, 0.5, 1.0], [0.0, 2.0, 0.7]], atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_rate_matrix_of_a_tree_generates_it_and_places_groups_together(rows):
    process = tree(rows)
    orders = [[4, 0, 1, 5, 2, 3, 6, 7], [4, 1, 2, 5, 0, 3, 6, 7]]
    for position in range(2):
        Q, order = rate_matrix(process, position)
        assert order == orders[position if rows == 2 else 0]
        assert (np.tril(Q, -1) == 0).all()
        dense = process.to_dense(1.0)[position].detach()[order][:, order]
        assert torch.allclose(torch.matrix_exp(-math.log(1e-3) * torch.from_numpy(Q)), dense, atol=1e-6)


def test_names_know_what_lies_below_them():
    names = names_of(tree())
    assert names.below[:, 0].nonzero()[1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert names.below[:, 1].nonzero()[1].tolist() == [1, 2, 0, 3, 0, 1, 2, 3, 4]
    assert names.coarse.tolist() == [[False, False], [False, False], [True, True]]
    assert names_of(dmb.UniformProcess(3, 4)) is None
    assert names_of(tokenwise()).below.tolist() == [[[True, True, False], [True, True, True]]]


def test_labels_of_names_are_what_lies_below_them_and_a_single_one_is_a_mask():
    letters = Symbols(Characters("abcde"), names_of(tree()), 8)
    assert letters.labels(0) == [*"abcde", "{a b}", "{c d}", "any"]
    assert letters.labels(1) == [*"abcde", "{b c}", "{a d}", "any"]
    assert letters.row([4, 6]) == ["e", "░"]
    assert letters.row([7, 5]) == ["▓", "░"]
    numbers = Symbols(dmb.data.Grid([2], 8), names_of(value_tree(8)), 15)
    assert numbers.labels(0)[8:] == ["{0 1}", "{2 3}", "{4 5}", "{6 7}", "{0…3}", "{4…7}", "any"]
    assert numbers.row([8, 12]) == ["░", "▒"]
    assert Symbols(Characters("ab"), names_of(masked(2)), 3).labels(0) == ["a", "b", "mask"]
    assert Symbols(Characters("ab"), names_of(masked(2)), 3).row([2, 0]) == ["▒", "a"]


def value_tree(states):
    hierarchy = grouping.by_value(states)
    return dmb.BridgeProcess(hierarchy, dmb.Steady(hierarchy.level_rates(5.0)), num_positions=2)


def masked(states):
    return dmb.BridgeProcess.from_marginals(torch.full((2, states), 1 / states), mask=True, floor=0.0)


def test_a_name_of_shades_is_painted_in_the_middle_one_with_orange_as_wide_as_it_is():
    names = names_of(value_tree(5))  # {{{0 1} {2 3}} 4}
    painted = pictures.painted(dmb.data.Grid([1, 6], 5), np.array([[4, 5, 6, 7, 8, 0]]), names)
    orange = np.array([0xD9, 0x66, 0x2B]) / 255
    expected = [1, 0.25 * orange, 0.25 * orange + 0.75 * 0.5, 0.75 * orange + 0.25 * 0.25, orange, 0]
    for pixel, wanted in zip(painted[0, 0], expected, strict=True):
        np.testing.assert_allclose(pixel, wanted * np.ones(3))


# -- figures ----------------------------------------------------------------------------------------------------------


def words(axes):
    return [piece.get_text() for piece in axes.texts]


def test_the_lines_that_changed_most_are_named_where_they_end():
    start = np.ones(8)
    end = np.array([1.0, 3.0, 0.5, 1.001, 8.0, 0.1, 1.2, 1.3])
    drawn = curves.exponents_over_training(
        np.array([0.0, 10.0]), np.stack([start, end]), np.full(8, 1 / 8), names=[*"abc$efgh"]
    )
    assert words(drawn.axes[0]) == ["f", "c", "g", "h", "b", "e"]  # from bottom to top


def test_a_clock_that_is_off_or_has_not_changed_is_not_named():
    alpha = np.array([[0.0, 1.0, 1.0, 1.0], [0.0, 2.0, 1.0, 3.0]])
    drawn = curves.rates_over_training(np.array([0.0, 10.0]), alpha, names=[*"abcd"], top="top rank: d")
    assert words(drawn.axes[0]) == ["b"]


@pytest.mark.parametrize(("positions", "panels"), [(1, 1), (3, 2), (30, 3)])
def test_positions_are_lines_if_few_and_an_image_with_a_scale_if_many(positions, panels):
    chance = 1 - np.linspace(0, 1, 5)[None] ** np.linspace(0.1, 8, positions)[:, None]
    drawn = curves.survival(
        np.linspace(0, 1, 5), chance, ["$x$", "y"][:positions], by_position=chance if positions > 1 else None
    )
    svg = to_svg(drawn, "any")
    assert "$x$" in svg
    assert len(drawn.axes) + sum(len(axes.child_axes) for axes in drawn.axes) == panels


def test_bars_of_many_states_fill_several_rows():
    drawn = figures.exponents(np.geomspace(0.01, 100, 90), [chr(200 + k) for k in range(90)])
    assert [len(axes.patches) for axes in drawn.axes] == [30, 30, 30]
    assert figures.exponents(np.ones(3), [*"abc"]).axes[0].get_ylim()[0] < 1


# -- pages ------------------------------------------------------------------------------------------------------------


def written(folder, data, process, objective, over_training):
    """The page of a run that was never trained, but whose log says what it had learned at two steps."""
    recipe = Recipe(
        name="tiny",
        data=DataChoice(source=data.source),
        process=process,
        network=NetworkChoice(network="mlp", width=4, blocks=1, conditioning=4),
        training=dmb.TrainingSettings(matrix_objective=objective),
    )
    run = Run.create(folder, recipe, data)
    bridge = recipe.build(data)
    with torch.no_grad():
        for parameter in bridge.process.parameters():
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    bridge.write(folder)
    records = [
        {"phase": "validation", "step": 10 * k, "bits": 2.0, "improved": k == 0, "alpha": alpha}
        for k, alpha in enumerate(over_training)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return write_report(run).read_text(encoding="utf-8")


def shown(page):
    return {each.split("-")[0] for each in re.findall(r'id="([^"]*-figure_1)"', page)}


def picture(page, name):
    return next(svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if f'id="{name}-figure_1"' in svg)


def test_the_page_of_a_tokenwise_run_shows_when_each_letter_is_masked(tmp_path):
    file = tmp_path / "letters.txt"
    file.write_text("abcdeabca " * 60)
    over_training = [[1.0] * 6, [1.0, 4.0, 1.0, 1.0, 0.2, 1.0]]
    page = written(
        tmp_path / "run", dmb.data.text(file, length=10), ProcessChoice(process="tokenwise", tied=True), "joint",
        over_training,
    )  # fmt: skip
    assert {"survival", "exponents", "learning"} <= shown(page)
    assert not {"clocks", "matrix"} & shown(page)
    assert "A large exponent means masked late" in page
    assert "in every step. The other figures show the best model, that of step 0." in page
    named = re.findall(r">([a-e␣])</text>", picture(page, "learning"))
    assert sorted(named) == ["a", "d"]
    assert "mask" not in picture(page, "survival")


def test_the_page_of_a_tree_of_letters_names_groups_by_what_is_in_them(tmp_path):
    file = tmp_path / "letters.txt"
    rng = np.random.default_rng(0)
    file.write_text("".join(f"{rng.choice([*'bdf'])}{rng.choice([*'aei'])}" for _ in range(400)))
    page = written(
        tmp_path / "run", dmb.data.text(file, length=10),
        ProcessChoice(process="tree", grouping="cooccurrence", clusters="2", schedule="canonical", tied=True), "joint",
        [[5.0, 5.0, 1.0], [1.0, 6.0, 1.0]],
    )  # fmt: skip
    process = Run.open(tmp_path / "run").bridge().process
    labels = Symbols(dmb.data.text(file, length=10).codec, names_of(process), process.num_states).labels(0)
    assert {"survival", "clocks", "matrix", "learning"} <= shown(page)
    assert labels[-3:] == ["{a e i}", "{b d f}", "any"]
    for name in labels[-process.names :]:
        assert name in picture(page, "clocks")
        assert name in picture(page, "matrix")
        assert name not in picture(page, "survival")
    assert "root: any" in picture(page, "learning")
    assert "A state with nothing below it has none." in page
    assert "rank" not in page
    assert "names of groups of states, from fine to coarse" in page
    assert '<span class="mask">' in page


def test_the_page_of_a_varying_table_shows_columns_side_by_side(tmp_path):
    file = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    file.write_text("\n".join(["colour,size"] + [f"{rng.choice([*'rgb'])},{rng.integers(2)}" for _ in range(60)]))
    page = written(
        tmp_path / "run", dmb.data.table(file), ProcessChoice(process="varying", init="uniform"), "bound",
        [[1.0, 1.0], [1.5, 1.0]],
    )  # fmt: skip
    assert {"survival", "clocks", "matrix", "learning"} <= shown(page)
    assert "mean over clock time" in page
    assert "at the beginning of each cycle" in page
    assert "rank 1" in picture(page, "learning")
    assert "colour = " in picture(page, "survival")


def test_the_page_of_exponents_that_differ_from_position_to_position_is_a_map(tmp_path):
    data = dmb.data.array(np.random.default_rng(1).integers(0, 4, (60, 14)))
    page = written(tmp_path / "run", data, ProcessChoice(process="tokenwise"), "joint", [])
    assert {"survival", "exponents"} <= shown(page)
    assert "learning" not in shown(page)
    assert "<image" in picture(page, "exponents")
    assert "<image" in picture(page, "survival")

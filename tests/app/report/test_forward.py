import json
import math
import re
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
import torch

import dmb
from app.report.making import recipe, table, text, untrained
from dmb.app.evaluation import SamplerBound
from dmb.app.report import figures, forward
from dmb.app.report.contents import SAMPLES, Contents, effort, reverse_path
from dmb.app.report.figures import to_svg
from dmb.app.report.forward import survival_by_state
from dmb.app.report.symbols import Symbols
from dmb.bridges import put_together
from dmb.processes import grouping

TIMES = np.array([0.0, 0.3, 0.75, 1.0])
CHANGED = 0.999 * TIMES
"""`1 - exp(-σ̄(t))` under `LogLinear`."""
RAMP = np.linspace(-300, 300, 64)
"""Log speeds as far apart as they get."""

# -- what is destroyed when -------------------------------------------------------------------------------------------


def test_under_gather_every_state_but_the_top_survives_like_a_mask():
    process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.1, 0.4, 0.2, 0.3]]), floor=0.0)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [3, 2, 0]  # by frequency; 1, the most frequent, is on top and never left
    assert np.allclose(chance, 1 - CHANGED, atol=1e-6)


def test_under_uniform_noise_a_state_is_left_at_the_rate_at_which_others_are_drawn():
    states, chance = survival_by_state(dmb.UniformProcess(5, 3), TIMES)
    assert sorted(states.tolist()) == [0, 1, 2]
    assert np.allclose(chance, (1 - CHANGED) ** (2 / 3))


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


def test_a_state_that_one_position_never_leaves_stays_there():
    rank = torch.tensor([[0, 1], [1, 0]])
    marginals = torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    process = dmb.BridgeProcess(dmb.Line(rank), dmb.Steady(torch.tensor([[1.0], [2.0]])), marginals=marginals)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [1, 0]
    assert np.allclose(chance, [(1 + (1 - CHANGED) ** 2) / 2, (1 - CHANGED + 1) / 2], atol=1e-6)


def test_in_canonical_time_the_mean_over_all_tokens_falls_on_a_straight_line():
    mu = torch.tensor([[0.5, 0.3, 0.2]])
    padded = torch.nn.functional.pad(mu, (0, 1))
    process = dmb.TokenwiseMasking(torch.tensor([[0.3, 1.0, 6.0]]), schedule=dmb.Canonical(), marginals=padded)
    states, chance = survival_by_state(process, TIMES)
    assert states.tolist() == [0, 1, 2]
    assert np.allclose(mu.double().numpy()[0] @ chance, 1 - CHANGED, atol=1e-6)


def with_speeds(schedule):
    process = dmb.BridgeProcess.from_marginals(
        torch.full((64, 5), 1 / 5).double(), mask=True, floor=0.0, schedule=schedule
    )
    with torch.no_grad():
        process.clocks.log_rates[:, -1] = torch.from_numpy(RAMP)
    return process


def test_a_position_so_slow_that_its_chance_rounds_to_1_still_counts_as_one_that_is_left():
    times = np.array([0.0, 0.5, 1.0])
    expected = np.exp(-np.exp(RAMP)[:, None] * -np.log1p(-0.999 * times))
    states, chance = survival_by_state(with_speeds(dmb.LogLinear()), times)
    np.testing.assert_allclose(chance, np.tile(expected.mean(0), (5, 1)), atol=1e-6)
    states, chance = survival_by_state(with_speeds(dmb.LogLinear()), times, pooled=False, most=9999)
    assert sorted(states.tolist()) == [6 * position + state for position in range(64) for state in range(5)]


# -- names ------------------------------------------------------------------------------------------------------------

PARENTS = [[5, 5, 6, 6, 7, 7, 7, 7], [6, 5, 5, 6, 7, 7, 7, 7]]
"""{{0, 1}, {2, 3}, 4} at one position, {{1, 2}, {0, 3}, 4} at the other."""


def value_tree(states, positions=2):
    hierarchy = grouping.by_value(states)
    return dmb.BridgeProcess(hierarchy, dmb.Steady(hierarchy.level_rates(5.0)), num_positions=positions)


def masked(states, positions=2):
    return dmb.BridgeProcess.from_marginals(torch.full((positions, states), 1 / states), mask=True, floor=0.0)


def test_labels_of_names_are_what_lies_below_them_and_a_single_one_is_a_mask():
    tree = dmb.BridgeProcess(dmb.Tree(torch.tensor(PARENTS), names=3), dmb.Steady(torch.ones(2, 3)), num_positions=2)
    letters = Symbols(dmb.data.Characters("ab de"), tree)
    assert [letters.label(state) for state in range(8)] == ["a", "b", "␣", "d", "e", "{a b}", "{␣ d}", "any"]
    assert letters.rows(torch.tensor([[4, 6], [2, 0]])) == [["e", "▒"], [" ", "a"]]
    many = Symbols(dmb.data.Grid([2], 16), value_tree(16))
    assert [many.label(16), many.label(28), many.label(30)] == ["{0 1}", "{0 1 2 3 4 +3}", "any"]
    assert Symbols(dmb.data.Characters("ab"), masked(2)).label(2) == "mask"
    assert Symbols(dmb.data.Characters("ab"), tokenwise()).label(3) == "mask"


def test_labels_are_short_visible_and_those_of_their_column():
    process = masked(3)
    columns = dmb.data.Columns(["a", "b"], [["", "x" * 40, None], ["\n", "<b>", "é"]])
    symbols = Symbols(columns, process)
    assert [symbols.label(k, 0) for k in range(3)] == ["(empty)", "x" * 23 + "…", "missing"]
    assert [symbols.label(k, 1) for k in range(3)] == ["↵", "<b>", "é"]
    assert Symbols(dmb.data.Grid([1, 2], 3), process).label(2) == "2"


ORANGE = [0xD9, 0x66, 0x2B]


def test_photographs_are_painted_in_their_colours_and_masks_in_orange():
    codec = dmb.data.Picture([1, 2, 3], levels=2)
    painted = Symbols(codec, masked(2, 6)).painted(torch.tensor([[0, 1, 1, 2, 2, 2], [1, 2, 0, 0, 0, 0]]))
    wanted = [[[63, 191, 191], ORANGE], [[191, ORANGE[1], 63], [63, 63, 63]]]
    np.testing.assert_array_equal(painted[:, 0], wanted)
    shades = Symbols(dmb.data.Grid([1, 3], 3), masked(3, 3)).painted(torch.tensor([[0, 1, 3]]))
    np.testing.assert_array_equal(shades[0, 0], [[0] * 3, [127] * 3, ORANGE])


def test_a_name_of_shades_is_painted_in_the_middle_one_with_orange_as_wide_as_it_is():
    process = value_tree(5, 6)  # {{{0 1} {2 3}} 4}
    painted = Symbols(dmb.data.Grid([1, 6], 5), process).painted(torch.tensor([[4, 5, 6, 7, 8, 0]]))
    orange = np.array(ORANGE)
    expected = [255, 0.4 * orange, 0.4 * orange + 0.6 * 127, 0.8 * orange + 0.2 * 63, orange, 0]
    for pixel, wanted in zip(painted[0, 0], expected, strict=True):
        np.testing.assert_allclose(pixel, wanted * np.ones(3), atol=0.5)


# -- what was learned -------------------------------------------------------------------------------------------------


def shown(run):
    return {block.title: block for block in forward.learned(Contents(run, 0))}


def words(block):
    return re.findall(r">([^<>]+)</text>", block.body)


@pytest.mark.parametrize("rates", [[[9.0, 1.0, 1.0]], [[1.0, 1.0, 1.0], [1.04, 1.0, 0.97]], [[0.0] * 3, [1.0] * 3]])
def test_rates_that_have_not_moved_or_are_a_single_dot_are_left_out(tmp_path, rates):
    over_training = [{"alpha": alpha} for alpha in rates]
    run = untrained(tmp_path / "run", recipe(init="uniform"), text(tmp_path), over_training)
    assert not any(title.startswith("Learned") for title in shown(run))


def test_exponents_that_moved_are_named_and_others_are_not(tmp_path):
    over_training = [{"alpha": [1.0] * 6}, {"alpha": [1.0, 4.0, 1.0, 1.02, 0.2, 1.0]}]
    data = text(tmp_path, symbols="abcde ")  # in the order of symbols: a space comes first
    run = untrained(tmp_path / "run", recipe(process="tokenwise", tied=True, objective="joint"), data, over_training)
    block = shown(run)["Learned exponents that moved most"]
    assert {"a", "d"} <= set(words(block))
    assert not {"b", "c", "e", "␣"} & set(words(block))
    assert "2 of 6 changed by more than 5 %" in block.note
    assert "the later its state is masked" in block.note


def test_rates_of_a_tree_of_letters_are_named_by_what_is_in_its_groups(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "letters.txt"
    file.write_text("".join(f"{rng.choice([*'bdf'])}{rng.choice([*'aei'])}" for _ in range(400)))
    chosen = recipe(process="tree", grouping="cooccurrence", clusters="2", tied=True, objective="joint")
    over_training = [{"alpha": [5.0, 5.0, 1.0]}, {"alpha": [1.0, 6.0, 1.5]}]
    block = shown(untrained(tmp_path / "run", chosen, dmb.data.text(file, length=10), over_training))
    assert {"{a e i}", "{b d f}", "any"} <= set(words(block["Learned rates that moved most"]))


def test_states_that_go_at_different_times_are_shown_and_named_by_column(tmp_path):
    rng = np.random.default_rng(0)
    data = table(tmp_path, ["colour", "<b>"], [[rng.choice([*"rgb"]), rng.integers(2)] for _ in range(60)])

    def spread(bridge):
        for parameter in bridge.process.parameters():
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))

    block = shown(untrained(tmp_path / "run", recipe(init="uniform"), data, change=spread))["What is destroyed when"]
    assert {"colour = ", "&lt;b&gt; = "} == {re.match(".* = ", word)[0] for word in words(block) if " = " in word}
    assert not shown(untrained(tmp_path / "alike", recipe(floor=0.0, mask=True), data))


def ordered(folder, data, over_training, log_speeds=None):
    def change(bridge):
        wanted = torch.as_tensor(log_speeds, dtype=torch.float32)
        bridge.order.weights.copy_(torch.linalg.lstsq(bridge.order.basis, wanted[:, None]).solution[:, 0])

    chosen = recipe(network="ordered", mask=True, floor=0.0, write_order="learned", objective="joint")
    records = [{"log_speeds": list(row)} for row in over_training]
    return untrained(folder, chosen, data, records, None if log_speeds is None else change)


def test_every_cycle_of_algorithm_1_is_a_row_and_its_rates_a_line(tmp_path):
    def matrix(cycle, step, alpha, j_q, kl):
        return {"phase": "matrix", "cycle": cycle, "matrix_step": step, "alpha": alpha, "prior_bits": j_q,
                "marginal_bits": kl, "bits": math.nan}  # fmt: skip

    records = [
        matrix(0, 0, [1e-10, 1e-10, 1.0], 0.25, 1.5), matrix(0, 10, [0.1, 0.1, 1.0], 0.125, 1.5),
        matrix(0, 25, [0.2, 1e-4, 1.0], 0.0625, 1.5), {"cycle": 0, "bits": 3.5}, {"cycle": 0, "bits": 3.25},
        matrix(1, 0, [0.2, 1e-4, 1.0], 0.03125, 0.75), matrix(1, 25, [0.5, 0.5, 1.5], 0.015625, 0.75),
        {"cycle": 1, "bits": 3.375},
    ]  # fmt: skip
    run = untrained(tmp_path / "run", recipe(learn="linear", floor=0.0), text(tmp_path, symbols="abcd"), records)
    blocks = shown(run)
    header, rows = blocks["Algorithm 1, cycle by cycle"].body
    assert header[1:4] == ["KL(μ || p_0)", "J_Q before", "J_Q after"]
    assert rows == [
        ["1", "1.5", "0.25", "0.0625", "2 of 3", "3.25"],
        ["2", "0.75", "0.03125", "0.01562", "3 of 3", "3.375"],
    ]
    assert {"before", "after cycle 1", "after cycle 2"} <= set(words(blocks["Learned rates"]))
    assert "Rates below a thousandth of the highest" in blocks["Learned rates"].note


def test_rates_near_0_are_drawn_at_a_thousandth_of_the_highest():
    (line,) = figures.rates({"before": np.array([1e-10, 0.5, 2.0])}).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [2e-3, 0.5, 2.0])


def test_speeds_that_moved_are_shown_along_a_text_and_those_that_have_not_are_left_out(tmp_path):
    data = text(tmp_path, length=8)
    moved = shown(ordered(tmp_path / "moved", data, [np.zeros(8), np.arange(8.0)]))
    assert list(moved) == ["Learned speeds of positions"]
    assert "the earlier a position is masked, and the later it is written" in moved["Learned speeds of positions"].note
    assert not shown(ordered(tmp_path / "still", data, [np.arange(8.0), np.arange(8.0) + 0.01]))
    assert not shown(ordered(tmp_path / "once", data, [np.arange(8.0)]))


def test_which_call_writes_what_is_shown_for_every_number_of_calls_that_has_an_order(tmp_path, monkeypatch):
    seen, draw = {}, figures.groups
    monkeypatch.setattr(figures, "groups", lambda calls, grid: seen.update(calls) or draw(calls, grid))
    chosen = recipe(network="ordered", mask=True, floor=0.0, write_order="streams")
    block = shown(untrained(tmp_path / "run", chosen, text(tmp_path, length=8)))["Which call writes what"]
    assert {"4 calls", "8 calls"} <= set(words(block))
    assert {number: call.tolist() for number, call in seen.items()} == {4: [0, 1, 2, 3] * 2, 8: list(range(8))}


def test_speeds_of_columns_are_listed_in_the_order_of_writing(tmp_path):
    data = table(tmp_path, [*"abc"], np.random.default_rng(0).integers(0, 3, (60, 3)))
    block = shown(ordered(tmp_path / "run", data, [[0.1] * 3, [0.5, -3.0, 300.0]]))["Learned speeds of positions"]
    assert block.body[1] == [["b", "0.10", "-3.00"], ["a", "0.10", "0.50"], ["c", "0.10", "300.00"]]


def test_the_map_of_an_image_has_its_channels_averaged():
    last = np.tile([90.0, 0.0, -90.0], 8) + np.repeat(np.arange(8.0), 3)
    drawn = figures.speeds(np.zeros(24), last, (2, 4))
    np.testing.assert_allclose(drawn.axes[0].images[0].get_array(), np.arange(8.0).reshape(2, 4))


# -- paths ------------------------------------------------------------------------------------------------------------


def test_speeds_of_any_size_make_paths_whose_time_is_the_share_of_masks(tmp_path):
    """Warnings are errors here, numpy's and torch's included."""
    data = text(tmp_path, length=64, count=4000)
    run = ordered(tmp_path / "run", data, [0 * RAMP, RAMP], log_speeds=RAMP)
    contents = Contents(run, 0)
    assert contents.bridge.figures == ("speeds", "groups")
    path = contents.bridge.corruption_path(contents.examples[:1], 8, generator=torch.Generator().manual_seed(0))
    masked = [int((state.x == contents.bridge.num_states - 1).sum()) for state in path]
    np.testing.assert_allclose([state.t for state in path], np.linspace(0, 1, 8))
    assert masked == [round(64 * step / 7) for step in range(8)]
    for early, late in pairwise(path):
        assert ((early.x == late.x) | (late.x == contents.bridge.num_states - 1)).all()


def test_forward_states_lie_on_one_path_that_never_falls_in_rank():
    process = dmb.BridgeProcess.from_marginals(
        torch.rand(12, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)
    )
    x_0 = torch.randint(5, (30, 12), generator=torch.Generator().manual_seed(2))
    path = dmb.MarkovBridge(process, torch.nn.Identity()).corruption_path(
        x_0, 8, generator=torch.Generator().manual_seed(0)
    )
    assert (path[0].t, path[-1].t) == (0, 1)
    assert (path[0].x == x_0).all()
    ranks = torch.stack([process.rank[torch.arange(12), state.x] for state in path])
    assert (ranks.diff(dim=0) >= 0).all()
    assert (ranks[-1] > ranks[0]).any()


def bridge_of(process, kind=dmb.MLP, **options):
    return put_together(process, None, kind(process, **{"width": 8, "blocks": 1, **options}))


@pytest.mark.parametrize(
    "process", [dmb.UniformProcess(5, 3), tokenwise(), value_tree(4)], ids=lambda p: type(p).__name__
)
def test_reverse_states_fall_to_time_zero_and_end_in_data(process):
    bridge = bridge_of(process).train()
    path = reverse_path(bridge, 3, 20, generator=torch.Generator().manual_seed(0))
    times = [state.t for state in path]
    assert times == sorted(times, reverse=True)
    assert (len(path), times[0], times[-1]) == (8, 1, 0)
    process.data("samples", path[-1].x)
    assert bridge.training


@pytest.mark.parametrize("positions", [5, 70])
def test_a_network_of_one_order_writes_to_the_end_whatever_the_number_of_positions(positions):
    bridge = bridge_of(masked(3, positions), dmb.CausalTransformer, heads=1)
    _, steps = effort(bridge)
    assert steps == positions
    path = reverse_path(bridge, 2, steps, generator=torch.Generator().manual_seed(0))
    assert path[-1].t == 0
    bridge.states.data("samples", path[-1].x)


def test_large_models_get_few_samples_and_many_states_no_large_posterior():
    assert effort(bridge_of(dmb.UniformProcess(5, 3))) == (SAMPLES[0], 64)
    width = {"width": 512, "heads": 8, "blocks": 4}
    whole, causal = (
        effort(bridge_of(masked(3, 200), kind, **width)) for kind in (dmb.OrderedTransformer, dmb.CausalTransformer)
    )
    assert SAMPLES[0] > whole[0] > causal[0]
    many = dmb.BridgeProcess.from_marginals(torch.full((1, 50_257), 1 / 50_257).expand(16, -1), tied=True)
    samples, _ = effort(bridge_of(many, width=1))
    assert 4 <= samples <= 2**22 / (16 * 50_257)


# -- figures ----------------------------------------------------------------------------------------------------------


def test_a_figure_keeps_strange_labels_and_touches_no_setting():
    before = dict(mpl.rcParams)
    labels = ["$x$", "<&>", "日本", 'id="a"', "\\alpha", "</svg><script>"]
    chance = 1 - np.linspace(0, 1, 5)[None] ** np.linspace(0.1, 8, 6)[:, None]
    svg = to_svg(figures.survival(np.linspace(0, 1, 5), chance, dict(enumerate(labels))), "odd")
    for label in ("$x$", "&lt;&amp;&gt;", "日本", 'id="a"', "\\alpha", "&lt;/svg&gt;&lt;script&gt;"):
        assert f">{label}</text>" in svg
    assert "<script" not in svg
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("values", [[1.0, 1.0], [1e-30, 1e30], [0.0, 5.0], [np.nan, 1.0], np.geomspace(1e5, 1, 300)])
def test_values_of_any_size_can_be_drawn(values):
    values = np.asarray(values)
    line = figures.Line("$a$", np.arange(len(values), dtype=float), values, np.full(len(values), np.nan))
    for level in (np.nan, 2.0):
        assert "$a$" in to_svg(figures.over_steps([line] * 3, "any", level=level), "any")


def test_bits_are_drawn_against_calls_and_the_models_own_bound_is_a_line():
    few, many = (figures.Line(name, np.array([4.0, 16.0]), np.array([2.5, bits]), np.array([0.1, 0.1]))
                 for name, bits in (("$a$", 2.3), ("b", 2.4)))  # fmt: skip
    figure = figures.over_calls([few, many], "calls", "bits", level=2.0)
    [axes] = figure.axes
    assert axes.get_xscale() == "log"
    drawn = {container.get_label(): container.lines[0].get_xydata().tolist() for container in axes.containers}
    assert drawn == {"$a$": [[4, 2.5], [16, 2.3]], "b": [[4, 2.5], [16, 2.4]]}
    assert [line.get_ydata() for line in axes.get_lines() if line.get_label() == "the model's own bound"] == [
        [2.0, 2.0]
    ]
    assert "$a$" in to_svg(figure, "any")


def test_what_few_calls_cost_is_on_the_page_if_it_was_computed(tmp_path):
    from dmb.app.report import results

    run = untrained(tmp_path / "run", recipe(), text(tmp_path), [{}])
    common = {
        "split": "test",
        "stderr": 0.1,
        "seconds": 0.1,
        "sequences": 4,
        "of_sequences": 4,
        "samples": 1,
        "seed": 0,
    }
    assert results.curves(Contents(run, 0)) == []
    for sampler, calls, bits in (("ancestral", 4, 2.5), ("euler", 4, np.inf), ("ancestral", 16, 2.25)):
        impossible = float(bits == np.inf)
        bound = SamplerBound(sampler=sampler, calls=calls, bits=bits, impossible=impossible, **common)
        run.add_evaluation(bound, run.best())
    [block] = results.curves(Contents(run, 0))
    assert block.title == "Few calls"
    assert ">ancestral<" in block.body
    assert "euler" not in block.body


def test_lines_are_those_of_the_log(tmp_path):
    from dmb.app.report import results

    records = [{"bits": 3.0, "stderr": 0.1, "score_bits": 2.5}, {"bits": 2.0, "stderr": 0.1, "score_bits": 1.5}]
    run = untrained(tmp_path / "run", recipe(), text(tmp_path), records)
    with (run.path / "metrics.jsonl").open("a") as file:
        for step in (0, 500, 1000):
            file.write(json.dumps({"phase": "score", "step": step, "score_bits": 4.0 - step / 1000}) + "\n")
    contents = Contents(run, 0)
    assert [block.title for block in results.curves(contents)] == ["Bound on validation data", "Training loss"]

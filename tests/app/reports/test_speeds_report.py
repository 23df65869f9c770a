import json
import math
import re

import numpy as np
import pytest
import scipy.stats
import torch

import dmb
from dmb import paths
from dmb.app.recipes import DataChoice, NetworkChoice, ProcessChoice, Recipe
from dmb.app.reports import speed_figures, write_report
from dmb.app.reports.contents import gather
from dmb.app.reports.drawing import to_svg
from dmb.app.reports.learned import at_one_speed, clock_intensities, learned_rates, rate_matrix
from dmb.app.reports.orders import firmness, order_along, order_of_columns, order_on_grid, rank_correlation
from dmb.app.reports.speeds import image_axes, order_of_writing
from dmb.app.reports.survival import survival_by_position, survival_by_state
from dmb.app.reports.trajectories import EFFORTS, effort, forward_path, reverse_path
from dmb.app.runs import Run

MEANING = "larger: masked earlier, written later"
RAMP = np.linspace(-300, 300, 64)
"""As far apart as speeds get."""

# -- orders in words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=50), rng.normal(size=50) ** 3
    b += a
    if ties:
        a, b = np.round(a), np.round(b)
    assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


def test_what_does_not_vary_has_no_rank_correlation():
    assert rank_correlation(np.arange(5.0), np.zeros(5)) == 0
    assert rank_correlation(np.zeros(1), np.ones(1)) == 0


MIDDLE = np.abs(np.arange(64) - 31.5)


@pytest.mark.parametrize(
    ("log_speeds", "words"),
    [
        (RAMP, "from left to right (rank correlation of log speed with position: +1.00)"),
        (-1e-3 * RAMP, "from right to left (rank correlation of log speed with position: −1.00)"),
        (MIDDLE, "from the middle outwards (rank correlation of log speed with distance from the middle: +1.00)"),
        (-MIDDLE, "from both ends to the middle"),
        (np.cos(np.pi * np.arange(64)), "in no order along the text"),
        (np.zeros(64), "in no order along the text (rank correlation of log speed with position: +0.00)"),
    ],
)
def test_the_slow_side_of_a_text_is_written_first(log_speeds, words):
    assert order_along(log_speeds).startswith(words)


def test_an_order_is_named_from_a_correlation_of_one_half_on():
    mixed = np.array([0.0, 4.0, 1.0, 2.0, 3.0])  # ρ = 0.4
    assert order_along(mixed, "sequence").startswith("in no order along the sequence (rank")
    assert "+0.40" in order_along(mixed)
    mixed = np.array([2.0, 0.0, 1.0, 3.0, 4.0])  # ρ = 0.7
    assert order_along(mixed).startswith("from left to right")


ROW, COLUMN = np.indices((6, 7), dtype=float)


@pytest.mark.parametrize(
    ("log_speeds", "words"),
    [
        (ROW, "from top to bottom (rank correlation of log speed with row: +1.00, with column: +0.00)"),
        (-ROW + 0.01 * COLUMN, "from bottom to top ("),
        (ROW - COLUMN, "from top to bottom and from right to left ("),
        (COLUMN, "from left to right ("),
        (np.hypot(ROW - 2.5, COLUMN - 3), "from the middle outwards ("),
        (-np.hypot(ROW - 2.5, COLUMN - 3), "from the edges inwards ("),
        (np.cos(np.pi * (ROW + COLUMN)), "in no order along rows or columns ("),
    ],
)
def test_the_slow_side_of_an_image_is_written_first(log_speeds, words):
    assert order_on_grid(log_speeds).startswith(words)


def test_the_first_and_the_last_three_columns_are_named():
    names = [*"abcdefg"]
    words = order_of_columns(names, np.array([0.0, -300.0, 5.0, 300.0, 2.0, -1.0, 1.0]))
    assert words == "in an order that begins with “b”, “f” and “a” and ends with “e”, “c” and “d”"
    assert order_of_columns(names[:6], np.arange(6.0)[::-1]) == "in the order “f”, “e”, “d”, “c”, “b”, “a”"


def test_firmness_is_how_often_the_slower_of_two_positions_is_written_first():
    log_speeds = torch.tensor([2.0, -1.0, 0.3, 0.5, -300.0], dtype=torch.float64)
    ranks = paths.draw_turns(log_speeds, 20000, generator=torch.Generator().manual_seed(0)).numpy()
    ordered = ranks[:, log_speeds.argsort().numpy()]
    pairs = [(ordered[:, i] < ordered[:, j]).mean() for i in range(5) for j in range(i + 1, 5)]
    assert firmness(log_speeds.numpy()) == pytest.approx(np.mean(pairs), abs=0.005)
    assert firmness(np.zeros(3)) == 0.5
    assert firmness(np.zeros(1)) == 0.5
    assert firmness(np.linspace(-300, 300, 4000)) > 0.99


class SixCodes(dmb.data.ImageCodec):
    """Six codes, three of them side by side, for images of 4 × 6 pixels."""

    def __init__(self):
        super().__init__([4, 6, 3], num_states=9, num_positions=6, across=3)

    images = pixels = template = config = None


def test_axes_are_those_of_the_codes_of_an_image_not_of_its_pixels():
    assert image_axes(SixCodes(), 6) == (2, 3)
    assert image_axes(dmb.data.Characters("ab"), 6) == (6,)


# -- figures ----------------------------------------------------------------------------------------------------------


def test_lines_grow_stronger_with_training_and_the_last_is_bold():
    values = np.outer(np.arange(4), RAMP)
    axes = speed_figures.lines(["step 0", "step 10", "step 20", "step 30"], values, MEANING).axes[0]
    lines = axes.lines[1:]
    np.testing.assert_array_equal([line.get_ydata() for line in lines], values)
    opacity = [line.get_alpha() for line in lines]
    assert opacity == sorted(set(opacity))
    assert opacity[-1] == 1
    assert lines[-1].get_linewidth() > 2 * max(line.get_linewidth() for line in lines[:-1])
    assert [entry.get_text() for entry in axes.get_legend().get_texts()] == ["step 0", "step 30"]
    assert MEANING in axes.get_ylabel()


def test_maps_share_a_scale_with_0_in_its_middle():
    values = np.stack([np.zeros((2, 3)), np.arange(6.0).reshape(2, 3), np.full((2, 3), -300.0)])
    drawn = speed_figures.maps(["a", "b", "c"], values, MEANING)
    panels = [axes for axes in drawn.axes if axes.images]
    assert [axes.get_title("center") for axes in panels] == ["a", "b", "c"]
    for axes, wanted in zip(panels, values, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), wanted)
        assert axes.images[0].get_clim() == (-300, 300)
    assert MEANING in to_svg(drawn, "maps")


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 40), (3, 40, 1), (2, 3, 3)])
def test_maps_of_any_shape_can_be_drawn(shape):
    assert to_svg(speed_figures.maps(["$a$"] * shape[0], np.zeros(shape), MEANING), "maps")


def test_bars_have_a_mark_where_each_column_started():
    drawn = speed_figures.bars(["$a$", "b"], np.array([-2.0, 300.0]), ("step 5", np.array([0.1, -0.2])), MEANING)
    axes = drawn.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["$a$", "b"]
    assert [bar.get_width() for bar in axes.patches] == [-2, 300]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    marks = axes.collections[0].get_segments()
    assert [(mark[0, 0], mark[:, 1].mean()) for mark in marks] == [(0.1, 0), (-0.2, 1)]
    assert "at step 5" in to_svg(drawn, "bars")
    assert speed_figures.bars(["a"], np.zeros(1), None, MEANING).axes[0].get_legend() is None


# -- pages ------------------------------------------------------------------------------------------------------------


def run_of(folder, data, log_speeds, over_training=(), best=None, network="ordered", alpha=(1e30,), **choices):
    """A run that was never trained, whose model has these speeds, and whose log has those `over_training`."""
    recipe = Recipe(
        name="tiny",
        data=DataChoice(source=data.source),
        process=ProcessChoice(**{"speeds": True, "mask": True, "floor": 0.0, **choices}),
        network=NetworkChoice(network=network, width=8, heads=1, blocks=1, conditioning=4),
        training=dmb.TrainingSettings(matrix_objective="joint", orders=2),
    )
    run = Run.create(folder, recipe, data)
    bridge = recipe.build(data)
    clocks = bridge.process.clocks
    if clocks.speed_weights is not None:
        wanted = torch.as_tensor(log_speeds, dtype=torch.float32)
        weights = wanted if clocks.basis is None else torch.linalg.lstsq(clocks.basis, wanted[:, None]).solution[:, 0]
        with torch.no_grad():
            clocks.speed_weights.copy_(weights)
    bridge.write(folder)
    records = [
        {"phase": "validation", "step": 1000 * k, "bits": 2.0, "improved": k == best, "alpha": list(alpha),
         "log_speeds": list(row)}
        for k, row in enumerate(over_training)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def written(*arguments, **choices):
    """The section on speeds alone: a whole page takes seconds."""
    return order_of_writing(gather(run_of(*arguments, **choices), 0))


def caption(part):
    return re.search(r"<figcaption>(.*?)</figcaption>", part, re.DOTALL)[1]


def section(page, name):
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    return None if found is None else found[1]


def text(folder, length=64):
    file = folder / "letters.txt"
    file.write_text("".join(np.random.default_rng(0).choice([*"ab "], 40 * length)))
    return dmb.data.text(file, length=length)


def table(folder, columns=7):
    rng = np.random.default_rng(0)
    file = folder / "table.csv"
    rows = [",".join(f"<c{k}>" for k in range(columns))]
    rows += [",".join(str(value) for value in rng.integers(0, 3, columns)) for _ in range(60)]
    file.write_text("\n".join(rows))
    return dmb.data.table(file)


def test_the_page_of_a_text_shows_at_most_twelve_lines_and_says_in_which_order_it_is_written(tmp_path):
    over_training = [k * RAMP / 40 for k in range(41)]
    part = written(tmp_path / "run", text(tmp_path), RAMP, over_training, best=40)
    widths = re.findall(
        r'<path d="[^"]*" clip-path[^>]*style="fill: none; stroke: #2e86c8; (?:stroke-opacity: [\d.]+; )?stroke-width: ([\d.]+)',
        part,
    )
    assert widths == ["1.1"] * 11 + ["2.6"]
    assert "step 0" in part
    assert "step 40,000" in part
    assert "At the end the text is written from left to right (rank correlation" in caption(part)
    assert "the slower is written first with a chance of 100 %, averaged over pairs." in caption(part)
    assert "best model" not in caption(part)


def test_the_order_is_that_of_the_last_validation_and_the_best_model_is_named_if_it_is_another(tmp_path):
    part = written(tmp_path / "run", text(tmp_path), RAMP, [RAMP, 1e-3 * RAMP, -1e-4 * RAMP], best=1)
    assert "from right to left" in caption(part)
    assert "51 %, averaged over pairs: hardly any order yet." in caption(part)
    assert "The other figures show the best model, that of step 1,000." in caption(part)


@pytest.mark.parametrize("over_training", [[], [[0.0] * 3], [[None] * 64]], ids=["none", "other", "null"])
def test_without_a_record_of_speeds_those_of_the_model_are_shown(tmp_path, over_training):
    part = written(tmp_path / "run", text(tmp_path), -0.1 * RAMP, over_training)
    assert "At the end the text is written from right to left" in caption(part)
    assert "one line per validation" not in caption(part)
    assert "the model" in part


def test_the_page_of_images_shows_the_first_the_middle_and_the_last_map(tmp_path):
    data = dmb.data.array(np.random.default_rng(0).integers(0, 3, (60, 4, 5)))
    down = np.repeat(np.arange(4.0), 5) - 1.5
    part = written(tmp_path / "run", data, down, [k * down for k in range(5)])
    assert re.findall(r">(step [\d,]+)<", part) == ["step 0", "step 2,000", "step 4,000"]
    assert part.count("<image") >= 3
    assert "At the end images are written from top to bottom (" in caption(part)
    assert "channels" not in caption(part)


def test_channels_of_photographs_are_averaged(tmp_path):
    from PIL import Image

    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(4)
    for index in range(30):
        Image.fromarray(rng.integers(0, 256, (2, 4, 3), dtype=np.uint8)).save(photos / f"{index}.png")
    # alone, every channel would say something else than their mean
    across = np.tile(np.repeat(-np.arange(4.0), 3) + np.tile([90.0, 0.0, -90.0], 4), 2)
    part = written(tmp_path / "run", dmb.data.images(photos, levels=3), np.zeros(24), [across])
    assert "averaged over channels" in caption(part)
    assert "from right to left (rank correlation of log speed with row: +0.00, with column: −1.00)" in caption(part)


def test_the_page_of_a_table_has_its_columns_in_the_order_of_writing(tmp_path):
    last = [0.5, 3.0, -3.0, 0.0, -1.0, 300.0, 1.0]
    part = written(tmp_path / "run", table(tmp_path), last, [[0.1] * 7, last])
    labels = re.findall(r">&lt;c(\d)&gt;</text>", part)
    assert labels == ["2", "4", "3", "0", "6", "1", "5"]
    assert "begins with “&lt;c2&gt;”, “&lt;c4&gt;” and “&lt;c3&gt;” and ends" in caption(part)
    assert "the earlier its column is masked" in caption(part)
    assert "at step 0" in part


def test_of_a_wide_table_the_columns_at_both_ends_are_shown(tmp_path):
    part = written(tmp_path / "run", table(tmp_path, 50), np.arange(50.0) - 25)
    labels = [int(label) for label in re.findall(r">&lt;c(\d+)&gt;</text>", part)]
    assert labels == [*range(20), *range(30, 50)]
    assert "of 50" in caption(part)
    assert "at step" not in part


def test_without_speeds_nothing_is_shown_and_of_a_network_of_one_order_only_a_sentence(tmp_path):
    data = text(tmp_path, length=8)
    assert written(tmp_path / "plain", data, None, speeds=False) == ""
    part = written(tmp_path / "causal", data, np.arange(8.0), network="causal")
    assert "one order only, whatever the speeds" in part
    assert "<svg" not in part


def test_a_section_without_anything_in_it_is_left_out_of_the_page(tmp_path):
    data = text(tmp_path, length=8)
    pages = [
        write_report(run_of(tmp_path / str(speeds), data, np.arange(8.0), speeds=speeds)).read_text(encoding="utf-8")
        for speeds in (False, True)
    ]
    assert [section(page, "speeds") is None for page in pages] == [True, False]
    assert ['<a href="#speeds">Speeds of positions</a>' in page for page in pages] == [False, True]


def test_where_other_clocks_run_positions_are_destroyed_and_nothing_is_said_of_chances(tmp_path):
    run = run_of(
        tmp_path / "run", text(tmp_path, length=8), np.arange(8.0) - 3.5, [np.arange(8.0)] * 2, network="mlp",
        floor=0.1, mask=False, tied=True, schedule="canonical", alpha=[0.1, 1.0],
    )  # fmt: skip
    contents = gather(run, 0)
    speeds, rates = order_of_writing(contents), learned_rates(contents)
    assert "the earlier its position is destroyed" in caption(speeds)
    assert "chance" not in caption(speeds)
    assert "Shown as if all positions had one speed. All positions share the clocks." in rates
    assert "Rates α over training, averaged over positions, each times its speed" in rates


# -- speeds that lie far apart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["loglinear", "canonical"])
def test_speeds_of_any_size_make_a_whole_page(tmp_path, schedule):
    """Warnings are errors here, numpy's and torch's included."""
    run = run_of(
        tmp_path / "run", text(tmp_path), RAMP, [0 * RAMP, RAMP], best=1, schedule=schedule, alpha=[1e-30, 1.0, 1e30]
    )
    page = write_report(run).read_text(encoding="utf-8")
    assert "nan" not in re.sub(r"base64,[^\"]*", "", section(page, "rates"))
    assert "Time is the expected share of masked tokens." in section(page, "rates")
    assert 'id="learning-' not in page  # of rates that mean nothing
    lines = re.sub("<.*?>", "", section(page, "trajectories")).split("t = ")[1:9]
    masked = [line.count("▒") for line in lines]
    assert [line.split()[0] for line in lines] == [f"{k / 7:.3f}" for k in range(8)]
    np.testing.assert_allclose(masked, 64 * np.linspace(0, 1, 8), atol=3)
    assert masked[-1] == 64


def process_of(schedule):
    process = dmb.BridgeProcess.from_marginals(
        torch.full((64, 5), 1 / 5), mask=True, floor=0.0, tied=True, speeds=True, schedule=schedule
    )
    with torch.no_grad():
        process.clocks.speed_weights.copy_(torch.from_numpy(RAMP))
    return process


def test_in_canonical_time_positions_fall_one_after_the_other():
    times = np.linspace(0, 1, 9)
    chance = survival_by_position(process_of(dmb.Canonical()), times)
    np.testing.assert_allclose(chance.mean(0), 1 - 0.999 * times, atol=1e-9)
    assert (np.diff(chance, axis=0) <= 0).all()  # fast positions, on the right, are never behind
    assert ((chance > 0.01) & (chance < 0.99)).sum(0).max() <= 1


def test_a_position_so_slow_that_its_chance_rounds_to_1_still_counts_as_one_that_is_left():
    process, times = process_of(dmb.LogLinear()), np.array([0.0, 0.5, 1.0])
    u = -np.log1p(-0.999 * times)
    expected = np.exp(-np.exp(RAMP)[:, None] * u)
    np.testing.assert_allclose(survival_by_position(process, times), expected, atol=1e-6)
    np.testing.assert_allclose(survival_by_state(process, times).chance, np.tile(expected.mean(0), (5, 1)), atol=1e-6)


@pytest.mark.parametrize("schedule", [dmb.LogLinear(), dmb.Canonical()], ids=["loglinear", "canonical"])
def test_clocks_are_shown_at_one_speed_and_forward_paths_run_from_the_fast_to_the_slow(schedule):
    process = process_of(schedule)
    even = at_one_speed(process)
    assert process.clocks.log_speeds is not None  # which was copied
    np.testing.assert_allclose(clock_intensities(even)[:, -1], -math.log(1e-3), rtol=1e-6)
    Q, _ = rate_matrix(even, 0)
    np.testing.assert_allclose(-np.diag(Q), [1, 1, 1, 1, 1, 0], atol=1e-6)
    path = forward_path(process, torch.zeros(3, 64, dtype=torch.long), generator=torch.Generator().manual_seed(0))
    masked = torch.stack([state.x == 5 for state in path])
    assert (masked.sum(-1).diff(dim=0) > 0).all()
    assert (masked[..., 1:] >= masked[..., :-1]).float().mean() > 0.99  # but for neighbours


# -- effort -----------------------------------------------------------------------------------------------------------


def ordered(positions, kind=dmb.OrderedTransformer, **options):
    process = dmb.BridgeProcess.from_marginals(torch.full((positions, 3), 1 / 3), mask=True, floor=0.0, tied=True)
    return dmb.Bridge(process, kind.for_process(process, **{"width": 8, "heads": 1, "blocks": 1, **options}))


@pytest.mark.parametrize("positions", [5, 70])
def test_a_network_of_one_order_writes_to_the_end_whatever_the_number_of_positions(positions):
    bridge = ordered(positions, dmb.CausalTransformer)
    _, steps = effort(bridge)
    assert steps == positions
    path = reverse_path(bridge, 2, steps, generator=torch.Generator().manual_seed(0))
    assert path[-1].t == 0
    bridge.process.data("samples", path[-1].x)


def test_networks_that_follow_orders_are_known_to_use_their_weights_once_per_token():
    small = ordered(64)
    assert effort(small) == EFFORTS[0]
    width = {"width": 512, "heads": 8, "blocks": 4}
    assert effort(ordered(200, **width)).samples < EFFORTS[0].samples
    assert effort(ordered(200, dmb.CausalTransformer, **width)).samples < effort(ordered(200, **width)).samples


def test_by_whole_paths_the_model_keeps_its_own_schedule(tmp_path):
    run = run_of(tmp_path / "run", text(tmp_path, length=8), np.arange(8.0), schedule="loglinear")
    contents = gather(run, 0)
    assert isinstance(contents.process.schedule, dmb.Canonical)
    assert isinstance(contents.bridge.process.schedule, dmb.LogLinear)
    run = run_of(tmp_path / "other", text(tmp_path, length=8), np.arange(8.0), network="mlp", schedule="loglinear")
    contents = gather(run, 0)
    assert contents.process is contents.bridge.process

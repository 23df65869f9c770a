import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

import dmb
from dmb.app.evaluation import likelihood
from dmb.app.loading import load
from dmb.app.recipes import DataChoice, NetworkChoice, ProcessChoice, Recipe, settings_of
from dmb.app.reports import curves, figures, pictures, write_report
from dmb.app.reports.drawing import to_svg
from dmb.app.reports.learned import clock_intensities, rate_matrix
from dmb.app.reports.marginals import distance
from dmb.app.reports.trajectories import EFFORTS, effort, forward_path, reverse_path
from dmb.app.runs import Run
from dmb.app.tokenizer import VQVAE

SECTIONS = ["results", "bound", "rates", "trajectories", "samples", "marginals", "configuration"]
VOID = {"meta", "br", "img", "hr"}


class Page(HTMLParser):
    """What a browser would make of it: elements balanced, attributes and text collected."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.links, self.ids, self.sources, self.data = [], [], [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.links += [values[name] for name in ("href", "xlink:href") if name in values]
        self.sources += [values["src"]] if "src" in values else []
        self.ids += [values["id"]] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.data.append(data)

    def text(self):
        return re.sub(r"\s+", " ", "".join(self.data))


def recipe(**choices):
    return Recipe(
        name=choices.pop("name", "tiny"),
        data=DataChoice(source=choices.pop("source", "array")),
        head=choices.pop("head", "mean"),
        process=ProcessChoice(**choices),
        network=NetworkChoice(network="mlp", width=8, blocks=1, conditioning=8),
        training=dmb.TrainingSettings(
            cycles=2, score_steps=4, matrix_steps=2, batch_size=8, log_every=2, evaluate_every=4, evaluate_sequences=16,
            chains=8, chain_steps=4,
        ),
    )  # fmt: skip


def trained(path, chosen, data, evaluate=True):
    run = Run.create(path, chosen, data)
    bridge = chosen.build(data)
    for report in dmb.train(bridge, data, chosen.training, folder=path):
        run.log(report)
    if evaluate:
        run.add_evaluation(likelihood(bridge, data, "test"))
    return run


def images(folder):
    rng = np.random.default_rng(0)
    data = dmb.data.array(rng.integers(0, 5, (60, 3, 4)))
    return trained(folder, recipe(init="uniform"), data)


def masked_photographs(folder):
    rng = np.random.default_rng(4)
    photos = folder.parent / "photos"
    photos.mkdir()
    for index in range(40):
        Image.fromarray(rng.integers(0, 256, (2, 4, 3), dtype=np.uint8)).save(photos / f"{index}.png")
    chosen = recipe(mask=True, order="descending", source=str(photos))
    return trained(folder, chosen, dmb.data.images(photos, levels=5))


def masked_codes(folder):
    rng = np.random.default_rng(5)
    photos, autoencoder = folder.parent / "photos", folder.parent / "vq"
    for index in range(40):
        path = photos / str(index % 2) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(path)
    vqvae = VQVAE(size=4, grid=2, codes=16, width=8, code_width=2)
    vqvae.quantizer.start_from(0.1 * torch.randn(16, 2, generator=torch.Generator().manual_seed(0)))
    vqvae.write(autoencoder)
    described = {"recipe": {"data": {"source": str(photos)}}, "unigram_bits": dmb.data.images(photos).baselines()}
    (autoencoder / "run.json").write_text(json.dumps(described))
    chosen = recipe(mask=True, source=str(autoencoder))
    chosen = replace(chosen, network=replace(chosen.network, classes=True))
    return trained(folder, chosen, load(autoencoder))


def masked_text(folder):
    file = folder.parent / "symbols.txt"
    file.write_text("<b>a & b</b>\n$x$ \"q\" 'r' " * 60)
    data = dmb.data.text(file, length=10)
    return trained(folder, recipe(mask=True, tied=True, floor=0.0, source=str(file)), data)


def scored_table(folder):
    rng = np.random.default_rng(1)
    rows = ["<i>colour</i>,size,note,same"] + [
        f"{rng.choice(['red', 'blue & green', '<b>'])},{rng.integers(2)},{rng.integers(4)},always" for _ in range(80)
    ]
    file = folder.parent / "table.csv"
    file.write_text("\n".join(rows))
    return trained(folder, recipe(head="score", source=str(file)), dmb.data.table(file), evaluate=False)


def uniform_numbers(folder):
    rng = np.random.default_rng(2)
    return trained(folder, recipe(process="uniform"), dmb.data.array(rng.integers(0, 3, (60, 5))))


def many_states(folder):
    rng = np.random.default_rng(3)
    return trained(folder, recipe(), dmb.data.array(rng.integers(0, 600, (60, 2)), num_states=600))


def tree_of_shades(folder):
    rng = np.random.default_rng(6)
    chosen = recipe(process="tree", grouping="value")
    return trained(folder, chosen, dmb.data.array(rng.integers(0, 8, (60, 3, 4))))


def tree_of_columns(folder):
    rng = np.random.default_rng(7)
    rows = ["colour,size"] + [f"{rng.choice(['red', 'green', 'blue', 'grey'])},{rng.integers(3)}" for _ in range(80)]
    file = folder.parent / "table.csv"
    file.write_text("\n".join(rows))
    chosen = recipe(process="tree", grouping="frequency", source=str(file))
    return trained(folder, chosen, dmb.data.table(file))


RUNS = {
    make.__name__: make
    for make in (
        images, masked_photographs, masked_codes, masked_text, scored_table, uniform_numbers, many_states,
        tree_of_shades, tree_of_columns,
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every run, trained once, with its page; tests only read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMB_DATA", str(tmp_path_factory.mktemp("home")))
        made = {name: make(tmp_path_factory.mktemp(name) / "run") for name, make in RUNS.items()}
    return {name: (run, write_report(run).read_text(encoding="utf-8")) for name, run in made.items()}


@pytest.fixture(params=RUNS)
def case(request, runs):
    return runs[request.param]


def process_of(runs, name):
    return runs[name][0].bridge().process


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_asks_nothing_of_the_network(case):
    _, source = case
    page = Page(source)
    assert "://" not in source
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "@import" not in source
    assert all(re.match(r"data:image/png;base64,|#", link) for link in page.links)
    assert all(link.startswith("data:") for link in page.sources)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "url(#" not in source or set(re.findall(r"url\(#([^)]+)\)", source)) <= set(page.ids)


def test_the_page_has_every_section_in_order(case):
    page = Page(case[1])
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert page.links[: len(SECTIONS)] == [f"#{name}" for name in SECTIONS]


def test_numbers_are_those_of_the_run(case):
    run, source = case
    text = Page(source).text()
    best = min((record for record in run.metrics() if record["phase"] == "validation"), key=lambda r: r["bits"])
    for result in [best, *run.evaluations().values()]:
        assert f"{result['bits']:.4f} ± {result['stderr']:.4f}" in text
        assert f"{result['score_bits']:.4f}" in text
    for result in run.evaluations().values():
        saved = 100 * (1 - result["bits"] / result["unigram_bits"])
        assert f"{result['unigram_bits']:.4f}" in text
        assert f"{saved:.1f} %" in text
        assert f"{result['sequences']} of {result['of_sequences']}" in text
    assert f"{run.metrics()[-1]['tokens']:,} tokens" in text
    for name, value in settings_of(run.recipe).items():
        assert f"{name}{'none' if value is None else value}" in text
    assert f"{sum(p.numel() for p in run.bridge().network.parameters()):,} parameters" in text


def test_without_an_evaluation_the_headline_is_the_best_validation_beside_its_baseline(runs):
    run, source = runs["scored_table"]
    best = min(record["bits"] for record in run.metrics() if "bits" in record)
    head = re.search(r"<header>(.*?)</header>", source, re.DOTALL)[1]
    data = run.data()
    assert f"{best:.4f}" in head
    assert f"{data.unigram_bits(data.validation):.4f}" in head


def test_an_evaluation_of_an_earlier_model_is_called_outdated_and_is_no_headline(copy):
    run = copy("uniform_numbers")
    results = run.evaluations()
    results["test"]["step"] -= 1
    (run.path / "evaluation.json").write_text(json.dumps(results))
    source = write_report(run).read_text(encoding="utf-8")
    head = re.search(r"<header>(.*?)</header>", source, re.DOTALL)[1]
    assert "on validation data" in head
    assert "outdated" in source


def test_text_reads_as_it_is_whatever_its_symbols(runs):
    run, source = runs["masked_text"]
    shown = [re.sub(r"<.*?>", "", block) for block in re.findall(r'<div class="blocks">(.*?)</div>', source, re.DOTALL)]
    examples = ["\n" * sequence.startswith("\n") + sequence for sequence in run.codec.decode(run.summary()["examples"])]
    assert "".join(Page(f"<pre>{shown[0]}</pre>").data) == "\n".join(examples)
    assert "<b>a" not in source
    assert "&lt;b&gt;a &amp; b" in source


def test_table_cells_and_column_names_are_escaped(runs):
    _, source = runs["scored_table"]
    assert "<i>colour" not in source
    assert '<th scope="col">&lt;i&gt;colour&lt;/i&gt;</th>' in source
    assert "<td>blue &amp; green</td>" in source
    assert "<td><b></td>" not in source


def test_names_of_shades_are_orange_and_those_of_columns_shaded(runs):
    assert "the wider the group, the more of it" in runs["tree_of_shades"][1]
    source = runs["tree_of_columns"][1]
    assert "names of groups of states, from fine to coarse" in source
    assert '<span class="mask">▓' in source
    assert "masked" not in source


def test_masks_are_shown_as_such(runs):
    source = runs["masked_text"][1]
    path = re.search(r'<pre class="path">(.*?)</pre>', source, re.DOTALL)[1].split("\n")
    assert "▒" not in path[0]
    assert path[-1].count("▒") >= 9  # of 10 tokens, each masked but with a chance of 0.001
    assert '<span class="mask">▒' in path[-1]


def test_a_process_without_rates_and_a_matrix_too_large_to_show_get_a_sentence(runs):
    assert "UniformProcess, has no rates to learn" in runs["uniform_numbers"][1]
    assert "it has 600 × 600 entries" in runs["many_states"][1]
    assert "512 fastest of 600 clocks" in runs["many_states"][1]


@pytest.mark.parametrize(
    ("name", "figures_shown"),
    [
        ("images", {"bound", "survival", "clocks", "matrix", "learning", "forward", "reverse", "sheet", "marginals"}),
        (
            "masked_photographs",
            {"bound", "survival", "clocks", "matrix", "learning", "forward", "reverse", "sheet", "marginals"},
        ),
        (
            "masked_codes",
            {"bound", "survival", "clocks", "matrix", "learning", "forward", "reverse", "sheet", "marginals"},
        ),
        ("masked_text", {"bound", "survival", "clocks", "matrix", "learning", "marginals"}),
        ("scored_table", {"bound", "survival", "clocks", "matrix", "learning", "marginals"}),
        ("uniform_numbers", {"bound", "survival", "marginals"}),
        ("many_states", {"bound", "survival", "clocks", "learning", "marginals"}),
        (
            "tree_of_shades",
            {"bound", "survival", "clocks", "matrix", "learning", "forward", "reverse", "sheet", "marginals"},
        ),
        ("tree_of_columns", {"bound", "survival", "clocks", "matrix", "learning", "marginals"}),
    ],
)
def test_every_figure_is_there(runs, name, figures_shown):
    assert {each.split("-")[0] for each in Page(runs[name][1]).ids if each.endswith("-figure_1")} == figures_shown


def test_photographs_are_painted_in_their_colours_and_masks_in_orange():
    codec = dmb.data.Picture([1, 2, 3], levels=2)
    painted = pictures.painted(codec, np.array([[[0, 1, 1, 2, 2, 2]], [[1, 2, 0, 0, 0, 0]]]))
    assert painted.shape == (2, 1, 1, 2, 3)
    orange = [0xD9, 0x66, 0x2B]
    wanted = [[[63, 191, 191], orange], [[191, orange[1], 63], [63, 63, 63]]]
    np.testing.assert_allclose(painted[:, 0, 0] * 255, wanted)
    shades = pictures.painted(dmb.data.Grid([1, 3], 3), np.array([[0, 1, 3]]))
    np.testing.assert_allclose(shades[0, 0] * 255, [[0] * 3, [127.5] * 3, orange])
    grey = pictures.painted(dmb.data.Picture([1, 2, 1]), np.array([[0, 200]]))
    np.testing.assert_allclose(grey[0, 0] * 255, [[0] * 3, [200] * 3])


def test_samples_of_codes_are_sheets_of_images_and_the_codes_are_read_again(runs):
    run = runs["masked_codes"][0]
    (first, *_), data = sorted((run.path / "samples").iterdir()), run.data()
    with Image.open(first) as sheet:
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
    assert (data.num_classes, data.num_positions) == (2, 4)
    assert "Orange: masked." in runs["masked_codes"][1]


@pytest.mark.parametrize(("positions", "across"), [(3072, 96), (64, 8), (784, 28)])
def test_ticks_of_images_lie_at_the_beginning_of_rows_and_are_few(positions, across):
    drawn = figures.intensities(np.ones((4, positions)), across=across)
    ticks = drawn.axes[0].get_xticks()
    assert 8 <= len(ticks) <= 16
    assert not (ticks % across).any()


@pytest.mark.parametrize("most", [0.004, 0.03, 0.3, 1.0])
def test_marginals_fill_their_picture_however_rare_the_states(most):
    frequencies = np.linspace(0, most, 300)
    axes = figures.marginal_scatter(frequencies, frequencies, 100).axes[0]
    assert most <= axes.get_xlim()[1] <= 1.1 * most
    assert 4 <= len(axes.get_xticks()) <= 9


def test_a_strip_shows_every_picture_whole_within_its_frame():
    images = np.random.default_rng(0).random((2, 3, 4, 5, 3))
    (drawn,) = pictures.strips(images, [0.0, 0.5, 1.0]).axes[0].images
    shown = np.asarray(drawn.get_array())
    assert shown.shape == (2 * 5 - 1 + 2, 3 * 6 - 1 + 2, 4)
    for row in range(2):
        for column in range(3):
            part = shown[1 + 5 * row : 5 + 5 * row, 1 + 6 * column : 6 + 6 * column]
            np.testing.assert_allclose(part[..., :3], images[row, column])
            assert (part[..., 3] == 1).all()
    assert (shown[..., 3] < 1).sum() == shown[..., 3].size - 6 * 20


# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(runs, tmp_path):
    """A run that a test may spoil."""

    def copied(name):
        import shutil

        shutil.copytree(runs[name][0].path, tmp_path / name)
        return Run.open(tmp_path / name)

    return copied


def test_the_same_seed_gives_the_same_page_and_progress_runs_to_its_end(runs, copy):
    run, calls = copy("uniform_numbers"), []
    run.path.joinpath("report.html").unlink()
    path = write_report(run, progress=lambda done, total: calls.append((done, total)))
    assert path == run.path / "report.html"
    assert path.read_text(encoding="utf-8") == runs["uniform_numbers"][1]
    assert [done for done, _ in calls] == list(range(len(calls)))
    assert {total for _, total in calls} == {len(calls) - 1}
    assert write_report(run, seed=1).read_text(encoding="utf-8") != runs["uniform_numbers"][1]


def test_a_run_without_a_model_is_refused_and_nothing_is_written(copy):
    run = copy("images")
    (run.path / "model.safetensors").unlink()
    (run.path / "report.html").unlink()
    with pytest.raises(ValueError, match="has no model yet"):
        write_report(run)
    assert not (run.path / "report.html").exists()


@pytest.mark.parametrize("damage", ["nan", "none", "empty"])
def test_missing_numbers_are_dashes(copy, damage):
    run = copy("masked_text" if damage == "nan" else "uniform_numbers")
    bad = math.nan if damage == "nan" else None
    records = [] if damage == "empty" else [
        {name: bad if isinstance(value, float) else value for name, value in record.items()} for record in run.metrics()
    ]  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    results = {"test": {"split": "test", "bits": bad, "stderr": bad, "unigram_bits": bad, "step": 1}}
    (run.path / "evaluation.json").write_text(json.dumps({} if damage == "empty" else results))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert "No bound has been computed yet" in page.text()
    assert "nan" not in page.text().lower()


def test_an_evaluation_of_one_sequence_has_no_error(copy):
    run = copy("uniform_numbers")
    (run.path / "evaluation.json").write_text(
        json.dumps({"test": {"bits": 1.25, "stderr": math.nan, "sequences": 1, "step": run.best()["step"]}})
    )
    assert "<b>1.2500</b> bits per token on test data" in write_report(run).read_text(encoding="utf-8")


# -- what the figures show --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "masked_text", "scored_table", "tree_of_shades", "tree_of_columns"])
def test_the_rate_matrix_shown_generates_the_process(runs, name):
    process = process_of(runs, name)
    total = process.clock(1.0, 1).sigma_bar
    for position in (0, process.num_positions - 1):
        Q, order = rate_matrix(process, position)
        dense = process.to_dense(1.0)[position].detach().double()[order][:, order]
        assert torch.allclose(torch.matrix_exp(total * torch.from_numpy(Q)), dense, atol=1e-5)


@pytest.mark.parametrize("name", ["images", "masked_text", "scored_table"])
def test_intensities_are_those_that_the_transition_matrix_implies(runs, name):
    """`P(Z ≤ y) = exp(-Σ_{k>y} A_k)`, and from the lowest state `X_1 = Z`."""
    process = process_of(runs, name)
    process.double()
    shown = clock_intensities(process)
    for position in range(process.num_positions):
        _, order = rate_matrix(process, position)
        log_cdf = process.to_dense(1.0)[position, order[0]].detach()[order].cumsum(0).log().numpy()
        assert np.isnan(shown[position, order[0]])
        assert np.allclose(shown[position, order[1:]], np.diff(log_cdf), rtol=1e-4, atol=1e-6)
        assert np.isnan(np.delete(shown[position], order)).all()


def test_forward_states_lie_on_one_path_that_never_falls_in_rank(runs):
    run, _ = runs["images"]
    process, x_0 = run.bridge().process, run.summary()["examples"]
    path = forward_path(process, x_0, generator=torch.Generator().manual_seed(0))
    assert path[0].t == 0
    assert path[-1].t == 1
    assert (path[0].x == x_0).all()
    ranks = torch.stack([process.rank[torch.arange(process.num_positions), state.x] for state in path])
    assert (ranks.diff(dim=0) >= 0).all()
    assert (ranks[-1] > ranks[0]).any()


@pytest.mark.parametrize("name", RUNS)
def test_reverse_states_fall_to_time_zero_and_end_in_data(runs, name):
    run, _ = runs[name]
    bridge = run.bridge().train()
    path = reverse_path(bridge, 3, 20, generator=torch.Generator().manual_seed(0))
    assert [state.t for state in path] == sorted((state.t for state in path), reverse=True)
    assert len(path) == 8
    assert path[0].t == 1
    assert path[-1].t == 0
    bridge.process.data("samples", path[-1].x)
    assert bridge.training


def test_the_distance_of_real_draws_is_the_floor_and_that_of_others_is_not():
    mu = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    drawn = torch.multinomial(mu, 400, replacement=True, generator=torch.Generator().manual_seed(0)).T
    found = distance(mu, drawn, generator=torch.Generator().manual_seed(1))
    assert abs(found.value - found.floor) < 4 * found.spread
    # the mean absolute deviation of a binomial frequency is sqrt(2 p (1 - p) / (π N)) for large N
    expected = 0.5 * (2 * mu * (1 - mu) / (math.pi * 400)).sqrt().sum(-1).mean()
    assert found.floor == pytest.approx(expected.item(), rel=0.15)
    constant = distance(mu, torch.zeros_like(drawn), generator=torch.Generator().manual_seed(1))
    assert constant.value == pytest.approx((0.5 + 0.9) / 2)


def test_large_models_get_few_samples(runs):
    bridge = runs["uniform_numbers"][0].bridge()
    assert effort(bridge) == EFFORTS[0]
    process = dmb.UniformProcess(300, 4)
    long = dmb.Bridge(process, dmb.Transformer.for_process(process, blocks=1, width=16, heads=2, conditioning=8))
    assert effort(long).samples <= 16


def test_a_figure_keeps_strange_labels_and_touches_no_setting():
    before = dict(mpl.rcParams)
    labels = ["$x$", "<&>", "日本", 'id="a"', "\\alpha", "mask"]
    svg = to_svg(figures.tied_intensities(np.array([np.nan, 1e-5, 2e-5, 0.0, 1e-3, 1.0]), labels), "odd")
    texts = Page(svg).text()
    assert all(label in texts for label in labels)
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("rates", [[np.nan, 0.0], [np.nan, 1e-30, 1.0, 1e30], [np.nan, 1.0, 1.0]])
def test_rates_of_any_size_can_be_drawn(rates):
    values = np.array(rates)
    for drawn in (
        figures.tied_intensities(values),
        figures.tied_intensities(values, [str(k) for k in range(len(values))]),
        figures.intensities(np.stack([values, values], axis=1)),
        curves.rates_over_training(np.array([0.0, 0.0, 5.0]), np.stack([values[1:]] * 3)),
        figures.rate_matrix(np.triu(np.nan_to_num(values)[None].repeat(len(values), 0), 1)),
    ):
        assert "<svg" in to_svg(drawn, "any")


def test_a_run_of_another_recipe_name_is_titled_by_it(runs, copy):
    run = copy("uniform_numbers")
    run.change(replace(run.recipe, name="<script>alert(1)</script>"))
    source = write_report(run).read_text(encoding="utf-8")
    assert "<script" not in source
    assert "<h1>&lt;script&gt;alert(1)&lt;/script&gt;: array</h1>" in source

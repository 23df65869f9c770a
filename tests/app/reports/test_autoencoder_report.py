import html
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from dmb.app import recipes
from dmb.app.evaluation import CodecQuality
from dmb.app.recipes import settings_of
from dmb.app.reports import autoencoder, markup, pictures, write_report
from dmb.app.runs import Run
from dmb.training import engine

SECTIONS = ["results", "learning", "reconstructions", "codebook", "configuration"]
SETTINGS = ["grid=4", "codes=16", "width=8", "blocks=0", "code_width=2", "steps=8", "log_every=2", "evaluate_every=4",
            "batch_size=8", "evaluate_images=9"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with images in colour, the data folder, and the run of a VQ-VAE that has learned from them."""
    folder, rng = tmp_path_factory.mktemp("autoencoder"), np.random.default_rng(0)
    (folder / "photos").mkdir()
    for index in range(120):
        shades = rng.integers(0, 256, (2, 1, 2, 1, 3), dtype=np.uint8)
        Image.fromarray(np.tile(shades, (1, 4, 1, 4, 1)).reshape(8, 8, 3)).save(folder / "photos" / f"{index}.png")
    recipe = recipes.override(recipes.vqvae(), [f"source={folder / 'photos'}", *SETTINGS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMB_DATA", str(folder / "home"))
        data = recipe.data.load()
    run = Run.create(folder / "run", recipe, data)
    vqvae, fabric = recipe.build(data), engine(accelerator="cpu")
    for report in recipe.train(vqvae, data, fabric=fabric, folder=run.path, resume=False, stop=lambda: False):
        run.log(report)
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A run that a test may spoil; its images lie where they were."""
    monkeypatch.setenv("DMB_DATA", str(trained / "home"))
    shutil.copytree(trained / "run", tmp_path / "run")
    return Run.open(tmp_path / "run")


@pytest.fixture
def moved(run):
    """The same, whose images are elsewhere."""
    source = run.recipe.data.source
    text = (run.path / "run.json").read_text(encoding="utf-8").replace(source, source + "-moved")
    (run.path / "run.json").write_text(text, encoding="utf-8")
    return Run.open(run.path)


@pytest.fixture(scope="module")
def page(trained):
    """The run, its page, and every figure on it by its name; tests only read them."""
    found, figure = {}, markup.figure

    def noted(drawing, name, caption):
        found[name] = drawing
        return figure(drawing, name, caption)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMB_DATA", str(trained / "home"))
        patch.setattr(markup, "figure", noted)
        run = Run.open(trained / "run")
        yield run, written(run), found


def written(run, **options):
    return write_report(run, **options).read_text(encoding="utf-8")


def results_of(run):
    return autoencoder.results(autoencoder.gather(run, lambda done: None))


def words(source):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", source)))


def row(source, name):
    """The cells of the results whose first begins with `name`."""
    (found,) = re.findall(rf"<tr>(<td>{name}.*?)</tr>", source)
    return re.findall(r"<td>(.*?)</td>", found)


def images_of(run, split, rows):
    return run.data().codec.images(split[rows])


def in_use(tokens):
    shares = np.unique(tokens, return_counts=True)[1] / tokens.size
    return np.prod(shares**-shares)


def pictures_in(drawing, axes=0):
    (shown,) = drawing.axes[axes].images
    return np.asarray(shown.get_array())


def test_the_page_has_every_section_in_order_and_asks_nothing_of_the_network(page):
    _, source, drawn = page
    ids = re.findall(r'\sid="([^"]*)"', source)
    assert [name for name in ids if name in SECTIONS] == SECTIONS
    assert len(set(ids)) == len(ids)
    assert not re.search(r"://|<script|<link|@import", source)
    assert list(drawn) == ["learning", "sheet", "usage", "tiles"]
    assert "<h1>vqvae: photos</h1>" in source


def test_the_headline_is_the_best_on_validation_data(page):
    run, source, _ = page
    best = max((record for record in run.metrics() if record["phase"] == "validation"), key=lambda r: r["psnr"])
    head = words(re.search(r"<header>(.*?)</header>", source, re.DOTALL)[1])
    expected = f"{best['psnr']:.2f} dB PSNR on validation data; {best['perplexity']:.0f} codes in use of 16"
    assert expected in head
    assert "8 steps · 64 images" in head


def test_results_are_those_of_the_model_on_validation_and_test_images(page):
    run, source, _ = page
    data, best = run.data(), run.best()
    assert row(source, "validation")[1:] == [f"{best['psnr']:.2f}", f"{best['perplexity']:.1f}", "9 of 12"]
    images = images_of(run, data.test, slice(None))
    tokens = run.vqvae().encode(torch.from_numpy(images))
    error = images.astype(float) - run.vqvae().decode(tokens).numpy()
    ratio = 20 * math.log10(255) - 10 * math.log10((error**2).mean())
    assert row(source, "test") == ["test", f"{ratio:.2f}", f"{in_use(tokens.numpy()):.1f}", "12 of 12"]


def test_the_floor_is_there_once_it_was_looked_at(run):
    assert "floor" not in results_of(run)
    found = CodecQuality(split="test", images=10_000, floor=34.567, real=5.25, num_features=2048)
    run.add_evaluation(found)
    assert re.findall(r"<td>(.*?)</td>", results_of(run))[-4:] == ["test", "34.57", "5.25", "10,000"]
    run.add_evaluation(found, step=1)
    assert "test, of the model at step 1 (outdated)" in results_of(run)


def test_test_images_beyond_the_most_are_spread_evenly_over_the_split(run, monkeypatch):
    monkeypatch.setattr("dmb.app.reports.autoencoder.contents.MOST_IMAGES", 2)
    images = torch.from_numpy(images_of(run, run.data().test, torch.tensor([0, 11])))
    tokens = run.vqvae().encode(images)
    assert row(results_of(run), "test")[2:] == [f"{in_use(tokens.numpy()):.1f}", "2 of 12"]


def test_the_use_of_codes_is_that_in_the_validation_images_that_training_looked_at(page):
    run, source, drawn = page
    text, data = words(source), run.data()
    images = torch.from_numpy(images_of(run, data.validation, data.validation.spread(9)))
    counts = np.bincount(run.vqvae().encode(images).numpy().ravel(), minlength=16)
    assert f"each of the 16 codes occurs in 9 validation images. Codes never used: {(counts == 0).sum()}." in text
    assert f"Perplexity: {run.best()['perplexity']:.1f}." in text
    (steps,) = drawn["usage"].axes[0].patches
    np.testing.assert_allclose(steps.get_data().values, np.sort(counts / counts.sum())[::-1])
    assert f"The {(counts > 0).sum()} codes that occur" in text
    tiles = pictures_in(drawn["tiles"])
    assert tiles.shape[1] == 5 * min(16, (counts > 0).sum()) - 1 + 2
    most = run.vqvae().decode(torch.full((1, 16), int(np.argmax(counts))))[0, 2:6, 2:6] / 255
    np.testing.assert_allclose(tiles[1:5, 1:5, :3], most, rtol=1e-6)


def test_curves_are_those_of_the_metrics(page):
    run, _, drawn = page
    loss, ratio, used = drawn["learning"].axes
    records = {phase: [r for r in run.metrics() if r["phase"] == phase] for phase in ("train", "validation")}
    for line, phase, name in ((loss.lines[0], "train", "reconstruction"), (loss.lines[1], "validation", "reconstruction"),
                              (ratio.lines[0], "validation", "psnr"), (used.lines[0], "validation", "perplexity")):  # fmt: skip
        assert line.get_xdata().tolist() == [record["step"] for record in records[phase]]
        assert line.get_ydata().tolist() == [record[name] for record in records[phase]]


def test_reconstructions_stand_beside_their_images(page):
    run, source, drawn = page
    examples = run.codec.images(run.summary()["examples"])
    assert f"{len(examples)} validation images, and the same after they were 4 × 4 codes" in words(source)
    back = run.vqvae().reconstruct(torch.from_numpy(examples)).numpy()
    for axes, expected in enumerate((examples, back)):
        shown = pictures_in(drawn["sheet"], axes)
        np.testing.assert_allclose(shown[1:9, 1:9, :3], expected[0] / 255, rtol=1e-6)
        np.testing.assert_allclose(shown[1:9, 10:18, :3], expected[1] / 255, rtol=1e-6)


def test_every_setting_is_there(page):
    run, source, _ = page
    text = words(source)
    for name, value in settings_of(run.recipe).items():
        assert f"{name}{'none' if value is None else value}" in text
    assert f"{sum(p.numel() for p in run.vqvae().parameters()):,} parameters" in text
    assert "8 × 8 × 3" in text
    assert "4 × 4 out of 16" in text


def test_without_the_images_there_are_no_figures_of_test_images_and_the_page_says_why(moved):
    source, examples = written(moved), moved.summary()["examples"]
    assert "<td>test</td>" not in source
    assert "There are no figures of test images: no data set or file called" in words(source)
    assert f"occurs in {len(examples)} validation images, the ones kept in the run folder" in words(source)
    assert row(source, "validation")[3] == "–"
    assert source.count("<figure>") == 4


def test_images_that_have_changed_are_no_test_images(run):
    text = (run.path / "run.json").read_text(encoding="utf-8")
    bits = run.about["unigram_bits"]["test"]
    (run.path / "run.json").write_text(text.replace(str(bits), str(bits + 1)), encoding="utf-8")
    found = results_of(Run.open(run.path))
    assert "has changed since the run began" in words(found)
    assert "<td>test</td>" not in found


def test_the_page_is_a_function_of_the_run_and_progress_runs_to_its_end(run, page):
    calls = []
    assert written(run, seed=1, progress=lambda done, total: calls.append((done, total))) == page[1]
    done, totals = zip(*calls, strict=True)
    assert done[0] == 0
    assert list(done) == sorted(done)
    assert len(set(done)) > 15
    assert set(totals) == {done[-1]}


@pytest.mark.parametrize("damage", ["nan", "empty"])
def test_missing_numbers_are_dashes(run, damage):
    records = [] if damage == "empty" else [
        {name: math.nan if isinstance(value, float) else value for name, value in record.items()}
        for record in run.metrics()
    ]  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = written(run)
    assert "No validation images have been looked at yet" in source
    assert "nan" not in words(source).lower()
    assert ("Nothing was logged" in source) == (damage == "empty")


def test_a_run_without_a_model_is_refused(run):
    (run.path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no model yet"):
        write_report(run)


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (16, 1, 16), (17, 2, 16)])
def test_tiles_are_as_large_however_many_there_are(count, rows, columns):
    drawing = pictures.tiles(np.random.default_rng(0).random((count, 4, 4, 3)))
    assert pictures_in(drawing).shape == (5 * rows - 1 + 2, 5 * columns - 1 + 2, 4)
    assert drawing.get_figwidth() / columns == pytest.approx(7.2 / 16)

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

import dmb
from commands import dmb_
from dmb._core import seeding
from dmb.app.evaluation import (
    ImageQuality,
    Inception,
    RealImages,
    features,
    image_quality,
    images as evaluation_of_images,
    inception_score,
    precision_recall,
)
from dmb.app.images import VQVAE
from dmb.app.images.codes import write_codes
from dmb.app.loading import load
from dmb.app.recipes import DataChoice, NetworkChoice, ProcessChoice, Recipe
from dmb.app.records import read_evaluations, read_images
from dmb.app.runs import Run
from dmb.data import DataSet, Picture
from dmb.data.sources.images import Pixels
from dmb.sampling import State


class Brightness(torch.nn.Module):
    """A stand-in for the network: how bright the quarters of an image are, and how bright squared."""

    digest = "quarters"
    seen = 0

    def __init__(self, classifier="a"):
        super().__init__()
        self.classifier = classifier

    def forward(self, images):
        type(self).seen += len(images)
        pixels = images.float().mean(3) / 255
        h, w = pixels.shape[1] // 2, pixels.shape[2] // 2
        parts = (pixels[:, :h, :w], pixels[:, h:, :w], pixels[:, :h, w:], pixels[:, h:, w:])
        means = torch.stack([part.mean((1, 2)) for part in parts], dim=1)
        return torch.cat([means, means**2], dim=1)

    def classified(self, seen):
        return 5 * seen


@pytest.fixture(autouse=True)
def network(monkeypatch):
    stand_in = Brightness()
    monkeypatch.setattr(Brightness, "seen", 0)
    monkeypatch.setattr(Inception, "load", lambda weights=None: stand_in)
    return stand_in


SHAPE = (4, 6, 3)


def pixels(count, seed, shape=SHAPE):
    """Images that differ in brightness, so that training and test images are alike but not the same."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(rng.uniform(60, 200, (count, 1, 1, 1)), 30, (count, *shape)), 0, 255).astype(np.uint8)


def folder_of_images(folder, count=400, shape=SHAPE, classes=0):
    for index, image in enumerate(pixels(count, 0, shape)):
        inside = folder / f"class {int(image.mean() > 128)}" if classes else folder
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(inside / f"{index:03}.png")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return folder_of_images(tmp_path_factory.mktemp("data") / "images")


def recipe(source, levels=None, **options):
    return Recipe(
        name="images",
        data=DataChoice(source=str(source), levels=levels),
        process=ProcessChoice(),
        network=NetworkChoice(network="mlp", width=8, blocks=1, conditioning=8, **options),
        training=dmb.TrainingSettings(cycles=1, score_steps=2, matrix_steps=1, batch_size=4, evaluate_sequences=4, chains=2,
                              chain_calls=2, log_every=2, evaluate_every=2),
    )  # fmt: skip


def bridge_for(data, **options):
    return recipe("", **options).build(data)


def make_run(path, chosen, data):
    run = Run.create(path, chosen, data)
    for report in dmb.train(chosen.build(data), data, chosen.training, folder=path):
        run.log(report)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, images):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMB_DATA", str(tmp_path_factory.mktemp("home")))
        return make_run(tmp_path_factory.mktemp("runs") / "run", recipe(images, 8), dmb.data.images(images, 8))


@pytest.fixture
def run(tmp_path, trained):
    return Run.open(Path(shutil.copytree(trained.path, tmp_path / "run")))


def distance(a, b):
    """Fréchet's, of the features of images; the trace of the matrix square root by singular values, which may be 0."""
    a, b = (Brightness()(torch.from_numpy(x)).double().numpy() for x in (a, b))
    root = scipy.linalg.svdvals(_root(np.cov(a.T)) @ _root(np.cov(b.T))).sum()
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(np.cov(a.T) + np.cov(b.T)) - 2 * root


def _root(covariance):
    values, vectors = scipy.linalg.eigh(covariance)
    return vectors * np.sqrt(values.clip(0)) @ vectors.T


def test_distances_are_those_of_samples_and_of_training_images_before_and_after_the_codec(images):
    data, whole = dmb.data.images(images, levels=3), dmb.data.images(images)
    bridge = bridge_for(data)
    result = image_quality(bridge, RealImages(data, images=40), calls=3, seed=5)
    test = whole.codec.images(whole.test[:])
    rows = whole.train.spread(40)
    training, after = whole.codec.images(whole.train[rows]), data.codec.images(data.train[rows])
    made = data.codec.images(bridge.sample(40, calls=3, generator=seeding.seeded(5, "samples")))
    assert result.real == pytest.approx(distance(training, test), rel=1e-4)
    assert result.floor == pytest.approx(distance(after, test), rel=1e-4)
    assert result.fid == pytest.approx(distance(made, test), rel=1e-4)
    assert result.real < result.floor < result.fid
    seen = [Brightness()(torch.from_numpy(x)).double().tolist() for x in (made, after, test)]
    assert (result.precision, result.recall) == (enumerated(seen[0], seen[2]), enumerated(seen[2], seen[0]))
    assert (result.floor_precision, result.floor_recall) == (enumerated(seen[1], seen[2]), enumerated(seen[2], seen[1]))
    assert 0 < result.recall < result.floor_recall
    assert (result.images, result.split, result.calls, result.sampler, result.seed) == (40, "test", 3, "ancestral", 5)
    assert result.inception_score is None


def enumerated(a, b, neighbours=3):
    """The share of `a` within reach of one of `b`, one distance at a time."""
    inside = 0
    for x in a:
        for i, y in enumerate(b):
            reach = sorted(math.dist(y, z) for j, z in enumerate(b) if j != i)[neighbours - 1]
            if math.dist(x, y) <= reach:
                inside += 1
                break
    return inside / len(a)


@pytest.mark.parametrize("neighbours", [1, 3])
def test_precision_and_recall_are_those_of_an_enumeration(neighbours, monkeypatch):
    monkeypatch.setattr(evaluation_of_images, "_ROWS", 7)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 2)), rng.normal(1.5, 0.7, size=(25, 2))
    b[5] = b[4]  # two that are equal
    wanted = enumerated(a.tolist(), b.tolist(), neighbours), enumerated(b.tolist(), a.tolist(), neighbours)
    assert precision_recall(torch.from_numpy(a), torch.from_numpy(b), neighbours) == wanted
    assert 0.1 < wanted[0] < wanted[1] < 0.95


def test_precision_is_for_samples_that_are_like_data_and_recall_for_data_that_are_like_samples():
    corners = torch.tensor([[0.0, 0], [9, 0], [0, 9], [9, 9]]).repeat(20, 1)
    noise = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    data, one_corner = corners + noise, noise
    assert precision_recall(data, data) == (1.0, 1.0)
    assert precision_recall(data + 99, data) == (0.0, 0.0)
    precision, recall = precision_recall(one_corner, data)
    assert precision > 0.9
    assert recall < 0.35


def test_mistakes_about_precision_are_named():
    points = torch.zeros(5, 2)
    with pytest.raises(ValueError, match=r"features_a must be \[at least 4 images, 2 features\], got \[3, 2\]"):
        precision_recall(points[:3], points)
    with pytest.raises(ValueError, match="features_b must be finite, got nan or inf in row 0"):
        precision_recall(points, points * math.nan)


def test_codes_of_a_vqvae_are_judged_by_the_images_that_it_was_trained_on(tmp_path):
    source = folder_of_images(tmp_path / "images", count=100, shape=(8, 8, 3))
    torch.manual_seed(0)
    vqvae = VQVAE(size=8, grid=4, codes=16, width=8, blocks=0)
    vqvae.write(tmp_path / "vqvae")
    write_codes(tmp_path / "vqvae", vqvae, dmb.data.images(source))
    data, whole = load(tmp_path / "vqvae"), dmb.data.images(source)
    result = image_quality(bridge_for(data), RealImages(data, images=10), calls=1)
    test, rows = whole.codec.images(whole.test[:]), whole.train.spread(10)
    assert result.real == pytest.approx(distance(whole.codec.images(whole.train[rows]), test), rel=1e-3)
    assert result.floor == pytest.approx(distance(data.codec.images(data.train[rows]), test), rel=1e-3)
    assert result.real < result.floor


@pytest.mark.parametrize("levels", [4, 256])
def test_a_perfect_model_reaches_the_floor(images, levels, monkeypatch):
    data = dmb.data.images(images, levels)
    bridge, drawn = bridge_for(data), iter(data.train[data.train.spread(30)].split(8))
    monkeypatch.setattr(dmb.app.evaluation.drawing, "AT_ONCE", 8)
    monkeypatch.setattr(dmb.Bridge, "trajectory", lambda *_, **__: iter([State(0.0, next(drawn))]))
    result = image_quality(bridge, RealImages(data, "validation", images=30))
    assert result.fid == result.floor
    assert (result.floor == result.real) == (levels == 256)


def test_images_of_the_split_itself_are_at_no_distance(images):
    data = dmb.data.images(images)
    result = image_quality(bridge_for(data), RealImages(data, "train", images=40), calls=1)
    assert result.real == result.floor == pytest.approx(0, abs=1e-8)


def test_images_are_looked_at_but_once(images):
    data = dmb.data.images(images, levels=4)
    for seed, looks in ((0, 4 * 40), (0, 4 * 40), (1, 5 * 40)):  # samples, test, training, training after the codec
        image_quality(bridge_for(data), RealImages(data, images=40), calls=2, seed=seed)
        assert Brightness.seen == looks


def test_without_loss_in_the_codec_the_floor_is_the_distance_of_real_images(images):
    data = dmb.data.images(images)
    image_quality(bridge_for(data), RealImages(data, images=40), calls=2)
    assert Brightness.seen == 3 * 40


def test_samples_have_classes_as_often_as_training_data(tmp_path, monkeypatch):
    data = dmb.data.images(folder_of_images(tmp_path / "images", classes=2), levels=4)
    bridge, asked = bridge_for(data, classes=True), []
    real = dmb.Bridge.trajectory
    monkeypatch.setattr(dmb.Bridge, "trajectory", lambda self, n, **o: asked.append(o) or real(self, n, **o))
    monkeypatch.setattr(dmb.app.evaluation.drawing, "AT_ONCE", 16)
    image_quality(bridge, RealImages(data, images=40), calls=1, guidance=2.0)
    assert torch.equal(torch.cat([options["label"] for options in asked]), data.train.labels(data.train.spread(40)))
    assert [len(options["label"]) for options in asked] == [16, 16, 8]
    assert {options["guidance"] for options in asked} == {2.0}


def test_the_inception_score_is_that_of_the_samples(tmp_path, network):
    data = DataSet(
        name="memory", source="", codec=Picture(list(SHAPE)),
        **{part: Pixels(pixels(120, seed), 256) for seed, part in enumerate(("train", "validation", "test"))},
    )  # fmt: skip
    bridge = bridge_for(data)
    result = image_quality(bridge, RealImages(data, images=100, score=True), calls=1)
    made = data.codec.images(torch.cat([*_batches(bridge, 100)]))
    mean, deviation = inception_score(network.classified(features(network, made)))
    assert (result.inception_score, result.inception_score_deviation) == pytest.approx((mean, deviation))
    assert f"Inception Score {mean:.2f} ± {deviation:.2f}" in str(result)


def _batches(bridge, count):
    generator = seeding.seeded(0, "samples")
    for first in range(0, count, 64):
        yield bridge.sample(min(64, count - first), calls=1, generator=generator)


RESULT = ImageQuality(
    split="test", images=10_000, fid=12.345, floor=5.0, real=3.0, sampler="ancestral", calls=64, guidance=1.0, seed=0,
    num_features=2048,
)  # fmt: skip


def test_a_sampler_without_a_number_of_calls_is_recorded_without_one(images):
    data = dmb.data.images(images, 4)
    with pytest.raises(ValueError, match="first_hitting has no number of calls"):
        image_quality(bridge_for(data), RealImages(data, images=3), calls=2, sampler="first_hitting")
    result = image_quality(bridge_for(data), RealImages(data, images=3), sampler="first_hitting")
    assert result.calls is None
    assert "(first_hitting)" in str(result)
    assert result.precision is None  # three images have no third neighbour
    assert "precision" not in str(result)


def test_a_result_reads_well_and_warns_of_singular_covariances():
    lines = str(RESULT).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("FID 12.35 of 10,000 samples to test images")
    assert "floor 5.00" in lines[1]
    assert "singular" not in str(replace(RESULT, images=2049))
    assert "singular" in str(replace(RESULT, images=2048))
    assert "(ancestral, 64 calls, guidance 2)" in str(replace(RESULT, guidance=2.0))


# -- mistakes, before any work ----------------------------------------------------------------------------------------


def text(folder):
    (folder / "novel.txt").write_text("the cat sat on the mat. " * 100)
    return dmb.data.text(folder / "novel.txt", length=8)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (text, {}, "data must be images for FID and Inception Score, got novel.txt: Characters"),
        (None, {"images": 41}, "images must be at most 40, the size of the test split of images, got 41"),
        (
            None,
            {"split": "train", "images": 321},
            "images must be at most 320, the size of the train split of images, got 321",
        ),
        (None, {"images": 1}, "images must be at least 2 for FID, got 1"),
        (None, {"images": 40, "score": True}, "images must be at least 100 for the Inception Score, got 40"),
        (None, {"split": "tests"}, "split must be one of train, validation, test, got 'tests'"),
    ],
)
def test_mistakes_are_named(tmp_path, images, make, options, message):
    data = dmb.data.images(images) if make is None else make(tmp_path)
    with pytest.raises(ValueError, match=f"^{message}$"):
        RealImages(data, **options)


def test_weights_without_a_classifier_are_refused_for_the_inception_score(images, monkeypatch):
    monkeypatch.setattr(Inception, "load", lambda weights=None: Brightness(classifier=None))
    data = dmb.data.images(images)
    RealImages(data, "train", images=100)
    with pytest.raises(ValueError, match=r"^the Inception Score needs weights with a classifier, .*--weights FILE"):
        RealImages(data, "train", images=100, score=True)


def test_images_from_memory_of_fewer_levels_cannot_be_had_again(images):
    data = replace(dmb.data.images(images, 4), source="")
    with pytest.raises(ValueError, match=r"^images must have a source to read the original images from, got none$"):
        RealImages(data, images=40)


# -- the command ------------------------------------------------------------------------------------------------------


def kept(run):
    return read_evaluations(run.path)


def test_the_command_prints_and_keeps_the_distance(run, capsys):
    assert dmb_("fid", run.path, "--images", 40, "--calls", 2) == 0
    fid, floor = capsys.readouterr().out.splitlines()[:2]
    assert set(kept(run)) == {"images"}
    result = kept(run)["images"]["test"]
    assert fid.startswith(f"FID {result['fid']:.2f} of 40 samples to test images (ancestral, 2 calls)")
    assert floor.startswith(f"floor {result['floor']:.2f} ")
    assert result["step"] == run.best().step


def test_several_numbers_of_calls_are_compared_with_the_same_images(run, capsys, monkeypatch):
    looked, pictures = [], RealImages.pictures
    monkeypatch.setattr(RealImages, "pictures", lambda *a, **o: looked.append(a[1]) or pictures(*a, **o))
    assert dmb_("fid", run.path, "--images", 40, "--calls", 1, 3, 1) == 0
    assert sorted(looked) == ["test", "train", "train"]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FID")]
    found = kept(run)["images at calls"]["test"]
    assert list(found) == ["1 calls", "3 calls"]
    assert lines == [
        f"FID {found[f'{calls} calls']['fid']:.2f} of 40 samples to test images (ancestral, {calls} calls)"
        for calls in (1, 3)
    ]
    assert found["1 calls"]["fid"] != found["3 calls"]["fid"]
    assert found["1 calls"]["floor"] == found["3 calls"]["floor"]
    assert dmb_("fid", run.path, "--images", 40, "--calls", 3, 4, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [result["calls"] for result in printed] == [3, 4]
    assert printed[0] == found["3 calls"]
    assert dmb_("fid", run.path, "--images", 40, "--calls", 4) == 0
    assert [(each.calls, each.fid) for each in read_images(run.path)] == [
        (each["calls"], each["fid"]) for each in printed
    ]


def test_samples_are_shown_beside_the_training_images_nearest_to_them(run, images, tmp_path, capsys):
    file = tmp_path / "pairs.png"
    assert dmb_("fid", run.path, "--images", 40, "--calls", 2, "--nearest", file) == 0
    data = run.data()
    made = data.codec.images(run.bridge().sample(40, calls=2, generator=seeding.seeded(0, "samples")))
    whole = dmb.data.images(images)
    training = whole.codec.images(whole.train[whole.train.spread(40)])
    a, b = (Brightness()(torch.from_numpy(x)).double().tolist() for x in (made, training))
    closest = [min(range(40), key=lambda i: math.dist(b[i], x)) for x in a]
    picture = np.asarray(Image.open(file))
    scale = 96 // SHAPE[0]
    for index in range(40):
        top, left = index // 7 * (96 + 2), index % 7 * (2 * SHAPE[1] * scale + 2)
        pair = picture[top : top + 96 : scale, left : left + 2 * SHAPE[1] * scale : scale]
        np.testing.assert_array_equal(pair, np.concatenate([made[index], training[closest[index]]], axis=1))


def test_a_result_of_images_leaves_bounds_and_other_splits_as_they_are(run, capsys):
    options = ["--images", 30, "--calls", 1, "--json"]
    assert dmb_("evaluate", run.path, "--json") == 0
    before = kept(run)
    assert dmb_("fid", run.path, *options) == 0
    assert dmb_("fid", run.path, "--split", "validation", *options) == 0
    assert dmb_("fid", run.path, "--seed", 1, *options) == 0
    bound, first, validation, second = map(json.loads, capsys.readouterr().out.splitlines())
    step = {"step": run.best().step}
    assert before == {"test": bound | step}
    assert kept(run) == before | {"images": {"test": second | step, "validation": validation | step}}
    assert first["fid"] != second["fid"]
    assert first["real"] == second["real"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--images 41", "images must be at most 40, the size of the test split of images, got 41"),
        ("--images 0", "images must be at least 2 for FID, got 0"),
        ("--images 40 --calls 0", "calls must be at least 1, got 0"),
        ("--images 40 --guidance 2", "guidance .*"),
        ("--images 40 --nearest x.txt", "--nearest must end in .png or .npy, .*, got x.txt"),
        ("--score --images 100 --split train", "the Inception Score needs weights with a classifier, .*"),
    ],
)
def test_mistakes_in_the_command_are_one_line_before_any_work(run, capsys, network, arguments, message):
    network.classifier = None
    capsys.readouterr()
    assert dmb_("fid", run.path, *arguments.split()) == 2
    captured = capsys.readouterr()
    *progress, error = captured.err.splitlines()
    assert re.fullmatch(f"dmb: {message}", error)
    assert all(line.startswith("reading the data") for line in progress)
    assert captured.out == ""
    assert kept(run) == {}


def test_missing_weights_are_one_line_before_any_work(run, capsys, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    arguments = ["fid", run.path, "--images", 40]
    (tmp_path / "others.pth").write_bytes(b"no weights")
    capsys.readouterr()
    assert dmb_(*arguments) == 2
    assert dmb_(*arguments, "--weights", tmp_path / "others.pth") == 2
    missing, others = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dmb: ")]
    assert "no Inception weights in " in missing
    assert "others.pth cannot be read as weights" in others
    assert kept(run) == {}


def test_a_model_of_other_data_has_no_images(tmp_path, capsys):
    data = text(tmp_path)
    chosen = replace(recipe(tmp_path / "novel.txt"), data=DataChoice(source=str(tmp_path / "novel.txt"), length=8))
    run = make_run(tmp_path / "run", chosen, data)
    capsys.readouterr()
    assert dmb_("fid", run.path) == 2
    assert "data must be images" in capsys.readouterr().err

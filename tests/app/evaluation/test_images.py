import numpy as np
import pytest
import scipy.linalg
import torch

from dmb.app.evaluation import features, fid, images, inception_score


class Projections:
    """A stand-in for the network: random projections of the pixels, which counts the images it sees."""

    def __init__(self, width=6, digest="weights", patience=None):
        self.width, self.digest, self.patience, self.seen = width, digest, patience, 0

    def __call__(self, pixels):
        if self.patience is not None and self.seen >= self.patience:
            raise KeyboardInterrupt
        self.seen += len(pixels)
        flat = pixels.flatten(1).float() / 255
        matrix = torch.randn(flat.shape[1], self.width, generator=torch.Generator().manual_seed(0))
        return torch.cat([flat @ matrix, (flat @ matrix).abs()], dim=1)


def some_images(count, seed=0, shape=(4, 4, 3)):
    return np.random.default_rng(seed).integers(256, size=(count, *shape), dtype=np.uint8)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(images, "_CHUNK", 4)
    monkeypatch.setattr(images, "_BATCH", 2)


def gaussian(count, width, seed):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, width)) @ generator.normal(size=(width, width)) + generator.normal(size=width)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_distance_of_a_set_to_itself_is_0(offset):
    x = torch.from_numpy(gaussian(100, 8, seed=0)) + offset
    assert fid(x, x) == pytest.approx(0, abs=1e-9)
    assert fid(x.float(), x.float()) == pytest.approx(0, abs=1e-6)
    assert fid(x, x[torch.randperm(100, generator=torch.Generator().manual_seed(0))]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("sizes", [(50, 300), (9000, 50)])
def test_the_distance_is_that_of_gaussians_by_the_matrix_square_root(offset, sizes):
    a, b = (gaussian(size, 8, seed) + offset for seed, size in enumerate(sizes))
    root = scipy.linalg.sqrtm(np.cov(a.T) @ np.cov(b.T)).real
    distance = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(np.cov(a.T) + np.cov(b.T) - 2 * root)
    assert fid(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(distance, rel=1e-9)
    assert fid(torch.from_numpy(b), torch.from_numpy(a)) == pytest.approx(distance, rel=1e-9)


def test_the_distance_of_fewer_images_than_features_is_right_too():
    a, b = gaussian(12, 40, seed=0), gaussian(20, 40, seed=1)
    a_centred, b_centred = ((x - x.mean(0)) / np.sqrt(len(x) - 1) for x in (a, b))
    root = np.linalg.svd(a_centred @ b_centred.T, compute_uv=False).sum()  # tr (Σ_a Σ_b)^½ without a singular matrix
    distance = ((a.mean(0) - b.mean(0)) ** 2).sum() + (a_centred**2).sum() + (b_centred**2).sum() - 2 * root
    assert fid(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(distance, rel=1e-12)


def test_the_distance_grows_with_the_noise_in_the_images():
    clean = some_images(300) // 2 + 64
    noise = np.random.default_rng(1).normal(size=clean.shape)
    network = Projections()
    levels = [np.clip(clean + scale * noise, 0, 255).astype(np.uint8) for scale in (0, 10, 30, 90)]
    distances = [fid(features(network, level), features(network, clean)) for level in levels]
    assert distances == sorted(distances)
    assert distances[0] < 1e-6 < distances[1]


def test_the_score_is_1_if_all_images_look_alike_and_the_number_of_classes_if_each_is_certain():
    assert inception_score(torch.tensor([[3.0, 1.0, 0.0]]).expand(40, 3)) == pytest.approx((1.0, 0.0), abs=1e-6)
    certain = 2000 * torch.eye(5).repeat(2000, 1)  # beyond what float32 can exponentiate
    mean, deviation = inception_score(certain, splits=4)
    assert mean == pytest.approx(5, abs=0.01)
    assert 0 < deviation < 0.01


@pytest.mark.parametrize("scale", [200, 1e4])
@pytest.mark.parametrize("splits", [2, 4, 10])
def test_the_score_of_images_that_have_no_class_in_common_is_their_number_in_a_part(splits, scale):
    assert inception_score(scale * torch.eye(20), splits) == pytest.approx((20 / splits, 0.0), abs=1e-9)


def test_the_score_is_the_exponential_of_the_information_about_the_class():
    logits = 2 * np.random.default_rng(0).normal(size=(8000, 5))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    information = (p * np.log(p / p.mean(0))).sum(1).mean()
    mean, deviation = inception_score(torch.from_numpy(logits), splits=2)
    assert mean == pytest.approx(np.exp(information), rel=2e-3)
    assert 0 < deviation < 0.1


def test_the_score_deals_images_by_its_seed_and_leaves_the_global_random_state_alone():
    logits = torch.from_numpy(gaussian(60, 5, seed=0))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    score = inception_score(logits)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert inception_score(logits) == score
    assert inception_score(logits, seed=1) != score


@pytest.mark.parametrize("count", [1, 4, 11])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.usefixtures("small_chunks")
def test_features_do_not_depend_on_how_the_set_is_cut(tmp_path, home, monkeypatch, count, batch_size):
    monkeypatch.setattr(images, "_BATCH", batch_size)
    pixels = some_images(count)
    np.save(tmp_path / "images.npy", pixels)
    whole = Projections()(torch.from_numpy(pixels))
    for source in (pixels, torch.from_numpy(pixels), np.load(tmp_path / "images.npy", mmap_mode="r")):
        torch.testing.assert_close(features(Projections(), source), whole)
        for path in (home / "cache").iterdir():
            path.unlink()


@pytest.mark.usefixtures("small_chunks")
def test_progress_counts_to_the_end():
    reports = []
    for _ in range(2):
        features(Projections(), some_images(10), progress=lambda *r: reports.append(r))
    done = [count for count, _ in reports]
    assert {total for _, total in reports} == {10}
    assert done[-1] == 10
    first = done[: done.index(10) + 1]
    assert first == sorted(first)
    assert set(first) == {2, 4, 6, 8, 10}


@pytest.mark.usefixtures("small_chunks")
def test_a_set_that_is_known_is_not_computed_again(home):
    network = Projections()
    first = features(network, some_images(10))
    assert network.seen == 10
    assert torch.equal(features(network, torch.from_numpy(some_images(10))), first)
    assert network.seen == 10
    assert {path.parent for path in home.rglob("*.npy")} == {home / "cache"}


@pytest.mark.usefixtures("small_chunks")
def test_what_was_interrupted_goes_on_where_it_was(home):
    pixels = some_images(18)
    with pytest.raises(KeyboardInterrupt):
        features(Projections(patience=10), pixels)
    assert len(list((home / "cache").iterdir())) == 2  # whole files only
    network = Projections()
    resumed = features(network, pixels)
    assert network.seen == 18 - 8
    assert torch.equal(resumed, Projections()(torch.from_numpy(pixels)))


@pytest.mark.usefixtures("small_chunks")
def test_other_images_shapes_and_weights_do_not_collide():
    pixels = some_images(6)
    changed = pixels.copy()
    changed[5, 0, 0, 0] += 1
    cases = [
        (Projections(), pixels, 6),
        (Projections(), changed, 2),  # the first four are the same
        (Projections(), pixels[1:], 5),
        (Projections(), pixels.reshape(6, 8, 2, 3), 6),
        (Projections(digest="others"), pixels, 6),
    ]
    for network, case, computed in cases:
        result = features(network, case)
        assert network.seen == computed
        torch.testing.assert_close(result, Projections()(torch.from_numpy(case.copy())))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01", np.zeros((4, 12), np.float32)])
def test_a_damaged_file_of_the_cache_is_made_again(home, content):
    network = Projections()
    before = features(network, some_images(4))
    [path] = (home / "cache").iterdir()
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    assert torch.equal(features(network, some_images(4)), before)
    assert network.seen == 8


NAN = torch.tensor([[0.0], [1.0], [torch.nan]])


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: features(Projections(), some_images(4)[0]), r"images must be uint8 \[images, height, width, 1 or 3 channels\] and not be empty, got uint8 \[4, 4, 3\]"),
        (lambda: features(Projections(), some_images(4, shape=(3, 4, 4))), r"images must be .*, got uint8 \[4, 3, 4, 4\]"),
        (lambda: features(Projections(), some_images(4) / 255), r"images must be uint8 .*, got float64 \[4, 4, 4, 3\]"),
        (lambda: features(Projections(), some_images(0)), r"images must be .* and not be empty, got uint8 \[0, 4, 4, 3\]"),
        (lambda: fid(torch.rand(1, 3), torch.rand(5, 3)), r"features_a must be \[at least 2 images, 3 features\], got \[1, 3\]"),
        (lambda: fid(torch.rand(5, 3), torch.rand(1, 3)), r"features_b must be \[at least 2 images, 3 features\], got \[1, 3\]"),
        (lambda: fid(torch.rand(5, 4), torch.rand(5, 3)), r"features_a must be \[at least 2 images, 3 features\], got \[5, 4\]"),
        (lambda: fid(torch.rand(3), torch.rand(5, 3)), r"features_a must be \[at least 2 images, 3 features\], got \[3\]"),
        (lambda: fid(torch.rand(3, 1), NAN), "features_b must be finite, got nan or inf in row 2"),
        (lambda: inception_score(torch.rand(20, 5), splits=1), "splits must be at least 2, got 1"),
        (lambda: inception_score(torch.rand(11, 5)), r"logits must be \[enough images for 10 splits, classes\], got \[11, 5\]"),
        (lambda: inception_score(torch.rand(20)), r"logits must be \[enough images for 10 splits, classes\], got \[20\]"),
        (lambda: inception_score(NAN, splits=2), "logits must be .*, got .*"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()

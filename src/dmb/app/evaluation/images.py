"""How near a set of images is to another: the Fréchet Inception Distance; and the Inception Score of one.

The network is ours (`Inception`), the statistics are those of torchmetrics, in float64.
"""

import hashlib
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dmb.app.evaluation.inception import check_images
from dmb.data.cache import cached
from dmb.data.home import Progress, unseen
from dmb.seeding import seed_of

_CHUNK = 256  # images a file of the cache: about a minute's work of a core


@runtime_checkable
class FeatureNetwork(Protocol):
    """What `features` needs: images to features, and a name for the weights that do it."""

    @property
    def digest(self) -> str:
        """Changes whenever the features would."""

    def __call__(self, images: Tensor, /) -> Tensor:
        """Features `[b, f]` of images `[b, h, w, c]`."""


def features(
    network: FeatureNetwork,
    images: Tensor | np.ndarray,
    *,
    batch_size: int = 16,
    progress: Progress | None = None,
    cache: bool = False,
) -> Float[Tensor, "n f"]:
    """The features of a set of images.

    Args:
        network: `Inception.load()`.
        images: `[n, height, width, channels]`, `uint8`, in colour (3 channels) or grey (1).
        batch_size: images per network call.
        progress: called with the number of images done, and of all.
        cache: keep features in the data folder, by the content of the images and the weights, and look for them there.
            The cache fills as the work goes on, so that an interruption costs little.
    """
    progress = progress or unseen
    check_images(images)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    weights, found = network.digest if cache else "", []

    def computed(rows: Tensor, done: int) -> Iterator[np.ndarray]:
        for batch in rows.split(batch_size):
            yield network(batch).float().cpu().numpy()
            done += len(batch)
            progress(done, len(images))

    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK]
        rows = some.cpu() if isinstance(some, Tensor) else torch.from_numpy(np.array(some))  # a copy: it may be a file
        if cache:
            made_from = [weights, list(rows.shape), hashlib.sha256(rows.numpy().tobytes()).hexdigest()]
            found.append(np.array(cached("features", made_from, partial(computed, rows, start))))
            progress(start + len(rows), len(images))  # if they were known
        else:
            found.extend(computed(rows, start))
    return torch.from_numpy(np.concatenate(found))


def fid(features_a: Float[Tensor, "m f"], features_b: Float[Tensor, "n f"]) -> float:
    """The Fréchet distance of two Gaussians, fitted to the features of two sets of images (Heusel et al. 2017).

    `|μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½)`. It is biased upwards by an amount that falls with the number of
    images: compare only figures of equal numbers, and of more images than there are features.

    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> round(fid(x, 3 * x + 1), 6)                  # 1² + (√2 - 3√2)²
    9.0
    """
    for name, values in (("features_a", features_a), ("features_b", features_b)):
        if values.ndim != 2 or len(values) < 2 or values.shape[1] != features_b.shape[-1]:
            raise ValueError(
                f"{name} must be [at least 2 images, {features_b.shape[-1]} features], got {list(values.shape)}"
            )
        _check_finite(name, values)
    centre = features_b.double().mean(0).cpu()  # of no effect on the distance, but on the rounding of the covariances
    as_given = nn.Identity()  # in the place of torchmetrics' network, which says how many features it has
    as_given.num_features = len(centre)  # type: ignore[assignment]
    metric = _torchmetrics("fid").FrechetInceptionDistance(feature=as_given)
    for values, real in ((features_a, False), (features_b, True)):
        for part in values.cpu().split(4096):
            metric.update(part.double() - centre, real=real)
    return max(0.0, float(metric.compute()))  # rounding can take a distance of 0 below it


def inception_score(logits: Float[Tensor, "n k"], splits: int = 10, *, seed: int = 0) -> tuple[float, float]:
    """`exp E[KL(p(y|x) | p(y))]` (Salimans et al. 2016): its mean and standard deviation over parts of the set.

    Args:
        logits: of the classes of each image, `Inception.logits`.
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
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message=".*will save all extracted features", category=UserWarning)
        torch.default_generator.manual_seed(seed_of(seed, "inception score"))
        metric = _torchmetrics("inception").InceptionScore(feature=nn.Identity(), splits=splits)
        logits = logits.cpu().double()
        logits = (logits - logits.amax(1, keepdim=True)).clamp(min=-700)  # no chance of 0: its log is not finite
        metric.update(logits)
        mean, deviation = metric.compute()
    return float(mean), float(deviation)


def _torchmetrics(name: str) -> Any:
    """A module of torchmetrics, which takes seconds to import and is an extra."""
    try:
        return import_module(f"torchmetrics.image.{name}")
    except ImportError as error:
        raise ValueError(
            "FID and Inception Score need the extra `image`: pip install 'discrete-markov-bridge[image]'"
        ) from error


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name} must be finite, got nan or inf in row {row}")

"""The Fréchet Inception Distance, precision and recall, and the Inception Score; of a model, and of a perfect one."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dmb._core import checks
from dmb._core.seeding import seeded
from dmb.app.evaluation.drawing import Stages, draw, unwatched
from dmb.app.evaluation.inception import NO_CLASSIFIER, Inception, check_images
from dmb.app.images import Codes
from dmb.app.images.codes import images_of
from dmb.app.loading import load
from dmb.bridges import Bridge
from dmb.data import DataSet, ImageCodec, Picture
from dmb.data.cache import cached
from dmb.data.reading import Progress, ignore_progress

_CHUNK, _BATCH = 256, 16  # images per file of the cache, about a minute's work of a core; images per network call
_LEAST_SCORED = 100  # images, ten for each part of the Inception Score
_NEIGHBOURS, _ROWS = 3, 512  # by which precision and recall go, as published; distances to so many images at once
_PAIRS = 100  # samples that are shown beside training images


@runtime_checkable
class FeatureNetwork(Protocol):
    """What `features` needs: images to features, and a name for the weights that do it."""

    @property
    def digest(self) -> str:
        """Changes whenever the features would."""

    def __call__(self, images: Tensor, /) -> Tensor:
        """Features `[b, f]` of images `[b, h, w, c]`."""


def features(
    network: FeatureNetwork, images: Tensor | np.ndarray, *, progress: Progress = ignore_progress
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
    weights, found = network.digest, []

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
    means, roots = [], []
    for values in _checked(features_a, features_b, least=2):
        means.append(values.mean(0))
        roots.append(torch.linalg.qr(values - means[-1], mode="r").R / (len(values) - 1) ** 0.5)
    squares = (means[0] - means[1]).square().sum() + sum(root.square().sum() for root in roots)
    distance = squares - 2 * torch.linalg.svdvals(roots[0] @ roots[1].T).sum()
    return max(0.0, float(distance))  # rounding can take a distance of 0 below it


def precision_recall(
    features_a: Float[Tensor, "m f"], features_b: Float[Tensor, "n f"], neighbours: int = _NEIGHBOURS
) -> tuple[float, float]:
    """The share of `a` that lies among `b`, and that of `b` among `a` (Kynkäänniemi et al. 2019).

    With `a` of samples and `b` of real images: how many samples are like real images, and how many real images are
    like samples. A vector lies among others if it is no further from one of them than the nearest of the others but
    `neighbours - 1` are from that one. Compare only figures of equal numbers.

    >>> a, b = torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.0], [2.0], [3.0]])
    >>> precision_recall(a, b, neighbours=1)         # 9 is not within 1 of 3; all of `b` are within 8 of 9
    (0.6666666666666666, 1.0)
    """
    a, b = _checked(features_a, features_b, least=neighbours + 1)
    return _share_among(a, b, neighbours), _share_among(b, a, neighbours)


def _share_among(these: Tensor, others: Tensor, neighbours: int) -> float:
    inside = torch.zeros(len(these), dtype=torch.bool)
    for rows in torch.arange(len(others)).split(_ROWS):
        between = torch.cdist(others[rows], others)
        between[torch.arange(len(rows)), rows] = torch.inf  # no one is a neighbour of itself
        radius = between.kthvalue(neighbours, dim=1).values
        inside |= (torch.cdist(these, others[rows]) <= radius).any(1)
    return float(inside.double().mean())


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


def _checked(features_a: Tensor, features_b: Tensor, least: int) -> list[Tensor]:
    """Both in float64; a ValueError if they cannot be compared."""
    width = features_b.shape[-1]
    for name, values in (("features_a", features_a), ("features_b", features_b)):
        if values.ndim != 2 or len(values) < least or values.shape[1] != width:
            raise ValueError(f"{name} must be [at least {least} images, {width} features], got {list(values.shape)}")
        _check_finite(name, values)
    return [features_a.cpu().double(), features_b.cpu().double()]


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name} must be finite, got nan or inf in row {row}")


@dataclass(frozen=True, kw_only=True)
class ImageQuality:
    """The Fréchet Inception Distance of a model's samples to real images, beside that of training images.

    Args:
        split: the split of the real images.
        images: number of images of each kind.
        fid: the distance of samples.
        floor: the distance of training images after the codec: what a perfect model would reach.
        real: the distance of unchanged training images: the floor if the codec lost nothing.
        precision, recall: of samples, see `precision_recall`; None of fewer than 4 images.
        floor_precision, floor_recall: of training images after the codec.
        num_features: number of features of the Inception network.
        inception_score: of the samples, if it was wanted.
        inception_score_deviation: standard deviation over parts of the samples.
        sampler, calls, guidance, seed: how the samples were drawn; `calls` is None for first hitting.
        step: the step of the run's model, where a run has stored the result.
    """

    kind: ClassVar[str] = "images at calls"

    split: str
    images: int
    fid: float
    floor: float
    real: float
    precision: float | None = None
    recall: float | None = None
    floor_precision: float | None = None
    floor_recall: float | None = None
    num_features: int
    inception_score: float | None = None
    inception_score_deviation: float | None = None
    sampler: str
    calls: int | None
    guidance: float
    seed: int
    step: int | None = None

    @property
    def what(self) -> str:
        """Its name among the results of several numbers of calls."""
        return f"{self.calls} calls"

    def __str__(self) -> str:
        calls = "" if self.calls is None else f", {self.calls} calls"
        how = self.sampler + calls + (f", guidance {self.guidance:g}" if self.guidance != 1 else "")
        lines = [f"FID {self.fid:.2f} of {self.images:,} samples to {self.split} images ({how})"]
        if self.inception_score is not None:
            lines.append(f"Inception Score {self.inception_score:.2f} ± {self.inception_score_deviation:.2f}")
        lines.append(f"floor {self.floor:.2f} (training images after the codec), real {self.real:.2f} (unchanged)")
        if self.precision is not None:
            perfect = f"{self.floor_precision:.3f} and {self.floor_recall:.3f}"
            lines.append(
                f"precision {self.precision:.3f}, recall {self.recall:.3f} (training images after the codec: {perfect})"
            )
        if self.images <= self.num_features:
            lines.append(
                f"note: no more images than features ({self.num_features:,}), so the covariances are singular and "
                "the figures mean little; do not compare them with others"
            )
        return "\n".join(lines)


class RealImages:
    """What samples are compared with: images of a split, spread evenly over it, and as many training images.

    Whatever can be wrong with them, or with the network that is to look at them, is found here, before the work.

    Args:
        data: images, as the model's tokens.
        split: `train`, `validation` or `test`: where the images to compare with are from.
        images: how many of each; figures of different numbers cannot be compared. Default: 10,000, or all
            of the smaller split.
        weights: of the Inception network; see `Inception.load`.
        score: whether the Inception Score is wanted, which takes weights with a classifier.
    """

    def __init__(
        self,
        data: DataSet,
        split: str = "test",
        *,
        images: int | None = None,
        weights: Path | str | None = None,
        score: bool = False,
    ):
        splits = data.splits()
        checks.choice("split", split, tuple(splits))
        images = min(10_000, len(splits[split]), len(splits["train"])) if images is None else images
        self.data, self.split, self.images, self.score = data, split, images, score
        self.codec = _image_codec(data)
        least, for_what = (_LEAST_SCORED, "the Inception Score") if score else (2, "FID")
        if images < least:
            raise ValueError(f"images must be at least {least} for {for_what}, got {images}")
        for name in (split, "train"):
            there = len(splits[name])
            if images > there:
                raise ValueError(
                    f"images must be at most {there}, the size of the {name} split of {data.name}, got {images}"
                )
        self.originals = originals(data)
        self.network = Inception.load(weights)
        if score and self.network.classifier is None:
            raise ValueError(NO_CLASSIFIER)

    def pictures(
        self, split: str, *, decoded: bool = False, progress: Progress = ignore_progress
    ) -> UInt8[np.ndarray, "k h w c"]:
        """Images of a split, spread evenly over it: the originals, or what is left of them once they have been tokens.

        `progress` is called with the number of images done, and of all.
        """
        data = self.data if decoded else self.originals
        part, found = data.splits()[split], list[np.ndarray]()
        for some in _image_codec(data).shown(part, part.spread(self.images)):
            found.append(some)
            progress(sum(map(len, found)), self.images)
        return np.concatenate(found)

    def labels(self, bridge: Bridge) -> Int[Tensor, " k"] | None:
        """Classes of the training images, for the samples to have them as often; None if the model knows no classes."""
        if not bridge.num_classes:
            return None
        labels = self.data.train.labels(self.data.train.spread(self.images))
        if labels is None:
            raise ValueError(f"data must have classes, because the model has, got {self.data.name} without classes")
        return labels


def image_quality(
    bridge: Bridge,
    real: RealImages,
    *,
    calls: int | None = None,
    sampler: str | None = None,
    guidance: float = 1.0,
    seed: int = 0,
    progress: Stages = unwatched,
) -> ImageQuality:
    """Draw as many samples as there are real images, and compare.

    What the network sees is kept in the data folder, so that real images are looked at but once, and an evaluation
    that is interrupted has only its samples to draw again. A model that knows classes is asked for those of the
    training images.

    Args:
        bridge: a model of the same tokens.
        real: what to compare with.
        calls: network calls per sample; default: 64, for a sampler that has a number of them.
        sampler, guidance: see `Bridge.sample`.
        seed: of the samples.
        progress: see `drawing.Stages`.
    """
    return next(
        image_qualities(bridge, real, [calls], sampler=sampler, guidance=guidance, seed=seed, progress=progress)
    )


def image_qualities(
    bridge: Bridge,
    real: RealImages,
    calls: Sequence[int | None],
    *,
    sampler: str | None = None,
    guidance: float = 1.0,
    seed: int = 0,
    nearest: Path | None = None,
    progress: Stages = unwatched,
) -> Iterator[ImageQuality]:
    """`image_quality` for several numbers of calls, one after the other: all but the samples is computed once.

    Args:
        nearest: a picture to write: the first 100 samples, of the last number of calls, each beside the training image
            nearest to it in the space of features, of as many as there are samples.
        bridge, real, calls, sampler, guidance, seed, progress: see `image_quality`.
    """
    sampler = bridge.samplers[0] if sampler is None else sampler
    others: dict[str, Any] = {}

    def seen(images: UInt8[np.ndarray, "k h w c"], what: str) -> Float[Tensor, "k f"]:
        with progress(f"features of {len(images):,} {what}") as advance:
            return features(real.network.to(bridge.device), images, progress=advance)

    def shares(some: Float[Tensor, "k f"]) -> tuple[float | None, float | None]:
        return precision_recall(some, wanted) if real.images > _NEIGHBOURS else (None, None)

    for given in calls:
        number = 64 if given is None and sampler in bridge.step_samplers else given
        if bridge.from_left and number:  # 0 calls are a mistake
            number = max(number, bridge.least_calls)
        with progress("sampling") as advance:
            tokens = draw(
                bridge, real.images, labels=real.labels(bridge), calls=number, sampler=sampler, guidance=guidance,
                seed=seed, progress=advance,
            )  # fmt: skip
            samples = np.concatenate([real.codec.images(part) for part in tokens])
        made = seen(samples, "samples")
        if not others:
            training = real.pictures("train")
            with progress("training images through the codec") as advance:
                reconstructed = real.pictures("train", decoded=True, progress=advance)
            wanted = seen(real.pictures(real.split), f"{real.split} images")
            whole = back = seen(training, "training images")
            if not np.array_equal(training, reconstructed):
                back = seen(reconstructed, "training images after the codec")
            others = {"real": fid(whole, wanted), "num_features": wanted.shape[1]}
            others["floor"] = others["real"] if back is whole else fid(back, wanted)
            others["floor_precision"], others["floor_recall"] = shares(back)
        if nearest is not None:
            write_pairs(nearest, samples[:_PAIRS], training, made[:_PAIRS], whole)
        score, deviation = inception_score(real.network.classified(made), seed=seed) if real.score else (None, None)
        precision, recall = shares(made)
        yield ImageQuality(
            split=real.split,
            images=real.images,
            fid=fid(made, wanted),
            precision=precision,
            recall=recall,
            inception_score=score,
            inception_score_deviation=deviation,
            sampler=sampler,
            calls=number,
            guidance=guidance,
            seed=seed,
            **others,
        )


def write_pairs(
    path: Path,
    samples: UInt8[np.ndarray, "m h w c"],
    training: UInt8[np.ndarray, "n h w c"],
    features_of_samples: Float[Tensor, "m f"],
    features_of_training: Float[Tensor, "n f"],
) -> None:
    """A picture of samples, each beside the training image whose features are nearest to its own: is it a copy?"""
    closest = torch.cdist(features_of_samples.double(), features_of_training.double()).argmin(1)
    pairs = np.concatenate([samples, training[closest.numpy()]], axis=2)
    Picture([*pairs.shape[1:]]).write(path, torch.from_numpy(pairs.reshape(len(pairs), -1)).long())


def originals(data: DataSet) -> DataSet:
    """The same images in the same order, as they were before they became codes, or pixels of fewer levels."""
    codec = data.codec
    if isinstance(codec, Codes):
        return originals(images_of(Path(data.source)))
    if not isinstance(codec, Picture) or codec.levels == 256:
        return data
    if not data.source:
        raise ValueError(f"{data.name} must have a source to read the original images from, got none")
    return load(data.source, codec=Picture(codec.shape, cropped=codec.cropped))


def _image_codec(data: DataSet) -> ImageCodec:
    if not isinstance(data.codec, ImageCodec):
        raise ValueError(
            f"data must be images for FID and Inception Score, got {data.name}: {type(data.codec).__name__}"
        )
    return data.codec

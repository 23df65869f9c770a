"""How good a model's images are: its samples against real ones, beside what a perfect model could reach."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dmb.app.evaluation.drawing import Advance, draw
from dmb.app.evaluation.images import features, fid, inception_score
from dmb.app.evaluation.inception import NO_CLASSIFIER, Inception
from dmb.app.images import Codes
from dmb.app.images.codes import images_of
from dmb.app.loading import load
from dmb.bridges import Bridge
from dmb.data import DataSet, ImageCodec, Picture
from dmb.data.reading import ignore_progress

_LEAST_SCORED = 100  # images, ten for each part of the Inception Score

Progress = Callable[[str], AbstractContextManager[Advance]]


@dataclass(frozen=True, kw_only=True)
class ImageQuality:
    """The Fréchet Inception Distance of a model's samples to real images, beside that of training images."""

    split: str
    """The split of the real images."""
    images: int
    """Number of images of each kind."""
    fid: float
    """The distance of samples."""
    floor: float
    """The distance of training images after the codec: what a perfect model would reach."""
    real: float
    """The distance of unchanged training images: the floor if the codec lost nothing."""
    num_features: int
    """Number of features of the Inception network."""
    inception_score: float | None = None
    inception_score_deviation: float | None = None
    """Standard deviation over parts of the samples."""
    sampler: str
    calls: int
    guidance: float
    seed: int

    @property
    def how(self) -> str:
        """How the samples were drawn."""
        return f"{self.sampler}, {self.calls} calls" + (f", guidance {self.guidance:g}" if self.guidance != 1 else "")

    def __str__(self) -> str:
        lines = [f"FID {self.fid:.2f} of {self.images:,} samples to {self.split} images ({self.how})"]
        if self.inception_score is not None:
            lines.append(f"Inception Score {self.inception_score:.2f} ± {self.inception_score_deviation:.2f}")
        lines.append(f"floor {self.floor:.2f} (training images after the codec), real {self.real:.2f} (unchanged)")
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
        images: how many of each; figures of different numbers cannot be compared.
        weights: of the Inception network; see `Inception.load`.
        score: whether the Inception Score is wanted, which takes weights with a classifier.
    """

    def __init__(
        self,
        data: DataSet,
        split: str = "test",
        *,
        images: int = 10_000,
        weights: Path | str | None = None,
        score: bool = False,
    ):
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split must be train, validation or test, got {split!r}")
        self.data, self.split, self.images, self.score = data, split, images, score
        self.codec = _image_codec(data)
        least, for_what = (_LEAST_SCORED, "the Inception Score") if score else (2, "FID")
        if images < least:
            raise ValueError(f"images must be at least {least} for {for_what}, got {images}")
        for name in (split, "train"):
            there = len(data.splits()[name])
            if images > there:
                raise ValueError(
                    f"images must be at most {there}, the size of the {name} split of {data.name}, got {images}"
                )
        self.originals = originals(data)
        self.network = Inception.load(weights)
        if score and self.network.classifier is None:
            raise ValueError(NO_CLASSIFIER)

    def pictures(
        self, split: str, *, decoded: bool = False, advance: Advance | None = None
    ) -> UInt8[np.ndarray, "k h w c"]:
        """Images of a split, spread evenly over it: the originals, or what is left of them once they have been tokens.

        `advance` is told how many are done, and of how many.
        """
        data, advance = self.data if decoded else self.originals, advance or ignore_progress
        part, found = data.splits()[split], list[np.ndarray]()
        for some in _image_codec(data).shown(part, part.spread(self.images)):
            found.append(some)
            advance(sum(map(len, found)), self.images)
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
    calls: int = 64,
    sampler: str | None = None,
    guidance: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ImageQuality:
    """Draw as many samples as there are real images, and compare.

    What the network sees is kept in the data folder, so that real images are looked at but once, and an evaluation
    that is interrupted has only its samples to draw again. A model that knows classes is asked for those of the
    training images.

    Args:
        bridge: a model of the same tokens.
        real: what to compare with.
        calls, sampler, guidance: see `Bridge.sample`.
        seed: of the samples.
        progress: called with what is about to be done, gives a context, whose value is called with the number of images
            done and of all.
    """
    progress = progress or (lambda what: nullcontext(ignore_progress))
    calls = max(calls, bridge.least_calls) if bridge.from_left else calls
    with progress("sampling") as advance:
        tokens = draw(
            bridge, real.images, labels=real.labels(bridge), seed=seed, advance=advance,
            calls=calls, sampler=sampler, guidance=guidance,
        )  # fmt: skip
        samples = np.concatenate([real.codec.images(part) for part in tokens])

    def seen(images: UInt8[np.ndarray, "k h w c"], what: str) -> Float[Tensor, "k f"]:
        with progress(f"features of {len(images):,} {what}") as advance:
            network = real.network.to(bridge.device)
            return features(network, images, progress=advance)

    made = seen(samples, "samples")
    training = real.pictures("train")
    with progress("training images through the codec") as advance:
        reconstructed = real.pictures("train", decoded=True, advance=advance)
    wanted = seen(real.pictures(real.split), f"{real.split} images")
    best = fid(seen(training, "training images"), wanted)
    lossless = np.array_equal(training, reconstructed)
    score, deviation = inception_score(real.network.classified(made), seed=seed) if real.score else (None, None)
    return ImageQuality(
        split=real.split,
        images=real.images,
        fid=fid(made, wanted),
        floor=best if lossless else fid(seen(reconstructed, "training images after the codec"), wanted),
        real=best,
        num_features=wanted.shape[1],
        inception_score=score,
        inception_score_deviation=deviation,
        sampler=sampler or bridge.samplers[0],
        calls=calls,
        guidance=guidance,
        seed=seed,
    )


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

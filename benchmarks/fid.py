"""What FID says of real images: CIFAR-10's own floor, and how it grows with noise.

python benchmarks/fid.py [IMAGES]

Needs CIFAR-10 (`dmb prepare cifar10`) and the weights of the Inception network (docs/images.md).
10,000 images, which are as many as there are to test, take a core an hour; what the network sees is kept,
so that a second run, or one that was interrupted, has less to do.
"""

import sys

import numpy as np
import tyro
from rich.console import Console
from torch import Tensor

from dmb import data
from dmb.app.display import counting
from dmb.app.evaluation import Inception, features, fid
from dmb.data import Picture, Split

NOISE = (4, 16, 64)
EVERY = 10
"""Of so many test images one is given noise, and compared with all as they are."""

notes = Console(stderr=True)


def main(count: tyro.conf.Positional[int] = 10_000) -> None:
    cifar10, network = data.cifar10(), Inception.load()
    assert isinstance(cifar10.codec, Picture)
    codec = cifar10.codec
    if not 2 * EVERY <= count <= len(cifar10.test):
        raise ValueError(f"IMAGES must lie in [{2 * EVERY}, {len(cifar10.test)}], got {count}")

    def images(split: Split) -> np.ndarray:
        return np.concatenate([*codec.shown(split, split.spread(count))])

    def seen(shown: np.ndarray, what: str) -> Tensor:
        with counting(notes, f"features of {what}") as progress:
            return features(network, shown, progress=progress)

    test = images(cifar10.test)
    real = seen(test, "test images")
    print(f"CIFAR-10, {count:,} training and test images")
    print(f"{'test to themselves':28}{fid(real, real):10.4f}", flush=True)
    training = seen(images(cifar10.train), "training images")
    print(f"{'training to test':28}{fid(training, real):10.4f}", flush=True)
    few = test[::EVERY]
    print(f"{f'{len(few):,} test images to all':28}{fid(real[::EVERY], real):10.4f}", flush=True)
    for deviation in NOISE:
        noise = np.random.default_rng(0).normal(scale=deviation, size=few.shape)
        noisy = np.clip(np.rint(few + noise), 0, 255).astype(np.uint8)
        distance = fid(seen(noisy, f"test images with noise of {deviation}"), real)
        print(f"{f'  the same, noise of {deviation}':28}{distance:10.4f}", flush=True)


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except ValueError as error:
        sys.exit(str(error))

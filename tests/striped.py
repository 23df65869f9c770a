"""Small VQ-VAEs and images of stripes to train them on."""

import numpy as np
import torch

from dmb.app.images import VQVAE, TokenizerSettings, train_tokenizer
from dmb.data import DataSet, Picture, Rows
from dmb.training import engine

QUICK = {"steps": 12, "batch_size": 8, "warmup": 3, "log_every": 3, "evaluate_every": 5, "evaluate_images": 20}


def pictures(count=120, size=8, levels=256, validation=20, seed=0):
    """Grey images of stripes: a direction, a phase, two shades."""
    angle, phase, low, high = np.random.default_rng(seed).random((4, count, 1, 1))
    y, x = np.mgrid[:size, :size]
    wave = np.sin(x * np.cos(np.pi * angle) + y * np.sin(np.pi * angle) + 2 * np.pi * phase)
    values = (255 * np.where(wave > 0, low, high)).astype(int)[..., None] * levels // 256
    splits = np.split(values, [count - 2 * validation, count - validation])
    train, validated, test = (Rows(split, levels) for split in splits)
    codec = Picture([size, size, 1], levels)
    return DataSet(name="stripes", source="", codec=codec, train=train, validation=validated, test=test)


def make(seed=0, **options):
    torch.manual_seed(seed)
    return VQVAE(
        **({"size": 8, "channels": 1, "grid": 4, "codes": 16, "width": 8, "blocks": 1, "code_width": 4} | options)
    )


def train(vqvae, data, folder=None, resume=False, stop=None, **options):
    settings = TokenizerSettings(**QUICK | options)
    return train_tokenizer(
        vqvae, data, settings, fabric=engine(accelerator="cpu"), folder=folder, resume=resume, stop=stop
    )


def images(data, split):
    return torch.from_numpy(data.codec.images(split[:]))

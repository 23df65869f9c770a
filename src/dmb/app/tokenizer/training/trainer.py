"""The loop: steps, reports, evaluations and checkpoints, and a way to stop and go on."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dmb.app.tokenizer import VQVAE, perplexity, psnr
from dmb.app.tokenizer.codes import MOST_CODES
from dmb.app.tokenizer.quantizer import library
from dmb.app.tokenizer.training.learner import Learner, Progress
from dmb.app.tokenizer.training.report import AutoencoderReport
from dmb.app.tokenizer.training.settings import AutoencoderSettings
from dmb.data.base import DataSet
from dmb.data.codecs import Picture
from dmb.data.codecs.picture import states_of_values
from dmb.training.checkpoint import Checkpoints
from dmb.training.engine import Engine, engine
from dmb.training.loop import Loop, checkpoints_in

_SHOWN = (32, 18, 8, 2, 1)  # how many pairs may be shown: so many fill the rows of a square sheet


def train_autoencoder(
    vqvae: VQVAE,
    data: DataSet,
    settings: AutoencoderSettings | None = None,
    *,
    fabric: Engine | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Iterator[AutoencoderReport]:
    """Train `vqvae` on images, yielding reports; the caller owns progress and logging.

    From the first evaluation on, `vqvae` holds the weights that have done best on validation data so far, by their
    PSNR; training itself works on a copy. Batches are functions of the seed and the step, and so is what the quantiser
    draws; a run that is interrupted and resumed ends, on a CPU, in the same bits.

    Args:
        vqvae: what to train.
        data: images, a token for every value (`Picture`).
        settings: how to.
        fabric: the engine, launched. Default: one device of the best kind there is.
        folder: where to keep checkpoints and the best model. Default: nowhere.
        resume: go on from the newest checkpoint in `folder`, if there is one.
        stop: asked after every step; when it says True a checkpoint is saved and training ends.
    """
    settings = settings or AutoencoderSettings()
    fabric = fabric or engine()
    refuse_unfit_autoencoder(vqvae, data, settings, fabric)
    checkpoints = checkpoints_in(folder, settings.keep, resume)
    return _Trainer(vqvae, data, settings, fabric, checkpoints, resume, stop).run()


def refuse_unfit_autoencoder(vqvae: VQVAE, data: DataSet, settings: AutoencoderSettings, fabric: Engine) -> None:
    """A ValueError if this VQ-VAE cannot be trained on these data with these settings."""
    library()
    if vqvae.codes > MOST_CODES:
        raise ValueError(f"codes must be at most {MOST_CODES:,}, got {vqvae.codes:,}")
    shape, wanted = picture_of(data).shape, [vqvae.size, vqvae.size, vqvae.channels]
    if shape != wanted:
        raise ValueError(f"images must be {_times(wanted)}, which the VQ-VAE is for, got {_times(shape)}")
    world, images = fabric.world_size, min(len(data.validation), settings.evaluate_images)
    if settings.batch_size % world:
        raise ValueError(f"batch_size must be a multiple of the processes, {world}, got {settings.batch_size}")
    if images < world:
        raise ValueError(f"validation data must have an image for each of {world} processes, got {images}")
    if type(fabric.strategy).__name__ == "ModelParallelStrategy":
        raise ValueError("strategy must be ddp for a VQ-VAE, which is too small to be shared out, got fsdp")


def picture_of(data: DataSet) -> Picture:
    """The codec of images whose values are their tokens; a ValueError for other data."""
    if not isinstance(data.codec, Picture):
        raise ValueError(f"a VQ-VAE is trained on images: cifar10, or a folder of them; got {data.name}")
    return data.codec


class _Trainer:
    def __init__(
        self,
        vqvae: VQVAE,
        data: DataSet,
        settings: AutoencoderSettings,
        fabric: Engine,
        checkpoints: Checkpoints | None,
        resume: bool,
        stop: Callable[[], bool] | None,
    ):
        self.vqvae, self.data, self.settings, self.fabric = vqvae, data, settings, fabric
        self.codec = picture_of(data)
        self.learner = Learner(vqvae, settings, fabric)
        self.loop = Loop(self.learner, fabric, checkpoints, resume, settings.minutes, stop)
        if self.loop.best_folder is not None:
            vqvae.load_tensors(VQVAE.from_pretrained(self.loop.best_folder).tensors())
        self._since = (self.progress.step, time.perf_counter())

    @property
    def progress(self) -> Progress:
        return self.learner.progress

    def run(self) -> Iterator[AutoencoderReport]:
        settings, progress, fabric = self.settings, self.progress, self.fabric
        while progress.step < settings.steps:
            batch = self.data.train.batch(settings.batch_size, step=progress.step, seed=settings.seed)
            mine = batch.x_0.chunk(fabric.world_size)[fabric.global_rank]
            gradient_norm = self.learner.step(self._images(mine))
            asked, out_of_time = self.loop.interrupted()
            if progress.step % settings.log_every == 0:
                yield self._train_report(gradient_norm)
            if progress.step % settings.evaluate_every == 0 or progress.step == settings.steps or out_of_time:
                yield self._evaluate()
                self.loop.save()
                self._since = (progress.step, time.perf_counter())
            elif asked:
                self.loop.save()
            if asked or out_of_time:
                return

    def _images(self, tokens: Int[Tensor, "b d"]) -> UInt8[Tensor, "b h w c"]:
        return torch.from_numpy(self.codec.images(tokens))

    def _report(self, phase: Literal["train", "validation"], **parts: Any) -> AutoencoderReport:
        progress, settings = self.progress, self.settings
        progress.reports += 1
        return AutoencoderReport(
            index=progress.reports - 1,
            phase=phase,
            step=progress.step,
            total_steps=settings.steps,
            images=progress.step * settings.batch_size,
            seconds=self.loop.seconds(),
            cpu_seconds=self.loop.cpu_seconds(),
            **parts,
        )

    def _train_report(self, gradient_norm: float) -> AutoencoderReport:
        progress = self.progress
        now, (step, then) = time.perf_counter(), self._since
        self._since = (progress.step, now)
        loss, reconstruction, detail, commitment = progress.seen_means()
        return self._report(
            "train",
            loss=loss,
            reconstruction=reconstruction,
            detail=detail,
            commitment=commitment,
            images_per_second=(progress.step - step) * self.settings.batch_size / (now - then),
            gradient_norm=gradient_norm,
            learning_rate=self.learner.learning_rate,
        )

    def _evaluate(self) -> AutoencoderReport:
        """What comes back of validation images, each process taking its share of them."""
        progress, fabric, model = self.progress, self.fabric, self.learner.model
        rows = self.data.validation.spread(self.settings.evaluate_images)
        rows = rows[: len(rows) // fabric.world_size * fabric.world_size]
        images = torch.from_numpy(np.concatenate([*self.codec.shown(self.data.validation, rows)]))
        tokens = model.encode(images.chunk(fabric.world_size)[fabric.global_rank])
        back = self._gathered(model.decode(tokens))
        ratio = psnr(images, back)
        improved = progress.best_psnr is None or ratio > progress.best_psnr
        if improved:
            progress.best_psnr, progress.best_step = ratio, progress.step
            self.learner.hand_over(self.vqvae)
            if self.loop.best_folder is not None and fabric.is_global_zero:
                self.vqvae.write(self.loop.best_folder)
        return self._report(
            "validation",
            reconstruction=16 * 10 ** (-ratio / 10),  # see `dmb.app.tokenizer.losses.reconstruction`
            psnr=ratio,
            perplexity=perplexity(self._gathered(tokens), model.codes),
            improved=improved,
            sample=self._pairs(images, back),
        )

    def _gathered(self, values: Tensor) -> Tensor:
        """The values of all processes, one after the other; as many on each."""
        if self.fabric.world_size > 1:
            every = self.fabric.all_gather(values)
            assert isinstance(every, Tensor)
            values = every.flatten(0, 1)
        return values.cpu()

    def _pairs(self, images: UInt8[Tensor, "b h w c"], back: UInt8[Tensor, "b h w c"]) -> Int[Tensor, "k d"]:
        """A few images, each followed by what comes back of it, as tokens of the data."""
        count = next(count for count in _SHOWN if count <= len(images))
        rows = torch.linspace(0, len(images) - 1, count).long()
        pairs = torch.stack([images[rows], back[rows]], dim=1).flatten(0, 1).flatten(1)
        return torch.from_numpy(states_of_values(self.codec.levels)[pairs.numpy()]).long()


def _times(shape: list[int]) -> str:
    return " × ".join(map(str, shape))

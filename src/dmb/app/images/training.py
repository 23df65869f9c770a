"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dmb._core.configuration import typed
from dmb._core.seeding import seeded
from dmb.app.images.autoencoder import VQVAE
from dmb.app.images.settings import TokenizerSettings, picture_of
from dmb.data import DataSet
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged, engine, skips_bad_steps
from dmb.training.learner import cause_of, optimiser_tensors, restore_optimiser
from dmb.training.loop import Evaluation, Loop, Progress, Step
from dmb.training.reporting import Fact, Report


@dataclass(frozen=True, kw_only=True)
class TokenizerReport(Report):
    """What happened since the previous report.

    `loss` is the mean over the training batches since then (phase `train`); `psnr`, in decibels, and `perplexity`, the
    number of codes in use, are of validation images (phase `validation`).
    """

    loss: float | None = None
    images_per_second: float | None = None
    learning_rate: float | None = None
    psnr: float | None = None
    perplexity: float | None = None

    def facts(self) -> list[Fact]:
        if self.psnr is None:
            return [Fact("loss", f"{self.loss:.4f}"), Fact("speed", f"{self.images_per_second:,.0f}", "images/s")]
        return [Fact("PSNR", f"{self.psnr:.2f}", "dB", main=True), Fact("codes in use", f"{self.perplexity:.0f}")]


def train_tokenizer(
    vqvae: VQVAE,
    data: DataSet,
    settings: TokenizerSettings | None = None,
    *,
    fabric: Engine | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Iterator[TokenizerReport]:
    """Train `vqvae` on images, yielding reports; the caller owns progress and logging.

    From the first evaluation on, `vqvae` holds the weights that have done best on validation images so far, by their
    PSNR; training itself works on a copy. Batches are functions of the seed and the step, and so is what the quantiser
    draws; a run that is interrupted and resumed ends, on a CPU, in the same bits.

    The data are images with a token for every value (`Picture`); the other arguments are those of `dmb.train`.
    """
    settings, fabric = settings or TokenizerSettings(), fabric or engine()
    if settings.batch_size % fabric.world_size:
        raise ValueError(f"batch_size must be a multiple of {fabric.world_size} processes, got {settings.batch_size}")
    return Loop(VQLearner(vqvae, data, settings, fabric), fabric, folder, resume, stop).run()


@dataclass
class _Progress(Progress):
    seen_loss: float = 0.0
    """Sum of the loss over the steps since the last report."""
    seen_steps: int = 0


class VQLearner:
    """A VQ-VAE in training, as a learner for the training loop: a copy that is trained, and an optimiser.

    The VQ-VAE that is given stays as it is until `keep`.
    """

    def __init__(self, vqvae: VQVAE, data: DataSet, settings: TokenizerSettings, fabric: Engine):
        self.vqvae, self.data, self.settings, self.fabric = vqvae, data, settings, fabric
        self.codec, self.progress = picture_of(data), _Progress()
        self.model = copy.deepcopy(vqvae).train()
        self.wrapped = fabric.setup_module(self.model)
        self._optimiser = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.99))  # its rate: see `step`
        self.optimiser: Any = fabric.setup_optimizers(self._optimiser)

    def steps(self) -> Iterator[Step]:
        settings, progress, fabric = self.settings, self.progress, self.fabric
        since = (progress.step, time.perf_counter())
        while progress.step < settings.steps:
            batch = self.data.train.batch(settings.batch_size, step=progress.step, seed=settings.seed)
            images = self.codec.images(batch.x_0.chunk(fabric.world_size)[fabric.global_rank])
            self.step(torch.from_numpy(images))
            log = progress.step % settings.log_every == 0
            evaluate = progress.step % settings.evaluate_every == 0 or progress.step == settings.steps
            yield Step(self._report(*since) if log else None, evaluate)
            if log or evaluate:
                since = (progress.step, time.perf_counter())

    def step(self, images: UInt8[Tensor, "b h w c"]) -> None:
        """Learn from this process's share of a batch."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        rate = settings.learning_rate * progress.warmth(settings.warmup)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * math.cos(math.pi / 2 * progress.schedule(settings.steps))
        generator = seeded(settings.seed, "codes", progress.step)
        loss = self.wrapped(images, detail=settings.detail, commitment=settings.commitment, generator=generator)
        fabric.backward(loss)
        mean = averaged(fabric, loss.detach()).item()
        norm = fabric.clip_gradients(self.wrapped, self.optimiser, max_norm=math.inf, error_if_nonfinite=False)
        assert norm is not None
        if not math.isfinite(mean) or not (norm.isfinite() or skips_bad_steps(fabric)):
            what, cause = "gradient" if math.isfinite(mean) else "loss", cause_of(self.model.named_parameters())
            where = f"at step {progress.step}: {cause}; try a lower learning_rate"
            raise FloatingPointError(f"the {what} is not finite {where}")
        self.optimiser.step()
        self.optimiser.zero_grad()
        progress.seen_loss += mean
        progress.seen_steps += 1
        progress.step += 1

    def evaluate(self) -> Evaluation:
        """What comes back of validation images. They are few: every process looks at all of them."""
        split = self.data.validation
        images = np.concatenate([*self.codec.shown(split, split.spread(self.settings.evaluate_images))])
        found = torch.tensor(self.model.judged(torch.from_numpy(images)), dtype=torch.float64)
        ratio, used = averaged(self.fabric, found.to(self.fabric.device)).tolist()  # lest they disagree on the best
        return Evaluation(-ratio, TokenizerReport(phase="validation", psnr=ratio, perplexity=used))

    def keep(self, folder: Path | None) -> None:
        self.vqvae.load_tensors(self.model.tensors())
        if folder is not None and self.fabric.is_global_zero:
            self.vqvae.write(folder)

    def fetch(self, folder: Path) -> None:
        self.vqvae.load_tensors(VQVAE.from_pretrained(folder).tensors())

    def finish(self, folder: Path | None, best: Callable[[], Checkpoint | None]) -> Iterator[Report | None]:
        yield from ()  # the best model is complete

    def checkpoint(self) -> Checkpoint:
        tensors = {f"vqvae.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser, "optimiser", dict(self.model.named_parameters()))
        return Checkpoint(tensors, asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.under("vqvae"))
        restore_optimiser(self._optimiser, "optimiser", dict(self.model.named_parameters()), checkpoint)
        self.progress = typed(_Progress, checkpoint.state)

    def _report(self, step: int, then: float) -> TokenizerReport:
        """What was seen since that step, at that time."""
        progress, rate = self.progress, self._optimiser.param_groups[0]["lr"]
        loss = progress.seen_loss / progress.seen_steps
        speed = (progress.step - step) * self.settings.batch_size / (time.perf_counter() - then)
        progress.seen_loss, progress.seen_steps = 0.0, 0
        return TokenizerReport(phase="train", loss=loss, images_per_second=speed, learning_rate=rate)

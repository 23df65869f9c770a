"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dmb.app.tokenizer.autoencoder import VQVAE
from dmb.app.tokenizer.metrics import perplexity, psnr
from dmb.app.tokenizer.settings import TokenizerSettings, picture_of
from dmb.data import DataSet
from dmb.seeding import seeded
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged, engine, gathered, skips_bad_steps
from dmb.training.learner import cause_of, optimiser_tensors, restore_optimiser
from dmb.training.loop import Evaluation, Loop, Progress, Step
from dmb.training.reporting import Fact, Report
from dmb.typed import typed

_PARTS = ("loss", "reconstruction", "detail", "commitment")
"""What reports call the first of `Losses`: the total and what it is made of."""


@dataclass(frozen=True, kw_only=True)
class TokenizerReport(Report):
    """What happened since the report before.

    Of the losses see `VQVAE.loss`: they are means over the training batches since the report before (phase `train`), or
    of validation images (phase `validation`).
    """

    images: int
    """Images learned from so far."""
    reconstruction: float
    loss: float | None = None
    detail: float | None = None
    commitment: float | None = None
    images_per_second: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    psnr: float | None = None
    """Decibels, of validation images."""
    perplexity: float | None = None
    """Codes in use, of validation images."""

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
    _refuse_unfit(vqvae, data, settings, fabric)
    return Loop(VQLearner(vqvae, data, settings, fabric), fabric, folder, resume, stop).run()


def _refuse_unfit(vqvae: VQVAE, data: DataSet, settings: TokenizerSettings, fabric: Engine) -> None:
    """A ValueError if this VQ-VAE cannot be trained on these data with these settings."""
    shape, wanted = picture_of(data).shape, [vqvae.size, vqvae.size, vqvae.channels]
    if shape != wanted:
        sizes = [" × ".join(map(str, size)) for size in (wanted, shape)]
        raise ValueError(f"images must be {sizes[0]}, the size of the VQ-VAE, got {sizes[1]}")
    world, images = fabric.world_size, min(len(data.validation), settings.evaluate_images)
    if settings.batch_size % world:
        raise ValueError(f"batch_size must be a multiple of the processes, {world}, got {settings.batch_size}")
    if images < world:
        raise ValueError(f"validation data must have an image for each of {world} processes, got {images}")
    if type(fabric.strategy).__name__ == "ModelParallelStrategy":
        raise ValueError("strategy must be ddp for a VQ-VAE, which is too small to be split, got fsdp")


@dataclass
class _Progress(Progress):
    seen: list[float] = field(default_factory=lambda: [0.0] * len(_PARTS))
    """Sums of the loss and its parts over the steps since the last report."""
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
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        wrapped_optimiser = fabric.setup_optimizers(self._optimiser)
        assert not isinstance(wrapped_optimiser, tuple)
        self.optimiser = wrapped_optimiser

    def steps(self) -> Iterator[Step]:
        settings, progress, fabric = self.settings, self.progress, self.fabric
        since = (progress.step, time.perf_counter())
        while progress.step < settings.steps:
            batch = self.data.train.batch(settings.batch_size, step=progress.step, seed=settings.seed)
            images = self.codec.images(batch.x_0.chunk(fabric.world_size)[fabric.global_rank])
            gradient_norm = self.step(torch.from_numpy(images))
            log = progress.step % settings.log_every == 0
            evaluate = progress.step % settings.evaluate_every == 0 or progress.step == settings.steps
            yield Step(self._report(gradient_norm, *since) if log else None, evaluate)
            if log or evaluate:
                since = (progress.step, time.perf_counter())

    def step(self, images: UInt8[Tensor, "b h w c"]) -> float:
        """Learn from this process's share of a batch; the norm of the gradient."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        rate = settings.learning_rate * min(1.0, (progress.step + 1) / max(1, settings.warmup))
        for group in self._optimiser.param_groups:
            group["lr"] = rate * math.cos(math.pi / 2 * progress.schedule(settings.steps))
        generator = seeded(settings.seed, "codes", progress.step)
        losses = self.wrapped(images, detail=settings.detail, commitment=settings.commitment, generator=generator)
        parts = averaged(fabric, torch.stack([part.detach() for part in losses[: len(_PARTS)]])).tolist()
        if not all(map(math.isfinite, parts)):
            raise self._not_finite("loss")
        fabric.backward(losses.total)
        norm = fabric.clip_gradients(self.wrapped, self.optimiser, max_norm=math.inf, error_if_nonfinite=False)
        assert norm is not None
        if not norm.isfinite() and not skips_bad_steps(fabric):
            raise self._not_finite("gradient")
        self.optimiser.step()
        self.optimiser.zero_grad()
        progress.seen = [total + part for total, part in zip(progress.seen, parts, strict=True)]
        progress.seen_steps += 1
        progress.step += 1
        return norm.item()

    def evaluate(self) -> Evaluation:
        """What comes back of validation images, each process taking its share of them."""
        fabric, model = self.fabric, self.model
        rows = self.data.validation.spread(self.settings.evaluate_images)
        rows = rows[: len(rows) // fabric.world_size * fabric.world_size]
        images = torch.from_numpy(np.concatenate([*self.codec.shown(self.data.validation, rows)]))
        tokens = model.encode(images.chunk(fabric.world_size)[fabric.global_rank])
        ratio = psnr(images, gathered(fabric, model.decode(tokens)).cpu())
        report = TokenizerReport(
            phase="validation",
            images=self.progress.step * self.settings.batch_size,
            reconstruction=16 * 10 ** (-ratio / 10),  # see `dmb.app.tokenizer.losses.reconstruction`
            psnr=ratio,
            perplexity=perplexity(gathered(fabric, tokens).cpu(), model.codes),
        )
        return Evaluation(-ratio, report)

    def keep(self, folder: Path | None) -> None:
        self.vqvae.load_tensors(self.model.tensors())
        if folder is not None and self.fabric.is_global_zero:
            self.vqvae.write(folder)

    def fetch(self, folder: Path) -> None:
        self.vqvae.load_tensors(VQVAE.from_pretrained(folder).tensors())

    def checkpoint(self) -> Checkpoint:
        tensors = {f"vqvae.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= optimiser_tensors(self._optimiser, "optimiser", dict(self.model.named_parameters()))
        return Checkpoint(tensors, asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        try:
            self.model.load_state_dict(checkpoint.under("vqvae"))
            restore_optimiser(self._optimiser, "optimiser", dict(self.model.named_parameters()), checkpoint)
            self.progress = typed(_Progress, checkpoint.state)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"the checkpoint does not fit this model: {error}") from error

    def _report(self, gradient_norm: float, step: int, then: float) -> TokenizerReport:
        """What was seen since that step, at that time."""
        progress, batch_size = self.progress, self.settings.batch_size
        means: Any = dict(zip(_PARTS, (total / progress.seen_steps for total in progress.seen), strict=True))
        progress.seen, progress.seen_steps = [0.0] * len(_PARTS), 0
        return TokenizerReport(
            phase="train",
            images=progress.step * batch_size,
            **means,
            images_per_second=(progress.step - step) * batch_size / (time.perf_counter() - then),
            gradient_norm=gradient_norm,
            learning_rate=self._optimiser.param_groups[0]["lr"],
        )

    def _not_finite(self, what: str) -> FloatingPointError:
        cause = cause_of(self.model.named_parameters())
        step = self.progress.step
        return FloatingPointError(f"the {what} is not finite at step {step}: {cause}; try a lower learning_rate")

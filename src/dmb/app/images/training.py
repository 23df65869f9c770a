"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dmb._core.seeding import seed_of, seeded
from dmb.app.images.autoencoder import VQVAE
from dmb.app.images.codes import picture_of
from dmb.data import DataSet
from dmb.data.sources.images import size_hint
from dmb.training import Fact, Report, Trainer
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged, engine, skips_bad_steps
from dmb.training.settings import check_ranges
from dmb.training.state import Learner, cause_of


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """The sizes of a VQ-VAE, and how to train it.

    Args:
        grid: Height and width of the grid of codes that an image becomes.
        codes: Number of codes in the codebook.
        width: Channels of the convolutions at the grid.
        blocks: Residual blocks in the encoder, and in the decoder.
        code_width: Dimension of a code's vector.
        cosine: Codes are directions, and the nearest is that of the highest cosine; otherwise they are points.
        decay: Decay per step of the moving averages that codes follow.
        revive: A code used less often than this share of the mean is moved to where images are.
        steps: Number of training steps.
        batch_size: Images per step, over all processes.
        learning_rate: Learning rate after warm-up; it falls to 0 along a quarter of a cosine by the last step.
        warmup: Steps over which the learning rate rises from 0; if minutes are given, at most the first tenth of them.
        detail: Weight of edges in the loss.
        commitment: Weight of the distance between the encoder's vectors and their codes.
        seed: Seed of initial weights, the order of images, and the codes that are moved.
        minutes: Stop after this many minutes, counted from the start or from resuming; None: no limit. The learning
            rate falls to 0 by then.
        patience: Stop after this many evaluations in a row without improvement; 0: never.
        log_every: Steps between reports.
        evaluate_every: Steps between evaluations on validation images; each is followed by a checkpoint.
        evaluate_images: Maximum number of validation images per evaluation; always the same ones.
        keep: Number of checkpoints to keep, besides that of the best evaluation.
    """

    cycles, score_tolerance, tolerance = 1, 0.0, 0.0  # of Algorithm 1, which is a cycle of Score-learning here

    grid: int = 8
    codes: int = 512
    width: int = 64
    blocks: int = 2
    code_width: int = 16
    cosine: bool = True
    decay: float = 0.9
    revive: float = 0.1

    steps: int = 8000
    batch_size: int = 32
    learning_rate: float = 2e-3
    warmup: int = 50
    detail: float = 0.1
    commitment: float = 0.25
    seed: int = 0
    minutes: float | None = None
    patience: int = 0
    log_every: int = 100
    evaluate_every: int = 1000
    evaluate_images: int = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def score_steps(self) -> int:
        """The number of steps, under the name that Algorithm 1 has for them."""
        return self.steps

    total_steps = score_steps

    def sizes(self) -> dict[str, Any]:
        """What defines the VQ-VAE besides its images, and cannot change during training."""
        names = ("grid", "codes", "width", "blocks", "code_width", "cosine", "decay", "revive")
        return {name: getattr(self, name) for name in names}

    def build(self, data: DataSet) -> VQVAE:
        """A VQ-VAE for the images of `data`, with initial weights drawn from the seed."""
        height, width, channels = picture_of(data).shape
        if height != width:
            wanted = size_hint(min(height, width), self.grid)
            raise ValueError(f"images must be square for a VQ-VAE, got {width} × {height}: {wanted}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, "init"))
            return VQVAE(size=height, channels=channels, **self.sizes())


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
    return Trainer(TokenizerLearner(vqvae, data, settings, fabric), folder, resume, stop).run()


class TokenizerLearner(Learner):
    """A VQ-VAE in training: a copy that is trained, and an optimiser.

    The VQ-VAE that is given stays as it is until `hand_over`.
    """

    def __init__(self, vqvae: VQVAE, data: DataSet, settings: TokenizerSettings, fabric: Engine):
        super().__init__(vqvae, settings, fabric)
        self.data, self.codec, self.model = data, picture_of(data), copy.deepcopy(vqvae).train()
        self.wrapped = fabric.setup_module(self.model)
        self._optimiser = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.99))  # its rate: see `score_step`
        self._wrapped_optimiser: Any = fabric.setup_optimizers(self._optimiser)
        self.modules, self.optimisers = {"vqvae": self.model}, {"optimiser": (self._optimiser, self.model)}

    def score_step(self) -> tuple[float, float]:
        """Learn from this process's share of the batch of this step."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        batch = self.data.train.batch(settings.batch_size, step=progress.step, seed=settings.seed)
        images = torch.from_numpy(self.codec.images(batch.x_0.chunk(fabric.world_size)[fabric.global_rank]))
        rate = settings.learning_rate * progress.warmup_factor(settings.warmup)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * math.cos(math.pi / 2 * progress.schedule(settings.steps))
        generator = seeded(settings.seed, "codes", progress.step)
        loss = self.wrapped(images, detail=settings.detail, commitment=settings.commitment, generator=generator)
        fabric.backward(loss)
        mean = averaged(fabric, loss.detach()).item()
        gradient = fabric.clip_gradients(
            self.wrapped, self._wrapped_optimiser, max_norm=math.inf, error_if_nonfinite=False
        )
        assert gradient is not None
        norm = gradient.item()
        if not math.isfinite(mean) or not (math.isfinite(norm) or skips_bad_steps(fabric)):
            what, cause = "gradient" if math.isfinite(mean) else "loss", cause_of(self.model.named_parameters())
            raise FloatingPointError(
                f"the {what} is not finite at step {progress.step}: {cause}; try a lower learning_rate"
            )
        self._wrapped_optimiser.step()
        self._wrapped_optimiser.zero_grad()
        return mean, norm

    def score_report(self, loss: float, steps_per_second: float, gradient_norm: float) -> TokenizerReport:
        speed, rate = steps_per_second * self.settings.batch_size, self._optimiser.param_groups[0]["lr"]
        return TokenizerReport(phase="train", loss=loss, images_per_second=speed, learning_rate=rate)

    def evaluate(self) -> tuple[float, TokenizerReport]:
        """What comes back of validation images. They are few: every process looks at all of them."""
        split = self.data.validation
        images = np.concatenate([*self.codec.shown(split, split.spread(self.settings.evaluate_images))])
        figures = torch.tensor(self.model.judged(torch.from_numpy(images)), dtype=torch.float64)
        ratio, used = averaged(self.fabric, figures.to(self.fabric.device)).tolist()  # lest they disagree on the best
        return -ratio, TokenizerReport(phase="validation", psnr=ratio, perplexity=used)

    def hand_over(self) -> None:
        self.best.load_tensors(self.model.tensors())

    def restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        if "seen_loss" in state:  # written by dmb 0.2, which knew no phases here
            state |= {"seen_bits": state.pop("seen_loss"), "phase": "score", "phase_step": state["step"]}
        super().restore(checkpoint)

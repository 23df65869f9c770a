"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dmb._core.seeding import seed_of, seeded
from dmb.app.images import adversary, losses
from dmb.app.images.autoencoder import VQVAE
from dmb.app.images.codes import picture_of
from dmb.data import DataSet
from dmb.data.sources.images import size_hint
from dmb.training import Fact, Report, Trainer
from dmb.training.checkpoint import Checkpoint
from dmb.training.devices import Engine, averaged, engine, skips_bad_steps
from dmb.training.settings import check_ranges
from dmb.training.state import Learner, cause_of

_ALONE = (
    0.1  # of the learning rate, for the decoder alone and the discriminator; and of its steps, for its weight to rise
)


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
        adversarial_steps: Steps after those, in which the decoder alone learns on, against a small discriminator of
            patches: the codes of images stay what they are, and are turned into sharper images, at a lower PSNR. The
            learning rate begins anew at a tenth. The last model is kept, not that of the highest PSNR. 0: none.
        adversarial: Weight of the discriminator in these steps: the length of its gradient at the decoder's last layer,
            as a share of that of pixels and edges. It rises over the first tenth of them.
        seed: Seed of initial weights, the order of images, and the codes that are moved.
        minutes: Stop after this many minutes, counted from the start or from resuming; None: no limit. The learning
            rate falls to 0 by then. The decoder alone has the share of the time that it has of the steps.
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
    adversarial_steps: int = 0
    adversarial: float = 0.8
    seed: int = 0
    minutes: float | None = None
    patience: int = 0
    log_every: int = 100
    evaluate_every: int = 1000
    evaluate_images: int = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.patience and self.adversarial_steps:
            raise ValueError(
                f"patience must be 0 with adversarial_steps, which come after all others, got {self.patience}"
            )

    @property
    def score_steps(self) -> int:
        """The number of all steps, under the name that Algorithm 1 has for them."""
        return self.steps + self.adversarial_steps

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

    `loss` is the mean over the training batches since then (phase `train`; phase `decoder`: of pixels and edges alone);
    `psnr`, in decibels, and `perplexity`, the number of codes in use, are of validation images (phase `validation`). Of
    the last batch, `discriminator` is the hinge loss of the discriminator: 2 if it cannot tell images from what became
    of them, 0 if it can (phase `decoder`).
    """

    phases = {"train": "training", "decoder": "decoder", "validation": "validation"}  # noqa: RUF012

    loss: float | None = None
    images_per_second: float | None = None
    learning_rate: float | None = None
    psnr: float | None = None
    perplexity: float | None = None
    discriminator: float | None = None

    def facts(self) -> list[Fact]:
        if self.psnr is None:
            against = [] if self.discriminator is None else [Fact("discriminator", f"{self.discriminator:.3f}")]
            speed = Fact("speed", f"{self.images_per_second:,.0f}", "images/s")
            return [Fact("loss", f"{self.loss:.4f}"), *against, speed]
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
        self.discriminator: adversary.Discriminator | None = None  # once the decoder learns alone

    def score_step(self) -> tuple[float, float]:
        """Learn from this process's share of the batch of this step."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        # the whole VQ-VAE has its part of the steps, and of the time if that is limited; then the decoder has its own
        whole, share = settings.steps / settings.total_steps, progress.schedule(settings.total_steps)
        if settings.adversarial_steps and self.discriminator is None and share >= whole:
            self._begin_alone()
        share = share / whole if self.discriminator is None else max(0.0, share - whole) / (1 - whole)
        batch = self.data.train.batch(settings.batch_size, step=progress.step, seed=settings.seed)
        images = torch.from_numpy(self.codec.images(batch.x_0.chunk(fabric.world_size)[fabric.global_rank]))
        rate = settings.learning_rate * progress.warmup_factor(settings.warmup)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * math.cos(math.pi / 2 * share) * (1 if self.discriminator is None else _ALONE)
        if self.discriminator is None:
            generator = seeded(settings.seed, "codes", progress.step)
            loss = self.wrapped(images, detail=settings.detail, commitment=settings.commitment, generator=generator)
            fabric.backward(loss)
        else:
            loss = self._alone(images, self.discriminator, settings.adversarial * min(1.0, share / _ALONE))
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

    def _begin_alone(self) -> None:
        """From now on only the decoder learns: that of the best model, if there is one of this step."""
        model = self.model
        if self.progress.evaluated_step == self.progress.step:
            model.load_tensors(self.best.tensors())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.settings.seed, "discriminator"))
            self.discriminator = adversary.Discriminator(model.channels, model.size).to(self.fabric.device)
        both = nn.ModuleDict({"decoder": model.decoder, "discriminator": self.discriminator})
        self._optimiser = self._wrapped_optimiser = torch.optim.Adam(both.parameters(), betas=(0.5, 0.9))
        self.modules["discriminator"], self.optimisers = self.discriminator, {"against": (self._optimiser, both)}

    def _alone(self, images: Tensor, discriminator: adversary.Discriminator, weight: float) -> Tensor:
        """The loss of the decoder's pixels, with the gradients of decoder and discriminator, each against the other."""
        decoder, (pixels, image) = self.model.decoder, self.model.decoded(images)
        error = (image - pixels) / 2
        loss = losses.reconstruction(error) + self.settings.detail * losses.detail(error)
        real, made = map(list, zip(*(x.chunk(2) for x in discriminator(torch.cat([pixels, image]))), strict=True))
        hinge, sides = adversary.telling(real, made), (loss, adversary.passing(real, made))
        main, other = (torch.autograd.grad(side, image, retain_graph=True)[0] for side in sides)
        factor = averaged(self.fabric, adversary.balance(image, decoder[-1].get_parameter("weight"), main, other))
        hinge.backward(inputs=[*discriminator.parameters()], retain_graph=True)
        image.backward(main + weight * factor * other, inputs=[*decoder.parameters()])
        for parameter in self._optimiser.param_groups[0]["params"]:
            parameter.grad = averaged(self.fabric, parameter.grad)
        self._hinge = averaged(self.fabric, hinge.detach()).item()
        return loss

    def score_report(self, loss: float, steps_per_second: float, gradient_norm: float) -> TokenizerReport:
        speed, rate = steps_per_second * self.settings.batch_size, self._optimiser.param_groups[0]["lr"]
        phase, hinge = ("train", None) if self.discriminator is None else ("decoder", self._hinge)
        return TokenizerReport(phase=phase, loss=loss, images_per_second=speed, learning_rate=rate, discriminator=hinge)

    def evaluate(self) -> tuple[float, TokenizerReport]:
        """What comes back of validation images. They are few: every process looks at all of them."""
        split = self.data.validation
        images = np.concatenate([*self.codec.shown(split, split.spread(self.settings.evaluate_images))])
        figures = torch.tensor(self.model.judged(torch.from_numpy(images)), dtype=torch.float64)
        ratio, used = averaged(self.fabric, figures.to(self.fabric.device)).tolist()  # lest they disagree on the best
        if self.discriminator is not None:
            self.progress.best = None  # PSNR falls as images get sharper: every model is better than those before
        return -ratio, TokenizerReport(phase="validation", psnr=ratio, perplexity=used)

    def hand_over(self) -> None:
        self.best.load_tensors(self.model.tensors())

    def restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        if "seen_loss" in state:  # written by dmb 0.2, which knew no phases here
            state |= {"seen_bits": state.pop("seen_loss"), "phase": "score", "phase_step": state["step"]}
        if checkpoint.under("discriminator"):
            self._begin_alone()
        super().restore(checkpoint)

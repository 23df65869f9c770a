"""What training a VQ-VAE changes: the copy that learns, its optimiser and how far they have come."""

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import torch
from jaxtyping import UInt8
from torch import Tensor

from dmb.app.tokenizer import VQVAE
from dmb.app.tokenizer.training.settings import AutoencoderSettings
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged, seeded_globally, skips_bad_steps

_PARTS = 4  # of `Losses`: the total and what it is made of


@dataclass
class Progress:
    """How far a run has come. With the tensors and the settings it decides all that follows."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reports: int = 0
    best_psnr: float | None = None
    best_step: int | None = None
    seen: list[float] = field(default_factory=lambda: [0.0] * _PARTS)
    """Sums of the loss and its parts over the steps since the last report."""
    seen_steps: int = 0

    def seen_means(self) -> list[float]:
        """Means of the loss and its parts over the steps since the last report, from which on they are summed anew."""
        means = [total / self.seen_steps for total in self.seen]
        self.seen, self.seen_steps = [0.0] * _PARTS, 0
        return means


class Learner:
    """A VQ-VAE in training: a copy that learns, and an optimiser.

    Args:
        vqvae: where to start; it stays as it is until `hand_over`.
        settings: how to train.
        fabric: the engine that places, wraps and synchronises the copy.
    """

    def __init__(self, vqvae: VQVAE, settings: AutoencoderSettings, fabric: Engine):
        self.settings, self.fabric, self.progress = settings, fabric, Progress()
        self.model = copy.deepcopy(vqvae).train()
        self.wrapped = fabric.setup_module(self.model)
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        wrapped_optimiser = fabric.setup_optimizers(self._optimiser)
        assert not isinstance(wrapped_optimiser, tuple)
        self.optimiser = wrapped_optimiser

    def step(self, images: UInt8[Tensor, "b h w c"]) -> float:
        """Learn from this process's share of a batch; the norm of the gradient."""
        settings, progress, fabric = self.settings, self.progress, self.fabric
        self._set_rate()
        with seeded_globally(fabric, settings.seed, "codes", progress.step):
            losses = self.wrapped(images, detail=settings.detail, commitment=settings.commitment)
        parts = averaged(fabric, torch.stack([part.detach() for part in losses[:_PARTS]])).tolist()
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

    @property
    def learning_rate(self) -> float:
        return self._optimiser.param_groups[0]["lr"]

    def hand_over(self, vqvae: VQVAE) -> None:
        """Give the weights and the codes to `vqvae`."""
        vqvae.load_tensors(self.model.tensors())

    def _set_rate(self) -> None:
        """Give the optimiser the learning rate of this step: a function of the step alone."""
        settings, step = self.settings, self.progress.step
        rate = settings.learning_rate * min(1.0, (step + 1) / max(1, settings.warmup))
        for group in self._optimiser.param_groups:
            group["lr"] = rate * math.cos(math.pi / 2 * step / settings.steps)

    def _not_finite(self, what: str) -> FloatingPointError:
        broken = [name for name, value in self.model.named_parameters() if not value.detach().isfinite().all()]
        cause = f"{broken[0]} is not finite any more" if broken else "the network's outputs are too large"
        return FloatingPointError(
            f"the {what} is not finite at step {self.progress.step}: {cause}; try a lower learning_rate"
        )

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on."""
        return Checkpoint(dict(self._tensors()), asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what was saved; a ValueError if it was another model."""
        try:
            self.model.load_state_dict(checkpoint.under("vqvae"))
            for name, parameter in self.model.named_parameters():
                # scalars stay where optimisers keep them
                self._optimiser.state[parameter] = {
                    slot: value.to(parameter.device) if value.ndim else value
                    for slot, value in checkpoint.under(f"optimiser.{name}").items()
                }
            self.progress = Progress(**checkpoint.state)
        except (KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"the checkpoint does not fit this model: {error}") from error

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.model.state_dict().items():
            yield f"vqvae.{name}", tensor
        for name, parameter in self.model.named_parameters():
            for slot, value in self._optimiser.state.get(parameter, {}).items():
                yield f"optimiser.{name}.{slot}", value

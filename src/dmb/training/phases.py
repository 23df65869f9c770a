"""The two phases of Algorithm 1, as generators: one step each time they are asked."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from lightning_fabric import Fabric
from torch import Tensor

from dmb.data.base import Split
from dmb.losses import noisy_copies
from dmb.numerics import seed_of, seeded
from dmb.training.engine import averaged, skips_bad_steps
from dmb.training.learner import Learner, Progress

RUNNING_STEPS = 50
"""Over how many steps the mean that is compared with ε_score runs; before that many it is compared with nothing."""


class ScoreStep(NamedTuple):
    """What a step of Score-learning saw."""

    loss_bits: float
    """J_score on its batch, bits a token."""
    gradient_norm: float


class _Noisy(NamedTuple):
    """Data, noisy copies of them, and what else the network is told."""

    x_t: Int[Tensor, "b d"]
    x_0: Int[Tensor, "b d"]
    t: Float[Tensor, " b"]
    label: Int[Tensor, " b"] | None
    given: Bool[Tensor, "b d"] | None

    def at(self, rows: Int[Tensor, " p"]) -> "_Noisy":
        label, given = (None if each is None else each[rows] for each in (self.label, self.given))
        return _Noisy(self.x_t[rows], self.x_0[rows], self.t[rows], label, given)


def matrix_phase(learner: Learner) -> Iterator[float]:
    """Matrix-learning: lower `J_Q` in the rates (Eq. 5), exactly and without a batch; yields it in bits a token.

    It ends after `matrix_steps`, or as soon as `J_Q < ε_Q`. Every process does the same sums, so none need to talk.
    """
    settings, progress, optimiser = learner.settings, learner.progress, learner.matrix_optimiser
    if optimiser is None:
        return
    while progress.phase_step < settings.matrix_steps and not progress.prior_bits < settings.matrix_tolerance:
        optimiser.zero_grad()
        loss = learner.model.prior_loss()
        if not loss.isfinite():
            raise FloatingPointError(
                f"J_Q is {loss.item()} in Matrix-learning, cycle {progress.cycle}, step {progress.phase_step}: "
                "does p_0 give probability 0 to a state of the data?"
            )
        loss.backward()
        optimiser.step()
        progress.phase_step += 1
        progress.prior_bits = learner.prior_bits()
        yield progress.prior_bits


def score_phase(learner: Learner, data: Split) -> Iterator[ScoreStep]:
    """Score-learning: lower `J_score` in the network (Eq. 8) while the forward process stays as it is.

    It ends after `score_steps`, or as soon as the running mean of `J_score` is below `ε_score`. The batch and its noise
    are functions of the seed and the step alone, so a run that was interrupted, or is spread over more processes or
    more accumulated parts, learns the same.
    """
    settings, progress = learner.settings, learner.progress
    if progress.phase_step == 0:
        progress.running_bits = None  # what the cycle before has reached says nothing about this one
    while progress.phase_step < settings.score_steps and not _below(progress, settings.score_tolerance):
        step = score_step(learner, data)
        progress.step += 1
        progress.phase_step += 1
        before = step.loss_bits if progress.running_bits is None else progress.running_bits
        progress.running_bits = before + (step.loss_bits - before) / RUNNING_STEPS
        yield step


def score_step(learner: Learner, data: Split) -> ScoreStep:
    """One step on the batch of this step: each process takes its rows of it, in `accumulate` parts."""
    settings, progress, fabric = learner.settings, learner.progress, learner.fabric
    batch = data.batch(settings.batch_size, step=progress.step, seed=settings.seed)
    x_0 = learner.model.data("x_0", batch.x_0.to(fabric.device))
    label = batch.label.to(fabric.device) if batch.label is not None and learner.network.num_classes else None
    generator = seeded(settings.seed, "noise", progress.step, device=fabric.device)
    given = _given(x_0, settings.infill, generator)
    x_t, t = noisy_copies(learner.process, x_0, given=given, generator=generator)
    noisy = _Noisy(x_t, x_0, t, label, given)

    learner.set_rates()
    mine = torch.arange(len(x_0), device=fabric.device).chunk(fabric.world_size)[fabric.global_rank]
    with _dropout_seed(settings.seed, progress.step, fabric), learner.process.fixed():
        losses = [_backward(learner, noisy.at(rows), last) for rows, last in _parts(mine, settings.accumulate)]
    loss = torch.cat(losses)
    bits = learner.bits(_mean_without_given(fabric, loss.double(), None if given is None else given[mine]))
    if not math.isfinite(bits):
        raise _not_finite(learner, loss, t[mine])
    norm = fabric.clip_gradients(
        learner.wrapped, learner.score_optimiser, max_norm=settings.clip or math.inf, error_if_nonfinite=False
    )
    assert norm is not None
    if not norm.isfinite() and not skips_bad_steps(fabric):
        raise _not_finite(learner, loss, t[mine])
    learner.score_optimiser.step()
    learner.score_optimiser.zero_grad()
    learner.average.update_parameters(learner.network)
    return ScoreStep(bits, norm.item())


def _parts(rows: Int[Tensor, " b"], count: int) -> Iterator[tuple[Int[Tensor, " p"], bool]]:
    """`rows` in `count` parts, each with whether it is the last."""
    for index, part in enumerate(rows.chunk(count)):
        yield part, index == count - 1


def _backward(learner: Learner, part: _Noisy, last: bool) -> Float[Tensor, " p"]:
    """Add the gradient of a part's share of the mean loss a token; processes talk once, after the last part."""
    learner.network.train()
    with learner.fabric.no_backward_sync(learner.wrapped, enabled=not last):
        loss = learner.model.integrand(*part).sum(-1)
        learner.fabric.backward(loss.mean() / learner.settings.accumulate / learner.model.num_positions)
    return loss.detach()


@contextmanager
def _dropout_seed(seed: int, step: int, fabric: Fabric) -> Iterator[None]:
    """Dropout draws from torch's global generators: seed them for this step, and give them back as they were."""
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed_of(seed, "dropout", step, fabric.global_rank))
        yield


def _given(x_0: Tensor, share: float, generator: torch.Generator) -> Bool[Tensor, "b d"] | None:
    """For a share of the rows, positions that are shown as they are: each row at a rate of its own."""
    if share == 0:
        return None
    device = x_0.device
    chosen = torch.rand(len(x_0), 1, generator=generator, device=device) < share
    rate = torch.rand(len(x_0), 1, generator=generator, device=device)
    return chosen & (torch.rand(x_0.shape, generator=generator, device=device) < rate)


def _below(progress: Progress, tolerance: float) -> bool:
    running = progress.running_bits
    return running is not None and progress.phase_step >= RUNNING_STEPS and running < tolerance


def _mean_without_given(fabric: Fabric, loss: Float[Tensor, " b"], given: Bool[Tensor, "b d"] | None) -> float:
    """The mean loss of rows that nothing is given of, which estimates J_score; of all rows if there are no such."""
    plain = torch.ones_like(loss) if given is None else (~given.any(-1)).to(loss.dtype)
    everything = averaged(fabric, torch.stack([loss.mean(), (plain * loss).mean(), plain.mean()]))
    mean, of_plain, share = everything.tolist()
    return of_plain / share if share > 0 and math.isfinite(mean) else mean


def _not_finite(learner: Learner, loss: Float[Tensor, " b"], t: Float[Tensor, " b"]) -> FloatingPointError:
    bad = ~loss.isfinite()
    where = f"step {learner.progress.step} (cycle {learner.progress.cycle}, Score-learning)"
    named = [*learner.process.named_parameters(), *learner.network.named_parameters()]
    broken = [name for name, parameter in named if not parameter.detach().isfinite().all()]
    cause = f"{broken[0]} is not finite any more" if broken else "the network's outputs are too large"
    if not bad.any():
        return FloatingPointError(f"the gradient is not finite at {where}: {cause}; try a lower learning_rate")
    at = f"for {int(bad.sum())} of {len(loss)} sequences, the first at t = {t[bad][0].item():.3g}"
    return FloatingPointError(f"the loss is not finite at {where}, {at}: {cause}; try a lower learning_rate or clip")

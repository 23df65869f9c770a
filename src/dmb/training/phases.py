"""The two phases of Algorithm 1, as generators: one step each time they are asked."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.data.base import Split
from dmb.losses import follow_draws, noisy_copies
from dmb.seeding import seed_of, seeded
from dmb.training.engine import averaged, drawing, skips_bad_steps
from dmb.training.learner import Learner, Progress

if TYPE_CHECKING:  # seconds to import: see `engine`
    import lightning_fabric

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
    weight: Float[Tensor, " b"]
    """Of each row in the loss."""

    def at(self, rows: Int[Tensor, " p"]) -> "_Noisy":
        label, given = (None if each is None else each[rows] for each in (self.label, self.given))
        return _Noisy(self.x_t[rows], self.x_0[rows], self.t[rows], label, given, self.weight[rows])


def matrix_phase(learner: Learner, data: Split) -> Iterator[float]:
    """Matrix-learning: lower the objective in the rates while the network stays as it is; yields J_Q in bits a token.

    On `J_Q` (Eq. 5) a step is exact and has no batch, and the phase ends early if `J_Q < ε_Q`. On the whole bound a
    step looks at a noisy batch through the averaged network. Learned jointly, the rates have no phase of their own.
    """
    settings, progress = learner.settings, learner.progress
    steps = 0 if learner.matrix_optimiser is None or settings.matrix_objective == "joint" else settings.matrix_steps
    tolerance = settings.matrix_tolerance if settings.matrix_objective == "prior" else 0.0
    while progress.phase_step < steps and not progress.prior_bits < tolerance:
        if settings.matrix_objective == "bound":
            _matrix_backward(learner, data)
        learner.step_rates()
        progress.phase_step += 1
        yield progress.prior_bits


def _matrix_backward(learner: Learner, data: Split) -> None:
    """Add to the rates the gradient of J_score a token, on the batch of this step of Matrix-learning."""
    settings, progress, model = learner.settings, learner.progress, learner.averaged
    noisy, mine = _batch(learner, data, progress.cycle * settings.matrix_steps + progress.phase_step, "matrix")
    model.network.eval()
    for rows, _ in _parts(mine, settings.accumulate):
        part = noisy.at(rows)
        with torch.no_grad():
            output = model.outputs(part.x_t, part.t, part.label)
        value = model.head.integrand(output, model.process, part.x_t, part.x_0, part.t)
        (_following(learner, part, value).mean() / settings.accumulate / model.num_positions).backward()


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
    noisy, mine = _batch(learner, data, progress.step, "score")
    learner.set_rates()
    fixed = nullcontext() if learner.joint else learner.process.fixed()
    with drawing(fabric, settings.seed, "dropout", progress.step), fixed:
        losses = [_backward(learner, noisy.at(rows), last) for rows, last in _parts(mine, settings.accumulate)]
    loss, seen = torch.cat(losses), noisy.at(mine)
    bits = learner.bits(_mean_without_given(fabric, seen.weight * loss.double(), seen.given))
    if not math.isfinite(bits):
        raise _not_finite(learner, loss, seen.t)
    norm = fabric.clip_gradients(
        learner.wrapped, learner.score_optimiser, max_norm=settings.clip or math.inf, error_if_nonfinite=False
    )
    assert norm is not None
    if not norm.isfinite() and not skips_bad_steps(fabric):
        raise _not_finite(learner, loss, seen.t)
    learner.score_optimiser.step()
    learner.score_optimiser.zero_grad()
    if settings.adapt_times:
        learner.density.add(averaged(fabric, learner.density.sums(seen.t, loss)) * fabric.world_size)
    learner.average.update_parameters(learner.network)
    if learner.joint:
        learner.step_rates()
    return ScoreStep(bits, norm.item())


def _batch(
    learner: Learner, data: Split, step: int, phase: Literal["score", "matrix"]
) -> tuple[_Noisy, Int[Tensor, " m"]]:
    """The noisy batch of a step, a function of the seed and the step alone, and this process's rows of it."""
    settings, fabric = learner.settings, learner.fabric
    seed, noise = (settings.seed, "noise") if phase == "score" else (seed_of(settings.seed, phase), "matrix noise")
    batch = data.batch(settings.batch_size, step=step, seed=seed)
    x_0 = learner.model.data("x_0", batch.x_0.to(fabric.device))
    label = batch.label.to(fabric.device) if batch.label is not None and learner.network.num_classes else None
    generator = seeded(settings.seed, noise, step, device=fabric.device)
    given = _given(x_0, settings.infill, generator) if phase == "score" else None
    density = learner.density if settings.adapt_times and phase == "score" else None
    x_t, t, weight = noisy_copies(learner.process, x_0, density=density, given=given, generator=generator)
    mine = torch.arange(len(x_0), device=fabric.device).chunk(fabric.world_size)[fabric.global_rank]
    return _Noisy(x_t, x_0, t, label, given, weight), mine


def _parts(rows: Int[Tensor, " b"], count: int) -> Iterator[tuple[Int[Tensor, " p"], bool]]:
    """`rows` in `count` parts, each with whether it is the last."""
    for index, part in enumerate(rows.chunk(count)):
        yield part, index == count - 1


def _backward(learner: Learner, part: _Noisy, last: bool) -> Float[Tensor, " p"]:
    """Add the gradient of a part's share of the mean loss a token; processes talk once, after the last part."""
    learner.network.train()
    with learner.fabric.no_backward_sync(learner.wrapped, enabled=not last):
        value = learner.model.integrand(part.x_t, part.x_0, part.t, part.label, part.given)
        loss = _following(learner, part, value) if learner.joint else value.sum(-1)
        weighted = (part.weight.to(loss.dtype) * loss).mean()
        learner.fabric.backward(weighted / learner.settings.accumulate / learner.model.num_positions)
    return loss.detach()


def _following(learner: Learner, part: _Noisy, value: Float[Tensor, "p d"]) -> Float[Tensor, " p"]:
    """The sum of `value`, its gradient in the rates made whole: see `follow_draws`."""
    log_prob = learner.process.log_prob(part.x_t, part.x_0, part.t)
    if part.given is not None:  # nothing was drawn there
        log_prob = torch.where(part.given, 0.0, log_prob)
    return follow_draws(value, log_prob, learner.expected_cost(part.x_0, part.x_t, part.t, part.given, value))


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


def _mean_without_given(
    fabric: "lightning_fabric.Fabric", loss: Float[Tensor, " b"], given: Bool[Tensor, "b d"] | None
) -> float:
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

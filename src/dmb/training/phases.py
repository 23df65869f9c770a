"""The two phases of Algorithm 1, as generators: one step each time they are asked."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core.seeding import seed_of, seeded
from dmb.data.splits import Batch, Split
from dmb.training.engine import seeded_globally, skips_bad_steps
from dmb.training.learner import Learner, TrainingState, cause_of, whole

RUNNING_STEPS = 50
"""Over how many steps the mean that is compared with ε_score runs; before that many it is compared with nothing."""


class ScoreStep(NamedTuple):
    """What a step of Score-learning saw."""

    loss_bits: float
    """J_score on its batch, bits per token."""
    gradient_norm: float


def matrix_phase(learner: Learner, data: Split) -> Iterator[float]:
    """Matrix-learning: lower the objective in the rates while the network stays as it is; yields J_Q in bits per token.

    On `J_Q` (Eq. 5) a step is exact and has no batch, and the phase ends early if `J_Q < ε_Q`. On the whole bound a
    step looks at a noisy batch through the averaged network. Learned jointly, the rates have no phase of their own; nor
    have they one on `J_Q` by whole paths, where it is 0.
    """
    settings, progress = learner.settings, learner.progress
    while not matrix_is_over(learner):
        if settings.matrix_objective == "bound":
            _matrix_backward(learner, data)
        progress.prior_bits = learner.step_rates()
        progress.phase_step += 1
        if matrix_is_over(learner):
            progress.prior_bits = learner.prior_bits()  # after the last step, not before it
        yield progress.prior_bits


def matrix_is_over(learner: Learner) -> bool:
    """Whether Matrix-learning of this cycle has ended, or does not take place."""
    settings, progress = learner.settings, learner.progress
    by_prior = settings.matrix_objective == "prior"
    nothing_to_lower = by_prior and not learner.model.has_prior
    if learner.matrix_optimiser is None or learner.joint or nothing_to_lower:
        return True
    return progress.phase_step >= settings.matrix_steps or (
        by_prior and progress.prior_bits < settings.matrix_tolerance
    )


def _matrix_backward(learner: Learner, data: Split) -> None:
    """Add to the rates the gradient of J_score per token, on the batch of this step of Matrix-learning."""
    settings, progress, model = learner.settings, learner.progress, learner.averaged
    step = progress.cycle * settings.matrix_steps + progress.phase_step
    batch = data.batch(settings.sequences, step=step, seed=seed_of(settings.seed, "matrix"))
    model.network.eval()
    for rows, _ in _parts(learner):
        loss = model.loss(
            batch.x_0,
            label=batch.label if model.num_classes else None,
            rows=rows,
            generator=seeded(settings.seed, "matrix noise", step, device=learner.fabric.device),
            **learner.estimator.matrix,
        )
        (loss.mean() / settings.accumulate / model.mean_length).backward()


def score_phase(learner: Learner, data: Split) -> Iterator[ScoreStep]:
    """Score-learning: lower `J_score` in the network (Eq. 8) while the forward process stays as it is.

    It ends after `score_steps`, or as soon as the running mean of `J_score` is below `ε_score`. The batch and its noise
    are functions of the seed and the step alone, so a run that was interrupted, or is spread over more processes or
    more accumulated parts, learns the same.
    """
    progress = learner.progress
    if progress.phase_step == 0:
        progress.running_bits = None  # what the cycle before has reached says nothing about this one
    while not score_is_over(learner):
        step = score_step(learner, data)
        progress.step += 1
        progress.phase_step += 1
        before = step.loss_bits if progress.running_bits is None else progress.running_bits
        progress.running_bits = before + (step.loss_bits - before) / RUNNING_STEPS
        yield step


def score_is_over(learner: Learner) -> bool:
    """Whether Score-learning of this cycle has come to its end."""
    settings, progress = learner.settings, learner.progress
    return progress.phase_step >= settings.score_steps or _below(progress, settings.score_tolerance)


def score_step(learner: Learner, data: Split) -> ScoreStep:
    """One step on the batch of this step: each process takes its rows of it, in `accumulate` parts."""
    settings, progress, fabric = learner.settings, learner.progress, learner.fabric
    batch = data.batch(settings.sequences, step=progress.step, seed=settings.seed)
    learner.set_rates()
    learner.network.train()
    with seeded_globally(fabric, settings.seed, "dropout", progress.step):
        parts = [_score_backward(learner, batch, rows, last) for rows, last in _parts(learner)]
    loss, plain = (torch.cat(each) for each in zip(*parts, strict=True))
    norm = fabric.clip_gradients(
        learner.wrapped, learner.score_optimiser, max_norm=settings.clip or math.inf, error_if_nonfinite=False
    )
    assert norm is not None
    seen = learner.reduce(torch.stack([loss.mean(), (plain * loss).mean(), plain.mean()]))
    mean, of_plain, share, gradient_norm = torch.cat(
        [seen, whole(norm).to(seen)[None]]
    ).tolist()  # the one wait for a GPU
    # rows that nothing is given of estimate J_score; if there are no such rows, all do
    bits = learner.bits(of_plain / share if share > 0 and math.isfinite(mean) else mean)
    if not math.isfinite(bits) or not (math.isfinite(gradient_norm) or skips_bad_steps(fabric)):
        raise _not_finite(learner, loss)
    learner.score_optimiser.step()
    learner.score_optimiser.zero_grad()
    learner.estimator.learn(learner.reduce, fabric.world_size)
    learner.average.update_parameters(learner.network)
    if learner.joint:
        learner.step_rates()
    return ScoreStep(bits, gradient_norm)


def _score_backward(
    learner: Learner, batch: Batch, rows: Int[Tensor, " p"], last: bool
) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """Add the gradient of a part's share of the mean loss per token; processes talk once, after the last part.

    Gives the loss of each row, and 1 for rows that nothing is given of. Noise is a function of the seed and the step,
    drawn for the whole batch whatever the rows.
    """
    settings, fabric, model = learner.settings, learner.fabric, learner.model
    generator = seeded(settings.seed, "noise", learner.progress.step, device=fabric.device)
    given = _given(batch.x_0, learner.infill, generator)
    with fabric.no_backward_sync(learner.wrapped, enabled=not last):
        loss = model.loss(
            batch.x_0,
            label=batch.label if model.num_classes else None,
            given=given,
            rows=rows,
            generator=generator,
            **learner.estimator.score,
        )
        fabric.backward(loss.mean() / settings.accumulate / model.mean_length)
    plain = torch.ones_like(loss) if given is None else (~given[rows].any(-1)).to(loss.dtype)
    return loss.detach().double(), plain.double()


def _parts(learner: Learner) -> Iterator[tuple[Int[Tensor, " p"], bool]]:
    """The rows of a batch that this process takes, in `accumulate` parts, each with whether it is the last."""
    settings, fabric = learner.settings, learner.fabric
    mine = torch.arange(settings.sequences, device=fabric.device).chunk(fabric.world_size)[fabric.global_rank]
    for index, part in enumerate(mine.chunk(settings.accumulate)):
        yield part, index == settings.accumulate - 1


def _given(x_0: Tensor, share: float, generator: torch.Generator) -> Bool[Tensor, "b d"] | None:
    """For a share of the rows, positions that are given; each row draws its own rate."""
    if share == 0:
        return None
    device = generator.device
    chosen = torch.rand(len(x_0), 1, generator=generator, device=device) < share
    rate = torch.rand(len(x_0), 1, generator=generator, device=device)
    return chosen & (torch.rand(x_0.shape, generator=generator, device=device) < rate)


def _below(progress: TrainingState, tolerance: float) -> bool:
    running = progress.running_bits
    return running is not None and progress.phase_step >= RUNNING_STEPS and running < tolerance


def _not_finite(learner: Learner, loss: Float[Tensor, " b"]) -> FloatingPointError:
    bad = int((~loss.isfinite()).sum())
    where = f"step {learner.progress.step} (cycle {learner.progress.cycle}, Score-learning)"
    named = [*learner.corruption.named_parameters(), *learner.network.named_parameters()]
    cause = cause_of(named)
    if not bad:
        return FloatingPointError(f"the gradient is not finite at {where}: {cause}; try a lower learning_rate")
    at = f"for {bad} of {len(loss)} sequences"
    return FloatingPointError(f"the loss is not finite at {where}, {at}: {cause}; try a lower learning_rate or clip")

r"""The bound of a sampler: what the sequences cost that it draws with `K` calls of the network (math §10).

A sampler that draws `x_s ~ p(x_s | x_t)` at the times `1 = t_K > … > t_0 = 0` is a model of its own:

`-log p(x_0) ≤ J_Q + Σ_k E KL(q(x_s | x_t, x_0) || p(x_s | x_t)),  s = t_{k-1},  t = t_k,`

with `q(x_s | x_t, x_0) ∝ p_{s|0}(x_s|x_0) p_{t|s}(x_t|x_s)`; its last term is `-log p(x_0 | x_t)`. With more and more
calls it becomes `J_Q + J_score`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.objectives.bound import Bound, bound_of_rows, check_counts, check_given
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime

if TYPE_CHECKING:  # which imports this module
    from dmb.sampling import Denoiser, StepSampler


@torch.no_grad()
def chain_bound(
    denoiser: "Denoiser",
    sampler: "StepSampler",
    times: Float[Tensor, " k"],
    x_0: Int[Tensor, "N d"],
    *,
    samples: int = 1,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> Bound:
    """The bound on every row of `x_0` of sequences that this sampler draws at these times, without bias.

    Each estimate is that of one random step, times their number; steps are spread evenly over a batch. The divergence
    is summed over all states, so that a step which could go wrong is seen wherever it might.

    Args:
        denoiser: the model, with the label of each row, the given positions and the user's options for samples.
        sampler: gives the law of a step.
        times: from 1 down to 0.
        x_0: data.
        samples: steps per sequence, one network call each.
        batch_size: sequences per network call.
        generator: source of all randomness.
        progress: called after every batch with its number of sequences.
    """
    check_counts(len(x_0), samples, batch_size)
    model, process, calls = denoiser.model, denoiser.process, len(times) - 1
    x_0 = process.data("x_0", x_0).to(model.device)
    given, tokens = check_given(denoiser.given, x_0)
    prior = process.prior_kl(x_0, process.p_T)
    prior = (prior if given is None else torch.where(given, 0.0, prior)).sum(-1).double()
    if model.lengths is not None:
        prior += model.lengths.nats(model.lengths.of(x_0))
    score, times, impossible = torch.zeros_like(prior), times.to(x_0.device), 0
    for _ in range(samples):
        for rows in torch.randperm(len(x_0), generator=generator, device=x_0.device).split(batch_size):
            u = numerics.stratified_times(len(rows), generator=generator, device=x_0.device)
            step = (u * calls).ceil().long().clamp(1, calls)  # the last one leads to data
            for last in (False, True):
                part = rows[(step == calls) == last]
                if len(part):
                    t, s = (times[k[(step == calls) == last]] for k in (step - 1, step))
                    nats = step_nats(denoiser.rows(part), sampler, x_0[part], t, s, to_data=last, generator=generator)
                    score[part] += calls * nats.sum(-1).double() / samples
                    impossible += int(nats.isinf().any(-1).sum())
            if progress is not None:
                progress(len(rows))
    return bound_of_rows(score, prior, process.num_positions, tokens, impossible / samples / len(x_0))


def step_nats(
    denoiser: "Denoiser",
    sampler: "StepSampler",
    x_0: Int[Tensor, "b d"],
    t: Float[Tensor, " b"],
    s: Float[Tensor, " b"],
    *,
    to_data: bool,
    x_t: Int[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b d"]:
    """`KL(q(x_s | x_t, x_0) || p(x_s | x_t))` at each position, for an `x_t ~ p_{t|0}(·|x_0)` unless it is given."""
    process, now, earlier = denoiser.process, denoiser.process._solve(t), denoiser.process._solve(s)
    if x_t is None:
        x_t = denoiser.keep_given(process._sample(x_0, now, generator=generator), x_0)
    log_p = sampler.log_step(denoiser, x_t, now, earlier, to_data=to_data)
    if to_data:
        nats = -log_p.gather(-1, x_0[..., None])[..., 0]
    else:
        log_q = bridge_law(process, x_t, x_0, now, earlier).to(log_p.dtype)
        nats = torch.where(log_q > -torch.inf, log_q.exp() * (log_q - log_p), 0.0).sum(-1)
    return nats if denoiser.given is None else torch.where(denoiser.given, 0.0, nats)


def bridge_law(
    process: ForwardProcess, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime, earlier: SolvedTime
) -> Float[Tensor, "b d n"]:
    """`log q(x_s | x_t, x_0)`: where a token that is known at both ends is in between."""
    return numerics.log_normalise(
        process._log_transition(x_0, earlier) + process._log_likelihood(x_t, now.since(earlier))
    )

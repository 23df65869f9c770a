"""J_score at drawn times: the training loss, and the bound with its error (math §4)."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.objectives.bound import Bound, bound_of_rows, check_counts, check_given, expected_nats
from dmb.objectives.variance import CostBaseline, MoveControl, TimeDensity, sample_split
from dmb.processes.base import ForwardProcess
from dmb.processes.time import SolvedTime

if TYPE_CHECKING:  # which imports this module
    import dmb.bridges


def score_loss(
    model: "dmb.bridges.MarkovBridge",
    x_0: Int[Tensor, "b d"],
    *,
    label: Int[Tensor, " b"] | None = None,
    given: Bool[Tensor, "b d"] | None = None,
    learn_rates: bool = False,
    times: TimeDensity | None = None,
    baseline: CostBaseline | None = None,
    rows: Int[Tensor, " k"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " k"]:
    """An unbiased estimate of `J_score` for each sequence, in nats: one stratified time and one noisy copy per row.

    Args:
        model: the model to train.
        x_0: data, checked (`MarkovBridge.loss` does it).
        label: classes, for a network that takes them.
        given: positions that stay clean, are marked as such to the network, and cost nothing: training for infilling.
        learn_rates: also compute the whole gradient in the rates of the process, which also decide what is drawn (see
            `score_function_surrogate`).
        times: a density to draw times from; it also records their costs. Default: uniform times.
        baseline: the expected costs, for the gradient in the rates; it also records the actual ones. Default: none,
            which is unbiased too, but noisier.
        rows: compute the loss of these rows only. Noise is drawn for all rows, so that it does not depend on how a
            batch is split.
        generator: source of all randomness except dropout.
    """
    process = model.process
    x_t, now, weight = noisy_copies(process, x_0, times=times, given=given, generator=generator)
    if rows is not None:
        x_0, x_t, now, weight = x_0[rows], x_t[rows], now.rows(rows), weight[rows]
        label, given = (None if each is None else each[rows] for each in (label, given))
    with nullcontext() if learn_rates else process.fixed():
        value = model._integrand(x_t, x_0, now, label, given)
        if learn_rates:
            log_prob = process._log_prob(x_t, x_0, now)
            if given is not None:  # nothing was drawn there
                log_prob = torch.where(given, 0.0, log_prob)
            expected = torch.zeros_like(value)
            if baseline is not None:
                expected = baseline.expected(process, x_0, x_t, now.t, value, given)
            loss = score_function_surrogate(value, log_prob, expected)
        else:
            loss = value.sum(-1)
    if times is not None:
        times.observe(now.t, loss.detach())
    return weight.to(loss.dtype) * loss


def score_function_surrogate(
    value: Float[Tensor, "b d"], log_prob: Float[Tensor, "b d"], expected: Float[Tensor, "b d"]
) -> Float[Tensor, " b"]:
    r"""The sum of `value` over positions, with a gradient that also counts how the noisy tokens were drawn.

    The rates decide which `x_t` is drawn as well as what it costs: `∇ E[f] = E[∇f + f ∇ log p_{t|0}(x_t|x_0)]`.
    Positions are drawn independently. So in the second term of position `i`, any prediction of another position's cost
    `f_j` that does not depend on `x_t^i` (`expected`) can be subtracted from `f = Σ_j f_j`. This does not change the
    mean, and removes most of the noise.

    Args:
        value: the integrand `f_j` at each position.
        log_prob: `log p_{t|0}(x_t|x_0)` at each position.
        expected: any prediction of `value[:, j]` from `x_0`, `t` and `x_t[:, j]` alone; see `CostBaseline`.

    >>> rate = torch.tensor(2.0, requires_grad=True)
    >>> value, expected = torch.tensor([[3.0, 1.0]]), torch.tensor([[2.5, 0.5]])
    >>> score_function_surrogate(value, torch.stack([rate.log(), -rate])[None], expected).backward()
    >>> rate.grad  # (3 + (1 - 0.5)) / 2 - (1 + (3 - 2.5))
    tensor(0.2500)
    """
    surprise = (value - expected).detach()
    weight = value.detach() + surprise.sum(-1, keepdim=True) - surprise
    return (value + weight * (log_prob - log_prob.detach())).sum(-1)


@torch.no_grad()
def noisy_copies(
    process: ForwardProcess,
    x_0: Int[Tensor, "b d"],
    *,
    times: TimeDensity | None = None,
    given: Bool[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "b d"], SolvedTime, Float[Tensor, " b"]]:
    """`x_t ~ p_{t|0}(·|x_0)`, the times, and the weight of each row: one time per row, stratified over the batch.

    Times are uniform and weights are 1, unless `times` is a density to draw from. `given` positions stay clean.
    `x_0` must have been checked.
    """
    t = numerics.stratified_times(len(x_0), generator=generator, device=x_0.device)
    t, weight = (t, torch.ones_like(t)) if times is None else times.at(t)
    now = process._solve(t)
    x_t = process._sample(x_0, now, generator=generator)
    return (x_t if given is None else torch.where(given, x_0, x_t)), now, weight


@torch.no_grad()
def bound(
    model: "dmb.bridges.MarkovBridge",
    x_0: Int[Tensor, "N d"],
    *,
    label: Int[Tensor, " N"] | None = None,
    given: Bool[Tensor, "N d"] | None = None,
    samples: int = 1,
    batch_size: int = 128,
    stratify: bool = True,
    split: bool = True,
    importance: bool = True,
    control: bool = True,
    generator: torch.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> Bound:
    """The bound on every row of `x_0`, unbiased over all of `[0, 1]`: no cut-off, no ε.

    Four methods reduce its variance; each can be switched off to see its effect, and none changes the mean.

    Args:
        model: put it in evaluation mode first, to switch off dropout.
        x_0: data.
        label: classes, for a network that takes them.
        given: positions that are known: the bound is on the others given these, and its bits are per token of these
            others. At least one position of every row must not be given.
        samples: network calls per sequence. For the mean over many sequences 1 is best; more make each value sharper.
        batch_size: sequences per network call.
        stratify: spread the times of a batch evenly instead of drawing them independently.
        split: near `t = 0`, draw whether any token has moved with balanced probabilities (`sample_split`).
        importance: draw times in proportion to the integrand's root mean square, learned on previous batches.
        control: subtract the part explained by the known number of moves (`MoveControl`), fitted on previous batches.
        generator: source of all randomness.
        progress: called after every batch with its number of sequences.
    """
    check_counts(len(x_0), samples, batch_size)
    process = model.process
    x_0 = process.data("x_0", x_0).to(model.device)
    prior = process.prior_kl(x_0, process.p_T)
    given, tokens = check_given(given, x_0)
    prior = (prior if given is None else torch.where(given, 0.0, prior)).sum(-1).double()
    if model.lengths is not None:
        prior += model.lengths.nats(model.lengths.of(x_0))
    score = torch.zeros_like(prior)
    density, moves = TimeDensity(central=stratify, device=x_0.device), MoveControl(process)
    ordered, rest = list[Tensor](), list[Tensor]()  # estimates of each batch and their rows, by time
    for _ in range(samples):
        for rows in torch.randperm(len(x_0), generator=generator, device=x_0.device).split(batch_size):
            x, known = x_0[rows], None if given is None else given[rows]
            # drawn anew for every batch: the density must not depend on the times it is used for
            if stratify:
                u = numerics.stratified_times(len(rows), generator=generator, device=x.device)
            else:
                u = 1 - torch.rand(len(rows), generator=generator, device=x.device, dtype=torch.float64)
            t, weight = density.at(u) if importance else (u, torch.ones_like(u))
            now = process._solve(t)
            if split:
                x_t, branch = sample_split(process, x, now, generator, known)
            else:
                x_t, branch = process._sample(x, now, generator=generator), torch.ones_like(t)
                x_t = x_t if known is None else torch.where(known, x, x_t)
            value = model._integrand(x_t, x, now, None if label is None else label[rows], known).sum(-1).double()
            if value.isnan().any():
                raise ValueError("the network's output is nan, so the bound is nan: check the network")
            if control:
                features = moves.features(x, x_t, now, known)
                explained = moves.predict(features)
                moves.update(features, t, value, weight * branch)
                value = value - explained
            density.observe(t, branch * value)
            density.learn()
            estimate = weight * branch * value
            score[rows] += estimate / samples
            by_time = u.argsort()
            ordered.append(estimate[by_time])
            rest.append(rows[by_time])
            if progress is not None:
                progress(len(rows))
    differences = len(x_0) - len(ordered)
    if not stratify or samples > 1 or not differences:
        # times differ freely, or a sequence's samples share its data: the spread over sequences is what counts
        return bound_of_rows(score, prior, process.num_positions, tokens)
    # neighbouring strata differ little in their means, so successive differences show the rest of the variance
    expected = expected_nats(score + prior, tokens)
    steps = [(e + (prior - expected)[rows]).diff() for e, rows in zip(ordered, rest, strict=True)]
    variance = torch.cat(steps).square().sum().item() / 2 / differences
    return Bound(score, prior, process.num_positions, variance, tokens)

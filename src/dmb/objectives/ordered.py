r"""Whole paths: every term of the bound in one pass, for processes whose positions jump once, to a mask (math §9).

Position `i` is masked at a time `τ_i ~ Exp(v_i)`, whatever its token. The reverse process then has known hazards, which
cancel, and the cost of a path is the negative log-likelihood in the reversed order of destruction:

`Σ_i -log π_i(x_0^i | tokens with τ_j > τ_i)`.

`J_score` is its mean over orders. A path ends only when everything is masked, so the prior costs nothing.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dmb.objectives.bound import Bound, check_counts, check_given, expected_nats
from dmb.orders.random import draw_turns

if TYPE_CHECKING:  # which imports this module
    import dmb.bridges


def mixed_turns(
    turn: Int[Tensor, "b d"],
    any_order: float,
    *,
    given: Bool[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "b d"], Bool[Tensor, " b"]]:
    """Turns of which a share is drawn anew, evenly from all orders, and which those are."""
    if not 0 <= any_order <= 1:
        raise ValueError(f"any_order must lie in [0, 1], got {any_order}")
    even = torch.zeros(len(turn), dtype=torch.bool, device=turn.device)
    if any_order:
        even = torch.rand(len(turn), generator=generator, device=turn.device) < any_order
        alike = torch.zeros(turn.shape[1], device=turn.device)
        turn = torch.where(even[:, None], draw_turns(alike, len(turn), given=given, generator=generator), turn)
    return turn, even


def path_loss(
    model: "dmb.bridges.OrderedBridge",
    x_0: Int[Tensor, "b d"],
    *,
    label: Int[Tensor, " b"] | None = None,
    given: Bool[Tensor, "b d"] | None = None,
    orders: int = 1,
    singles: int = 0,
    any_order: float = 0.0,
    learn_order: bool = False,
    rows: Int[Tensor, " k"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " k"]:
    r"""The cost of a random path of each sequence, in nats: an unbiased estimate of `J_score`, its mean over orders.

    The speeds decide which orders are drawn: `∇ E[Σ_i f_i] = E[Σ_r (Σ_{i ∈ S_r} f_i) ∇ log p(choice of turn r)]`, where
    `S_r` are the positions of turns up to `r`. The choice among them is made when all later turns are settled, and
    cannot change their costs any more. From every `f_i` the mean cost of position `i` in other orders of the same
    sequence is subtracted. Neither changes the mean of the gradient; on text and tables both remove noise (not where
    costs only move from one position to another, and their sum is the same in all orders). The network learns more from
    another sequence than from another order of the same one, so with `singles` only some sequences have several orders;
    their gradient in the speeds stands for that of all.

    Args:
        model: the model to train.
        x_0: data.
        label: classes, for a network that takes them.
        given: positions that come first in every order, and cost nothing: training for infilling.
        orders: number of orders per sequence.
        singles: after each sequence with so many orders come this many with one order only.
        any_order: share of the paths whose order is drawn evenly from all, whatever the speeds, which learn nothing
            from them: so the network also learns conditionals that are not on the way of the usual orders.
        learn_order: also compute the gradient in what the order learns, such as speeds; needs at least two orders.
        rows: compute the loss of these rows only. Orders are drawn for all rows, so that they do not depend on how a
            batch is split.
        generator: source of all randomness except dropout.
    """
    if orders < 1:
        raise ValueError(f"orders must be at least 1, got {orders}")
    if singles < 0:
        raise ValueError(f"singles must be at least 0, got {singles}")
    if learn_order and orders < 2:
        raise ValueError(f"orders must be at least 2 to learn speeds, by comparing orders of a sequence, got {orders}")
    every = None if given is None else given.repeat(orders, 1)
    turn = model.turns(orders * len(x_0), given=every, generator=generator)
    turn, even = mixed_turns(turn, any_order, given=every, generator=generator)
    turn, even = (each.unflatten(0, (orders, len(x_0))) for each in (turn, even))
    rows = torch.arange(len(x_0), device=x_0.device) if rows is None else rows
    several = rows % (1 + singles) == 0
    compared = rows[several]
    drawn = torch.cat([rows, compared.repeat(orders - 1)])
    flat, evenly = (torch.cat([each[0, rows], each[1:, compared].flatten(0, 1)]) for each in (turn, even))
    known = None if given is None else given[drawn]
    cost = model.token_nats(x_0[drawn], flat, None if label is None else label[drawn])
    if known is not None:
        cost = torch.where(known, 0.0, cost)

    def by_order(values: Shaped[Tensor, "p d"]) -> Shaped[Tensor, "orders c d"]:
        """The values of sequences with several orders."""
        return torch.cat([values[: len(rows)][several], values[len(rows) :]]).view(orders, len(compared), -1)

    once = cost[: len(rows)].sum(-1)
    total = by_order(cost).sum(-1)
    if learn_order:
        each, in_order = by_order(cost.detach()), by_order(flat).argsort(dim=-1)
        others = (each.sum(0) - each) / (orders - 1)
        up_to = (each - others).gather(-1, in_order).cumsum(-1)
        log_prob = by_order(torch.where(evenly[:, None], 0.0, model.order.log_choices(flat, known)))
        total = total + (1 + singles) * (up_to * (log_prob - log_prob.detach())).sum(-1)
    return once.masked_scatter(several, total.mean(0))


@torch.no_grad()
def path_bound(
    model: "dmb.bridges.OrderedBridge",
    x_0: Int[Tensor, "N d"],
    *,
    label: Int[Tensor, " N"] | None = None,
    given: Bool[Tensor, "N d"] | None = None,
    samples: int = 1,
    any_order: float = 0.0,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> Bound:
    """The bound on every row of `x_0` by whole paths: unbiased, without random times.

    Args:
        model: put it in evaluation mode first, to switch off dropout.
        x_0: data.
        label: classes, for a network that takes them.
        given: positions that are known; see `dmb.objectives.score_entropy.bound`.
        samples: orders per sequence, one network call each. For the mean over many sequences 1 is best.
        any_order: share of the paths whose order is drawn evenly from all, as for `path_loss`; the bound is then that
            of rows drawn in such orders.
        batch_size: sequences per network call.
        generator: source of all randomness.
        progress: called after every batch with its number of sequences.
    """
    check_counts(len(x_0), samples, batch_size)
    x_0 = model.states.data("x_0", x_0).to(model.device)
    given, tokens = check_given(given, x_0)
    prior = torch.zeros(len(x_0), dtype=torch.float64, device=x_0.device)
    if model.lengths is not None:
        prior += model.lengths.nats(model.lengths.of(x_0))
    score = torch.zeros(len(x_0), dtype=torch.float64, device=x_0.device)
    for _ in range(samples):
        for rows in torch.arange(len(x_0), device=x_0.device).split(batch_size):
            known = None if given is None else given[rows]
            turn = model.turns(len(rows), given=known, generator=generator)
            turn, _ = mixed_turns(turn, any_order, given=known, generator=generator)
            cost = model.token_nats(x_0[rows], turn, None if label is None else label[rows])
            cost = cost if known is None else torch.where(known, 0.0, cost)
            if cost.isnan().any():
                raise ValueError("the network's output is nan, so the bound is nan: check the network")
            score[rows] += cost.double().sum(-1) / samples
            if progress is not None:
                progress(len(rows))
    left = score + prior - expected_nats(score + prior, tokens)
    variance = left.var().item() if len(x_0) > 1 else float("nan")
    return Bound(score, prior, model.num_positions, variance, tokens)

r"""Whole paths: every term of the bound in one pass, for processes whose positions jump once, to a mask (math §9).

Position `i` is masked at a time `τ_i ~ Exp(v_i)`, whatever its token. The reverse process then has known hazards, which
cancel, and the cost of a path is the negative log-likelihood in the reversed order of destruction:

`Σ_i -log π_i(x_0^i | tokens with τ_j > τ_i)`.

`J_score` is its mean over orders. A path ends only when everything is masked, so the prior costs nothing.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.orders.random import draw_turns


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


def order_surrogate(
    cost: Float[Tensor, "o c d"],
    turn: Int[Tensor, "o c d"],
    log_choices: Float[Tensor, "o c d"],
    seen: Int[Tensor, "o c d"],
) -> Float[Tensor, "o c"]:
    r"""0 for each of `o ≥ 2` orders of a sequence, with the gradient of the mean cost in what decides the orders.

    `∇ E[Σ_i f_i] = E[Σ_r (Σ_{i ∈ S_r} f_i) ∇ log p(choice of turn r)]`, where `S_r` are the positions of turns up to
    `r`, and of the whole call that writes turn `r`. The choice among them is made when all later turns are settled, and
    cannot change the costs of later calls any more. From every `f_i` the mean cost of position `i` in other orders of
    the same sequence is subtracted. Neither changes the mean of the gradient; on text and tables both remove noise (not
    where costs only move from one position to another, and their sum is the same in all orders).

    Args:
        cost: `f_i`, the cost of each position.
        turn: the turn of each position.
        log_choices: the log-probability of each choice, by turns; 0 where nothing was chosen.
        seen: the same, with one turn for all positions of a call.
    """
    cost = cost.detach()
    others = (cost.sum(0) - cost) / (len(cost) - 1)
    order = turn.argsort(dim=-1)
    up_to = (cost - others).gather(-1, order).cumsum(-1)
    written = seen.gather(-1, order)
    up_to = up_to.gather(-1, torch.searchsorted(written, written, right=True) - 1)  # to the end of each call
    return (up_to * (log_choices - log_choices.detach())).sum(-1)

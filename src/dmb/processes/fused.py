"""The integrand on a line and its gradient in one pass over the logits, for when the rates are constants.

The closed form of `BridgeProcess.integrand_from_posterior` builds a dozen `[b, d, n]` tensors for autograd. With the
rates fixed (Score-learning), value and gradient can be computed together, a few rows at a time, so that all
intermediates stay in the cache of a CPU and only the gradient itself is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb._core import numerics
from dmb.processes.hierarchies import Line
from dmb.processes.span import Span

# logits worked on at a time: small enough for the cache, large enough to hide the cost of a call
_CHUNK = 1 << 19
RANGE = 60.0
"""Where exponents are further below 0, a value is left to the closed form in logarithms: float32 ends at 87."""
FAR = 1e30
"""Taken from logits of states that are out of the question, once or more: much faster than to replace them by -inf."""


class Rows(NamedTuple):
    """What each row of logits, one per position, needs to know of the process.

    Args:
        own: the rate of the clock into each rank, in float64.
        above: the total rate of all clocks above it.
        table: which row of these rates it uses.
        elapsed: what to multiply them by: with steady clocks, the clock time.
        token: permutations, from ranks to tokens.
        rank: their inverses.
        order: which row of these permutations it uses.
        lowest: the lowest rank that its position has.
        highest: the highest rank that data can have: names have the top ranks.
        now: the rank of `x = x_t`.
        source: the rank of `x_0`.
        log_hazard: `log(w c_x / D_x)`.
        intensity: `A_x`.
    """

    own: Float[Tensor, "r n"]
    above: Float[Tensor, "r n"]
    table: Int[Tensor, " p"]
    elapsed: Float[Tensor, " p"]
    token: Int[Tensor, "h n"]
    rank: Int[Tensor, "h n"]
    order: Int[Tensor, " p"]
    lowest: Int[Tensor, " p"]
    highest: int
    now: Int[Tensor, " p"]
    source: Int[Tensor, " p"]
    log_hazard: Float[Tensor, " p"]
    intensity: Float[Tensor, " p"]

    def at(self, index: Int[Tensor, " k"]) -> "Rows":
        """Some of the rows."""
        own = {"table", "elapsed", "order", "lowest", "now", "source", "log_hazard", "intensity"}
        return self._replace(**{name: getattr(self, name)[index] for name in own})


def integrand_from_logits(logits: Float[Tensor, "p n"], rows: Rows) -> tuple[Float[Tensor, " p"], Bool[Tensor, ""]]:
    """The integrand of `J_score` when `logits` are `log ρ(x_0^i | x_t^{-i})`, and whether float range sufficed.

    With `e = exp(logits)`, `W` its prefix sums over ranks, `Z = D_x W_{x-1} + c_x e_x`, `g_y = c_y e_y + D_y W_{y-1}`:
    `h c_{x-1} D_x W_{x-1} / Z` where nothing moved, and where it did
    `h [Σ_{x_0≤y<x} q_y log(q_y / g_y) - c_{x-1} (log(D_x / Z) + c_x e_x / Z)]`. Here `c`, `D`, `q`, `g` are divided by
    `c_x`, and the hazard `h` is multiplied by it, which changes nothing but keeps them in range.
    """
    only_top = not rows.own[:, :-1].any()
    value, enough = _InOnePass.apply(logits, rows, _top_clock if only_top else _moved, _unmoved)
    return value, enough


def integrand_from_score(log_score: Float[Tensor, "p n"], rows: Rows) -> tuple[Float[Tensor, " p"], Bool[Tensor, ""]]:
    """The integrand of `J_score` for `log s`, and whether float range sufficed.

    `h [m Σ_{y<x} s_y - Σ_{x_0≤y<x} q_y (1 - log(q_y / m) + log s_y)]`, the second sum only where something moved. Here
    `m = 1 - exp(-A_x)` is `D_x`, and `q` and `D` are divided by `c_x`, and the hazard `h` is multiplied by it.
    """
    value, enough = _InOnePass.apply(log_score, rows, _score_moved, _score_unmoved)
    return value, enough


def masked_integrand(
    logits: Float[Tensor, "b d n"],
    data_states: Bool[Tensor, "g n"],
    x_t: Int[Tensor, "b d"],
    x_0: Int[Tensor, "b d"],
    weight: Float[Tensor, "b d"],
) -> Float[Tensor, "b d"]:
    """The integrand where the only noise is a mask, the last state: `-weight · log ρ(x_0)` where `x_t` is masked.

    The process then needs no table of all states, which for many states would take longer than the network.
    """
    masked = (x_t == logits.shape[-1] - 1).flatten().nonzero().squeeze(-1)
    log_rho = logits.flatten(0, 1).index_select(0, masked).to(weight.dtype)
    allowed = data_states if len(data_states) == 1 else data_states[masked % x_t.shape[1]]
    cost = F.cross_entropy(log_rho.masked_fill(~allowed, -torch.inf), x_0.flatten()[masked], reduction="none")
    value = torch.zeros(x_t.numel(), dtype=weight.dtype, device=weight.device)
    return value.index_copy(0, masked, cost * weight.flatten()[masked]).view_as(x_t)


Hazard = tuple[Float[Tensor, "b d"], Float[Tensor, "b d"], Float[Tensor, "b d"]]


def rows_of(
    line: Line,
    span: Span,
    hazard: Hazard,
    legal: Bool[Tensor, "g n"],
    x_t: Int[Tensor, "b d"],
    x_0: Int[Tensor, "b d"],
) -> Rows:
    """What the rows of a noisy batch need to know; `span` in float64, since differences of its rates are taken."""
    own, above = line.by_rank(span.rates)
    log_c_now, log_hazard, intensity = hazard
    (batch, num_positions), (times, places) = x_t.shape, own.shape[:2]
    row = torch.arange(batch, device=x_t.device).repeat_interleave(num_positions)
    position = torch.arange(num_positions, device=x_t.device).repeat(batch)
    return Rows(
        own=own.flatten(0, 1),
        above=above.flatten(0, 1),
        table=row * (places if times > 1 else 0) + position * (places > 1),
        elapsed=span.scale.expand(batch, num_positions).flatten(),
        token=line.token,
        rank=line.rank,
        order=position * (len(line.rank) > 1),
        lowest=(~legal).sum(-1).expand(num_positions)[position],
        highest=line.num_states - 1 - line.names,
        now=line.rank_of(x_t).flatten(),
        source=line.rank_of(x_0).flatten(),
        log_hazard=(log_hazard + log_c_now).flatten(),
        intensity=intensity.flatten(),
    )


Part = tuple[Tensor, Tensor | None]
Work = Callable[[Tensor, Rows, bool], Part]
"""The value of some rows, and the gradient in their logits or scores, if it is wanted."""


class _InOnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Rows, where_moved: Work, where_not: Work) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        dtype = rows.log_hazard.dtype
        value = torch.zeros(len(logits), dtype=dtype, device=logits.device)
        gradient = torch.empty_like(logits) if wanted else logits.new_empty(0)
        moved = rows.now > rows.source
        runs = rows.intensity > 0
        if wanted:  # nothing can have arrived where no clock runs
            gradient[~moved & ~runs] = 0
        for kind, work in ((moved, where_moved), (~moved & runs, where_not)):
            for index in kind.nonzero().squeeze(-1).split(max(1, _CHUNK // logits.shape[1])):
                if len(index) == 0:
                    continue
                value[index], slope = work(logits.index_select(0, index).to(dtype), rows.at(index), wanted)
                if slope is not None:
                    gradient.index_copy_(0, index, slope.to(gradient.dtype))
        ctx.save_for_backward(gradient)
        enough = value.isfinite().all()
        ctx.mark_non_differentiable(enough)
        return value, enough

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_value[:, None].to(gradient.dtype), None, None, None


def _unmoved(logits: Tensor, rows: Rows, wanted: bool) -> Part:
    rank = (rows.rank if len(rows.rank) == 1 else rows.rank[rows.order]).to(logits.dtype)
    last = rows.now.clamp(max=rows.highest + 1) - 1
    here = rows.token[rows.order, rows.now][:, None]
    log_at = logits.gather(1, here).squeeze(1)
    log_at = torch.where(rows.now > rows.highest, -torch.inf, log_at)  # a name is never the clean token
    _put_far(logits, rank, rows.lowest, last)
    largest = logits.amax(1, keepdim=True)
    e = numerics.exp_or_zero(logits.sub_(largest)).mul_(
        (last >= rows.lowest)[:, None]
    )  # nothing lies below the lowest rank
    total = e.sum(1)
    log_below = numerics.log1mexp(rows.intensity) + total.log() + largest.squeeze(1)
    log_z = torch.logaddexp(log_below, log_at)
    value = torch.exp(rows.log_hazard - rows.intensity + log_below - log_z)
    if not wanted:
        return value, None
    pull = value * torch.exp(log_at - log_z)
    e *= (pull / torch.where(total > 0, total, 1.0))[:, None]
    return value, e.scatter_(1, here, -pull[:, None])


def _top_clock(logits: Tensor, rows: Rows, wanted: bool) -> Part:
    """Rows that moved when only the top clock runs: a weighted cross-entropy, as in masked diffusion."""
    here, source = (rows.token[rows.order, place][:, None] for place in (rows.now, rows.source))
    log_d_x = numerics.log1mexp(rows.intensity)
    at = logits.gather(1, here).squeeze(1)
    if rows.highest < logits.shape[1] - 1:
        at = torch.full_like(at, -torch.inf)
    below = logits.scatter(1, here, -torch.inf)
    rank = rows.rank if len(rows.rank) == 1 else rows.rank[rows.order]
    if rows.highest < logits.shape[1] - 2:
        below.masked_fill_(rank > rows.highest, -torch.inf)
    if rows.lowest.any():
        below.masked_fill_(rank < rows.lowest[:, None], -torch.inf)
    log_total = below.logsumexp(1)
    log_z = torch.logaddexp(log_d_x + log_total, at)
    log_odds, pi_at = log_d_x - log_z, torch.exp(at - log_z)
    weight = torch.exp(rows.log_hazard - rows.intensity)  # h c_{x-1}, and c_{x_0} = c_{x-1}
    value = weight * (-logits.gather(1, source).squeeze(1) - log_odds - pi_at)
    if not wanted:
        return value, None
    pi_below = torch.exp(log_odds + log_total)
    slope = numerics.exp_or_zero(below.sub_(log_total[:, None])).mul_((weight * pi_below * (1 + pi_at))[:, None])
    slope.scatter_add_(1, source, -weight[:, None])
    return value, slope.scatter_(1, here, (weight * pi_at * (1 - pi_below))[:, None])


def _moved(logits: Tensor, rows: Rows, wanted: bool) -> Part:
    now, source = rows.now[:, None], rows.source[:, None]
    column = torch.arange(logits.shape[1], device=logits.device, dtype=logits.dtype)
    e = _reorder(logits, rows.token, rows.order)
    _put_far(e, column, rows.lowest, rows.now.clamp(max=rows.highest))
    e -= e.amax(1, keepdim=True)
    log_at, log_source = e.gather(1, now), e.gather(1, source)
    e = numerics.exp_or_zero(e)

    c, d, log_c_source = _chances(rows, e.dtype)
    c_source, c_below, hazard = log_c_source.exp(), torch.exp(-rows.intensity)[:, None], rows.log_hazard.exp()[:, None]
    log_d_x = numerics.log1mexp(rows.intensity)[:, None]

    prefix = torch.zeros_like(e)
    torch.cumsum(e[:, :-1], 1, out=prefix[:, 1:])
    total = prefix.gather(1, now)
    log_z = torch.logaddexp(log_d_x + total.log(), log_at)
    log_odds, pi_at = log_d_x - log_z, torch.exp(log_at - log_z)
    # g ≥ D_y e_{x_0}: where it underflows at all, q_y = D_y is below 1e-12 and its share of the sum below rounding
    g = torch.mul(c, e).addcmul_(d, prefix).clamp_(min=torch.finfo(e.dtype).tiny)
    g_source = g.gather(1, source)
    # q: D strictly between x_0 and x_t, c_{x_0} at x_0, 0 elsewhere
    between = _between(column, source, now).mul_(d)
    share = between / g
    divergence = torch.clamp(share, min=torch.finfo(e.dtype).tiny, out=prefix).log_().mul_(between).sum(1, keepdim=True)
    divergence = divergence + c_source * (log_c_source - g_source.log())
    value = hazard * (divergence - c_below * (log_odds + pi_at))
    value = torch.where(log_source > -RANGE, value, torch.inf).squeeze(1)
    if not wanted:
        return value, None

    own = torch.mul(share, c, out=g).scatter_add_(1, source, c_source * c_source / g_source)
    feed = share.mul_(d).scatter_add_(1, source, c_source * d.gather(1, source) / g_source)
    # a state feeds the prefix sums of all above it
    own[:, :-1] += feed.flip(1).cumsum_(1).flip(1)[:, 1:]
    slope = torch.sub(c_below * log_odds.exp() * (1 + pi_at), own, out=own)
    slope *= e.mul_(hazard)
    slope.scatter_(1, now, hazard * c_below * pi_at * (1 - log_odds.exp() * total))
    return value, _reorder(slope, rows.rank, rows.order)


def _score_unmoved(log_score: Tensor, rows: Rows, wanted: bool) -> Part:
    rank = (rows.rank if len(rows.rank) == 1 else rows.rank[rows.order]).to(log_score.dtype)
    weight = torch.exp(rows.log_hazard) * -torch.expm1(-rows.intensity)
    s = log_score.clone()
    _put_far(s, rank, rows.lowest, rows.now - 1)
    s = numerics.exp_or_zero(s).mul_(weight[:, None])
    return s.sum(1), s if wanted else None


def _score_moved(log_score: Tensor, rows: Rows, wanted: bool) -> Part:
    value, slope = _score_unmoved(log_score, rows, wanted)
    column = torch.arange(log_score.shape[1], device=log_score.device, dtype=log_score.dtype)
    now, source = rows.now[:, None], rows.source[:, None]
    _, d, log_c_source = _chances(rows, log_score.dtype)
    q = d.mul_(_between(column, source, now)).scatter_(1, source, log_c_source.exp())
    q = _reorder(q, rows.rank, rows.order).mul_(rows.log_hazard.exp()[:, None])  # times the hazard, from here on
    log_ratio = (
        q.clamp(min=torch.finfo(q.dtype).tiny)
        .log_()
        .sub_((rows.log_hazard + numerics.log1mexp(rows.intensity))[:, None])
    )
    value = value - (q * (1 - log_ratio + log_score)).sum(1)
    return value, None if slope is None else slope.sub_(q)


def _chances(rows: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """`c`, `D` and `log c_{x_0}` by rank, divided by `c_x`, so that they lie in range; not for ranks above `x_t`."""
    elapsed, some = rows.elapsed[:, None].to(dtype), rows.table if len(rows.own) > 1 else rows.table[:1]
    above_x, above_source = (rows.above[rows.table, place][:, None] for place in (rows.now, rows.source))
    c = (above_x - rows.above[some]).to(dtype).mul_(elapsed).clamp_(max=0)
    c = numerics.exp_or_zero(c)
    d = (-elapsed * rows.own[some].to(dtype)).expm1_().mul_(c).neg_()
    return c, d, (above_x - above_source).to(dtype) * elapsed


# Sums with ramps of whole numbers, where one would expect comparisons: on a CPU, several times as fast.


def _put_far(
    values: Tensor, rank: Float[Tensor, "*k n"], lowest: Int[Tensor, " k"], highest: Int[Tensor, " k"]
) -> None:
    """Lower values out of sight unless their rank lies between these."""
    if bool((highest < values.shape[1] - 1).any()):
        values.sub_((rank - highest[:, None].to(rank.dtype)).clamp_(min=0), alpha=FAR)
    if lowest.any():
        values.sub_((lowest[:, None].to(rank.dtype) - rank).clamp_(min=0), alpha=FAR)


def _between(column: Float[Tensor, " n"], low: Int[Tensor, "k 1"], high: Int[Tensor, "k 1"]) -> Float[Tensor, "k n"]:
    """1 strictly between these ranks, else 0."""
    low, high = low.to(column.dtype), high.to(column.dtype)
    return (column - low).clamp_(0, 1).mul_((high - column).clamp_(0, 1))


def _reorder(values: Float[Tensor, "k n"], index: Int[Tensor, "h n"], order: Int[Tensor, " k"]) -> Float[Tensor, "k n"]:
    return values.index_select(1, index[0]) if len(index) == 1 else values.gather(1, index[order])

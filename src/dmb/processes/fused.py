"""The integrand on a line and its gradient in one pass over the logits, for when the rates are constants.

The closed form of `BridgeProcess.integrand_from_posterior` builds a dozen `[b, d, n]` tensors for autograd. With the
rates fixed (Score-learning), value and gradient can be computed together, a few rows at a time, so that all
intermediates stay in the cache of a CPU and only the gradient itself is kept.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb.processes.hierarchies import Line
from dmb.processes.span import Span, log_chances

# logits worked on at a time: small enough for the cache, large enough to hide the cost of a call
_CHUNK = 1 << 19
# where exponents are further below 0, the value is infinite here, and left to the closed form: float32 ends at 87
_RANGE = 60.0


class Rows(NamedTuple):
    """What each row of logits, one per position, needs to know of the process.

    Args:
        log_c: table of the process, in float64.
        log_d: the same.
        table: which row of these tables it uses.
        token: permutations, from ranks to tokens.
        rank: their inverses.
        order: which row of these permutations it uses.
        lowest: the lowest rank that its position has.
        highest: the highest rank that data can have: names have the top ranks.
        now: the rank of `x = x_t`.
        source: the rank of `x_0`.
        log_hazard: `log(w c_x / D_x)`.
        intensity: `A_x`.
        negentropy: `Σ D_y log D_y` over the ranks strictly between `x_0` and `x_t`, `D` divided by `c_x`.
    """

    log_c: Float[Tensor, "r n"]
    log_d: Float[Tensor, "r n"]
    table: Int[Tensor, " p"]
    token: Int[Tensor, "h n"]
    rank: Int[Tensor, "h n"]
    order: Int[Tensor, " p"]
    lowest: Int[Tensor, " p"]
    highest: int
    now: Int[Tensor, " p"]
    source: Int[Tensor, " p"]
    log_hazard: Float[Tensor, " p"]
    intensity: Float[Tensor, " p"]
    negentropy: Float[Tensor, " p"]

    def at(self, index: Int[Tensor, " k"]) -> "Rows":
        """Some of the rows."""
        own = {"table", "order", "lowest", "now", "source", "log_hazard", "intensity", "negentropy"}
        return self._replace(**{name: getattr(self, name)[index] for name in own})


def integrand_from_logits(logits: Float[Tensor, "p n"], rows: Rows) -> tuple[Float[Tensor, " p"], Bool[Tensor, ""]]:
    """The integrand of `J_score` when `logits` are `log ρ(x_0^i | x_t^{-i})`, and whether float range sufficed.

    With `e = exp(logits)`, `W` its prefix sums over ranks, `Z = D_x W_{x-1} + c_x e_x`, `g_y = c_y e_y + D_y W_{y-1}`:
    `h c_{x-1} D_x W_{x-1} / Z` where nothing moved, and where it did
    `h [Σ_{x_0≤y<x} q_y log(q_y / g_y) - c_{x-1} (log(D_x / Z) + c_x e_x / Z)]`. Here `c`, `D`, `q`, `g` are divided by
    `c_x`, and the hazard `h` is multiplied by it, which changes nothing but keeps them in range.
    """
    value, enough = _IntegrandFromLogits.apply(logits, rows)
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
    """What the rows of a noisy batch need to know; `span` in float64, since differences of its tables are taken."""
    intensities = (span.scale[..., None] * rates for rates in line.by_rank(span.rates))
    log_c, log_d = (table.flatten(0, 1) for table in log_chances(*intensities))
    log_c_now, log_hazard, intensity = hazard
    now, source, num_positions = line.rank_of(x_t).flatten(), line.rank_of(x_0).flatten(), x_t.shape[1]
    place = torch.arange(len(now), device=now.device)
    position = place % num_positions
    table = place if len(log_c) == len(place) else place // num_positions
    # by prefix sums over each table once: their difference is what lies between the two ranks
    d, log_c_x, last = log_d.exp(), log_c[table, now], (now - 1).clamp(min=0)
    sums = (torch.xlogy(d, d).cumsum(1), d.cumsum(1))
    between, mass = (prefix[table, last] - prefix[table, source] for prefix in sums)
    negentropy = torch.where(now > source, (between - log_c_x * mass) * torch.exp(-log_c_x), 0.0)
    return Rows(
        log_c=log_c,
        log_d=log_d,
        table=table,
        token=line.token,
        rank=line.rank,
        order=position if len(line.rank) > 1 else torch.zeros_like(place),
        lowest=(~legal).sum(-1).expand(num_positions)[position],
        highest=line.num_states - 1 - line.names,
        now=now,
        source=source,
        log_hazard=(log_hazard + log_c_now).flatten(),
        intensity=intensity.flatten(),
        negentropy=negentropy.to(log_hazard.dtype),
    )


class _IntegrandFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        dtype = rows.log_hazard.dtype
        value = torch.zeros(len(logits), dtype=dtype, device=logits.device)
        gradient = torch.empty_like(logits) if wanted else logits.new_empty(0)
        moved = rows.now > rows.source
        runs = rows.log_d[rows.table, rows.now] > -torch.inf
        if wanted:  # nothing can have arrived where no clock runs
            gradient[~moved & ~runs] = 0
        only_top = bool((rows.log_d[:, :-1] == -torch.inf).all())
        for kind, work in ((moved, _top_clock if only_top else _moved), (~moved & runs, _unmoved)):
            for index in _chunks(kind.nonzero().squeeze(-1), rows.table, logits):
                value[index], slope = work(logits.index_select(0, index).to(dtype), rows.at(index), wanted)
                if slope is not None:
                    gradient.index_copy_(0, index, slope.to(gradient.dtype))
        ctx.save_for_backward(gradient)
        enough = value.isfinite().all()
        ctx.mark_non_differentiable(enough)
        return value, enough

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_value[:, None].to(gradient.dtype), None


def _chunks(index: Tensor, table: Tensor, logits: Tensor) -> list[Tensor]:
    """Split rows into pieces that fit the cache; where a piece is small, into rows that share a table."""
    size = max(1, _CHUNK // logits.shape[1])
    if len(index) == 0:
        return []
    if size >= 64:
        return list(index.split(size))
    _, counts = torch.unique_consecutive(table[index], return_counts=True)
    return [piece for group in index.split(counts.tolist()) for piece in group.split(size)]


Part = tuple[Tensor, Tensor | None]


def _unmoved(logits: Tensor, rows: Rows, wanted: bool) -> Part:
    log_c, log_d = (table[rows.table, rows.now].to(logits.dtype) for table in (rows.log_c, rows.log_d))
    rank = rows.rank if len(rows.rank) == 1 else rows.rank[rows.order]
    below = rank < rows.now.clamp(max=rows.highest + 1)[:, None]
    if rows.lowest.any():
        below &= rank >= rows.lowest[:, None]
    here = rows.token[rows.order, rows.now][:, None]
    log_at = log_c + logits.gather(1, here).squeeze(1)
    log_at = torch.where(rows.now > rows.highest, -torch.inf, log_at)  # a name is never the clean token
    masked = torch.where(below, logits, -torch.inf)
    largest = masked.amax(1, keepdim=True)
    largest = torch.where(largest > -torch.inf, largest, 0.0)  # nothing lies below the lowest rank
    e = masked.sub_(largest).exp_()
    total = e.sum(1)
    log_below = log_d + total.log() + largest.squeeze(1)
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
    log_d_x = (rows.log_d[rows.table, rows.now] - rows.log_c[rows.table, rows.now]).to(logits.dtype)
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
    slope = below.sub_(log_total[:, None]).exp_().mul_((weight * pi_below * (1 + pi_at))[:, None])
    slope.scatter_add_(1, source, -weight[:, None])
    return value, slope.scatter_(1, here, (weight * pi_at * (1 - pi_below))[:, None])


def _moved(logits: Tensor, rows: Rows, wanted: bool) -> Part:
    now, source = rows.now[:, None], rows.source[:, None]
    column = torch.arange(logits.shape[1], device=logits.device)
    e = _reorder(logits, rows.token, rows.order)
    top = now.clamp(max=rows.highest)
    if bool((top < len(column) - 1).any()):
        e.masked_fill_(column > top, -torch.inf)
    if rows.lowest.any():
        e.masked_fill_(column < rows.lowest[:, None], -torch.inf)
    e -= e.amax(1, keepdim=True)
    log_at, log_source = e.gather(1, now), e.gather(1, source)
    e = e.exp_()

    # relative to c_x; and one row of tables where all rows of the chunk agree
    log_c_x = rows.log_c[rows.table, rows.now][:, None]
    agree = bool((rows.table == rows.table[0]).all()) and bool((log_c_x == log_c_x[0]).all())
    some = slice(0, 1) if agree else slice(None)
    log_c, log_d = ((t[rows.table[some]] - log_c_x[some]).to(e.dtype) for t in (rows.log_c, rows.log_d))
    c, d = log_c.exp(), log_d.exp()
    c, d, log_c, log_d = (table.expand(len(e), -1) for table in (c, d, log_c, log_d))
    log_c_source, log_d_x = log_c.gather(1, source), log_d.gather(1, now)
    c_source, c_below, hazard = log_c_source.exp(), torch.exp(-rows.intensity)[:, None], rows.log_hazard.exp()[:, None]

    prefix = torch.zeros_like(e)
    torch.cumsum(e[:, :-1], 1, out=prefix[:, 1:])
    total = prefix.gather(1, now)
    log_z = torch.logaddexp(log_d_x + total.log(), log_at)
    log_odds, pi_at = log_d_x - log_z, torch.exp(log_at - log_z)
    # g ≥ D_y e_{x_0}: where it underflows at all, q_y = D_y is below 1e-12 and its share of the sum below rounding
    g = torch.mul(c, e).addcmul_(d, prefix).clamp_(min=torch.finfo(e.dtype).tiny)
    g_source = g.gather(1, source)
    # q: D strictly between x_0 and x_t, c_{x_0} at x_0, 0 elsewhere
    between = torch.where((column > source) & (column < now), d, 0.0)
    divergence = rows.negentropy[:, None] - torch.log(g, out=prefix).mul_(between).sum(1, keepdim=True)
    divergence = divergence + c_source * (log_c_source - g_source.log())
    value = hazard * (divergence - c_below * (log_odds + pi_at))
    value = torch.where(log_source > -_RANGE, value, torch.inf).squeeze(1)
    if not wanted:
        return value, None

    share = between.div_(g)
    own = torch.mul(share, c, out=g).scatter_add_(1, source, c_source * c_source / g_source)
    feed = share.mul_(d).scatter_add_(1, source, c_source * d.gather(1, source) / g_source)
    # a state feeds the prefix sums of all above it
    own[:, :-1] += feed.flip(1).cumsum_(1).flip(1)[:, 1:]
    slope = torch.sub(c_below * log_odds.exp() * (1 + pi_at), own, out=own)
    slope *= e.mul_(hazard)
    slope.scatter_(1, now, hazard * c_below * pi_at * (1 - log_odds.exp() * total))
    return value, _reorder(slope, rows.rank, rows.order)


def _reorder(values: Float[Tensor, "k n"], index: Int[Tensor, "h n"], order: Int[Tensor, " k"]) -> Float[Tensor, "k n"]:
    return values.index_select(1, index[0]) if len(index) == 1 else values.gather(1, index[order])

"""The order of states and the rates that a `BridgeProcess` starts from, from the data's marginals."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb._core import checks
from dmb.processes.clocks import ASLEEP, RateParametrisation
from dmb.processes.hierarchies import Tree
from dmb.processes.states import legal_states
from dmb.processes.time import Canonical, LogLinear, Schedule

ORDERS = ("ascending", "descending", "natural")
MOST_RATE = 1_000_000
"""Maximum rate to start from; after a far smaller one nothing is left of the data."""
STAGE_RATIO = 20.0
"""How much faster a stage is than the one after it: one token in 21 skips it."""
READS = {
    "gather": ("order", "floor", "mask"),
    "nested": ("floor", "stages", "mask"),
    "uniform": ("order", "mask"),
    "match": ("target",),
}
"""The options that each `init` reads."""


def check_options(init: str, tree: Tree | None, options: dict[str, Any]) -> None:
    """Refuse options that would have no effect, by name; None is one that is left out."""
    checks.choice("init", init, tuple(READS))
    if tree is not None and init != "gather":
        raise ValueError(f"a tree has its own rates: leave out init, got {init!r}")
    reads, kind = (READS[init], f"init={init!r}") if tree is None else (("ratio",), "a tree")
    for name, value in options.items():
        if value is not None and name not in reads:
            raise ValueError(f"{kind} does not use {name}, only {', '.join(reads)}: leave it out")


def rates_and_ranks(
    marginals: Float[Tensor, "g n"],
    legal: Bool[Tensor, "g n"],
    *,
    init: str,
    order: str | Int[Tensor, "h n"] | None,
    floor: float | None,
    stages: int | None,
    target: Float[Tensor, "d n"] | None,
    mask: bool,
    learn: RateParametrisation,
) -> tuple[Float[Tensor, "g k"], Int[Tensor, "r n"]]:
    """Rates in rank order, and ranks (token -> rank), for a line; options as for `BridgeProcess.from_marginals`."""
    if init == "match":
        return matching_rates(marginals, legal, target)
    floor = 1e-5 if floor is None else floor
    if learn == "linear":
        floor = max(floor, ASLEEP)
    if init == "nested":
        return nested_rates(marginals, 3 if stages is None else stages, floor, legal, mask)
    rank = order if isinstance(order, Tensor) else ranks_by_frequency(marginals, order or "ascending", legal)
    if mask and not isinstance(order, Tensor):  # on top whatever the order, the rest moved down to make room
        rank = rank - (rank > rank[:, -1:]).long()
        rank[:, -1] = marginals.shape[1] - 1
    return initial_rates(init, floor, legal, marginals.dtype), rank


def final_clock_time(schedule: Schedule | None) -> Float[Tensor, ""]:
    """`σ̄(1)`: matched rates are totals over the whole schedule, all others are per unit of clock time."""
    if not isinstance(schedule, Canonical):
        return (schedule or LogLinear())(torch.ones(1)).sigma_bar[0]
    if schedule.end is None:
        raise ValueError("init='match' needs a schedule whose end is fixed, such as Canonical(end=6.9), got no end")
    return torch.tensor(schedule.end, dtype=torch.float64)


def support(
    marginals: Float[Tensor, "d m"], state_counts: Int[Tensor, " d"] | None, *, tied: bool, names: int = 0
) -> tuple[Float[Tensor, "g n"], Bool[Tensor, "g n"]]:
    """Marginals and legal states of each position, or of all together if `tied`; then `names` that data never visit.

    >>> marginals, legal = support(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), None, tied=True, names=1)
    >>> marginals, legal
    (tensor([[0.4000, 0.6000, 0.0000]]), tensor([[True, True, True]]))
    """
    if marginals.ndim != 2:
        raise ValueError(f"marginals must have shape [positions, states], got {list(marginals.shape)}")
    checks.distribution("marginals", marginals, tuple(marginals.shape))
    legal = torch.ones_like(marginals, dtype=torch.bool)
    if state_counts is not None:
        legal = legal_states(state_counts, *marginals.shape)
        if marginals[~legal].any():
            raise ValueError("marginals must be 0 on states beyond state_counts")
        if tied and not legal.eq(legal[0]).all():
            raise ValueError("tied positions must have the same number of states, got " + str(state_counts.tolist()))
    if tied:
        marginals, legal = marginals.mean(0, keepdim=True), legal[:1]
    return F.pad(marginals, (0, names)), F.pad(legal, (0, names), value=True)


def ranks_by_frequency(marginals: Float[Tensor, "g n"], order: str, legal: Bool[Tensor, "g n"]) -> Int[Tensor, "g n"]:
    """Rank of each token: its place when the states of a position are sorted by their marginal probability.

    Args:
        marginals: the data's distribution over the states of each position.
        order: `ascending` puts the most frequent state on top (the paper's text), `descending` the rarest (the authors'
            code), `natural` keeps the token order (grey levels and other ordinal values).
        legal: which states a position has. The others get the lowest ranks: clocks only lead upwards, so the process
            never enters them.

    >>> everything = torch.ones(1, 3, dtype=torch.bool)
    >>> ranks_by_frequency(torch.tensor([[0.5, 0.2, 0.3]]), "ascending", everything)
    tensor([[2, 0, 1]])
    """
    checks.choice("order", order, ORDERS)
    if order == "natural":
        key = torch.arange(marginals.shape[-1], device=marginals.device).expand(marginals.shape).to(marginals.dtype)
    else:
        key = marginals if order == "ascending" else -marginals
    return torch.where(legal, key, -torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)


def accessibility(p: Float[Tensor, " n"], q: Float[Tensor, " n"]) -> tuple[Float[Tensor, " k"], Int[Tensor, " n"]]:
    r"""Rates and ranks with `q exp(A H(α) A⁻¹) = p` (Theorem 4.2).

    Sort by `p/q`, ascending. On cumulative sums `P`, `Q` in that order `a_k = log(P_k / Q_k) - log(P_{k-1} / Q_{k-1})`,
    which is never negative because cumulative ratios rise too.

    A state with `q = 0 < p` goes on top and is filled from below. One with `p = q = 0` gets a bottom rank and no clock.
    One with `p = 0 < q` would have to empty in finite time, which no finite rate does: that is refused.

    Args:
        p: where to go.
        q: where to start.

    Gives `alpha [n-1]` in rank order and `rank [n]` (token -> rank), as `BridgeProcess` takes them.

    >>> alpha, rank = accessibility(torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5]))
    >>> alpha, rank
    (tensor([0.9163]), tensor([0, 1]))
    """
    if p.ndim != 1 or p.shape != q.shape or len(p) < 2:
        raise ValueError(f"p and q must be vectors of one length ≥ 2, got {list(p.shape)} and {list(q.shape)}")
    checks.distribution("p", p, tuple(p.shape))
    checks.distribution("q", q, tuple(q.shape))
    emptied = (p == 0) & (q > 0)
    if emptied.any():
        state = int(emptied.nonzero()[0])
        raise ValueError(
            f"p must be positive wherever q is, got p = 0 and q = {q[state].item():.3g} at state {state}: "
            "no finite rate empties a state in finite time"
        )
    dtype = torch.promote_types(p.dtype, q.dtype)
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    order = torch.where(q > 0, p / q, torch.where(p > 0, torch.inf, -torch.inf)).argsort(stable=True)
    p, q = p[order], q[order]
    below_p, below_q = p.cumsum(0)[:-1], q.cumsum(0)[:-1]
    # log1p keeps the digits that the difference of two logarithms of cumulative sums would lose
    alpha = torch.log1p(p[1:] / below_p) - torch.log1p(q[1:] / below_q)
    # nothing lies below a state with an empty prefix; and where p/q ties, only rounding makes a rate negative
    alpha = torch.where(below_q > 0, alpha, 0.0).clamp(min=0)
    return alpha.to(dtype), order.argsort()


def initial_rates(
    init: str, floor: float, legal: Bool[Tensor, "g n"], dtype: torch.dtype | None = None
) -> Float[Tensor, "g k"]:
    """Rates in rank order; no clock runs into the ranks of states that a position lacks, nor into its lowest."""
    if not 0 <= floor <= MOST_RATE:
        raise ValueError(f"floor must be a rate in [0, {MOST_RATE:,}], got {floor}")
    groups, num_states = legal.shape
    has_clock = torch.arange(1, num_states, device=legal.device) > num_states - legal.sum(-1, keepdim=True)
    if init == "uniform":
        return has_clock.to(dtype) / has_clock.sum(-1, keepdim=True).clamp(min=1)
    rates = torch.full((groups, num_states - 1), floor, dtype=dtype, device=legal.device)
    rates[:, -1] = 1.0
    return torch.where(has_clock, rates, 0.0)


def nested_rates(
    marginals: Float[Tensor, "g n"], stages: int, floor: float, legal: Bool[Tensor, "g n"], mask: bool
) -> tuple[Float[Tensor, "g k"], Int[Tensor, "g n"]]:
    """Rates and ranks that gather in stages, rare states first. With three groups `C`, `B`, `A` of rising frequency,
    first `C` gathers in one rare state, then `C` and `B` in another, and finally everything in the rarest.

    So the rare states serve as names for "one of `C`", "one of `B` or `C`" and "anything". They also occur as data, but
    because they are rare this costs little. Generation goes from coarse to fine: first the places of `A` (the spaces of
    a text, the background of an image), then those of `B`, then the rest. `A` is the most frequent state alone, every
    other group has half of the remaining mass, and each clock is `STAGE_RATIO` times as fast as that of the next stage.

    Args:
        marginals: the data's distribution over the states of each position, 0 for the mask.
        stages: number of stages; fewer if a position has less than two states per stage.
        floor: rate of all other clocks.
        legal: the states of each position.
        mask: whether the last state is a mask, and so the name for "anything".

    >>> everything = torch.ones(1, 5, dtype=torch.bool)
    >>> nested_rates(torch.tensor([[0.5, 0.1, 0.2, 0.05, 0.15]]), 2, 0.0, everything, mask=False)
    (tensor([[ 0., 20.,  0.,  1.]]), tensor([[3, 2, 1, 4, 0]]))
    """
    if stages < 1:
        raise ValueError(f"stages must be at least 1, got {stages}")
    rates = initial_rates("gather", floor, legal, marginals.dtype)
    rarity = marginals.clone()
    if mask:
        rarity[:, -1] = -1.0  # rarer than a state that never occurs
    token = torch.where(legal, rarity, -2.0).argsort(dim=-1, stable=True)  # states that a position lacks come first
    for row, lacking in enumerate((~legal).sum(-1).tolist()):
        states = token[row, lacking:]
        names = max(1, min(stages, len(states) // 2))
        ordered, clocks = _in_stages(states[:names], states[names:], marginals[row])
        token[row, lacking:] = ordered
        falling = torch.arange(names - 1.0, -1.0, -1, dtype=rates.dtype, device=rates.device)
        rates[row, [lacking + clock - 1 for clock in clocks if clock > 0]] = STAGE_RATIO**falling
    return rates, token.argsort(dim=-1)


def _in_stages(
    names: Int[Tensor, " s"], states: Int[Tensor, " m"], p: Float[Tensor, " n"]
) -> tuple[Int[Tensor, " l"], list[int]]:
    """All of them from the bottom, the name of each group above it; and where the names are. Both come by frequency."""
    groups: list[Tensor] = []
    left = states.flip(0)
    for later in range(len(names) - 1, 0, -1):
        mass = p[left].cumsum(0)
        half = 1 if not groups else int((mass < mass[-1] / 2).sum()) + 1
        size = min(half, len(left) - later)  # something for every stage
        groups.append(left[:size])
        left = left[size:]
    groups.append(left)
    parts = [torch.cat([group.flip(0), name[None]]) for group, name in zip(groups, names, strict=True)][::-1]
    places = torch.tensor([len(part) for part in parts]).cumsum(0) - 1
    return torch.cat(parts), places.tolist()


def matching_rates(
    marginals: Float[Tensor, "g n"], legal: Bool[Tensor, "g n"], target: Float[Tensor, "d n"] | None
) -> tuple[Float[Tensor, "g k"], Int[Tensor, "g n"]]:
    """Theorem 4.2 row by row: rates and ranks that carry `marginals` to `target` in one unit of clock time."""
    if target is None:
        target = legal.to(marginals.dtype) / legal.sum(-1, keepdim=True)
    checks.distribution("target", target, (target.shape[0], marginals.shape[1]))
    if len(target) not in (1, len(marginals)):
        raise ValueError(f"target must have {len(marginals)} rows or 1, got {len(target)}")
    rows = [accessibility(p, q) for p, q in zip(target.expand_as(marginals), marginals, strict=True)]
    return torch.stack([alpha for alpha, _ in rows]), torch.stack([rank for _, rank in rows])

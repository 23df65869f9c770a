"""A bridge fitted to the data's marginals: its hierarchy and its initial rates."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import checks
from dmb.processes.clocks import ASLEEP, Clocks, RateParametrisation, Steady
from dmb.processes.hierarchies import Line, Tree
from dmb.processes.ordering import ranks_by_frequency
from dmb.processes.rates import initial_rates, matching_rates, nested_rates
from dmb.processes.shapes import support
from dmb.processes.time import Canonical, LogLinear, Schedule

INITS = ("gather", "nested", "uniform", "match")


def from_marginals(
    marginals: Float[Tensor, "d m"],
    *,
    order: str | Int[Tensor, "h n"] | None = None,
    init: str = "gather",
    floor: float = 1e-5,
    stages: int = 3,
    target: Float[Tensor, "d n"] | None = None,
    tied: bool = False,
    mask: bool = False,
    tree: Tree | None = None,
    ratio: float = 5.0,
    clocks: type[Clocks] = Steady,
    learn: RateParametrisation = "log",
    state_counts: Int[Tensor, " d"] | None = None,
    schedule: Schedule | None = None,
) -> dict[str, Any]:
    """The arguments of a `BridgeProcess` for data with these marginals.

    Args:
        marginals: the data's distribution over states at each position.
        order: the order of a line: `ascending` (default, as in the paper), `descending`, `natural`, or your own ranks
            (token -> rank, `[d, n]` or `[1, n]`).
        init: the rates on a line. `gather` sends everything to the top rank at rate 1, and all other clocks have the
            rate `floor`; `nested` gathers in stages, from fine to coarse, and chooses its own order (see
            `dmb.processes.rates.nested_rates`); `uniform` gives all clocks the same rate, 1 in total; `match` is
            Theorem 4.2's closed form, the rates (and the order) that carry `marginals` to `target` by `t = 1`.
        floor: the rate of all other clocks for `gather` and `nested`. The paper's value for text, 0, switches them off:
            for good if rates are learned as logarithms, until the first step if they are learned linearly.
        stages: number of stages for `nested`.
        target: the final marginals for `match`. Default: the uniform distribution.
        tied: one order and one set of rates for all positions, from the pooled marginals.
        mask: add one more state on top that data never visit. With `init="gather"` and `floor=0` the process is
            masked diffusion (SEDD-absorb, MDLM, MD4) exactly.
        tree: lift states along this tree, see `dmb.processes.grouping`; its names come after the states of the data.
            Leave out `order`, `init` and their options.
        ratio: on a tree, how many times faster each level is than the level above it.
        clocks: `Steady`, or `Varying` for clocks that change their speed over time.
        learn: how rates are learned: as logarithms (`log`), or as they are (`linear`), see `clocks.Clocks`.
        state_counts: the number of states of each position. Default: all of them.
        schedule: default: `LogLinear()`.
    """
    checks.choice("init", init, INITS)
    num_positions, schedule = len(marginals), schedule or LogLinear()
    if learn == "linear":
        floor = max(floor, ASLEEP)
    _refuse_unread(order, init, mask, target, tree, schedule)
    names = int(mask) if tree is None else tree.names
    marginals, legal = support(marginals, state_counts, tied=tied, names=names)
    if tree is not None:
        rates = tree.level_rates(ratio).to(marginals).expand(max(len(marginals), len(tree.parent)), -1)
    elif init == "match":
        rates, rank = matching_rates(marginals, legal, target)
    elif init == "nested":
        rates, rank = nested_rates(marginals, stages, floor, legal, mask)
    else:
        rank = order if isinstance(order, Tensor) else ranks_by_frequency(marginals, order or "ascending", legal)
        if mask and not isinstance(order, Tensor):  # on top whatever the order, the rest moved down to make room
            rank = rank - (rank > rank[:, -1:]).long()
            rank[:, -1] = marginals.shape[1] - 1
        rates = initial_rates(init, floor, legal, marginals.dtype)
    # matched rates are totals over the whole schedule; the others are per unit of clock time
    end = None
    if init == "match":
        known = schedule.end if isinstance(schedule, Canonical) else schedule(torch.ones(1)).sigma_bar[0]
        end = torch.as_tensor(known, dtype=torch.float64)
    return {
        "hierarchy": Line(rank, names) if tree is None else tree,
        "clocks": clocks(rates, learn) if end is None else clocks.reaching(rates, end, learn),
        "num_positions": num_positions,
        "schedule": schedule,
        "legal": None if state_counts is None else legal,
        "marginals": marginals,
    }


def _refuse_unread(
    order: str | Tensor | None, init: str, mask: bool, target: Tensor | None, tree: Tree | None, schedule: Schedule
) -> None:
    if tree is not None and (order is not None or init != "gather" or mask):
        raise ValueError("a tree has its own order, rates and names: leave out order, init and mask")
    if init in ("match", "nested") and order is not None:
        raise ValueError(f"init='{init}' chooses its own order: leave out order")
    if target is not None and init != "match":
        raise ValueError("target applies to init='match' only: leave it out")
    if init == "match" and isinstance(schedule, Canonical) and schedule.end is None:
        raise ValueError("init='match' needs a schedule whose end is fixed, such as Canonical(end=6.9), got no end")
    if init == "match" and mask:
        raise ValueError("init='match' cannot be combined with mask: a state without data has no rate to match")

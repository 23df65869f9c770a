"""From jump to jump: the network is called only when something moves."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb.sampling.base import Denoiser, State


@torch.no_grad()
def first_hitting(
    denoiser: Denoiser, x_T: Int[Tensor, "b d"], times: Float[Tensor, " k"], generator: torch.Generator | None = None
) -> Iterator[State]:
    """Draw for every position when it would next jump, let the first one do so, and ask the network again.

    When a jump happens does not depend on where it leads, so its time is drawn in closed form. Rows run on clocks of
    their own and leave the batch when they are done. Between jumps the posterior is taken to stand still; `times` says
    when to ask again even if nothing moved; `(1, 0)`, the times of `sampler="first_hitting"`: never.

    Needs the mean head, and a process that knows when it jumps (`next_jump`), as a `BridgeProcess` does, whose states
    are left once and for all.
    """
    process = denoiser.process
    x, t = x_T, torch.ones(len(x_T), dtype=torch.float64, device=x_T.device)
    yield State(1.0, x)
    rising = times.flip(0).to(x.device)
    while (active := t > 0).any():
        rows = active.nonzero().squeeze(-1)
        now, state = t[rows], x[rows]
        solved = process._solve(now)
        log_posterior = denoiser.rows(rows).log_posterior(state, solved)
        when, where = process._next_jump(log_posterior, state, solved, generator=generator)
        if denoiser.given is not None:
            when = when.masked_fill(denoiser.given[rows], 0.0)
        latest, position = when.max(-1)
        floor = rising[torch.searchsorted(rising, now) - 1]
        jumps = latest > floor
        landed = state.scatter(-1, position[:, None], where.gather(-1, position[:, None]))
        x = x.index_copy(0, rows, torch.where(jumps[:, None], landed, state))
        # rounding must not let time stand still
        t[rows] = torch.where(jumps, torch.minimum(latest, torch.nextafter(now, floor)), floor)
        yield State(t.max().item(), x)

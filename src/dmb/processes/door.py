"""The input checks of a process: tokens and times are checked here, once, and clock time is solved for here, once."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import checks
from dmb.processes.states import States
from dmb.processes.time import Clock, Exits, Schedule

Time = Float[Tensor, ""] | Float[Tensor, " b"] | float
When = Time | Clock


class Door(States, ABC):
    """Checks the input of every public method of a process.

    Args:
        num_positions: `d`.
        num_states: `n`.
        names: number of names, the last states, which data never visit.
        schedule: how fast the clocks run.
        legal: the states of each position, `[d, n]` or `[1, n]`.
    """

    schedule: Schedule

    def __init__(self, num_positions: int, num_states: int, names: int, schedule: Schedule, legal: Bool[Tensor, "g n"]):
        super().__init__(num_positions, num_states, names=names, legal=legal)
        self.schedule = schedule

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of computations and results."""

    @abstractmethod
    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        """The intensity and the rate of leaving each state at given clock times."""

    def enter(self, t: When, start: Time | None = None, **tokens: Tensor) -> tuple[Any, ...]:
        """The `Clock` of `t`, and the checked `tokens` as int64; if `t` is a `Clock` already, both unchanged."""
        if isinstance(t, Clock):
            return self.clock(t, len(t.t), start), *tokens.values()
        checked = [self.tokens(name, x) for name, x in tokens.items()]
        return self.clock(t, len(checked[0]), start), *checked

    def clock(self, t: When, batch: int, start: Time | None = None) -> Clock:
        """Clock time at `t` for each of `batch` rows, counted from `start`; a `Clock` is returned unchanged."""
        if isinstance(t, Clock):
            if start is not None:
                raise ValueError("start must be left out if t is a Clock: use the Clock's method since")
            return t
        clock = self._checked("t", t, batch)
        if start is None:
            return clock
        begin = self._checked("start", start, batch)
        if (begin.sigma_bar > clock.sigma_bar).any():
            raise ValueError("start must not come after t")
        return clock.since(begin)

    def step(self, x_t: Tensor, t: When, s: When) -> tuple[Clock, Clock, Int[Tensor, "b d"]]:
        """The clocks of a step back from `t` to `s`, and `x_t` as int64."""
        now, x_t = self.enter(t, x_t=x_t)
        if isinstance(s, Clock):
            return now, s, x_t
        earlier = self._checked("s", s, len(x_t))
        if (earlier.sigma_bar > now.sigma_bar).any():
            raise ValueError("s must not come after t")
        return now, earlier, x_t

    def solve(self, t: Float[Tensor, " b"]) -> Clock:
        """Clock time at times that are known to be right."""
        return self.schedule(t, self.exits)

    def marginals(self, name: str, p: Tensor, t: When = 1.0) -> Float[Tensor, "h n"]:
        """Return `p` in this process's precision if it holds a distribution per position, or one for all.

        With a `Clock` for `t` it is not checked.
        """
        if not isinstance(t, Clock):
            rows = 1 if len(p) == 1 else self.num_positions  # one row serves all positions
            checks.distribution(name, p, (rows, self.num_states))
        return p.to(dtype=self.dtype, device=self.device)

    def _checked(self, name: str, t: Time, batch: int) -> Clock:
        if isinstance(t, Tensor) and t.ndim > 0:
            return self.solve(checks.times(name, t, batch, self.device))
        # one time has one answer, for however many rows
        return self.solve(checks.times(name, t, 1, self.device)).expand(batch)

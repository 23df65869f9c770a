"""The learned forward process of the Discrete Markov Bridge in closed form: states in a hierarchy, lifted by clocks."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb._core import numerics
from dmb._core.configuration import Configurable, under
from dmb.processes import fused, initial
from dmb.processes.base import ForwardProcess
from dmb.processes.clocks import Clocks, RateParametrisation, Steady, Varying
from dmb.processes.fused import FAR, RANGE
from dmb.processes.hierarchies import Hierarchy, Line, Tree
from dmb.processes.span import Span, log_reach
from dmb.processes.states import count_positions
from dmb.processes.time import Canonical, Exits, ExitsAt, Schedule, SolvedTime, steady_exits


@final
class BridgeProcess(ForwardProcess):
    r"""A chain whose states lie in a hierarchy, lifted by one exponential clock per node.

    When the clock of node `v` rings, every state strictly below `v` is lifted to `v`. So `X_t` is the topmost node
    among `X_0` and the nodes above it whose clock has rung. With the cumulative intensities `A_v(t)`, their sum `S_x`
    over all nodes strictly above `x`, `c_x = exp(-S_x)` and `D_v = c_v (1 - exp(-A_v))`,

    `p_{t|0}(x|x) = c_x,  p_{t|0}(v|x) = D_v for v above x,`

    and 0 otherwise.

    On a `Line` this is the paper's `Q_α = A H A⁻¹`: clock `k` lifts all lower ranks to rank `k`. On a `Tree` it is
    masked diffusion (a star), or diffusion through the names of clusters. All generators commute, so the clocks may
    vary in time.

    Args:
        hierarchy: which states lie below which.
        clocks: a rate for each clock of the hierarchy.
        num_positions: `d`; needed only if all other arguments have one row.
        schedule: `σ̄(t)`. Default: `LogLinear()`.
        legal: see `ForwardProcess`; an illegal state of a position must not have legal states below it.
        marginals: see `ForwardProcess`.

    >>> from dmb import Line, Steady
    >>> process = BridgeProcess(Line(torch.tensor([[0, 1, 2]])), Steady(torch.tensor([[0.5, 1.0]])), num_positions=1)
    >>> process.to_dense(0.5).detach()
    tensor([[[0.3541, 0.1464, 0.4995],
             [0.0000, 0.5005, 0.4995],
             [0.0000, 0.0000, 1.0000]]])
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        clocks: Clocks,
        *,
        num_positions: int | None = None,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "f n"] | None = None,
        marginals: Float[Tensor, "e n"] | None = None,
    ):
        shape = list(clocks.rate_parameter.shape)
        if shape[1] != hierarchy.num_clocks:
            raise ValueError(f"rates must have shape [positions, {hierarchy.num_clocks}], got {shape}")
        own_rows = 1 if legal is None else len(legal)
        num_positions = count_positions(
            num_positions, rates=shape[0], hierarchy=len(hierarchy.clock_into), legal=own_rows
        )
        super().__init__(num_positions, hierarchy.num_states, schedule, legal, marginals, names=hierarchy.names)
        self.hierarchy, self.clocks = hierarchy, clocks
        if isinstance(self.schedule, Canonical) and self.schedule is not schedule:  # a copy, bound to `p_0` so far
            self.schedule.bind(self.stage_mass)
        if (~self.legal & (hierarchy.sum_below(self.legal.double()) > 0)).any():
            raise ValueError(
                "an illegal state of a position must not have legal states below it: check legal or state_counts"
            )

    @classmethod
    def from_marginals(
        cls,
        marginals: Float[Tensor, "d m"],
        *,
        order: str | Int[Tensor, "h n"] | None = None,
        init: str = "gather",
        floor: float | None = None,
        stages: int | None = None,
        target: Float[Tensor, "d n"] | None = None,
        tied: bool = False,
        mask: bool = False,
        tree: Tree | None = None,
        ratio: float | None = None,
        clocks: type[Clocks] = Steady,
        learn: RateParametrisation = "log",
        state_counts: Int[Tensor, " d"] | None = None,
        schedule: Schedule | None = None,
    ) -> "BridgeProcess":
        """A process fitted to the data's marginals. Options that have no effect on it are refused.

        Args:
            marginals: the data's distribution over states at each position.
            order: the order of a line, for `init` `gather` and `uniform`: `ascending` (default, as in the paper),
                `descending`, `natural`, or your own ranks (token -> rank, `[d, n]` or `[1, n]`).
            init: the rates on a line. `gather` sends everything to the top rank at rate 1, and all other clocks have
                the rate `floor`; `nested` gathers in stages, from fine to coarse, and chooses its own order (see
                `dmb.processes.initial.nested_rates`); `uniform` gives all clocks the same rate, 1 in total; `match` is
                Theorem 4.2's closed form, the rates (and the order) that carry `marginals` to `target` by `t = 1`.
            floor: the rate of all other clocks for `gather` and `nested`; default: 1e-5. The paper's value for text, 0,
                switches them off: for good if rates are learned as logarithms, until the first step if they are learned
                linearly.
            stages: number of stages for `nested`; default: 3.
            target: the final marginals for `match`. Default: the uniform distribution.
            tied: one order and one set of rates for all positions, from the pooled marginals.
            mask: add one more state on top that data never visit. With `init="gather"` and `floor=0` the process is
                masked diffusion (SEDD-absorb, MDLM, MD4) exactly.
            tree: lift states along this tree, see `dmb.processes.grouping`; its names come after the states of the
                data. Leave out `order`, `init` and their options.
            ratio: on a tree, how many times faster each level is than the level above it; default: 5.
            clocks: `Steady`, or `Varying` for clocks that change their speed over time.
            learn: how rates are learned: as logarithms (`log`), or as they are (`linear`), see `clocks.Clocks`.
            state_counts: the number of states of each position. Default: all of them.
            schedule: default: `LogLinear()`.

        >>> process = BridgeProcess.from_marginals(torch.tensor([[0.2, 0.5, 0.3]]))
        >>> process.rank, process.alpha.detach()
        (tensor([[0, 2, 1]]), tensor([[1.0000e-05, 1.0000e+00]]))
        """
        initial.check_options(init, tree, {
            "order": order, "floor": floor, "stages": stages, "target": target, "mask": mask or None, "ratio": ratio,
        })  # fmt: skip
        num_positions, names = len(marginals), int(mask) if tree is None else tree.names
        marginals, legal = initial.support(marginals, state_counts, tied=tied, names=names)
        if tree is None:
            rates, rank = initial.rates_and_ranks(
                marginals, legal, init=init, order=order, floor=floor, stages=stages, target=target, mask=mask,
                learn=learn,
            )  # fmt: skip
            hierarchy: Hierarchy = Line(rank, names)
        else:
            hierarchy, rows = tree, max(len(marginals), len(tree.parent))
            rates = tree.level_rates(5.0 if ratio is None else ratio).to(marginals).expand(rows, -1)
        if init == "match":
            started = clocks.with_final_intensity(rates, initial.final_clock_time(schedule), learn)
        else:
            started = clocks(rates, learn)
        return cls(
            hierarchy,
            started,
            num_positions=num_positions,
            schedule=schedule,
            legal=None if state_counts is None else legal,
            marginals=marginals,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.clocks.dtype

    @property
    def alpha(self) -> Float[Tensor, "d k"]:
        """The rate of every clock, one row per position; on a line in rank order, `alpha[:, k-1]` into rank `k`."""
        return self.clocks.rates.expand(self.num_positions, -1)

    @property
    def rank(self) -> Int[Tensor, "h n"]:
        """Token -> rank, on a line."""
        if not isinstance(self.hierarchy, Line):
            raise ValueError("rank is for processes on a line: a tree has no ranks")
        return self.hierarchy.rank

    @property
    def stage_mass(self) -> Float[Tensor, "h n"]:
        """The mass of the data in every state, and below every name, so that every possible lift counts."""
        return torch.where(self.data_states, self.p_0, self.hierarchy.sum_below(self.p_0))

    @property
    def only_masks(self) -> bool:
        """Whether noise is never a token of data, and the last state hides all tokens alike, as a mask does.

        Then `p(x_0^i | x_t)` given tokens of data, and that state elsewhere, is the same at all times `t`.

        >>> marginals = torch.tensor([[0.2, 0.5, 0.3]])
        >>> [BridgeProcess.from_marginals(marginals, mask=True, floor=floor).only_masks for floor in (0.0, 1e-5)]
        [True, False]
        """
        running = numerics.permute(F.pad(self.clocks.running, (1, 0)), self.hierarchy.clock_into)
        hidden = self.hierarchy.sum_below(self.data_states.double())[:, -1] == self.data_states.sum(-1)
        return bool(hidden.all() and running[:, -1].all() and not (running & self.data_states).any())

    @property
    def one_mask(self) -> bool:
        """Whether all clocks but that of one name are off, and it is steady."""
        running = self.clocks.running
        only = self.names == 1 and bool(running[:, -1].all()) and not running[:, :-1].any()
        return only and isinstance(self.clocks, Steady)

    def learned(self) -> Float[Tensor, "d k"]:
        return self.alpha

    def normalise(self) -> None:
        """Keep rates positive, and fix their common factor where it has no effect: see `Canonical`."""
        self.clocks.project()
        if isinstance(self.schedule, Canonical) and self.schedule.end is None:
            self.clocks.normalise()

    def intensities(self, t: float) -> Float[Tensor, "g n"]:
        """`A(t)` of the clock that leads into each token, float64; 0 where there is none."""
        span = self._span(self.solve(t), torch.float64)
        return (span.scale[..., None] * self.hierarchy.spread(span.rates)[0])[0]

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        return self._exits()(elapsed)

    def _solve(self, t: Float[Tensor, " b"]) -> SolvedTime:
        return self.schedule(t, self._exits() if isinstance(self.schedule, Canonical) else self.exits)

    def _exits(self) -> ExitsAt:
        """`exits`, for a schedule that asks many times: what is the same at all times is computed once."""
        if not isinstance(self.clocks, Steady):
            return self._varying_exits
        speed, rates = self.clocks.slope(torch.zeros(1, 1, dtype=torch.float64, device=self.device))
        return partial(steady_exits, (speed[..., None] * self.hierarchy.spread(rates)[1])[0])

    def _varying_exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        elapsed = elapsed[:, None]
        (scale, own), (speed, slope) = self.clocks.intensity(None, elapsed, torch.float64), self.clocks.slope(elapsed)
        total, rate = self.hierarchy.spread(own)[1], self.hierarchy.spread(slope)[1]
        return Exits(scale[..., None] * total, speed[..., None] * rate)

    def describe(self) -> str:
        if self.only_masks and self.names == 1:
            return "Masked diffusion: positions are masked one by one, and the model learns to put tokens back."
        clocks = "clocks that vary in time" if isinstance(self.clocks, Varying) else "steady clocks"
        if isinstance(self.hierarchy, Line):
            return f"The paper's chain: states in a line, lifted to higher ranks by {clocks}, one per rank."
        return f"Diffusion through clusters: states become names of clusters in a tree, by {clocks}, one per cluster."

    def config(self) -> dict[str, Any]:
        return super().config() | {"hierarchy": self.hierarchy.to_config(), "clocks": self.clocks.to_config()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "BridgeProcess":
        parts = {
            name: Configurable.from_config(config.pop(name), under(tensors, name)) for name in ("hierarchy", "clocks")
        }
        return super().build(tensors, **parts, **config)

    # -- kernels ------------------------------------------------------------------------------------------------------

    def _sample(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """One exponential per token and a climb: O(log n) on a line, O(depth) on a tree, no `[b, d, n]` tensor.

        `P(nothing above v rang) = exp(-S_v)`, so the topmost node to ring is the lowest with `S_v ≤ E`, `E ~ Exp(1)`.
        """
        level = numerics.exponential(tuple(x_0.shape), generator=generator, device=x_0.device)
        return self._span_to_draw(now).climb(x_0, level)

    def _sample_moved(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        span = self._span_to_draw(now)
        # a clock above x rang exactly if E < S_x: draw an exponential truncated at S_x
        limit = -torch.expm1(-span.at(x_0)[1])
        uniform = torch.rand(x_0.shape, generator=generator, device=x_0.device, dtype=torch.float64)
        # 1 - u, not u, so that the draw lies strictly below the limit
        return span.climb(x_0, -torch.log1p(-(1 - uniform) * limit))

    def _log_transition(self, x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        log_c, log_d = self._span(now).log_tables()
        moved = torch.where(self.hierarchy.mask_above(x_0), log_d, -torch.inf)
        return moved.scatter(-1, x_0[..., None], numerics.pick(log_c, x_0)[..., None])

    def _log_likelihood(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        log_c, log_d = self._span(now).log_tables_at(x_t)
        column = torch.where(self._sources(x_t), log_d[..., None], -torch.inf)
        return column.scatter(-1, x_t[..., None], log_c[..., None])

    def _log_prob(self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        log_c, log_d = self._span(now).log_tables_at(x_t)
        return torch.where(x_t == x_0, log_c, torch.where(self.hierarchy.is_below(x_0, x_t), log_d, -torch.inf))

    def _evolve(self, p_0: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        """`c_v p_v + D_v · (mass of p_0 strictly below v)`."""
        return self._evolved(p_0, *self._tables(now, self.dtype))

    def _unevolve(self, p_t: Float[Tensor, "b d n"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        """The mass at or below every node shrinks by `c`: divide by it, then take differences for each node."""
        log_c, _ = self._span(now, torch.float64).log_tables()
        # joined as logarithms in float64: either factor alone may leave the range
        totals = p_t.double() + self.hierarchy.sum_below(p_t.double())
        return self.hierarchy.from_cumulative(torch.exp(numerics.log_or_off(totals) - log_c))

    def _rates_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return torch.where(self._sources(x_t), self._rate_into(x_t, now)[..., None], 0.0)

    def _log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        """`s_y = (c_y π_y + D_y π(strictly below y)) / D_{x_t}` for `y` below `x_t`, a sum of non-negative terms."""
        return torch.where(self._sources(x_t), self._span(now).log_score(log_posterior, x_t), -torch.inf)

    def _log_score_without_data(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "#b #d #n"]:
        """`log(c_y [y is data] + D_y · (data below y))`, less the same at `x_t`: one table for all tokens of a time."""
        data, span = self.data_states.to(self.dtype), self._span(now)
        own, below = data.log(), self.hierarchy.sum_below(data).log()
        table = log_reach(own, below, *span.log_tables())
        own_here, below_here = (numerics.pick(values[None], x_t) for values in (own, below))
        here = log_reach(own_here, below_here, *span.log_tables_at(x_t))
        table, here = (torch.where(value > -torch.inf, value, 0.0) for value in (table, here))
        return table - here[..., None]

    def _integrand_from_score(
        self, log_score: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        """With the rate `w = σ(t) a_{x_t}` that a whole column shares: see `Span`."""
        value = self._in_one_pass(fused.integrand_from_score, log_score, x_t, x_0, now)
        if value is not None:
            return value
        weight = self._rate_into(x_t, now)
        total = self._span(now).integrand_from_score(log_score, self._sources(x_t), x_t, x_0)
        return weight * torch.where(weight > 0, total, 0.0)

    def _integrand_from_posterior(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        """The same with the score's sum telescoped away: see `Span`.

        The hazard `w / D` has a limit as a clock's rate goes to 0; the form used here is exact there too.
        """
        log_c, log_hazard, intensity = self._hazard(x_t, now)
        return self._span(now).integrand_from_posterior(log_hazard, log_c - intensity, log_posterior, x_t, x_0)

    def _integrand_from_logits(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        """On a line with constant rates, in one pass over the logits: see `dmb.processes.fused`."""
        if self._fuses(log_rho) and self.one_mask:
            _, log_hazard, intensity = self._hazard(x_t, now)
            return fused.masked_integrand(log_rho, self.data_states, x_t, x_0, torch.exp(log_hazard - intensity))
        value = self._in_one_pass(fused.integrand_from_logits, log_rho, x_t, x_0, now)
        value = self._integrand_from_weights(log_rho, x_t, x_0, now) if value is None else value
        return super()._integrand_from_logits(log_rho, x_t, x_0, now) if value is None else value

    def _integrand_from_weights(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"] | None:
        """With few logarithms; None if the range of floats does not suffice for it, or would have to be waited for."""
        if not numerics.on_host(log_rho) or torch.compiler.is_compiling():
            return None
        log_rho = log_rho.to(self.dtype)
        log_rho = log_rho if self.data_states.all() else log_rho - FAR * ~self.data_states
        weights = numerics.exp_or_zero(log_rho - log_rho.detach().amax(-1, keepdim=True))
        log_c, log_hazard, _ = self._hazard(x_t, now)
        if (log_c < -RANGE).any() or (numerics.pick(weights, x_0) < math.exp(-RANGE)).any():
            return None
        value = self._span(now).integrand_from_weights(log_hazard, weights, x_t, x_0)
        return value if value.isfinite().all() else None

    def _in_one_pass(
        self, integrand: Any, values: Tensor, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"] | None:
        """A fused integrand; None if there is none, or if the range of floats does not suffice for it."""
        if not (isinstance(self.hierarchy, Line) and self._fuses(values)):
            return None
        span, hazard = self._span(now, torch.float64), self._hazard(x_t, now)
        rows = fused.rows_of(self.hierarchy, span, hazard, self.legal, x_t, x_0)
        value, enough = integrand(values.flatten(0, 1), rows)
        return value.view_as(x_t) if enough else None

    def _prior_kl_table(self, p_T: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        """`c_x log(c_x / p_T(x)) + Σ_{v above x} D_v log(D_v / p_T(v))`."""
        return self._kl_table(p_T, *self._tables(now, self.dtype))

    def _prior_loss(self, mu: Float[Tensor, "h n"], end: SolvedTime) -> Float[Tensor, " g"]:
        """In float64: as rates are learned it falls below the rounding errors of float32, and goes on teaching."""
        tables = self._tables(end, torch.float64)
        p_0 = self.p_0.double() / self.p_0.double().sum(-1, keepdim=True)  # which is 1 in float32 only
        return (mu.double() * self._kl_table(self._evolved(p_0, *tables), *tables)).sum(-1)

    def _step_back(
        self,
        log_posterior: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        earlier: SolvedTime,
        *,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """Two inverse-CDF draws: a source `x_0 ~ π`, and the topmost node between the source and `x_t` to ring by `s`.

        From `v = x_t`: stay if the source is `v` itself, or if clock `v` had rung by `s`, which given that it rang by
        `t` has chance `(1 - exp(-A_v(s))) / (1 - exp(-A_v(t)))`; else climb from the source, but not up to `v`.
        """
        source = self.hierarchy.draw(numerics.exp_or_zero(log_posterior), generator)
        by_s = self._span_to_draw(earlier)
        at_s = by_s.at(x_t)
        rung = torch.expm1(-at_s[0]) / torch.expm1(-self._span_to_draw(now).at(x_t)[0])
        uniform = torch.rand(x_t.shape, generator=generator, device=x_t.device, dtype=torch.float64)
        stays = ~self.hierarchy.is_below(source, x_t) | (uniform < rung)
        return torch.where(stays, x_t, by_s.climb_below(at_s, source, generator))

    def _next_jump(
        self,
        log_posterior: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b d"], Int[Tensor, "b d"]]:
        """If the posterior does not change.

        Given a source below `v = x_t`, clock `v` rang at the clock time `u` of
        `A_v(u) = -log(1 - U (1 - exp(-A_v(t))))`, whatever the source is. A position that has reached its data jumps
        at time 0, to itself.
        """
        until_t = now.sigma_bar[:, None]
        source = self.hierarchy.draw(numerics.exp_or_zero(log_posterior), generator)
        uniform = torch.rand(x_t.shape, generator=generator, device=x_t.device, dtype=torch.float64)
        total = self._span_to_draw(now).at(x_t)[0]
        own = numerics.pick(self.hierarchy.clock_into[None], x_t)
        rang = self.clocks.inverse_intensity(own, -torch.log1p(uniform * torch.expm1(-total)), until_t)
        # a clock of rate 0 never rang; if the posterior says it did, any time will do
        rang = torch.where(total > 0, torch.minimum(rang, until_t), uniform * until_t)
        jumps = self.hierarchy.is_below(source, x_t)
        span = Span(self.hierarchy, *self.clocks.intensity(None, rang, torch.float64))
        landing = torch.where(jumps, span.climb_below(span.at(x_t), source, generator), x_t)
        return torch.where(jumps, self.schedule.inverse(rang, self.exits), 0.0), landing

    # -- what these are made of ---------------------------------------------------------------------------------------

    def _sources(self, x_t: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        """The other states from which `x_t` can be reached."""
        return self.hierarchy.mask_below(x_t) & self.legal

    def _evolved(
        self, p: Float[Tensor, "h n"], log_c: Float[Tensor, "g n"], log_d: Float[Tensor, "g n"]
    ) -> Float[Tensor, "f n"]:
        return log_c.exp() * p + log_d.exp() * self.hierarchy.sum_below(p)

    def _kl_table(
        self, p_T: Float[Tensor, "h n"], log_c: Float[Tensor, "g n"], log_d: Float[Tensor, "g n"]
    ) -> Float[Tensor, "f n"]:
        log_p = numerics.log_or_off(torch.where(self.legal, p_T, 1.0))
        stayed, moved = numerics.times_log_ratio(log_c, log_p), numerics.times_log_ratio(log_d, log_p)
        return torch.where(self.legal, stayed + self.hierarchy.sum_above(moved), 0.0)

    def _tables(self, now: SolvedTime, dtype: torch.dtype) -> tuple[Float[Tensor, "g n"], Float[Tensor, "g n"]]:
        """`log c` and `log D` of every state at one time."""
        log_c, log_d = self._span(now, dtype).log_tables()
        return log_c[0], log_d[0]

    def _span(self, now: SolvedTime, dtype: torch.dtype | None = None) -> Span:
        start = None if now.start is None else now.start[:, None]
        return Span(self.hierarchy, *self.clocks.intensity(start, now.sigma_bar[:, None], dtype or self.dtype))

    @torch.no_grad()
    def _span_to_draw(self, now: SolvedTime) -> Span:
        """In float64: an event of chance 1e-12 must happen once in 10¹² draws."""
        return self._span(now, torch.float64)

    def _fuses(self, logits: Tensor) -> bool:
        """Whether value and gradient are computed together, by code with data-dependent control flow.

        An accelerator would have to wait for that, and a compiler fuses the closed form itself.
        """
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        return numerics.on_host(logits) and not learns and not torch.compiler.is_compiling()

    def _hazard(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> fused.Hazard:
        """`log c_v`, `log(w / D_v)` and `A_v` at `v = x_t`, the second in a form that has its limit at `a_v = 0`."""
        elapsed, sigma = (time.to(self.dtype)[:, None] for time in (now.sigma_bar, now.sigma))
        intensity, above = self._span(now).at(x_t)
        pace = self.clocks.pace(self.hierarchy.clock_into, x_t, elapsed)
        return -above, (sigma / pace).log() + numerics.log_x_over_1mexp(intensity) + above, intensity

    def _rate_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        """`w = σ(t) a_v` at `v = x_t`, per unit of `t`."""
        elapsed, sigma = (time.to(self.dtype)[:, None] for time in (now.sigma_bar, now.sigma))
        speed, rates = self.clocks.slope(elapsed)
        return sigma * speed * self.hierarchy.rates_at(rates, x_t)[0]

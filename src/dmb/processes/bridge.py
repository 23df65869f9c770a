"""The learned forward process `Q_α = A H A⁻¹` of the Discrete Markov Bridge, in closed form."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dmb import checks, numerics
from dmb.configurable import Configurable
from dmb.processes import fused
from dmb.processes.base import ForwardProcess, Time, steady_exits
from dmb.processes.intensity import Intensity
from dmb.processes.ordering import check_permutation, invert, ranks_by_frequency
from dmb.processes.rates import initial_rates, matching_rates, nested_rates
from dmb.processes.shapes import positions, support, uniform_but_for
from dmb.schedules import Canonical, ClockTime, Exits, LogLinear, Schedule

INITS = ("gather", "nested", "uniform", "match")
PARAMETRISATIONS = ("exp", "softplus")


class BridgeProcess(ForwardProcess):
    r"""A chain whose every state is a rank, moved only upwards by one exponential clock a rank.

    In rank space `H[x, y] = a_y` for `y > x`: clock `k` rings at rate `a_k` and lifts whatever lies below to `k`. So
    `X_t = max(X_0, Z_t)`, where `Z_t` is the highest clock that has rung, and with the cumulative intensities
    `A_k(t) = ∫_0^t a_k`, `c_x = exp(-Σ_{k>x} A_k)` and `D_y = c_y (1 - exp(-A_y))`

    `p_{t|0}(x|x) = c_x`,  `p_{t|0}(y|x) = D_y` for `y > x`,  0 for `y < x`.

    All matrices `H` commute, so this holds for clocks that vary in time as well; here `A_k(t) = σ̄(t) a_k`.

    Args:
        alpha: rates `[g, n-1]` in rank order, `alpha[:, k-1]` the rate into rank `k`; `g` is `d`, or 1 for one set of
            rates that all positions share. A rate of exactly 0 is a clock that is off for good.
        rank: the permutation `A` as `[h, n]`, token -> rank; `h` is `d` or 1.
        num_positions: `d`; needed only when both `alpha` and `rank` have one row.
        schedule: `σ̄(t)`; `LogLinear()` unless given.
        legal: see `ForwardProcess`; the states a position lacks must have its lowest ranks.
        marginals: see `ForwardProcess`; uniform over the states other than the mask, unless given.
        mask_token: the token that stands for "masked", if the process has one; always the top rank.
        parametrisation: `alpha = exp(raw)` or `softplus(raw)`; either keeps rates positive with a gradient that lives.

    >>> process = BridgeProcess(torch.tensor([[0.5, 1.0]]), torch.tensor([[0, 1, 2]]), num_positions=1)
    >>> process.to_dense(0.5).detach()
    tensor([[[0.3541, 0.1464, 0.4995],
             [0.0000, 0.5005, 0.4995],
             [0.0000, 0.0000, 1.0000]]])
    """

    rank: Int[Tensor, "h n"]
    token: Int[Tensor, "h n"]
    running: Bool[Tensor, "g k"]

    def __init__(
        self,
        alpha: Float[Tensor, "g k"],
        rank: Int[Tensor, "h n"],
        *,
        num_positions: int | None = None,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "f n"] | None = None,
        marginals: Float[Tensor, "e n"] | None = None,
        mask_token: int | None = None,
        parametrisation: str = "exp",
    ):
        rank = check_permutation("rank", rank)
        if mask_token is not None and not 0 <= mask_token < rank.shape[1]:
            raise ValueError(f"mask_token must lie in [0, {rank.shape[1]}), got {mask_token}")
        alpha = checks.rates("alpha", alpha)
        if alpha.ndim != 2 or alpha.shape[1] != rank.shape[1] - 1:
            raise ValueError(f"alpha must have shape [positions, {rank.shape[1] - 1}], got {list(alpha.shape)}")
        num_positions = positions(num_positions, alpha=alpha, rank=rank, legal=legal)
        if marginals is None and mask_token is not None:
            every = torch.ones_like(rank[:1], dtype=torch.bool)
            marginals = uniform_but_for(mask_token, every if legal is None else legal)
        super().__init__(num_positions, rank.shape[1], schedule or LogLinear(), legal, marginals)
        self.parametrisation = checks.choice("parametrisation", parametrisation, PARAMETRISATIONS)
        self.raw_alpha = nn.Parameter(self._raw(alpha))
        self.register_buffer("running", alpha > 0)
        self.register_buffer("rank", rank.clone())
        self.register_buffer("token", invert(rank), persistent=False)
        self.register_load_state_dict_post_hook(_restore_inverse)
        self.mask_token = mask_token

        illegal_rank = torch.where(self.legal, -1, self.rank).amax(-1, keepdim=True)
        if (torch.where(self.legal, self.rank, self.num_states) < illegal_rank).any():
            raise ValueError("rank must place the states that a position lacks below those it has")
        if mask_token is not None and (self.rank[:, mask_token] != self.num_states - 1).any():
            raise ValueError(f"mask_token must have the top rank at every position, got token {mask_token}")

    @classmethod
    def from_marginals(
        cls,
        marginals: Float[Tensor, "d m"],
        *,
        order: str | Int[Tensor, "h n"] | None = None,
        init: str = "gather",
        floor: float = 1e-5,
        stages: int = 3,
        target: Float[Tensor, "d n"] | None = None,
        tied: bool = False,
        mask: bool = False,
        state_counts: Int[Tensor, " d"] | None = None,
        schedule: Schedule | None = None,
        parametrisation: str = "exp",
    ) -> "BridgeProcess":
        """A process fitted to the data's marginals.

        Args:
            marginals: the data's distribution over states at each position.
            order: `ascending` (the paper's, and the default), `descending`, `natural`, or ranks of your own
                (token -> rank, `[d, n]` or `[1, n]`).
            init: `gather` sends everything to the top rank at rate 1 and runs all other clocks at `floor`; `nested`
                gathers in stages, from fine to coarse, in an order of its own (see `dmb.processes.rates.nested_rates`);
                `uniform` runs all clocks alike, at a total rate of 1; `match` is Theorem 4.2's closed form, the rates
                (and the order) that carry `marginals` to `target` by `t = 1`.
            floor: the slow clocks' rate under `gather` and `nested`. The paper's value for text, 0, switches them off
                for good.
            stages: of `nested`.
            target: what `match` aims at; uniform unless given.
            tied: one order and one set of rates for all positions, from the pooled marginals.
            mask: add one more state on top that data never visit. With `init="gather"` and `floor=0` the process is
                masked diffusion (SEDD-absorb, MDLM, MD4) exactly.
            state_counts: how many states each position really has; all of them, unless given.
            schedule: `LogLinear()` unless given.
            parametrisation: see `BridgeProcess`.

        >>> process = BridgeProcess.from_marginals(torch.tensor([[0.2, 0.5, 0.3]]))
        >>> process.rank, process.alpha.detach()
        (tensor([[0, 2, 1]]), tensor([[1.0000e-05, 1.0000e+00]]))
        """
        checks.choice("init", init, INITS)
        num_positions = len(marginals)
        marginals, legal = support(marginals, state_counts, tied=tied, mask=mask)
        top = marginals.shape[1] - 1

        if init in ("match", "nested") and order is not None:
            raise ValueError(f"init='{init}' brings its own order; leave order out")
        if target is not None and init != "match":
            raise ValueError("target is read only by init='match'")
        if init == "match":
            if isinstance(schedule, Canonical):
                raise ValueError("init='match' needs a schedule that does not adapt to the rates, got Canonical")
            if mask:
                raise ValueError("init='match' cannot be combined with mask: a state without data has no rate to match")
            alpha, rank = matching_rates(marginals, legal, target)
        elif init == "nested":
            alpha, rank = nested_rates(marginals, stages, floor, legal, mask)
        else:
            if isinstance(order, Tensor):
                rank = order
            else:
                rank = ranks_by_frequency(marginals, order or "ascending", legal)
                if mask:  # on top whatever the order, the rest moved down to make room
                    rank = rank - (rank > rank[:, -1:]).long()
                    rank[:, -1] = top
            alpha = initial_rates(init, floor, legal).to(marginals.dtype)
        process = cls(
            alpha,
            rank,
            num_positions=num_positions,
            schedule=schedule,
            legal=None if state_counts is None else legal,
            marginals=marginals,
            mask_token=top if mask else None,
            parametrisation=parametrisation,
        )
        if init == "match":  # matched over a clock time of 1; the schedule decides how much clock time there is
            process._run_out_by(alpha)
        return process

    @property
    def dtype(self) -> torch.dtype:
        return self.raw_alpha.dtype

    # -- rates --------------------------------------------------------------------------------------------------------

    @property
    def alpha(self) -> Float[Tensor, "d k"]:
        """Rates in rank order, `alpha[:, k-1]` into rank `k`, one row a position."""
        return self._clock_rates()[:, 1:].expand(self.num_positions, -1)

    def learned(self) -> Float[Tensor, "d k"]:
        return self.alpha

    def intensities(self, t: float) -> Float[Tensor, "g n"]:
        """`A(t)` of the clock that leads into each token, float64; 0 for the lowest rank, which has none."""
        span = self._span(t, 0.0, 1, torch.float64)
        return self._to_tokens((span.scale[..., None] * span.rates)[0])

    def _clock_rates(self) -> Float[Tensor, "g n"]:
        """The rate of each rank's clock; rank 0 has none."""
        raw = self.raw_alpha
        rates = raw.exp() if self.parametrisation == "exp" else F.softplus(raw)
        return F.pad(torch.where(self.running, rates, 0.0), (1, 0))

    def _raw(self, alpha: Float[Tensor, "g k"]) -> Float[Tensor, "g k"]:
        """The inverse of the parametrisation; any finite value for a clock that is off, which `running` remembers."""
        alpha = torch.where(alpha > 0, alpha, 1.0)
        return alpha.log() if self.parametrisation == "exp" else alpha + torch.log(-torch.expm1(-alpha))

    @torch.no_grad()
    def normalise(self) -> None:
        """In canonical time the common speed of all clocks means nothing: make it 1 on average over positions."""
        if isinstance(self.schedule, Canonical):
            speed = self._clock_rates().sum(-1).mean()
            if self.parametrisation == "exp":
                self.raw_alpha.sub_(speed.log())
            else:  # a rate that is 0 for rounding stays what it is
                rates = self._clock_rates()[:, 1:]
                self.raw_alpha.copy_(torch.where(rates > 0, self._raw(rates / speed), self.raw_alpha))

    # -- how the clocks run: a process whose clocks vary in time needs only these -----------------------------------

    def _intensity(self, elapsed: Float[Tensor, "b e"]) -> Intensity:
        """`A_k` at a clock time a row (or a token), in its precision."""
        return Intensity(elapsed, self._clock_rates()[None].to(elapsed.dtype))

    def _speeds(self, elapsed: Float[Tensor, "b e"]) -> Float[Tensor, "c g n"]:
        """`a_k = dA_k / du` at a clock time a row."""
        return self._clock_rates()[None]

    def _pace(self, rank: Int[Tensor, "b d"], elapsed: Float[Tensor, "b e"]) -> Float[Tensor, "b f"]:
        """`A_k / a_k`: how long each clock would have needed at its present speed."""
        return elapsed

    def _when(
        self, rank: Int[Tensor, "b d"], intensity: Float[Tensor, "b d"], latest: Float[Tensor, "b e"]
    ) -> Float[Tensor, "b d"]:
        """The clock time, not after `latest`, at which `A_k` was `intensity`."""
        return intensity / numerics.pick(self._clock_rates().detach()[None], rank).double()

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        return steady_exits(self._to_tokens(numerics.suffix_sum(self._clock_rates().double())), elapsed)

    def _span(self, t: Time, start: Time, batch: int, dtype: torch.dtype | None = None) -> Intensity:
        """Intensities between `start` and `t`."""
        dtype = dtype or self.dtype
        end = self._clock(t, batch).sigma_bar
        if isinstance(start, float) and start == 0.0:
            return self._intensity(end[:, None].to(dtype))
        return self._between(self._begin(start, end)[:, None], end[:, None], dtype)

    def _between(self, begin: Float[Tensor, "b 1"], end: Float[Tensor, "b 1"], dtype: torch.dtype) -> Intensity:
        return self._intensity((end - begin).to(dtype))

    # -- the contract -------------------------------------------------------------------------------------------------

    def sample(
        self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """`max(x_0, Z)` in rank space, `Z` by inverse CDF: O(log n) a token and no `[b, d, n]` tensor."""
        x_0 = self.tokens("x_0", x_0)
        highest = self._span(t, start, len(x_0)).highest_ringing(x_0.shape, generator)
        return self._token_of(torch.maximum(self._rank_of(x_0), highest))

    def sample_moved(
        self, x_0: Int[Tensor, "b d"], t: Time, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        source = self._rank_of(self.tokens("x_0", x_0))
        span = self._span(t, 0.0, len(x_0)).double()
        # Z > x exactly when E < S_x: an exponential cut off there
        limit = -torch.expm1(-span.higher(source))
        uniform = torch.rand(x_0.shape, generator=generator, device=x_0.device, dtype=torch.float64)
        # 1 - u, not u, so that the draw lies strictly below the limit
        moved = span.lowest(-torch.log1p(-(1 - uniform) * limit))
        return self._token_of(torch.maximum(source, moved))

    def log_arrival(self, x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d"]:
        """`log D_{x_t}`, the same from every lower rank."""
        now = self._rank_of(self.tokens("x_t", x_t))
        return self._span(t, 0.0, len(x_t)).log_tables_at(now)[1]

    def log_transition(self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0) -> Float[Tensor, "b d n"]:
        x_0 = self.tokens("x_0", x_0)
        log_c, log_d = self._span(t, start, len(x_0)).log_tables()
        rank, source = self.rank[None], self._rank_of(x_0)[..., None]
        stay = numerics.pick(log_c, source.squeeze(-1))[..., None]
        moved = torch.where(rank > source, self._to_tokens(log_d), -torch.inf)
        return torch.where(rank == source, stay, moved)

    def log_likelihood(self, x_t: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0) -> Float[Tensor, "b d n"]:
        x_t = self.tokens("x_t", x_t)
        now = self._rank_of(x_t)
        log_c, log_d = self._span(t, start, len(x_t)).log_tables_at(now)
        rank, now = self.rank[None], now[..., None]
        column = torch.where(rank < now, log_d[..., None], torch.where(rank == now, log_c[..., None], -torch.inf))
        return torch.where(self.legal, column, -torch.inf)

    def log_prob(
        self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0
    ) -> Float[Tensor, "b d"]:
        x_t, x_0 = self.tokens("x_t", x_t), self.tokens("x_0", x_0)
        now, source = self._rank_of(x_t), self._rank_of(x_0)
        log_c, log_d = self._span(t, start, len(x_0)).log_tables_at(now)
        return torch.where(now > source, log_d, torch.where(now == source, log_c, -torch.inf))

    def evolve(self, p_0: Float[Tensor, "h n"], t: Time) -> Float[Tensor, "g n"]:
        """`c_y p_y + D_y P_{y-1}`, with `P` the prefix sums of `p_0` in rank order."""
        p = self._to_ranks(self.marginals("p_0", p_0))
        log_c, log_d = (table[0] for table in self._span(t, 0.0, 1).log_tables())
        return self._to_tokens(log_c.exp() * p + log_d.exp() * numerics.prefix_sum(p))

    def rates_into(self, x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d n"]:
        x_t = self.tokens("x_t", x_t)
        now = self._rank_of(x_t)
        rate = self._rate_into(now, self._clock(t, len(x_t)))
        return torch.where((self.rank[None] < now[..., None]) & self.legal, rate[..., None], 0.0)

    def log_score(self, log_mean: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d n"]:
        """`s_y = (c_y π_y + D_y Π_{y-1}) / D_{x_t}` for ranks `y < x_t`, a sum of non-negative terms."""
        now = self._rank_of(self.tokens("x_t", x_t))
        span = self._span(t, 0.0, len(x_t))
        log_f = self._log_reach(self._to_ranks(log_mean), span)
        _, log_d = span.log_tables_at(now)
        runs = log_d > -torch.inf
        log_score = self._to_tokens(log_f) - torch.where(runs, log_d, 0.0)[..., None]
        used = (self.rank[None] < now[..., None]) & self.legal & runs[..., None]
        return torch.where(used, log_score, -torch.inf)

    def score_entropy(
        self, log_score: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        r"""`w [Σ_{y<x_t} s_y - Σ_{x_0≤y<x_t} r_y (1 - log r_y + log s_y)]`, `w = σ(t) a_{x_t}`: one column of rates."""
        now, source = self._rank_of(self.tokens("x_t", x_t)), self._rank_of(self.tokens("x_0", x_0))
        clock, span = self._clock(t, len(x_t)), self._span(t, 0.0, len(x_t))
        below, log_q = self._log_mass(now, source, span)
        _, log_d = span.log_tables_at(now)
        log_ratio = log_q - log_d[..., None]
        reached = log_ratio.exp() > 0  # a ratio that underflows weighs nothing, whatever the score
        # -inf replaced before any arithmetic, so that no nan reaches the gradient
        log_ratio = torch.where(reached, log_ratio, 0.0)
        log_s = torch.where(below, self._to_ranks(log_score), 0.0)
        cross = log_ratio.exp() * (1 - log_ratio + log_s)
        total = torch.where(below, log_s.exp(), 0.0).sum(-1) - torch.where(reached, cross, 0.0).sum(-1)
        weight = self._rate_into(now, clock)
        return weight * torch.where(weight > 0, total, 0.0)

    def mean_entropy(
        self, log_mean: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        r"""The same integrand with the score's sum telescoped away.

        `(w / D) F_{x-1}` where nothing moved, `(w / D) [-c_{x-1} π_x + Σ_{x_0≤y<x} q_y log(q_y / f_y)]` where it did,
        with `x = x_t`, `F_y = c_y Π_y`, `f_y = F_y - F_{y-1}`, `q_{x_0} = c_{x_0}` and `q_y = D_y` above it. The
        hazard `w / D` tends to a limit as a clock's rate goes to 0, and is computed in a form that has it.
        """
        now, source = self._rank_of(self.tokens("x_t", x_t)), self._rank_of(self.tokens("x_0", x_0))
        clock, span = self._clock(t, len(x_t)), self._span(t, 0.0, len(x_t))
        log_pi = self._to_ranks(log_mean)
        below, log_q = self._log_mass(now, source, span)

        log_c, log_hazard, intensity = self._hazard(now, clock)
        at_or_below = torch.where(
            now == source, torch.where(below, log_pi.exp(), 0.0).sum(-1), numerics.pick(log_pi, now).exp()
        )
        lost = torch.exp(log_hazard + log_c - intensity) * at_or_below  # c_{x-1} = c_x exp(-A_x)

        log_weight = log_q + log_hazard[..., None]
        reached = log_weight.exp() > 0
        log_weight, log_q = torch.where(reached, log_weight, 0.0), torch.where(reached, log_q, 0.0)
        log_f = torch.where(reached, self._log_reach(log_pi, span), 0.0)
        divergence = torch.where(reached, log_weight.exp() * (log_q - log_f), 0.0).sum(-1)
        return torch.where(now == source, lost, divergence - lost)

    def log_posterior(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d n"]:
        if self.mask_token is not None:  # data are never masked
            mask = torch.tensor(self.mask_token, device=log_rho.device)
            log_rho = log_rho.index_fill(-1, mask, -torch.inf)
        return super().log_posterior(log_rho, x_t, t)

    def posterior_entropy(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        """In one pass over the logits when the rates are constants; see `dmb.processes.fused`."""
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters()):
            return super().posterior_entropy(log_rho, x_t, x_0, t)
        now, source = self._rank_of(self.tokens("x_t", x_t)), self._rank_of(self.tokens("x_0", x_0))
        clock = self._clock(t, len(x_t))
        log_c, log_d = self._intensity(clock.sigma_bar[:, None]).log_tables()  # float64: differences of them are taken
        log_c_now, log_hazard, intensity = self._hazard(now, clock)
        place = torch.arange(now.numel(), device=now.device)
        position = place % self.num_positions
        log_c, log_d = log_c.flatten(0, 1), log_d.flatten(0, 1)
        table = place if len(log_c) == len(place) else place // self.num_positions
        rows = fused.Rows(
            log_c=log_c,
            log_d=log_d,
            table=table,
            token=self.token,
            rank=self.rank,
            order=position if len(self.rank) > 1 else torch.zeros_like(place),
            lowest=(~self.legal).sum(-1).expand(self.num_positions)[position],
            highest=self.num_states - (1 if self.mask_token is None else 2),
            now=now.flatten(),
            source=source.flatten(),
            log_hazard=(log_hazard + log_c_now).flatten(),
            intensity=intensity.flatten(),
            negentropy=fused.negentropy(log_c, log_d, table, now.flatten(), source.flatten()).to(self.dtype),
        )
        value, enough = fused.posterior_entropy(log_rho.flatten(0, 1), rows)
        return value.view_as(now) if enough else super().posterior_entropy(log_rho, x_t, x_0, t)

    def _hazard(
        self, now: Int[Tensor, "b d"], clock: ClockTime
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """`log c_x`, `log(w / D_x)` and `A_x` at `x = x_t`, the second in a form that has its limit at `a_x = 0`."""
        elapsed, sigma = (time.to(self.dtype)[:, None] for time in clock)
        span = self._intensity(elapsed)
        log_c, intensity = -span.higher(now), span.at(now)
        growth = (sigma / self._pace(now, elapsed)).log()
        return log_c, growth + numerics.log_x_over_1mexp(intensity) - log_c, intensity

    def _rate_into(self, now: Int[Tensor, "b d"], clock: ClockTime) -> Float[Tensor, "b d"]:
        """`w = σ(t) a_x` at `x = x_t`, per unit of `t`."""
        elapsed, sigma = (time.to(self.dtype)[:, None] for time in clock)
        return sigma * numerics.pick(self._speeds(elapsed), now)

    def unevolve(self, p_t: Float[Tensor, "b d n"], t: Time, *, start: Time) -> Float[Tensor, "b d n"]:
        """Cumulative sums in rank order shrink by `c`; growing them back and taking differences undoes it."""
        log_c, _ = self._span(t, start, len(p_t), torch.float64).log_tables()
        # joined as logarithms in float64: either factor alone may leave the range
        cumulative = torch.exp(numerics.log_or_off(self._to_ranks(p_t.double()).cumsum(-1)) - log_c)
        return self._to_tokens(cumulative.diff(dim=-1, prepend=torch.zeros_like(cumulative[..., :1])))

    def prior_kl_table(self, p_T: Float[Tensor, "h n"]) -> Float[Tensor, "g n"]:
        """`g_x = c_x log(c_x / p_T(x)) + Σ_{y>x} D_y log(D_y / p_T(y))`: one suffix sum."""
        p_T = torch.where(self.legal, self.marginals("p_T", p_T), 1.0)
        log_p = numerics.log_or_off(self._to_ranks(p_T))
        log_c, log_d = (table[0] for table in self._span(1.0, 0.0, 1).log_tables())
        stayed, moved = numerics.times_log_ratio(log_c, log_p), numerics.times_log_ratio(log_d, log_p)
        return torch.where(self.legal, self._to_tokens(stayed + numerics.suffix_sum(moved)), 0.0)

    def step_back(
        self,
        log_mean: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        t: Time,
        s: Time,
        *,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """Two inverse-CDF draws: a source `x_0 ~ π`, and the highest lower clock that rang by `s`.

        From `k = x_t`: stay if the source is `k` itself, or if clock `k` had rung by `s`, which given that it rang by
        `t` has chance `(1 - exp(-A_k(s))) / (1 - exp(-A_k(t)))`; else `max(x_0, Z_s)` with `Z_s` below `k`.
        """
        now = self._rank_of(self.tokens("x_t", x_t))
        until_t, until_s = self._clock(t, len(x_t)).sigma_bar, self._clock(s, len(x_t), "s").sigma_bar
        if (until_s > until_t).any():
            raise ValueError("s must not come after t")
        source = self._draw_source(log_mean, generator)
        by_t, by_s = (self._intensity(until[:, None]).double() for until in (until_t, until_s))
        rung = torch.expm1(-by_s.at(now)) / torch.expm1(-by_t.at(now))
        uniform = torch.rand(now.shape, generator=generator, device=now.device, dtype=torch.float64)
        stays = (source >= now) | (uniform < rung)
        earlier = by_s.highest_ringing(now.shape, generator, below=now)
        return self._token_of(torch.where(stays, now, torch.maximum(source, earlier)))

    def next_jump(
        self,
        log_mean: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        t: Time,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b d"], Int[Tensor, "b d"]]:
        """When each position next jumps in reverse time, and where to, if the posterior stays what it is.

        Given a source below `k = x_t`, clock `k` rang at the clock time `u` of
        `A_k(u) = -log(1 - U (1 - exp(-A_k(t))))`, whatever the source is. A position that has reached its data jumps
        at time 0, to itself.
        """
        now = self._rank_of(self.tokens("x_t", x_t))
        until_t = self._clock(t, len(x_t)).sigma_bar[:, None]
        source = self._draw_source(log_mean, generator)
        uniform = torch.rand(now.shape, generator=generator, device=now.device, dtype=torch.float64)
        total = self._intensity(until_t).double().at(now)
        rang = self._when(now, -torch.log1p(uniform * torch.expm1(-total)), until_t)
        # a clock of rate 0 never rang; if the posterior says it did, any moment is as good
        rang = torch.where(total > 0, torch.minimum(rang, until_t), uniform * until_t)
        earlier = self._intensity(rang).double().highest_ringing(now.shape, generator, below=now)
        jumps = source < now
        landing = self._token_of(torch.where(jumps, torch.maximum(source, earlier), now))
        return torch.where(jumps, self.schedule.inverse(rang, self.exits), 0.0), landing

    def _draw_source(self, log_mean: Float[Tensor, "b d n"], generator: torch.Generator | None) -> Int[Tensor, "b d"]:
        return numerics.categorical(self._to_ranks(log_mean).exp(), generator=generator)

    def config(self) -> dict[str, Any]:
        return {
            "num_positions": self.num_positions,
            "num_states": self.num_states,
            "rows": {name: len(getattr(self, name)) for name in ("raw_alpha", "rank", "legal", "p_0")},
            "mask_token": self.mask_token,
            "parametrisation": self.parametrisation,
            "schedule": self.schedule.to_config(),
        }

    @classmethod
    def build(
        cls, num_states: int, rows: dict[str, int], schedule: dict[str, Any], mask_token: int | None, **config: Any
    ) -> "BridgeProcess":
        process = cls(
            torch.ones(rows["raw_alpha"], num_states - 1),
            torch.arange(num_states).repeat(rows["rank"], 1),
            legal=torch.ones(rows["legal"], num_states, dtype=torch.bool),
            marginals=torch.full((rows["p_0"], num_states), 1 / num_states),
            schedule=Configurable.from_config(schedule),
            **config,
        )
        process.mask_token = mask_token  # of the order that is loaded later
        return process

    # -- rank space ---------------------------------------------------------------------------------------------------

    def _rank_of(self, x: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        return numerics.pick(self.rank[None], x)

    def _token_of(self, rank: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        return numerics.pick(self.token[None], rank)

    def _to_ranks(self, values: Shaped[Tensor, "*b n"]) -> Shaped[Tensor, "*c n"]:
        return numerics.permute(values, self.token)

    def _to_tokens(self, values: Shaped[Tensor, "*b n"]) -> Shaped[Tensor, "*c n"]:
        return numerics.permute(values, self.rank)

    def _log_mass(
        self, now: Int[Tensor, "b d"], source: Int[Tensor, "b d"], span: Intensity
    ) -> tuple[Bool[Tensor, "b d n"], Float[Tensor, "b d n"]]:
        """The ranks below `now` that the position has, and `log q_y` on them: `p_{t|0}(y|x_0)` for `x_0 ≤ y < x_t`."""
        log_c, log_d = span.log_tables()
        rank = torch.arange(self.num_states, device=now.device)
        now, source = now[..., None], source[..., None]
        below = (rank < now) & self._to_ranks(self.legal)
        stay = numerics.pick(log_c, source.squeeze(-1))[..., None]
        log_q = torch.where(rank == source, stay, torch.where(rank > source, log_d, -torch.inf))
        return below, torch.where(below, log_q, -torch.inf)

    def _log_reach(self, log_pi: Float[Tensor, "b d n"], span: Intensity) -> Float[Tensor, "b d n"]:
        """`log f_y`, `f_y = c_y π_y + D_y Π_{y-1}`: the chance to be at `y` when the source is drawn from `π`."""
        log_c, log_d = span.log_tables()
        prefix = numerics.prefix_sum(
            log_pi.exp()
        )  # non-negative terms: no digits are lost, and far faster than in logs
        log_prefix = torch.where(prefix > 0, prefix.clamp(min=torch.finfo(prefix.dtype).tiny).log(), -torch.inf)
        return numerics.logaddexp(log_c + log_pi, log_d + log_prefix)

    def _run_out_by(self, alpha: Float[Tensor, "g k"]) -> None:
        """Rescale so that the whole of the schedule, not one unit of clock time, applies `alpha`."""
        total = self._clock(1.0, 1).sigma_bar.to(alpha.dtype)
        with torch.no_grad():
            self.raw_alpha.copy_(self._raw(alpha / total))


def _restore_inverse(process: BridgeProcess, _: object) -> None:
    check_permutation("rank", process.rank)
    checks.rates("alpha", process.alpha.detach())
    process.token.copy_(invert(process.rank))

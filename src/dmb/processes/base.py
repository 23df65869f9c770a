"""The contract every forward process keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb import checks, numerics
from dmb.configurable import Configurable
from dmb.schedules import Canonical, ClockTime, Exits, Schedule

Time = Float[Tensor, ""] | Float[Tensor, " b"] | float


class ForwardProcess(nn.Module, Configurable, ABC):
    """A continuous-time Markov chain on `num_positions` independent positions, run over time `t ∈ [0, 1]`.

    Everything is in tokens and in `t`; how a process orders its states or runs its clocks is its own affair. The dtype
    and the device of what it returns are those of its parameters and buffers. A time is one number, or one a row.
    `start` is the time from which a transition is counted, 0 unless given.

    Args:
        num_positions: `d`, how many tokens an example has.
        num_states: `n`, the number of states of the position that has most.
        schedule: how fast the clocks run.
        legal: which states each position has (`[d, n]`, or `[1, n]`); the others are never entered. All, unless given.
        marginals: `p_0`, the estimate of the data's marginals that the process starts from (`[d, n]`, or `[1, n]` for
            one that all positions share). Uniform, unless given.
    """

    legal: Bool[Tensor, "g n"]
    p_0: Float[Tensor, "h n"]

    def __init__(
        self,
        num_positions: int,
        num_states: int,
        schedule: Schedule,
        legal: Bool[Tensor, "g n"] | None = None,
        marginals: Float[Tensor, "h n"] | None = None,
    ):
        super().__init__()
        if num_positions < 1 or num_states < 2:
            raise ValueError(f"a process needs ≥ 1 position and ≥ 2 states, got {num_positions} and {num_states}")
        self.num_positions = num_positions
        self.num_states = num_states
        self.schedule = schedule
        if legal is None:
            device = None if marginals is None else marginals.device
            legal = torch.ones(1, num_states, dtype=torch.bool, device=device)
        if legal.shape not in ((1, num_states), (num_positions, num_states)):
            raise ValueError(f"legal must have shape [{num_positions}, {num_states}], got {list(legal.shape)}")
        self.register_buffer("legal", legal.clone())
        if marginals is None:
            marginals = legal / legal.sum(-1, keepdim=True)
        rows = 1 if len(marginals) == 1 else num_positions
        self._solved: list[tuple[Schedule, list[Tensor], ClockTime]] = []
        self.register_load_state_dict_post_hook(_check_loaded)
        self.register_buffer("p_0", checks.distribution("marginals", marginals, (rows, num_states)).clone())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ForwardProcess":
        """Move and cast like any module, but never below float32: transition probabilities need the digits."""
        return super()._apply(partial(_carefully, fn), recurse)

    def set_marginals(self, p_0: Float[Tensor, "h n"]) -> None:
        """Replace the estimate of the data's marginals, a row a position or one for all (Algorithm 1, line 14)."""
        self.p_0 = self.marginals("p_0", p_0.detach()).to(self.p_0.dtype).clone()

    @property
    def p_T(self) -> Float[Tensor, "g n"]:
        """The prior: the marginals `p_0` carried to `t = 1`, one row a position, or one where all share everything."""
        return self.evolve(self.p_0, 1.0)

    # -- what a process owes ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What is computed in."""

    @abstractmethod
    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        """How likely each state is to have been left by some clock times, and how fast it is left then."""

    @abstractmethod
    def sample(
        self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """Draw `x_t ~ p_{t|start}(·|x_0)`."""

    @abstractmethod
    def log_transition(self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0) -> Float[Tensor, "b d n"]:
        """Rows of the transition matrix: `log p_{t|start}(·|x_0)`."""

    @abstractmethod
    def log_likelihood(self, x_t: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0) -> Float[Tensor, "b d n"]:
        """Columns of the transition matrix: `log p_{t|start}(x_t|·)`, what `x_t` says about the earlier state."""

    @abstractmethod
    def log_prob(
        self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time, *, start: Time = 0.0
    ) -> Float[Tensor, "b d"]:
        """Entries of the transition matrix: `log p_{t|start}(x_t|x_0)`."""

    @abstractmethod
    def evolve(self, p_0: Float[Tensor, "h n"], t: Time) -> Float[Tensor, "g n"]:
        """The marginals at one time `t` of a process that starts from the marginals `p_0` (Eq. 4)."""

    @abstractmethod
    def rates_into(self, x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d n"]:
        """Forward rates `Q_t[y, x_t]` of the jumps `y -> x_t`, per unit of `t`; 0 at `y = x_t`."""

    @abstractmethod
    def log_score(self, log_mean: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d n"]:
        """The score that a posterior implies: `log Σ_x π(x|x_t) p_{t|0}(y|x) / p_{t|0}(x_t|x)`.

        It is `-inf` where `rates_into` is 0, since the score is never used there.

        Args:
            log_mean: `log π(x_0|x_t)` at each position, normalised over the states from which `x_t` can be reached.
            x_t: noisy tokens.
            t: their times.
        """

    @abstractmethod
    def unevolve(self, p_t: Float[Tensor, "b d n"], t: Time, *, start: Time) -> Float[Tensor, "b d n"]:
        """Undo the evolution from `start` to `t`: row vectors times the inverse of the transition matrix.

        Rounding, or vectors that no distribution evolves into, make entries negative.
        """

    @abstractmethod
    def prior_kl_table(self, p_T: Float[Tensor, "h n"]) -> Float[Tensor, "g n"]:
        """`KL(p_{1|0}(·|x) || p_T)` for every state `x` of every position (0 for states the position has not).

        `J_Q = Σ_i Σ_x μ_i(x) table[i, x]` exactly, with no batch (Eq. 5).
        """

    # -- what follows from it -----------------------------------------------------------------------------------------

    def sample_moved(
        self, x_0: Int[Tensor, "b d"], t: Time, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """Draw `x_t ~ p_{t|0}(·|x_0)` on condition that every position has changed; one that cannot stays."""
        x_0 = self.tokens("x_0", x_0)
        row = self.log_transition(x_0, t).detach().exp().scatter(-1, x_0[..., None], 0.0)
        stuck = row.sum(-1) == 0
        return torch.where(stuck, x_0, numerics.categorical(row + stuck[..., None], generator=generator))

    def log_arrival(self, x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d"]:
        """The known scale of the score at `x_t`: `log` of the mean chance to arrive there from another state."""
        x_t = self.tokens("x_t", x_t)
        others = self.log_likelihood(x_t, t).scatter(-1, x_t[..., None], -torch.inf)
        return others.logsumexp(-1) - (self.legal.sum(-1) - 1).to(self.dtype).log()

    def score_entropy(
        self, log_score: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        r"""The integrand of `J_score` (Eq. 8), at each position.

        `Σ_{y≠x_t} Q_t[y, x_t] (s_y - r_y + r_y (log r_y - log s_y))`, with `r_y = p_{t|0}(y|x_0) / p_{t|0}(x_t|x_0)`.
        """
        log_ratio = self.log_transition(x_0, t) - self.log_prob(x_t, x_0, t)[..., None]
        rates = self.rates_into(x_t, t)
        used = rates > 0
        log_score = torch.where(used, log_score, 0.0)
        reached = used & (log_ratio.exp() > 0)  # a ratio that underflows weighs nothing, whatever the score
        log_ratio = torch.where(reached, log_ratio, 0.0)
        cross = log_ratio.exp() * (log_ratio - log_score - 1)
        return (rates * (log_score.exp() + torch.where(reached, cross, 0.0))).sum(-1)

    def mean_entropy(
        self, log_mean: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        """`score_entropy` of the score that the posterior `log_mean` implies."""
        return self.score_entropy(self.log_score(log_mean, x_t, t), x_t, x_0, t)

    def log_posterior(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d n"]:
        """Bayes: what the other positions say, `log ρ(x_0^i | x_t^{-i})`, joined with what `x_t^i` itself says."""
        return (log_rho.to(self.dtype) + self.log_likelihood(x_t, t)).log_softmax(-1)

    def posterior_entropy(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        """`mean_entropy` of `log_posterior`."""
        return self.mean_entropy(self.log_posterior(log_rho, x_t, t), x_t, x_0, t)

    def learned(self) -> Float[Tensor, "d k"] | None:
        """What learning changes, for reports: a number for each clock or state of each position; None if nothing."""
        return None

    def normalise(self) -> None:
        """Of several sets of parameters that mean the same, if there are such, take one: after a step of learning."""

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Within it the process's parameters are constants: no gradient reaches them, and more can be fused."""
        learned = [p for p in self.parameters() if p.requires_grad]
        for p in learned:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in learned:
                p.requires_grad_(True)

    def prior_kl(self, x_0: Int[Tensor, "b d"], p_T: Float[Tensor, "h n"]) -> Float[Tensor, "b d"]:
        """`KL(p_{1|0}(·|x_0) || p_T)` at each position: the part of `J_Q` that each token pays."""
        x_0 = self.tokens("x_0", x_0)
        return numerics.pick(self.prior_kl_table(p_T)[None], x_0)

    def step_back(
        self,
        log_mean: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        t: Time,
        s: Time,
        *,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """Exact ancestral step to the earlier time `s`: draw `x_0 ~ π(·|x_t)`, then `x_s ~ p(·|x_0, x_t)`.

        When `π` is the true posterior of a position given all of `x_t`, each position of `x_s` has its exact
        distribution given `x_t`, whatever the size of the step.
        """
        x_0 = numerics.categorical(log_mean.exp(), generator=generator)
        log_bridge = self.log_transition(x_0, s) + self.log_likelihood(x_t, t, start=s)
        log_bridge = log_bridge - log_bridge.amax(-1, keepdim=True)
        return numerics.categorical(log_bridge.exp(), generator=generator)

    def to_dense(self, t: Time, *, start: Time = 0.0) -> Float[Tensor, "d n n"]:
        """The transition matrix of every position at one time `t`; identity rows for states a position has not."""
        legal = self.legal.expand(self.num_positions, -1).T
        states = torch.arange(self.num_states, device=self.device)[:, None]
        # a position that lacks a state is asked about its state 0 instead, and the answer is thrown away
        rows = self.log_transition(torch.where(legal, states, 0), t, start=start).exp()
        identity = torch.eye(self.num_states, dtype=rows.dtype, device=rows.device)
        return torch.where(legal[..., None], rows, identity[:, None]).transpose(0, 1)

    # -- helpers ------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.legal.device

    @property
    def _positions(self) -> Int[Tensor, " d"]:
        return torch.arange(self.num_positions, device=self.device)

    def tokens(self, name: str, x: Tensor) -> Int[Tensor, "b d"]:
        """Return `x` as int64 if it holds states of this process, or say what is wrong with it."""
        return checks.tokens(name, x, self.legal.expand(self.num_positions, -1))

    def marginals(self, name: str, p: Tensor) -> Float[Tensor, "h n"]:
        """Return `p` in this process's precision if it holds a distribution a position, or one for all."""
        rows = 1 if len(p) == 1 else self.num_positions  # one row serves all positions
        return checks.distribution(name, p, (rows, self.num_states)).to(dtype=self.dtype, device=self.device)

    def _clock(self, t: Time, batch: int, name: str = "t") -> ClockTime:
        times = checks.times(name, t, batch, self.device)
        if not isinstance(self.schedule, Canonical):
            return self.schedule(times, self.exits)
        if batch > 1 and (isinstance(t, float) or t.ndim == 0):  # one time has one answer, for however many rows
            clock = self._clock(times[:1], 1, name)
            return ClockTime(clock.sigma_bar.expand(batch), clock.sigma.expand(batch))
        # solved for by iteration, and a step of learning asks for the same times a dozen times over: the last two
        # answers are kept, together with all that they depend on
        asked = [times, *(tensor.detach() for tensor in self.state_dict().values())]
        for schedule, known, clock in self._solved:
            if schedule is self.schedule and all(map(_same, known, asked)):
                return clock
        clock = self.schedule(times, self.exits)
        if not torch.is_inference_mode_enabled():  # what is made there cannot take part in a gradient later
            self._solved = [*self._solved[-1:], (self.schedule, [tensor.clone() for tensor in asked], clock)]
        return clock

    def _elapsed(self, t: Time, start: Time, batch: int) -> Float[Tensor, " b"]:
        """Clock time between `start` and `t`, subtracted in float64."""
        end = self._clock(t, batch).sigma_bar
        if isinstance(start, float) and start == 0.0:
            return end.to(self.dtype)
        return (end - self._begin(start, end)).to(self.dtype)

    def _begin(self, start: Time, end: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """The clock time of `start`, which must not come after `end`."""
        begin = self._clock(start, len(end), "start").sigma_bar
        if (end < begin).any():
            raise ValueError("start must not come after t")
        return begin


def steady_exits(rates: Float[Tensor, "g n"], elapsed: Float[Tensor, " b"]) -> Exits:
    """The exits of a process that leaves each state at a constant rate of clock time."""
    rates = rates.double()
    return Exits(elapsed[:, None, None] * rates, rates[None])


def _carefully(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    moved = fn(tensor)
    return tensor.to(moved.device) if moved.is_floating_point() and moved.dtype.itemsize < 4 else moved


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def _check_loaded(process: ForwardProcess, _: object) -> None:
    checks.distribution("p_0", process.p_0, tuple(process.p_0.shape))

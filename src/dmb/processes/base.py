"""The contract of a forward process: public methods check their input and solve clock time, kernels compute."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import checks, numerics
from dmb._core.configuration import Configurable, under
from dmb.processes.states import States
from dmb.processes.time import Canonical, Exits, LogLinear, Schedule, SolvedTime, steady_exits

Time = Float[Tensor, ""] | Float[Tensor, " b"] | float


class ForwardProcess(States):
    """A continuous-time Markov chain on `num_positions` independent positions, run over time `t ∈ [0, 1]`.

    All methods work on tokens and times `t`; the order of states and the clocks are internal to a process. Results have
    the dtype and device of its parameters and buffers. A time is one number, or one per row; `start` is the time at
    which a transition begins (default: 0).

    A public method checks tokens and times, solves for clock time, and calls the kernel of the same name with an
    underscore, which takes a `SolvedTime` and only computes; the library's own losses, heads and samplers call kernels
    with times that they have solved once. A process of your own gives a matrix of rates (`rate_matrix`), from which all
    else follows in O(n³) per time. Those that are faster implement kernels in closed form.

    Args:
        num_positions: `d`, the number of tokens of an example.
        num_states: `n`, the largest number of states of a position.
        schedule: how fast the clocks run. An unbound `Canonical()` is copied and bound to `stage_mass`. Default:
            `LogLinear()`.
        legal: the states of each position (`[d, n]`, or `[1, n]`); others are never entered. Default: all.
        marginals: `p_0`, the first estimate of the data's marginals (`[d, n]`, or `[1, n]` if all positions share
            one). Default: uniform over `data_states`.
        names: number of names, the last states, which data never visit (such as a mask). Default: 0.
    """

    p_0: Float[Tensor, "h n"]
    schedule: Schedule

    def __init__(
        self,
        num_positions: int,
        num_states: int,
        schedule: Schedule | None = None,
        legal: Bool[Tensor, "g n"] | None = None,
        marginals: Float[Tensor, "h n"] | None = None,
        names: int = 0,
    ):
        if legal is None and marginals is not None:
            legal = torch.ones(1, num_states, dtype=torch.bool, device=marginals.device)
        super().__init__(num_positions, num_states, names=names, legal=legal)
        if marginals is None:
            marginals = self.data_states / self.data_states.sum(-1, keepdim=True)
        rows = 1 if len(marginals) == 1 else num_positions
        self.register_buffer("p_0", checks.distribution("marginals", marginals, (rows, num_states)).clone())
        if isinstance(schedule, Canonical) and schedule.marginals is None:
            schedule = copy.deepcopy(schedule).bind(self.p_0)
        self.schedule = LogLinear() if schedule is None else schedule
        self._ambiguous: tuple[dict[str, Any], dict[str, Tensor], Tensor] | None = None
        self.register_load_state_dict_post_hook(_check_loaded)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ForwardProcess":
        """Move and cast like any module, but never below float32: transition probabilities need the digits."""

        def in_float32_at_least(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.is_floating_point() and moved.dtype.itemsize < 4 else moved

        return super()._apply(in_float32_at_least, recurse)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computations and results."""
        return self.rate_matrix().dtype

    @property
    def stage_mass(self) -> Float[Tensor, "h n"]:
        """The mass of the data in every state, by the estimate `p_0`: canonical time counts its changes."""
        return self.p_0

    def set_marginals(self, p_0: Float[Tensor, "h n"]) -> None:
        """Replace the estimate of the data's marginals, one row per position or one for all (Algorithm 1, line 14)."""
        self.p_0 = self._marginals("p_0", p_0.detach()).to(self.p_0.dtype).clone()

    @property
    def p_T(self) -> Float[Tensor, "g n"]:
        """The prior: the marginals `p_0` carried to `t = 1`, one row per position, or one if all share everything."""
        return self.evolve(self.p_0, 1.0)

    @torch.no_grad()
    def noise_share(self, t: Time = 0.5) -> Float[Tensor, "g n"]:
        r"""The chance that a token is noise at time `t`, for each state: `1 - p_0(v) exp(-A_v) / p_t(v)`.

        `A_v` is the intensity of leaving `v`. It is 1 for a mask, and 0 for states that only data take.

        >>> import dmb
        >>> marginals = torch.tensor([[0.2, 0.3, 0.5]])
        >>> dmb.BridgeProcess.from_marginals(marginals, floor=0.0).noise_share()  # all gather in the last state
        tensor([[0.0000, 0.0000, 0.3331]])
        >>> dmb.BridgeProcess.from_marginals(marginals, mask=True, floor=0.0).noise_share()
        tensor([[0., 0., 0., 1.]])
        """
        now = self.solve(t)
        still = self.p_0 * torch.exp(-self.exits(now.elapsed).intensity[0]).to(self.p_0.dtype)
        total = self._evolve(self.p_0.to(self.dtype), now)
        return torch.where(total > 0, (1 - still / total).clamp(0, 1), 0.0)

    @property
    def ambiguous_states(self) -> Bool[Tensor, "g n"]:
        """The data states that noise can produce: half-way, at least one token in a hundred like it is noise.

        They are computed anew when anything has changed that is saved of the process, such as rates or `p_0`.
        """
        waits = torch.is_grad_enabled() and not numerics.on_host(self.p_0)  # to compare would make training wait
        if waits or torch.compiler.is_compiling():
            return self.data_states & (self.noise_share() > 0.01)
        config, tensors = self.to_config(), self.state_dict()
        if self._ambiguous is None or self._ambiguous[0] != config or not _same(self._ambiguous[1], tensors):
            copies = {name: tensor.clone() for name, tensor in tensors.items()}
            self._ambiguous = config, copies, self.data_states & (self.noise_share() > 0.01)
        return self._ambiguous[2]

    # -- times --------------------------------------------------------------------------------------------------------

    def exits(self, elapsed: Float[Tensor, " b"]) -> Exits:
        """The intensity and the rate of leaving each state at given clock times."""
        return steady_exits(-self._Q.diagonal(dim1=1, dim2=2), elapsed)

    def solve(self, t: Time, batch: int = 1, start: Time | None = None) -> SolvedTime:
        """Clock time at `t` for each of `batch` rows, for transitions that begin at `start`."""
        now = self._checked("t", t, batch)
        return now if start is None else now.since(self._not_after(now, "start", start))

    def _entered(self, t: Time, start: Time | None = None, /, **tokens: Tensor) -> tuple[Any, ...]:
        """The tokens that came with a time, checked and as int64; and the solved time, for each of their rows."""
        checked = [self.tokens(name, x) for name, x in tokens.items()]
        return *checked, self.solve(t, len(checked[0]), start)

    def _solve(self, t: Float[Tensor, " b"]) -> SolvedTime:
        return self.schedule(t, self.exits)

    def _checked(self, name: str, t: Time, batch: int) -> SolvedTime:
        if isinstance(t, Tensor) and t.ndim > 0:
            return self._solve(checks.times(name, t, batch, self.device))
        # one time has one answer, for however many rows
        return self._solve(checks.times(name, t, 1, self.device)).expand(batch)

    def _not_after(self, now: SolvedTime, name: str, t: Time) -> SolvedTime:
        earlier = self._checked(name, t, len(now.t))
        if (earlier.sigma_bar > now.sigma_bar).any():
            raise ValueError(f"{name} must not come after t")
        return earlier

    def _marginals(self, name: str, p: Tensor) -> Float[Tensor, "h n"]:
        """Return `p` in this process's precision if it holds a distribution per position, or one for all."""
        rows = 1 if len(p) == 1 else self.num_positions  # one row serves all positions
        return checks.distribution(name, p, (rows, self.num_states)).to(dtype=self.dtype, device=self.device)

    # -- public methods -----------------------------------------------------------------------------------------------

    def sample(
        self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """Draw `x_t ~ p_{t|start}(·|x_0)`."""
        return self._sample(*self._entered(t, start, x_0=x_0), generator=generator)

    def sample_moved(
        self, x_0: Int[Tensor, "b d"], t: Time, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """Draw `x_t ~ p_{t|0}(·|x_0)` given that every position has changed; positions that cannot change stay."""
        return self._sample_moved(*self._entered(t, x_0=x_0), generator=generator)

    def log_transition(self, x_0: Int[Tensor, "b d"], t: Time, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        """Rows of the transition matrix: `log p_{t|start}(·|x_0)`."""
        return self._log_transition(*self._entered(t, start, x_0=x_0))

    def log_likelihood(self, x_t: Int[Tensor, "b d"], t: Time, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        """Columns of the transition matrix: `log p_{t|start}(x_t|·)`, the likelihood of every earlier state."""
        return self._log_likelihood(*self._entered(t, start, x_t=x_t))

    def log_prob(
        self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time, *, start: Time | None = None
    ) -> Float[Tensor, "b d"]:
        """Entries of the transition matrix: `log p_{t|start}(x_t|x_0)`."""
        return self._log_prob(*self._entered(t, start, x_t=x_t, x_0=x_0))

    def evolve(self, p_0: Float[Tensor, "h n"], t: Time) -> Float[Tensor, "g n"]:
        """The marginals at one time `t`, from the marginals `p_0` (Eq. 4)."""
        return self._evolve(self._marginals("p_0", p_0), self.solve(t))

    def unevolve(self, p_t: Float[Tensor, "b d n"], t: Time, *, start: Time | None = None) -> Float[Tensor, "b d n"]:
        """Undo the evolution from `start` to `t`: row vectors times the inverse of the transition matrix.

        Entries may be negative, by rounding or because no distribution evolves into `p_t`.
        """
        return self._unevolve(p_t, self.solve(t, len(p_t), start))

    def rates_into(self, x_t: Int[Tensor, "b d"], t: Time) -> Float[Tensor, "b d n"]:
        """Forward rates `Q_t[y, x_t]` of the jumps `y -> x_t`, per unit of `t`; 0 at `y = x_t`."""
        return self._rates_into(*self._entered(t, x_t=x_t))

    def log_posterior(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d n"]:
        """Bayes' rule: the evidence of the other positions, `log ρ(x_0^i | x_t^{-i})`, times that of `x_t^i` itself."""
        return self._log_posterior(log_rho, *self._entered(t, x_t=x_t))

    def log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d n"]:
        """The score that a posterior implies: `log Σ_x π(x|x_t) p_{t|0}(y|x) / p_{t|0}(x_t|x)`.

        It is `-inf` where `rates_into` is 0, since the score is never used there.

        Args:
            log_posterior: `log π(x_0|x_t)` at each position, over the states from which `x_t` can be reached.
            x_t: noisy tokens.
            t: their times.
        """
        return self._log_score(log_posterior, *self._entered(t, x_t=x_t))

    def integrand_from_score(
        self, log_score: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        r"""The integrand of `J_score` (Eq. 8), at each position.

        `Σ_{y≠x_t} Q_t[y, x_t] (s_y - r_y + r_y (log r_y - log s_y)),`

        with `r_y = p_{t|0}(y|x_0) / p_{t|0}(x_t|x_0)`.
        """
        return self._integrand_from_score(log_score, *self._entered(t, x_t=x_t, x_0=x_0))

    def integrand_from_posterior(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` for the score that the posterior `log π(x_0|x_t)` implies."""
        return self._integrand_from_posterior(log_posterior, *self._entered(t, x_t=x_t, x_0=x_0))

    def integrand_from_logits(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], t: Time
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` for the posterior that `log_posterior` computes from logits."""
        return self._integrand_from_logits(log_rho, *self._entered(t, x_t=x_t, x_0=x_0))

    def prior_kl_table(self, p_T: Float[Tensor, "h n"], t: Time = 1.0) -> Float[Tensor, "g n"]:
        """`KL(p_{t|0}(·|x) || p_T)` for every state `x` of every position (0 for illegal states).

        `J_Q` is its mean under the data's marginals, summed over positions, exactly and with no batch (Eq. 5).
        """
        return self._prior_kl_table(self._marginals("p_T", p_T), self.solve(t))

    def prior_kl(self, x_0: Int[Tensor, "b d"], p_T: Float[Tensor, "h n"]) -> Float[Tensor, "b d"]:
        """`KL(p_{1|0}(·|x_0) || p_T)` at each position: the part of `J_Q` due to each token."""
        x_0 = self.tokens("x_0", x_0)
        return numerics.pick(self.prior_kl_table(p_T)[None], x_0)

    def prior_loss(self, mu: Float[Tensor, "h n"]) -> Float[Tensor, " g"]:
        """`J_Q` of Eq. 5 at each position, `E_μ KL(p_{1|0}(·|x_0) || p_T)`, without a batch; it teaches the rates.

        Args:
            mu: the data's marginals, which the mean is over; `p_T` is `p_0`, the estimate of them, carried to `t = 1`.
        """
        return self._prior_loss(self._marginals("mu", mu), self.solve(1.0))

    def step_back(
        self,
        log_posterior: Float[Tensor, "b d n"],
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
        x_t, now = self._entered(t, x_t=x_t)
        return self._step_back(log_posterior, x_t, now, self._not_after(now, "s", s), generator=generator)

    def next_jump(
        self,
        log_posterior: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        t: Time,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b d"], Int[Tensor, "b d"]]:
        """The time and the target of each position's next jump in reverse time, for processes that support it."""
        return self._next_jump(log_posterior, *self._entered(t, x_t=x_t), generator=generator)

    def to_dense(self, t: Time, *, start: Time | None = None) -> Float[Tensor, "d n n"]:
        """The transition matrix of every position at one time `t`; illegal states have identity rows."""
        legal = self.legal.expand(self.num_positions, -1).T
        states = torch.arange(self.num_states, device=self.device)[:, None]
        # illegal states are replaced by state 0; their rows are discarded below
        rows = self.log_transition(torch.where(legal, states, 0), t, start=start).exp()
        identity = torch.eye(self.num_states, dtype=rows.dtype, device=rows.device)
        return torch.where(legal[..., None], rows, identity[:, None]).transpose(0, 1)

    @property
    def only_masks(self) -> bool:
        """Whether every token jumps once, straight to one mask, at a time that does not depend on it.

        What is not masked then holds data, and that a token is masked says nothing about it.
        """
        return False

    def describe(self) -> str:
        """What happens to tokens, in a sentence."""
        return f"A process of class {type(self).__name__}."

    def learned(self) -> Float[Tensor, "d k"] | None:
        """What training changes, for reports: one number per clock or state of each position; None if nothing."""
        return None

    def normalise(self) -> None:
        """After a training step: if several sets of parameters are equivalent, choose a standard one."""

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """In this block the process's parameters are constants: no gradient reaches them, and more can be fused."""
        learned = [p for p in self.parameters() if p.requires_grad]
        for p in learned:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in learned:
                p.requires_grad_(True)

    def config(self) -> dict[str, Any]:
        return Configurable.config(self) | {"schedule": self.schedule.to_config()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> Any:
        schedule = Configurable.from_config(config.pop("schedule"), under(tensors, "schedule"))
        return super().build(tensors, schedule=schedule, marginals=tensors["p_0"], **config)

    # -- kernels, from a matrix of rates where a process has no closed forms -----------------------------------------

    def rate_matrix(self) -> Float[Tensor, "g n n"] | Float[Tensor, "n n"]:
        """`Q`, with `p_{t|0} = exp(σ̄(t) Q)`: one matrix for all positions, or one for each. Rows sum to 0."""
        raise NotImplementedError(f"{type(self).__name__} must have rate_matrix, or kernels of its own in place of it")

    @property
    def _Q(self) -> Float[Tensor, "g n n"]:
        Q = self.rate_matrix()
        return Q if Q.ndim == 3 else Q[None]

    def _log_transition(self, x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return numerics.log_or_off(numerics.pick(self._transition(now), x_0))

    def _log_likelihood(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        return torch.where(self.legal, numerics.log_or_off(numerics.pick(self._transition(now).mT, x_t)), -torch.inf)

    def _evolve(self, p_0: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        return (p_0[:, None] @ self._transition(now)[0]).squeeze(1)

    def _unevolve(self, p_t: Float[Tensor, "b d n"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        elapsed, row = now.elapsed.to(self.dtype).unique(return_inverse=True)
        inverse = torch.linalg.matrix_exp(-elapsed[:, None, None, None] * self._Q)[row]
        return (p_t[..., None, :] @ inverse).squeeze(-2)

    def _rates_into(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        columns = numerics.pick(self._Q.mT[None], x_t)
        here = torch.arange(self.num_states, device=x_t.device) == x_t[..., None]
        return now.sigma.to(self.dtype)[:, None, None] * columns.masked_fill(here, 0.0)

    def _log_score(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        log_likelihood = self._log_likelihood(x_t, now)
        # a source that cannot lead to x_t has no weight, whatever the posterior says
        log_weight = torch.where(log_likelihood > -torch.inf, log_posterior - log_likelihood, -torch.inf)
        log_kernel = numerics.log_or_off(self._transition(now))
        log_score = (log_weight[..., None] + log_kernel).logsumexp(-2)
        return torch.where(self._rates_into(x_t, now) > 0, log_score, -torch.inf)

    def _prior_kl_table(self, p_T: Float[Tensor, "h n"], now: SolvedTime) -> Float[Tensor, "g n"]:
        p_T = torch.where(self.legal, p_T, 1.0)
        log_kernel = numerics.log_or_off(self._transition(now)[0])
        return torch.where(self.legal, numerics.times_log_ratio(log_kernel, p_T.log()[:, None]).sum(-1), 0.0)

    def _transition(self, now: SolvedTime) -> Float[Tensor, "b d n n"]:
        elapsed, row = now.elapsed.to(self.dtype).unique(return_inverse=True)  # one exponential per time, not per row
        kernel = numerics.rate_exponential(elapsed[:, None, None, None] * self._Q)
        return kernel.expand(-1, self.num_positions, -1, -1)[row]

    # -- kernels that follow from these, where a process has no faster ones -------------------------------------------

    def _log_prob(self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d"]:
        return numerics.pick(self._log_transition(x_0, now), x_t)

    def _sample(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return numerics.categorical(numerics.exp_or_zero(self._log_transition(x_0, now).detach()), generator=generator)

    def _sample_moved(
        self, x_0: Int[Tensor, "b d"], now: SolvedTime, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        row = self._log_transition(x_0, now).detach().exp().scatter(-1, x_0[..., None], 0.0)
        stuck = row.sum(-1) == 0
        return torch.where(stuck, x_0, numerics.categorical(row + stuck[..., None], generator=generator))

    def _log_posterior(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d n"]:
        if self.names:
            log_rho = torch.where(self.data_states, log_rho, -torch.inf)
        return numerics.log_normalise(log_rho.to(self.dtype) + self._log_likelihood(x_t, now))

    def _log_score_without_data(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "#b #d #n"]:
        """The score that a posterior implies whose logits are all 0; any finite number where nothing jumps."""
        nothing = torch.zeros(*x_t.shape, self.num_states, dtype=self.dtype, device=x_t.device)
        known = self._log_score(self._log_posterior(nothing, x_t, now), x_t, now)
        return torch.where(known > -torch.inf, known, 0.0)

    def _integrand_from_score(
        self, log_score: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        log_ratio = self._log_transition(x_0, now) - self._log_prob(x_t, x_0, now)[..., None]
        rates = self._rates_into(x_t, now)
        used = rates > 0
        log_score = torch.where(used, log_score, 0.0)
        reached = used & (log_ratio.exp() > 0)  # a ratio that underflows weighs nothing, whatever the score
        log_ratio = torch.where(reached, log_ratio, 0.0)
        cross = log_ratio.exp() * (log_ratio - log_score - 1)
        return (rates * (log_score.exp() + torch.where(reached, cross, 0.0))).sum(-1)

    def _integrand_from_posterior(
        self, log_posterior: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        return self._integrand_from_score(self._log_score(log_posterior, x_t, now), x_t, x_0, now)

    def _integrand_from_logits(
        self, log_rho: Float[Tensor, "b d n"], x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"], now: SolvedTime
    ) -> Float[Tensor, "b d"]:
        return self._integrand_from_posterior(self._log_posterior(log_rho, x_t, now), x_t, x_0, now)

    def _prior_loss(self, mu: Float[Tensor, "h n"], end: SolvedTime) -> Float[Tensor, " g"]:
        return (mu * self._prior_kl_table(self._evolve(self.p_0.to(self.dtype), end), end)).sum(-1)

    def _step_back(
        self,
        log_posterior: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        earlier: SolvedTime,
        *,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        x_0 = numerics.categorical(numerics.exp_or_zero(log_posterior), generator=generator)
        log_bridge = self._log_transition(x_0, earlier) + self._log_likelihood(x_t, now.since(earlier))
        log_bridge = log_bridge - log_bridge.amax(-1, keepdim=True)
        return numerics.categorical(numerics.exp_or_zero(log_bridge), generator=generator)

    def _next_jump(
        self,
        log_posterior: Float[Tensor, "b d n"],
        x_t: Int[Tensor, "b d"],
        now: SolvedTime,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "b d"], Int[Tensor, "b d"]]:
        raise ValueError(
            f"a {type(self).__name__} cannot draw the time of the next change: first_hitting needs a BridgeProcess"
        )


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == tensor.dtype and one[name].device == tensor.device and one[name].equal(tensor)
        for name, tensor in other.items()
    )


def _check_loaded(process: ForwardProcess, _: object) -> None:
    checks.distribution("p_0", process.p_0, tuple(process.p_0.shape))

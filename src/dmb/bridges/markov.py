"""The paper's model: a forward process adds noise at drawn times, and a network reverses it."""

import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import checks, numerics
from dmb.bridges.base import Bridge, Estimator
from dmb.data.lengths import Lengths
from dmb.data.splits import Split
from dmb.networks import Network, OrderedNetwork, Transformer
from dmb.networks.base import given_embedding, takes, unwrapped
from dmb.networks.heads import Head, MeanHead, ScoreHead
from dmb.objectives import score_entropy as losses
from dmb.objectives.bound import Bound
from dmb.objectives.calls import chain_bound
from dmb.objectives.variance import CostBaseline, TimeDensity
from dmb.orders import Random, WriteOrder
from dmb.processes import BridgeProcess
from dmb.processes.base import ForwardProcess, Time
from dmb.processes.states import States
from dmb.processes.time import Canonical, SolvedTime
from dmb.sampling import SAMPLERS, Decoding, Denoiser, Sampler, State, StepSampler, arrivals, draw_prior, time_grid

if TYPE_CHECKING:
    from dmb.training.settings import TrainingSettings

HEADS: dict[str, Callable[[], Head]] = {
    "mean": MeanHead,
    "score": ScoreHead,
    "unscaled_score": partial(ScoreHead, scaled=False),
}
INFILL = 0.25
"""Share of the training sequences with given positions, where noise can look like data."""
MOST_RATES_LOGGED = 4096


class TemplateWarning(UserWarning):
    """The model may not believe what a template gives."""


class MarkovBridge(Bridge):
    """A forward process, and a network that reverses it.

    Args:
        process: the forward process, with its estimate `p_0` of the data's marginals.
        network: a `Network` of the same size; or any module that maps noisy tokens `[b, d]` and times `[b]` to one
            number per state, `[b, d, n]`.
        head: the meaning of these numbers. `mean` (default): logits of the clean token; `score`: log scores, scaled as
            in SEDD; `unscaled_score`: log scores as in the paper; or your own `Head`.
        lengths: for sequences of different lengths, padded at the end: the law of the length. Padding is then given in
            `loss`, `bound` and `sample`. Default: all sequences have all positions.

    The `sampler` of `sample` and `trajectory` is `ancestral` (default; exact for any step), `first_hitting`, `tweedie`
    or `euler` (the paper's); or your own function, see `dmb.sampling.Sampler`. With a score head: `tweedie` (default)
    or `euler`. `first_hitting` calls the network when a token changes, so it takes neither `calls` nor `grid`.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]), init="uniform")
    >>> bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=16))
    >>> generator = torch.Generator().manual_seed(0)
    >>> bridge.sample(4, calls=8, generator=generator).shape
    torch.Size([4, 2])
    >>> data = torch.tensor([[0, 1], [2, 1], [0, 2]])
    >>> bridge.loss(data, generator=generator).shape
    torch.Size([3])
    """

    corruption_name, has_prior = "process", True
    figures = ("cycles", "rates", "survival", "speeds", "clocks")
    lacks_samplers, without_calls = "needs head='mean'", "infinitely many calls"
    parts: ClassVar[dict[str, type]] = {"process": ForwardProcess, "network": Network, "head": Head}

    def __init__(
        self,
        process: ForwardProcess,
        network: nn.Module,
        head: str | Head = "mean",
        lengths: Lengths | None = None,
    ):
        super().__init__()
        if not isinstance(process, ForwardProcess):
            kind = type(process).__name__
            raise ValueError(f"process must be a ForwardProcess, got a {kind}: OrderedBridge takes orders of writing")
        self.process = process
        self._put_together(network, lengths)
        if isinstance(unwrapped(network), OrderedNetwork):
            kind = type(unwrapped(network)).__name__
            raise ValueError(f"a {kind} follows an order, not times: choose OrderedBridge(order, network, states)")
        self._takes = [name for name in ("label", "given") if takes(network, name)]
        self.head = HEADS[checks.choice("head", head, tuple(HEADS))]() if isinstance(head, str) else head

    @property
    def states(self) -> States:  # type: ignore[override]
        """The states of each position, which the process has."""
        return self.process

    @property
    def has_posterior(self) -> bool:
        return isinstance(self.head, MeanHead)

    @property
    def samplers(self) -> tuple[str, ...]:
        return tuple(SAMPLERS) if self.has_posterior else ("tweedie", "euler")

    @property
    def step_samplers(self) -> tuple[str, ...]:
        return tuple(name for name in self.samplers if isinstance(SAMPLERS[name], StepSampler))

    @property
    def usual_calls(self) -> int:
        return 64

    def calls_within(self, most: int) -> int:
        return min(self.usual_calls, most)

    def network_calls(self, calls: int, sampler: str, blanks: int) -> int:
        return calls if sampler in self.step_samplers else max(1, blanks)

    def weight_uses(self, calls: int) -> int:
        return calls * (self.num_positions if isinstance(self.network, Transformer) else 1)

    # -- learning -----------------------------------------------------------------------------------------------------

    @checks.known_options
    def loss(
        self,
        x_0: Int[Tensor, "b d"],
        *,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        learn_rates: bool = False,
        times: TimeDensity | None = None,
        baseline: CostBaseline | None = None,
        rows: Int[Tensor, " k"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " k"]:
        """The training loss: an unbiased estimate of `J_score` for each sequence, in nats.

        Its gradient reaches the network and, with `learn_rates`, the rates of the process. To learn rates on the whole
        bound, add the gradient of `prior_loss`. `dmb.objectives.score_entropy.score_loss` explains the arguments.
        """
        x_0, label, given = self._data(x_0, label, given)
        return losses.score_loss(
            self, x_0, label=label, given=given, learn_rates=learn_rates, times=times, baseline=baseline, rows=rows,
            generator=generator,
        )  # fmt: skip

    @checks.known_options
    def prior_loss(self, mu: Float[Tensor, "h m"] | None = None) -> Float[Tensor, ""]:
        """The loss of Matrix-learning: `J_Q` in nats per sequence, exact and differentiable in the rates, no batch.

        `J_Q = Σ_i E_μ KL(p_{1|0}(·|x_0^i) || p_T^i)`

        Args:
            mu: the data's marginals, which the mean is over (Eq. 5); `p_T` always comes from the estimate `p_0`.
                Default: that estimate too.
        """
        per_position = self.process.prior_loss(self.process.p_0 if mu is None else self._over_names(mu))
        per_position = per_position.expand(self.num_positions)
        return (per_position if self.lengths is None else self.lengths.present.to(per_position) * per_position).sum()

    def _over_names(self, mu: Float[Tensor, "h m"]) -> Float[Tensor, "h n"]:
        """Marginals of the data, with the names that they never visit."""
        return F.pad(mu, (0, self.num_states - mu.shape[-1])).to(self.process.p_0)

    @checks.known_options
    def bound(
        self,
        x_0: Int[Tensor, "N d"] | Split,
        *,
        label: Int[Tensor, " N"] | None = None,
        given: Bool[Tensor, "N d"] | None = None,
        samples: int = 1,
        calls: int | None = None,
        sampler: str | StepSampler | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        batch_size: int = 128,
        stratify: bool = True,
        split: bool = True,
        importance: bool = True,
        control: bool = True,
        generator: torch.Generator | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Bound:
        """An upper bound on `-log p(x_0)`, with its two parts and its standard error.

        `-log p(x_0) ≤ J_score + J_Q,  J_Q = Σ_i KL(p_{1|0}(·|x_0^i) || p_T^i),`

        where `J_score` is the mean of `integrand`, summed over positions, integrated over all times from 0 to 1: the
        limit of infinitely many network calls. With `calls`, it is the bound of what `sample` draws with so many, and
        the same `sampler`, `grid` and other options: see `dmb.objectives.calls`. It may be infinite.

        If lengths differ, the prior part has `-log p(length)` in it, and padding costs nothing. The arguments are
        explained at `dmb.objectives.score_entropy.bound`; `x_0` may also be a split of a data set, such as `data.test`.
        """
        x_0, label, given = self._rows(x_0, label, given)
        if calls is not None:
            run = SAMPLERS[self.step_sampler(sampler)] if sampler is None or isinstance(sampler, str) else sampler
            if not isinstance(run, StepSampler):
                raise ValueError("calls needs a sampler that knows the law of its step, such as ancestral or tweedie")
            denoiser = Denoiser(self, label=label, guidance=guidance, temperature=temperature, top_p=top_p, given=given)
            with self._evaluating():
                return chain_bound(
                    denoiser, run, time_grid(self.process, calls, grid), x_0, samples=samples, batch_size=batch_size,
                    generator=generator, progress=progress,
                )  # fmt: skip
        if (sampler, guidance, temperature, top_p) != (None, 1.0, 1.0, 1.0) or grid != "canonical":
            raise ValueError(
                "sampler, grid, guidance, temperature and top_p are of a bound with calls: give calls, too"
            )
        with self._evaluating():
            return losses.bound(
                self, x_0, label=label, given=given, samples=samples, batch_size=batch_size, stratify=stratify,
                split=split, importance=importance, control=control, generator=generator, progress=progress,
            )  # fmt: skip

    # -- the reverse direction at one time ----------------------------------------------------------------------------

    @checks.known_options
    def log_posterior(
        self,
        x_t: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)` at each position; needs the mean head."""
        x_t, now = self.process._entered(t, x_t=x_t)
        return self._log_posterior(x_t, now, self._label(label, len(x_t)), given)

    @checks.known_options
    def log_score(
        self,
        x_t: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)_y`, the estimated ratios `p_t(y) / p_t(x_t)` at each position."""
        x_t, now = self.process._entered(t, x_t=x_t)
        return self._log_score(x_t, now, self._label(label, len(x_t)), given)

    @checks.known_options
    def integrand(
        self,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` at each position, in the process's precision; 0 where the data are given."""
        x_t, x_0, now = self.process._entered(t, x_t=x_t, x_0=x_0)
        if (now.t == 0).any():
            raise ValueError("t must be above 0 for the integrand, which is only a limit at 0, got 0")
        return self._integrand(x_t, x_0, now, self._label(label, len(x_t)), given)

    def _log_posterior(
        self, x_t: Int[Tensor, "b d"], now: SolvedTime, label: Tensor | None, given: Tensor | None
    ) -> Float[Tensor, "b d n"]:
        if not isinstance(self.head, MeanHead):
            raise ValueError(
                "a posterior over clean tokens needs head='mean'; the head of this model gives only scores"
            )
        return self.head.log_posterior(self._outputs(x_t, now, label, given), self.process, x_t, now)

    def _log_score(
        self, x_t: Int[Tensor, "b d"], now: SolvedTime, label: Tensor | None, given: Tensor | None
    ) -> Float[Tensor, "b d n"]:
        return self.head.log_score(self._outputs(x_t, now, label, given), self.process, x_t, now)

    def _integrand(
        self,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        now: SolvedTime,
        label: Tensor | None,
        given: Tensor | None,
    ) -> Float[Tensor, "b d"]:
        value = self.head.integrand(self._outputs(x_t, now, label, given), self.process, x_t, x_0, now)
        return value if given is None else torch.where(given, 0.0, value)

    @checks.known_options
    @torch.no_grad()
    def conditionals(
        self,
        x: Int[Tensor, "b d"],
        known: Bool[Tensor, "b d"],
        *,
        at: Int[Tensor, "b m"] | None = None,
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """`log p(x_i | x_S)` for positions `i`, with `S` the known ones; only if a mask is the only noise.

        What is not known is masked, at a time that is its share of the positions. See `Bridge.conditionals`.
        """
        self._check_masks()
        x_t = torch.where(known, x, self.num_states - 1).to(self.device)
        t = (~known).double().mean(-1).clamp_min(0.5 / self.num_positions).to(self.device)
        with self._evaluating():
            log_p = self.log_posterior(x_t, t, label)
        return log_p if at is None else log_p.take_along_dim(at.to(self.device)[..., None], 1)

    def token_nats(
        self, x_0: Int[Tensor, "b d"], turn: Int[Tensor, "b d"], label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d"]:
        """One call of the network for each turn."""
        nats = torch.zeros(x_0.shape, dtype=torch.float64, device=x_0.device)
        for now in range(int(turn.max()) + 1):
            log_p = self.conditionals(x_0, turn < now, label=label).gather(-1, x_0[..., None])[..., 0]
            nats = torch.where(turn == now, -log_p.double(), nats)
        return nats

    def write_order(self) -> WriteOrder:
        """Any, all equally likely, if a mask is the only noise."""
        self._check_masks()
        return Random(self.num_positions)

    def _check_masks(self) -> None:
        if not self.process.only_masks:
            raise ValueError(
                "the bridge must have a mask as its only noise, so that tokens are known at all times: make its "
                "process with mask=True, floor=0.0 (dmb train --mask --floor 0)"
            )

    def _outputs(
        self, x_t: Tensor, now: SolvedTime, label: Tensor | None, given: Tensor | None
    ) -> Float[Tensor, "b d n"]:
        """The network's output. Labels and given positions are passed only to modules that accept them."""
        if given is not None and given_embedding(self.network) is not None:
            # where noise never looks like data, all see that a token is known: to be marked as given would only disturb
            given = given & numerics.pick(self.ambiguous_states[None], x_t)
        options = {"label": label, "given": given}
        options = {name: options[name] for name in self._takes if options[name] is not None}
        return self.without_padding(self.network(x_t, now.t, **options))

    @checks.known_options
    def corrupt(
        self, x_0: Int[Tensor, "b d"], t: float, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        return self._padded(self.process.sample(x_0, t, generator=generator), x_0)

    @checks.known_options
    def corruption_path(
        self, x_0: Int[Tensor, "b d"], states: int, *, generator: torch.Generator | None = None
    ) -> list[State]:
        """One path, not many marginals: each state is drawn from the one before it."""
        path = [State(0.0, x_0)]
        for start, t in pairwise(time_grid(self.process, states - 1).flip(0).tolist()):
            path.append(State(t, self.process.sample(path[-1].x, t, start=start, generator=generator)))
        return [State(t, self._padded(x, x_0)) for t, x in path]

    def _padded(self, x_t: Int[Tensor, "b d"], x_0: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        return x_t if self.lengths is None else torch.where(self.lengths.absent(x_0), x_0, x_t)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def _chain(
        self,
        decoding: Decoding,
        count: int,
        kept: Int[Tensor, "r d"] | None,
        calls: int | None,
        sampler: str | Sampler,
        grid: str | Float[Tensor, " k"],
        generator: torch.Generator | None,
    ) -> Iterator[State]:
        run = SAMPLERS[sampler] if isinstance(sampler, str) else sampler
        x_T = draw_prior(self.process, count, legal=decoding.legal, generator=generator)
        if kept is not None and decoding.given is not None:
            x_T = torch.where(decoding.given, kept.expand(count, -1), x_T)
            self._warn_of_ambiguous(kept, decoding.given[: len(kept)])
        if calls is None:
            calls = 1 if sampler == "first_hitting" else self.usual_calls
        return run(Denoiser(self, **vars(decoding)), x_T, time_grid(self.process, calls, grid), generator)

    @property
    def knows_given(self) -> bool:
        """Whether the network has learned to tell given tokens from noise; if it has no way to, it is trusted."""
        vectors = given_embedding(self.network)
        return "given" in self._takes and (vectors is None or bool(vectors.any()))

    @property
    def ambiguous_states(self) -> Bool[Tensor, "g n"]:
        return self.process.ambiguous_states

    @property
    def believes_given(self) -> bool:
        return self.knows_given or super().believes_given

    def _warn_of_ambiguous(self, kept: Int[Tensor, "b d"], given: Bool[Tensor, "b d"]) -> None:
        """Warn if the network may take tokens of a template for noise."""
        ambiguous = given & numerics.pick(self.ambiguous_states[None], kept)
        if not self.knows_given and ambiguous.any():
            row, position = ambiguous.nonzero()[0].tolist()
            warnings.warn(
                f"the model may take token {int(kept[row, position])} of the template, at position {position}, for "
                "noise, because it was trained without given positions: train with infill=0.25, or with a mask as the "
                "only noise (mask=True, floor=0)",
                TemplateWarning,
                stacklevel=5,
            )

    def arrivals(self, chains: int, *, calls: int, generator: torch.Generator | None) -> Float[Tensor, "b d n"]:
        return arrivals(self, chains, calls, generator)

    # -- what training asks -------------------------------------------------------------------------------------------

    @property
    def corruption(self) -> ForwardProcess:
        return self.process

    def with_parts(self, corruption: ForwardProcess, network: nn.Module) -> "MarkovBridge":
        return type(self)(corruption, network, self.head, self.lengths)

    def check_settings(self, settings: "TrainingSettings", chosen: Collection[str] = ()) -> None:
        process = self.process
        learns = any(parameter.requires_grad for parameter in process.parameters())
        for name, plain in {"any_order": 0.0, "orders": 1}.items():
            if (value := getattr(settings, name)) not in (plain, None):
                rule = f"{plain:g} for a network that does not follow orders"
                raise ValueError(f"{name} must be {rule}, got {value}")
        if settings.matrix_objective == "prior":
            ends_by_rates = isinstance(process.schedule, Canonical) and process.schedule.end is None
            if learns and settings.matrix_steps and ends_by_rates:
                raise ValueError(
                    "J_Q cannot train rates in canonical time, where faster clocks have less time: fix its end "
                    "(schedule=paced, Canonical(end=…)), keep the rates (matrix_steps=0), or learn them on the bound "
                    "(matrix_objective=joint)"
                )
            return
        if not learns:
            raise ValueError(f"matrix_objective must be prior: {type(process).__name__} has no rates to learn")
        if not isinstance(process.schedule, Canonical):
            raise ValueError(
                "schedule must be canonical to learn rates on the bound: on any other, fast clocks could hide changes "
                "at times that are hardly ever drawn"
            )
        if isinstance(process, BridgeProcess) and process.clocks.running.sum() < 2:
            raise ValueError(
                "a single clock has nothing to learn from the bound, since its rate has no effect in canonical time: "
                "switch on others (floor above 0, or init=uniform)"
            )

    def infill_share(self, settings: "TrainingSettings") -> float:
        """Where noise can look like data, a network believes a given token only if it has learned to."""
        if settings.infill is not None:
            return settings.infill
        ambiguous = given_embedding(self.network) is not None and bool(self.ambiguous_states.any())
        return INFILL if ambiguous else 0.0

    def estimator(self, settings: "TrainingSettings") -> Estimator:
        """Times are drawn where the loss varied most; if the rates are learned, the usual costs are subtracted."""
        density = TimeDensity(central=True, decay=0.99, device=self.device) if settings.adapt_times else None
        baseline = None if settings.matrix_objective == "prior" else CostBaseline(self.device)
        score = {"learn_rates": settings.matrix_objective == "joint", "times": density, "baseline": baseline}
        return Estimator(score, {"learn_rates": True, "baseline": baseline}, {}, density, baseline)

    def learned(self) -> dict[str, list[float] | None]:
        """Rates of each clock, averaged over positions whose clock runs, or the other parameters of the process."""
        alpha = self.process.learned()
        if alpha is None or alpha.shape[1] > MOST_RATES_LOGGED:
            return {"alpha": None}
        alpha = alpha.detach()
        return {"alpha": (alpha.sum(0) / (alpha > 0).sum(0).clamp(min=1)).tolist()}

    def describe_training(self, settings: "TrainingSettings") -> str:
        if settings.matrix_objective == "joint":
            return "which learn the rates as well"
        if not settings.matrix_steps:
            return "with fixed rates"
        cycles = "1 cycle" if settings.cycles == 1 else f"{settings.cycles} cycles, each"
        return f"in {cycles} after {settings.matrix_steps} steps of Matrix-learning"

    def marginal_nats(self, mu: Float[Tensor, "h m"]) -> float:
        """`KL(μ || p_0)`: how far the estimate of Eq. 10 is from the data's marginals, per position."""
        mu, p_0 = self._over_names(mu).double(), self.process.p_0.double()
        return (torch.special.xlogy(mu, mu) - torch.special.xlogy(mu, p_0)).sum(-1).mean().item()

    def reestimate(self, *, chains: int, calls: int, generator: torch.Generator | None = None) -> None:
        """Replace `p_0` by the model's own marginals (Eq. 10), smoothed by one more chain that is uniform.

        The extra chain keeps every state possible: data in a state of probability 0 would cost infinitely many bits.
        """
        process = self.process
        estimate = self.estimate_marginals(chains=chains, calls=calls, generator=generator)
        if len(process.p_0) == 1:  # positions share one estimate, and still do
            estimate = estimate.mean(0, keepdim=True)
        uniform = process.data_states.to(estimate.dtype)
        uniform = uniform / uniform.sum(-1, keepdim=True)
        process.set_marginals((chains * estimate + uniform) / (chains + 1))

    def start_random(self, generator: torch.Generator) -> None:
        """Line 1 of Algorithm 1, as in the paper's code: one random vector for all positions."""
        process = self.process
        weights = torch.rand(process.num_states, generator=generator, device=process.device, dtype=torch.float64)
        weights = torch.where(process.data_states, weights, 0.0).expand(len(process.p_0), -1)
        process.set_marginals(weights / weights.sum(-1, keepdim=True))

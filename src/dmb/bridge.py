"""The bridge: one object to train, evaluate, sample, infill, save and load."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb import checks, losses, numerics, paths
from dmb.configurable import Configurable, under
from dmb.heads import Head, MeanHead, ScoreHead
from dmb.lengths import Lengths
from dmb.losses import Bound
from dmb.networks import Network, OrderedNetwork
from dmb.networks.base import marks_of, takes, unwrapped
from dmb.pretrained import Pretrained
from dmb.processes.base import ForwardProcess, When
from dmb.samplers import (
    SAMPLERS,
    Denoiser,
    Sampler,
    State,
    default_sampler,
    draw_prior,
    estimate_marginals,
    in_order,
    legal_states,
    share_grid,
    split_template,
    time_grid,
)
from dmb.schedules import Clock
from dmb.variance import CostBaseline, TimeDensity

HEADS: dict[str, Callable[[], Head]] = {
    "mean": MeanHead,
    "score": ScoreHead,
    "unscaled_score": partial(ScoreHead, scaled=False),
}
NEVER = -1e4  # a logit: finite, so that where padding is given nothing is nan, and exp of it is 0
_PARTS = {"process": ForwardProcess, "network": Network, "head": Head}


@runtime_checkable
class Sliceable(Protocol):
    """Sequences that `[:]` returns as one tensor, such as a split of a data set."""

    def __getitem__(self, rows: slice, /) -> Int[Tensor, "N d"]: ...


class TemplateWarning(UserWarning):
    """The model may not believe what a template gives."""


class Bridge(Pretrained):
    """A generative model of discrete data: a forward process, and a network that reverses it.

    Args:
        process: the forward process, with its estimate `p_0` of the data's marginals.
        network: a `Network` of the same size; or any module that maps noisy tokens `[b, d]` and times `[b]` to one
            number per state, `[b, d, n]`. With an `OrderedNetwork` the bridge is trained and evaluated by whole paths
            (`dmb.paths`); the only noise of the process must then be a mask.
        head: the meaning of these numbers. `mean` (default): logits of the clean token; `score`: log scores, scaled as
            in SEDD; `unscaled_score`: log scores as in the paper; or your own `Head`.
        lengths: for sequences of different lengths, padded at the end: the law of the length. Padding is then given in
            `loss`, `bound` and `sample`. Default: all sequences have all positions.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]), init="uniform")
    >>> bridge = dmb.Bridge(process, dmb.MLP.for_process(process, width=16))
    >>> generator = torch.Generator().manual_seed(0)
    >>> bridge.sample(4, steps=8, generator=generator).shape
    torch.Size([4, 2])
    >>> data = torch.tensor([[0, 1], [2, 1], [0, 2]])
    >>> bridge.loss(data, generator=generator).shape
    torch.Size([3])
    """

    kind = "bridge"

    def __init__(
        self,
        process: ForwardProcess,
        network: nn.Module,
        head: str | Head = "mean",
        lengths: Lengths | None = None,
    ):
        super().__init__()
        for name in ("num_positions", "num_states"):
            if getattr(network, name, getattr(process, name)) != getattr(process, name):
                raise ValueError(
                    f"network must have the process's {name}, got {getattr(network, name)} and {getattr(process, name)}"
                )
        if lengths is not None and lengths.num_positions != process.num_positions:
            raise ValueError(f"lengths must be up to {process.num_positions}, got up to {lengths.num_positions}")
        self.process, self.network, self.lengths = process, network, lengths
        self._takes = [name for name in ("label", "given") if takes(network, name)]
        self.head = HEADS[checks.choice("head", head, tuple(HEADS))]() if isinstance(head, str) else head
        if self.ordered is not None and not isinstance(self.head, MeanHead):
            raise ValueError(f"a network that follows orders needs head='mean', got a {type(self.head).__name__}")
        if self.ordered is not None and process.log_speeds is None:
            raise ValueError(
                "a network that follows orders needs a process with steady clocks, where only the mask's clock runs: "
                "BridgeProcess.from_marginals(marginals, mask=True, init='gather', floor=0.0)"
            )

    @property
    def ordered(self) -> OrderedNetwork | None:
        """The network if it follows orders, so that the bridge uses whole paths; otherwise None."""
        network = unwrapped(self.network)
        return network if isinstance(network, OrderedNetwork) else None

    @property
    def num_positions(self) -> int:
        return self.process.num_positions

    @property
    def num_states(self) -> int:
        return self.process.num_states

    @property
    def mean_length(self) -> float:
        """Tokens of a sequence: `num_positions`, or the mean over training sequences if lengths differ."""
        return float(self.num_positions) if self.lengths is None else self.lengths.mean

    @property
    def num_classes(self) -> int:
        """Number of class labels of the network; 0 if it has none."""
        return getattr(self.network, "num_classes", 0)

    @property
    def device(self) -> torch.device:
        return self.process.device

    # -- learning -----------------------------------------------------------------------------------------------------

    def loss(
        self,
        x_0: Int[Tensor, "b d"],
        *,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        learn_rates: bool = False,
        times: TimeDensity | None = None,
        baseline: CostBaseline | None = None,
        orders: int = 1,
        singles: int = 0,
        any_order: float = 0.0,
        rows: Int[Tensor, " k"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " k"]:
        """The training loss: an unbiased estimate of `J_score` for each sequence, in nats.

        Its gradient reaches the network and, with `learn_rates`, the rates of the process. To learn rates on the whole
        bound, add the gradient of `prior_loss`. The arguments are explained at `dmb.losses.score_loss`; for whole paths
        at `dmb.paths.path_loss`, which has `orders`, `singles` and `any_order` instead of `times` and `baseline`.
        """
        x_0 = self.process.data("x_0", x_0).to(self.device)  # checked before the move: a check on a GPU would block
        label = self._label(label, len(x_0))
        if given is not None:
            if given.shape != x_0.shape:
                raise ValueError(f"given must have the shape of x_0, {list(x_0.shape)}, got {list(given.shape)}")
            given = given.to(self.device)
        given = self._given(x_0, given)
        if self.ordered is not None:
            return paths.path_loss(
                self, x_0, label=label, given=given, orders=orders, singles=singles, any_order=any_order,
                learn_rates=learn_rates, rows=rows, generator=generator,
            )  # fmt: skip
        if any_order:
            raise ValueError(f"any_order must be 0 for a network that does not follow orders, got {any_order}")
        if orders != 1:
            raise ValueError(
                f"orders must be 1 for a network that does not follow orders (an OrderedTransformer does), got {orders}"
            )
        return losses.score_loss(
            self, x_0, label=label, given=given, learn_rates=learn_rates, times=times, baseline=baseline, rows=rows,
            generator=generator,
        )  # fmt: skip

    def prior_loss(self, mu: Float[Tensor, "h n"] | None = None) -> Float[Tensor, ""]:
        """The loss of Matrix-learning: `J_Q` in nats per sequence, exact and differentiable in the rates, no batch.

        `J_Q = Σ_i E_μ KL(p_{1|0}(·|x_0^i) || p_T^i)`

        Args:
            mu: the data's marginals, which the mean is over (Eq. 5); `p_T` always comes from the estimate `p_0`.
                Default: that estimate too.

        For whole paths it is 0, because they end only when everything is masked.
        """
        process = self.process
        if self.ordered is not None:
            return torch.zeros((), dtype=process.dtype, device=process.device)
        per_position = process.prior_loss(process.p_0 if mu is None else mu)
        per_position = per_position.expand(self.num_positions)
        return (per_position if self.lengths is None else self.lengths.present.to(per_position) * per_position).sum()

    def bound(self, x_0: Int[Tensor, "N d"] | Sliceable, **options: Any) -> Bound:
        """An upper bound on `-log p(x_0)`, with its two parts and its standard error.

        `-log p(x_0) ≤ J_score + J_Q,  J_Q = Σ_i KL(p_{1|0}(·|x_0^i) || p_T^i),`

        where `J_score` is the mean of `integrand`, summed over positions, integrated over all times from 0 to 1.

        If lengths differ, the prior part has `-log p(length)` in it, and padding costs nothing.

        Args:
            x_0: data, or a split of a data set, such as `data.test`.
            options: `label`, `given`, `samples`, `batch_size`, `generator`, … as for `dmb.losses.bound`, or, for whole
                paths, `dmb.paths.path_bound`.
        """
        if not isinstance(x_0, Sliceable):
            kind = type(x_0).__name__
            raise ValueError(f"x_0 must be tokens, or a split of a data set, such as data.test, got a {kind}")
        x_0 = x_0 if isinstance(x_0, Tensor) else x_0[:]
        options["label"] = self._label(options.get("label"), len(x_0))
        if self.lengths is not None:
            options["given"] = self._given(x_0, options.get("given"))
        estimate = losses.bound if self.ordered is None else paths.path_bound
        with self._evaluating():
            return estimate(self, x_0, **options)

    # -- the reverse direction at one time ----------------------------------------------------------------------------

    def log_posterior(
        self,
        x_t: Int[Tensor, "b d"],
        t: When,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)` at each position; needs the mean head."""
        if not isinstance(self.head, MeanHead):
            raise ValueError(
                "a posterior over clean tokens needs head='mean'; the head of this model gives only scores"
            )
        clock, x_t = self.process.enter(t, x_t=x_t)
        label = label if isinstance(t, Clock) else self._label(label, len(x_t))
        return self.head.log_posterior(self._outputs(x_t, clock, label, given), self.process, x_t, clock)

    def log_score(
        self,
        x_t: Int[Tensor, "b d"],
        t: When,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)_y`, the estimated ratios `p_t(y) / p_t(x_t)` at each position."""
        clock, x_t = self.process.enter(t, x_t=x_t)
        label = label if isinstance(t, Clock) else self._label(label, len(x_t))
        return self.head.log_score(self._outputs(x_t, clock, label, given), self.process, x_t, clock)

    def integrand(
        self,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        t: When,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` at each position, in the process's precision; 0 where the data are given."""
        clock, x_t, x_0 = self.process.enter(t, x_t=x_t, x_0=x_0)
        if not isinstance(t, Clock):
            label = self._label(label, len(x_t))
            if (clock.t == 0).any():
                raise ValueError("t must be above 0 for the integrand, which is only a limit at 0, got 0")
        value = self.head.integrand(self._outputs(x_t, clock, label, given), self.process, x_t, x_0, clock)
        return value if given is None else torch.where(given, 0.0, value)

    def _outputs(self, x_t: Tensor, clock: Clock, label: Tensor | None, given: Tensor | None) -> Float[Tensor, "b d n"]:
        """The network's output. Labels and given positions are passed only to modules that accept them."""
        if given is not None and marks_of(self.network) is not None:
            # where noise never looks like data, a token is known with or without a mark, which would only disturb
            given = given & numerics.pick(self.process.doubtful[None], x_t)
        told = {"label": label, "given": given}
        told = {name: told[name] for name in self._takes if told[name] is not None}
        return self.without_padding(self.network(x_t, clock.t, **told))

    def without_padding(self, output: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        """Logits of the network that give padding no chance where it is not given; as they are if there is none."""
        if self.lengths is None or not isinstance(self.head, MeanHead):
            return output
        return output.index_fill(-1, torch.tensor(self.lengths.padding, device=output.device), NEVER)

    def _given(self, x_0: Int[Tensor, "b d"], given: Tensor | None) -> Bool[Tensor, "b d"] | None:
        """The given positions, padding included."""
        if self.lengths is None:
            return given
        absent = self.lengths.absent(x_0)
        return absent if given is None else absent | given

    def _label(self, label: Tensor | None, count: int) -> Int[Tensor, " b"] | None:
        return None if label is None else checks.labels(label, count, self.num_classes).to(self.device)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def sample(self, count: int | None = None, **options: Any) -> Int[Tensor, "b d"]:
        """Draw sequences, or fill in the blanks of a template: the last state of `trajectory`, with its options."""
        *_, last = self.trajectory(count, **options)
        return last.x

    def trajectory(
        self,
        count: int | None = None,
        *,
        steps: int | None = None,
        sampler: str | Sampler | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        label: Int[Tensor, " b"] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        template: Int[Tensor, "..."] | None = None,
        legal: Bool[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[State]:
        """The states on the way from noise to samples, one by one.

        Args:
            count: number of sequences. Default: the number of rows of the labels or the template, or 1.
            steps: network calls; default: `usual_steps`. `first_hitting` calls the network when a token changes, and
                with `steps` also at that many times in between. With whole paths it writes one position per call.
            sampler: `ancestral` (default; exact for any step), `first_hitting`, `tweedie` or `euler` (the paper's); or
                your own function, see `dmb.samplers.Sampler`. With a score head: `tweedie` (default) or `euler`.
            grid: see `dmb.samplers.time_grid`.
            label: class of each sequence.
            guidance: strength of classifier-free guidance; 1: none.
            temperature: values below 1 favour likely tokens.
            top_p: draw clean tokens only from the likeliest ones that have this total probability.
            template: tokens to keep, `[d]` or `[b, d]`, with -1 for blanks. If lengths differ, see `Lengths.ended`.
            legal: the tokens that may be drawn, `[n]`, `[d, n]` or `[b, d, n]`; default: all. Each clean token is drawn
                on condition that it is legal, given the tokens that stand already. These were drawn without regard to
                legality elsewhere: if they make legal tokens at other positions more or less likely, samples differ
                from the model's law on condition that all tokens are legal.
            generator: source of all randomness.

        >>> import dmb
        >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
        >>> bridge = dmb.Bridge(process, dmb.MLP.for_process(process, width=16))
        >>> [round(state.t, 2) for state in bridge.trajectory(4, steps=4, grid="uniform")]
        [1.0, 0.75, 0.5, 0.25, 0.0]
        """
        sampler = sampler or default_sampler(self)
        name = checks.choice("sampler", sampler, tuple(SAMPLERS)) if isinstance(sampler, str) else None
        run = SAMPLERS[sampler] if isinstance(sampler, str) else sampler
        rows = 1 if template is None or template.ndim == 1 else len(template)
        if count is None:
            count = rows if label is None else len(label)
        label = self._label(label, count)
        if rows not in (1, count):
            raise ValueError(f"template must have 1 row or {count}, got {rows}")
        if self.lengths is not None:
            template = self.lengths.ended(template, count, device=self.device, generator=generator)
            tokens = torch.arange(self.num_states, device=self.device) != self.lengths.padding
            legal = tokens if legal is None else legal.to(self.device) & tokens[: legal.shape[-1]]
        kept, given = split_template(self.process, template)
        given = None if given is None else given.expand(count, -1)
        legal = legal_states(self.process, count, legal, given)
        if self.ordered is None:
            x_T = draw_prior(self.process, count, legal=legal, generator=generator)
        else:  # a whole path begins where everything is masked
            x_T = torch.full((count, self.num_positions), self.num_states - 1, device=self.device)
        if kept is not None and given is not None:
            x_T = torch.where(given, kept.expand(count, -1), x_T)
            self._warn_of_doubt(kept, given[: len(kept)])
        denoiser = Denoiser(self, label, guidance, temperature, top_p, given, legal)
        if self.ordered is not None and name in ("ancestral", "first_hitting"):
            shares = share_grid(self.usual_steps if steps is None else steps, grid)
            one_by_one = name == "first_hitting" or self.ordered.order is not None
            return self._states(in_order(denoiser, x_T, None if one_by_one else shares, generator))
        if steps is None:
            steps = 1 if name == "first_hitting" else self.usual_steps
        return self._states(run(denoiser, x_T, time_grid(self.process, steps, grid), generator))

    @property
    def usual_steps(self) -> int:
        """Network calls per sample by default: 64, or one per position for whole paths, whose calls cost one token."""
        return 64 if self.ordered is None else self.num_positions

    @property
    def knows_given(self) -> bool:
        """Whether the network has learned to tell given tokens from noise; one without marks is taken at its word."""
        marks = marks_of(self.network)
        return "given" in self._takes and (marks is None or bool(marks.any()))

    def _warn_of_doubt(self, kept: Int[Tensor, "b d"], given: Bool[Tensor, "b d"]) -> None:
        """Warn if the network may take tokens of a template for noise."""
        doubtful = given & numerics.pick(self.process.doubtful[None], kept)
        if not self.knows_given and doubtful.any():
            row, position = doubtful.nonzero()[0].tolist()
            warnings.warn(
                f"the model may take token {int(kept[row, position])} of the template, at position {position}, for "
                "noise, because it was trained without given positions: train with infill=0.25, or with a mask as the "
                "only noise (mask=True, floor=0)",
                TemplateWarning,
                stacklevel=4,
            )

    def _states(self, states: Iterator[State]) -> Iterator[State]:
        while True:
            with self._evaluating():  # between two states the caller may use the model
                state = next(states, None)
            if state is None:
                return
            yield state

    def estimate_marginals(self, **options: Any) -> Float[Tensor, "d n"]:
        """The model's own marginals by sampling (Eq. 10); options as for `dmb.samplers.estimate_marginals`."""
        with self._evaluating():
            return estimate_marginals(self, **options)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Switch off dropout in the block, then restore the mode of every module."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    # -- files --------------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        if not isinstance(self.network, Network):
            raise ValueError(
                f"a {type(self.network).__name__} cannot be saved with its bridge: make it a dmb.Network, "
                "whose config() gives the arguments of its constructor"
            )
        parts = {name: getattr(self, name).to_config() for name in _PARTS}
        return parts if self.lengths is None else parts | {"lengths": self.lengths.to_config()}

    @classmethod
    def from_description(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> "Bridge":
        parts = {name: Configurable.from_config(config[name], under(tensors, name)) for name in _PARTS}
        for name, kind in _PARTS.items():
            if not isinstance(parts[name], kind):
                raise TypeError(f"{name} is a {type(parts[name]).__name__}, not a {kind.__name__}")
        lengths = Configurable.from_config(config["lengths"]) if "lengths" in config else None
        return cls(**parts, lengths=lengths)

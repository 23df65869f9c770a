"""What both models share: labels, lengths, templates, sampling, files, and what training asks of a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb._core import checks
from dmb._core.configuration import under
from dmb._core.pretrained import Pretrained
from dmb.bridges import versions
from dmb.data.lengths import Lengths
from dmb.data.splits import Split
from dmb.networks import Network
from dmb.objectives.bound import Bound, given_like
from dmb.objectives.variance import CostBaseline, Reduce, TimeDensity
from dmb.orders import WriteOrder
from dmb.processes.states import States
from dmb.sampling import SAMPLERS, Decoding, Sampler, State, estimate_marginals, legal_states, split_template

if TYPE_CHECKING:
    from dmb.training.settings import TrainingSettings

NEVER = -1e4  # a logit: finite, so that where padding is given nothing is nan, and exp of it is 0


@dataclass(frozen=True)
class Estimator:
    """How a training run estimates the loss of its model: by which options, and by what it learns on the way.

    Args:
        score: options of `loss` in Score-learning.
        matrix: options of `loss` in Matrix-learning on the bound.
        bound: options of the `bound` that decides which weights are best.
        density: of the times that are drawn; it learns from every batch of Score-learning.
        baseline: the expected costs, for the gradient in what destroys the data.
    """

    score: dict[str, Any]
    matrix: dict[str, Any]
    bound: dict[str, Any]
    density: TimeDensity | None = None
    baseline: CostBaseline | None = None

    def learn(self, reduce: Reduce, processes: int = 1) -> None:
        """Learn from the batches of Score-learning since the last call, over all processes."""
        if self.density is not None:
            self.density.learn(reduce, processes)

    def learn_costs(self, reduce: Reduce) -> None:
        """Learn the expected costs, over all processes."""
        if self.baseline is not None:
            self.baseline.learn(reduce)

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs, to be filled in place."""
        tensors = {} if self.density is None else {"times_seen": self.density.seen}
        if self.baseline is None:
            return tensors
        return tensors | {"baseline.gram": self.baseline.gram, "baseline.moment": self.baseline.moment}


class Bridge(Pretrained, ABC):
    """A generative model of discrete data: what destroys them, and a network that puts them back.

    There are two: `MarkovBridge(process, network)`, the paper's, in which a forward process adds noise at drawn times;
    and `OrderedBridge(order, network, states)`, in which positions are masked, and written, in an order.
    """

    kind = "bridge"
    corruption_name: ClassVar[str]
    """The name of what destroys data, in files."""
    has_prior: ClassVar[bool]
    """Whether the bound has a part that depends on what destroys data alone: `J_Q`."""
    figures: ClassVar[tuple[str, ...]]
    """The figures of a report that say something of what destroys data."""
    meaning_of_time: ClassVar[str] = ""
    """What is to be said of the time of a state, if it is not that of a forward process."""
    without_calls: ClassVar[str]
    """What a bound is of that was computed without a number of network calls."""
    parts: ClassVar[dict[str, Any]]
    """The parts that files describe, and what they must be."""
    states: States
    """The states of each position."""
    network: nn.Module
    lengths: Lengths | None

    def __new__(cls, *_: Any, **__: Any) -> Any:
        if cls is Bridge:
            raise ValueError(
                "Bridge is what two models share: choose MarkovBridge(process, network), or "
                "OrderedBridge(order, network, states) for networks that write in an order"
            )
        return super().__new__(cls)

    def _put_together(self, network: nn.Module, lengths: Lengths | None) -> None:
        """Check that network and lengths have the sizes of the states."""
        for name in ("num_positions", "num_states"):
            if getattr(network, name, getattr(self, name)) != getattr(self, name):
                raise ValueError(
                    f"network must have the {self.corruption_name}'s {name}, "
                    f"got {getattr(network, name)} and {getattr(self, name)}"
                )
        if lengths is not None and lengths.num_positions != self.num_positions:
            raise ValueError(f"lengths must be up to {self.num_positions}, got up to {lengths.num_positions}")
        if lengths is not None and not 0 <= lengths.padding < self.num_states:
            raise ValueError(f"padding must lie in [0, {self.num_states}), got {lengths.padding}")
        self.network, self.lengths = network, lengths

    @property
    def num_positions(self) -> int:
        return self.states.num_positions

    @property
    def num_states(self) -> int:
        return self.states.num_states

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
        return self.states.device

    @property
    @abstractmethod
    def has_posterior(self) -> bool:
        """Whether the network gives the law of clean tokens, and not only scores."""

    @property
    @abstractmethod
    def samplers(self) -> tuple[str, ...]:
        """Names of the sampling algorithms of this model, the default first."""

    lacks_samplers: ClassVar[str]
    """Why it has not all of `dmb.sampling.SAMPLERS`."""

    @property
    @abstractmethod
    def step_samplers(self) -> tuple[str, ...]:
        """Those of `samplers` that take `calls` and a `grid`, the default first: `bound` knows their law."""

    def step_sampler(self, sampler: str | None) -> str:
        """The sampler where `calls` are given, by default the first of `step_samplers`; an error if it has none."""
        if sampler is None:
            return self.step_samplers[0]
        if self._known_sampler(sampler) not in self.step_samplers:
            known = ", ".join(self.step_samplers)
            raise ValueError(
                f"{sampler} has no number of calls: choose the sampler from {known}, or leave out calls and grid"
            )
        return sampler

    @property
    @abstractmethod
    def usual_calls(self) -> int:
        """Network calls per sample by default."""

    def budget_for(self, calls: int) -> int | None:
        """The number of calls whose order samples of so many calls follow, where orders differ; otherwise None."""
        return None

    @property
    def from_left(self) -> bool:
        """Whether the network writes from left to right only, one position per call, and can be given a beginning."""
        return False

    @property
    def least_calls(self) -> int:
        """The fewest network calls per sample, from nothing, that the model can do with."""
        return self.num_positions if self.from_left else 1

    @abstractmethod
    def calls_within(self, most: int) -> int:
        """Network calls per sample where `most` are affordable; whole paths are cheap, and take all they need."""

    @abstractmethod
    def network_calls(self, calls: int, sampler: str, blanks: int) -> int:
        """About how many network calls fill in so many blanks."""

    @property
    def ambiguous_states(self) -> Bool[Tensor, "g n"]:
        """The data states of each position that noise can produce, too."""
        return torch.zeros_like(self.states.data_states)

    @property
    def believes_given(self) -> bool:
        """Whether the model takes given tokens for data, whichever they are."""
        return not self.ambiguous_states.any()

    @abstractmethod
    def weight_uses(self, calls: int) -> int:
        """About how often a sample uses each weight of the network: once per token of a call, where it attends."""

    # -- learning -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(
        self,
        x_0: Int[Tensor, "b d"],
        *,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        rows: Int[Tensor, " k"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " k"]:
        """The training loss: an unbiased estimate of `J_score` for each sequence, in nats."""

    @abstractmethod
    def bound(
        self,
        x_0: Int[Tensor, "N d"] | Split,
        *,
        label: Int[Tensor, " N"] | None = None,
        given: Bool[Tensor, "N d"] | None = None,
        samples: int = 1,
        calls: int | None = None,
        sampler: str | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        batch_size: int = 128,
        generator: torch.Generator | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Bound:
        """An upper bound on `-log p(x_0)`, with its two parts and its standard error.

        With `calls`, it is that of what `sample` draws with so many network calls, by this sampler, on this grid.
        """

    @abstractmethod
    def conditionals(
        self,
        x: Int[Tensor, "b d"],
        known: Bool[Tensor, "b d"],
        *,
        at: Int[Tensor, "b m"] | None = None,
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m n"]:
        """`log p(x_i | x_S)` for positions `i`, with `S` the known ones, which have all their probability on `x`.

        Args:
            x: tokens; anything where they are not known.
            known: which are known.
            at: the positions to answer for. Default: all.
            label: class of each row.
        """

    @abstractmethod
    def token_nats(
        self, x_0: Int[Tensor, "b d"], turn: Int[Tensor, "b d"], label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d"]:
        """`-log p(x_0^i | tokens of earlier turns)` at each position, in nats; input is not checked."""

    @abstractmethod
    def write_order(self) -> WriteOrder:
        """The order in which rows are written by conditionals; a ValueError if the model has none."""

    @abstractmethod
    def log_posterior(
        self,
        x_t: Int[Tensor, "b d"],
        t: Any,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)` at each position, of a state on the way from noise to data."""

    @abstractmethod
    def corrupt(
        self, x_0: Int[Tensor, "b d"], t: float, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """Data as they are at time `t` on the way to noise. Padding stays."""

    @abstractmethod
    def corruption_path(
        self, x_0: Int[Tensor, "b d"], states: int, *, generator: torch.Generator | None = None
    ) -> list[State]:
        """Data on the way to noise, at so many times between which about as much is lost. Padding stays."""

    def _data(
        self, x_0: Int[Tensor, "b d"], label: Tensor | None, given: Tensor | None
    ) -> tuple[Int[Tensor, "b d"], Int[Tensor, " b"] | None, Bool[Tensor, "b d"] | None]:
        """What a loss is computed of, checked, on the model's device; padding is given."""
        x_0 = self.states.data("x_0", x_0).to(self.device)  # checked before the move: a check on a GPU would block
        given = None if given is None else given_like(x_0, given)
        return x_0, self._label(label, len(x_0)), self._given(x_0, given)

    def _rows(
        self, x_0: Int[Tensor, "N d"] | Split, label: Tensor | None, given: Tensor | None
    ) -> tuple[Int[Tensor, "N d"], Int[Tensor, " N"] | None, Bool[Tensor, "N d"] | None]:
        """What a bound is computed of; padding is given."""
        kind, x_0 = type(x_0).__name__, x_0[:] if isinstance(x_0, Split) else x_0
        if not isinstance(x_0, Tensor):
            raise ValueError(f"x_0 must be tokens, or a split of a data set, such as data.test, got a {kind}")
        return x_0, self._label(label, len(x_0)), self._given(x_0, given)

    def without_padding(self, output: Float[Tensor, "b m n"]) -> Float[Tensor, "b m n"]:
        """Logits of the network that give padding no chance where it is not given; as they are if there is none."""
        if self.lengths is None or not self.has_posterior:
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

    @checks.known_options
    def sample(
        self,
        count: int | None = None,
        *,
        calls: int | None = None,
        sampler: str | Sampler | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        label: Int[Tensor, " b"] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        template: Int[Tensor, "..."] | None = None,
        legal: Bool[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """Draw sequences, or fill in the blanks of a template: the last state of `trajectory`, with its options."""
        with self._evaluating():
            *_, last = self.trajectory(
                count, calls=calls, sampler=sampler, grid=grid, label=label, guidance=guidance, temperature=temperature,
                top_p=top_p, template=template, legal=legal, generator=generator,
            )  # fmt: skip
        return last.x

    @checks.known_options
    def trajectory(
        self,
        count: int | None = None,
        *,
        calls: int | None = None,
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
            calls: network calls; default: `usual_calls`. `first_hitting` has no number of calls, and no grid.
            sampler: see the class of the model.
            grid: see `dmb.sampling.time_grid`.
            label: class of each sequence.
            guidance: strength of classifier-free guidance; 1: none.
            temperature: values below 1 favour likely tokens.
            top_p: draw clean tokens only from the likeliest ones that have this total probability.
            template: tokens to keep, `[d]` or `[b, d]`, with -1 for blanks. If lengths differ, see
                `Lengths.complete_template`.
            legal: the tokens that may be drawn, `[n]`, `[d, n]` or `[b, d, n]`; default: all. Each clean token is drawn
                on condition that it is legal, given the tokens that stand already. These were drawn without regard to
                legality elsewhere: if they make legal tokens at other positions more or less likely, samples differ
                from the model's law on condition that all tokens are legal.
            generator: source of all randomness.

        >>> import dmb
        >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
        >>> bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=16))
        >>> [round(state.t, 2) for state in bridge.trajectory(4, calls=4, grid="uniform")]
        [1.0, 0.75, 0.5, 0.25, 0.0]
        """
        sampler = self._known_sampler(sampler)
        if isinstance(sampler, str) and not (calls is None and isinstance(grid, str) and grid == "canonical"):
            self.step_sampler(sampler)
        rows = 1 if template is None or template.ndim == 1 else len(template)
        if count is None:
            count = rows if label is None else len(label)
        label = self._label(label, count)
        if rows not in (1, count):
            raise ValueError(f"template must have 1 row or {count}, got {rows}")
        if self.lengths is not None:
            template = self.lengths.complete_template(template, count, device=self.device, generator=generator)
            tokens = torch.arange(self.num_states, device=self.device) != self.lengths.padding
            legal = tokens if legal is None else legal.to(self.device) & tokens[: legal.shape[-1]]
        kept, given = split_template(self.states, template)
        given = None if given is None else given.expand(count, -1)
        legal = legal_states(self.states, count, legal, given)
        decoding = Decoding(
            label=label, guidance=guidance, temperature=temperature, top_p=top_p, given=given, legal=legal
        )
        return self._states(self._chain(decoding, count, kept, calls, sampler, grid, generator))

    def _known_sampler(self, sampler: str | Sampler | None) -> str | Sampler:
        """The sampler, by default the first of this model; a ValueError if it is not one of them."""
        sampler = self.samplers[0] if sampler is None else sampler
        if isinstance(sampler, str) and sampler not in self.samplers:
            cure = f", which {self.lacks_samplers}" if sampler in SAMPLERS else ""
            raise ValueError(f"sampler must be one of {', '.join(self.samplers)}, got {sampler!r}{cure}")
        return sampler

    @abstractmethod
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
        """The states of `trajectory`; `kept` has the tokens of the template, for one row or for each."""

    def _states(self, states: Iterator[State]) -> Iterator[State]:
        modules = list(self.modules())
        while True:
            with self._evaluating(modules):  # between two states the caller may use the model
                state = next(states, None)
            if state is None:
                return
            yield state

    @checks.known_options
    def estimate_marginals(
        self, *, chains: int = 256, calls: int = 32, generator: torch.Generator | None = None
    ) -> Float[Tensor, "d n"]:
        """The model's own marginals by sampling (Eq. 10), see `dmb.sampling.estimate_marginals`."""
        with self._evaluating():
            return estimate_marginals(self, chains=chains, calls=calls, generator=generator)

    @abstractmethod
    def arrivals(self, chains: int, *, calls: int, generator: torch.Generator | None) -> Float[Tensor, "b d n"]:
        """The law of where each of a few chains goes in the last of its steps."""

    @contextmanager
    def _evaluating(self, modules: Iterable[nn.Module] | None = None) -> Iterator[None]:
        """Switch off dropout in the block, then restore the mode of every module; to find them all takes a while."""
        training = [module for module in modules or self.modules() if module.training]
        if training:
            self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    # -- what training asks -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def corruption(self) -> Any:
        """What destroys data: the forward process, or the order. Matrix-learning changes its parameters."""

    @abstractmethod
    def with_parts(self, corruption: Any, network: nn.Module) -> "Bridge":
        """A bridge like this one with another corruption and another network, which are not copied."""

    @abstractmethod
    def prior_loss(self, mu: Float[Tensor, "h m"] | None = None) -> Float[Tensor, ""]:
        """The loss of Matrix-learning: `J_Q` in nats per sequence, exact and differentiable, no batch."""

    @abstractmethod
    def check_settings(self, settings: "TrainingSettings", chosen: Collection[str] = ()) -> None:
        """A ValueError if this bridge cannot be trained with these settings.

        So is one of the settings that the caller has `chosen` one by one, if it has no effect.
        """

    @abstractmethod
    def infill_share(self, settings: "TrainingSettings") -> float:
        """The share of training sequences with given positions, chosen if the settings leave it open."""

    @abstractmethod
    def estimator(self, settings: "TrainingSettings") -> Estimator:
        """How a training run with these settings estimates the loss of this bridge."""

    @abstractmethod
    def learned(self) -> dict[str, list[float] | None]:
        """What training has made of the corruption, as the entries of a report."""

    def marginal_nats(self, mu: Float[Tensor, "h m"]) -> float | None:
        """`KL(μ || p_0)` per position, if the model has an estimate `p_0` of the data's marginals."""
        return None

    def reestimate(self, *, chains: int, calls: int, generator: torch.Generator | None = None) -> None:
        """Estimate the marginals by sampling (Eq. 10), if the model has a use for them."""

    def start_random(self, generator: torch.Generator) -> None:
        """Begin with a random estimate of the marginals, if the model has one."""

    @abstractmethod
    def describe_training(self, settings: "TrainingSettings") -> str:
        """How the corruption is learned, in a few words."""

    # -- files --------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        if not isinstance(self.network, Network):
            raise ValueError(
                f"a {type(self.network).__name__} cannot be saved with its bridge: make it a dmb.Network, "
                "whose config() gives the arguments of its constructor"
            )
        parts = {name: getattr(self, name).to_config() for name in self.parts}
        return parts if self.lengths is None else parts | {"lengths": self.lengths.to_config()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], **config: Any) -> "Bridge":
        parts = {name: kind.from_config(config[name], under(tensors, name)) for name, kind in cls.parts.items()}
        lengths = Lengths.from_config(config["lengths"]) if "lengths" in config else None
        return cls(**parts, lengths=lengths)

    upgraded = staticmethod(versions.upgraded)

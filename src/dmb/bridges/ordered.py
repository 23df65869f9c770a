"""Whole paths: positions are masked, and written, in an order, and a network gives the cost of a path in one pass."""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core import checks, numerics
from dmb.bridges.base import Bridge, Estimator
from dmb.bridges.markov import MarkovBridge
from dmb.data.lengths import Lengths
from dmb.data.splits import Split
from dmb.networks import OrderedNetwork, OrderedTransformer
from dmb.networks.base import unwrapped
from dmb.networks.heads import Head, MeanHead
from dmb.objectives.bound import Bound, bound_of_rows, check_counts, check_given
from dmb.objectives.ordered import mixed_turns, order_surrogate
from dmb.orders import Fixed, Random, WriteOrder, by_call, turns_of_calls
from dmb.processes import BridgeProcess, ForwardProcess
from dmb.processes.states import States
from dmb.sampling import Decoding, Sampler, State, in_order, share_grid, speculative

if TYPE_CHECKING:
    from dmb.training.settings import TrainingSettings

INFILL, ANY_ORDER = 0.25, 0.5
"""Shares of training sequences with given positions, and in orders drawn evenly from all, where one is preferred."""
MOST_SPEEDS_LOGGED = 4096
OF_A_PROCESS = {"start": None, "adapt_times": None, "matrix_tolerance": 0.0}
OF_J_Q = {"matrix_steps": 0, "matrix_learning_rate": None, "matrix_weight_decay": 0.0, "matrix_clip": 0.0}
"""Settings of training that have no effect here, each with the value that says so, if there is one."""


class OrderedBridge(Bridge):
    """An order of writing, and a network that gives the token at each position from those of earlier turns.

    It is the reverse of masking position after position (math §9): only the order in which they are masked matters, so
    there are no times, no rates and no prior. The bound is a mean over orders; with one order it is the likelihood.

    Args:
        order: which position is written when, see `dmb.orders`.
        network: an `OrderedNetwork`, whose last state is the mask.
        states: the states of each position, with a mask: `States.with_mask(num_positions, num_values)`.
        lengths: for sequences of different lengths, padded at the end: the law of the length. Padding is then given in
            `loss`, `bound` and `sample`. Default: all sequences have all positions.

    By default `sample` and `trajectory` write one position per call of the network, and are exact. With fewer `calls`,
    positions of one call are drawn independently, given those of earlier calls. The `sampler` is `ancestral` (default);
    `first_hitting`: one position per call, so it takes neither `calls` nor `grid`; or `speculative`: the same law, in
    as few calls as its guesses allow, see `dmb.sampling.speculative`.

    >>> import dmb
    >>> states = dmb.States.with_mask(num_positions=4, num_values=3)
    >>> network = dmb.OrderedTransformer(states, width=16, heads=2, blocks=1)
    >>> bridge = dmb.OrderedBridge(dmb.orders.Random(4), network, states)
    >>> bridge.sample(2, calls=2).shape
    torch.Size([2, 4])
    >>> bridge.bound(torch.tensor([[0, 1, 2, 0]])).bits_per_token  # an untrained network: three values, all alike
    1.584962...
    """

    corruption_name, has_prior = "order", False
    figures = ("speeds", "groups")
    meaning_of_time = "Time is the share of masked tokens."
    parts: ClassVar[dict[str, type]] = {"order": WriteOrder, "network": OrderedNetwork, "states": States}
    has_posterior = True
    samplers, lacks_samplers = ("ancestral", "first_hitting", "speculative"), "a MarkovBridge has"
    step_samplers, without_calls = ("ancestral",), "one token per call"

    def __init__(self, order: WriteOrder, network: nn.Module, states: States, lengths: Lengths | None = None):
        super().__init__()
        if not isinstance(order, WriteOrder):
            raise ValueError(f"order must be one of dmb.orders, got a {type(order).__name__}")
        self.order, self.states = order, states
        inner = unwrapped(network)
        if not isinstance(inner, OrderedNetwork):
            kind = type(inner).__name__
            raise ValueError(f"network must be an OrderedNetwork, got a {kind}, which MarkovBridge takes")
        if states.names != 1:
            raise ValueError(f"states must have one name, the mask: States.with_mask makes them, got {states.names}")
        if order.num_positions != states.num_positions:
            raise ValueError(f"order must have {states.num_positions} positions like states, got {order.num_positions}")
        self._put_together(network, lengths)
        if inner.order is not None and not (isinstance(order, Fixed) and order.order.tolist() == inner.order.tolist()):
            raise ValueError(
                f"a {type(inner).__name__} follows one order only: give it orders.Fixed.left_to_right(num_positions)"
            )

    @property
    def ordered(self) -> OrderedNetwork:
        """The network, without the wrapper of an engine."""
        network = unwrapped(self.network)
        assert isinstance(network, OrderedNetwork)
        return network

    @property
    def usual_calls(self) -> int:
        return self.num_positions

    @property
    def from_left(self) -> bool:
        return self.ordered.order is not None

    def budget_for(self, calls: int) -> int | None:
        return self.order.budget_for(calls)

    def calls_within(self, most: int) -> int:
        return self.num_positions

    def network_calls(self, calls: int, sampler: str, blanks: int) -> int:
        return max(1, blanks) if self.from_left or sampler not in self.step_samplers else calls

    def weight_uses(self, calls: int) -> int:
        if isinstance(self.network, OrderedTransformer):
            return 2 * self.num_positions  # every token is asked for once and read once
        return calls * self.num_positions

    # -- learning -----------------------------------------------------------------------------------------------------

    def order_for(self, calls: int | None) -> WriteOrder:
        """The order that is used where a sample takes so many network calls. Default: one position per call."""
        return self.order.for_calls(self.num_positions if calls is None else calls)

    @checks.known_options
    def turns(
        self,
        batch: int,
        *,
        calls: int | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """The turn of each position of `batch` rows; a ValueError if the network cannot begin with the given ones."""
        turn, only = self.order_for(calls).turns(batch, given=given, generator=generator), self.ordered.order
        if only is not None and given is not None and (turn.gather(1, only.expand(batch, -1)).diff() < 0).any():
            raise ValueError(
                f"a {type(self.ordered).__name__} follows one order only: given positions must come first in that order"
            )
        return turn

    def call_of(
        self,
        turn: Int[Tensor, "b d"],
        calls: int | None,
        given: Bool[Tensor, "b d"] | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
    ) -> Int[Tensor, "b d"] | None:
        """The call that writes each position of rows with these turns, -1 for given ones; None: one per call."""
        shares = share_grid(self.usual_calls if calls is None else calls, grid)
        canonical = isinstance(grid, str) and grid == "canonical"
        calls = calls if canonical else len(shares) - 1
        if calls is not None and self.from_left:
            blanks = turn.shape[1] - (0 if given is None else int(given.sum(-1).min()))
            if calls < blanks:
                kind = type(self.ordered).__name__
                raise ValueError(f"calls must be left out for a {kind}, which writes one of {blanks} blanks per call")
            calls = None
        if calls is None or canonical:
            return None if calls is None else self.order_for(calls).divide(turn, calls, given)
        return by_call(turn, shares, given)

    def token_nats(
        self, x_0: Int[Tensor, "b d"], turn: Int[Tensor, "b d"], label: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b d"]:
        """`-log π_i(x_0^i | tokens of earlier turns)` at each position, in nats: one pass of the network."""
        output = self.without_padding(self.network(x_0, turn=turn, label=label))
        logits = torch.where(self.states.data_states, output.to(numerics.at_least_float32(output)), -torch.inf)
        return logits.logsumexp(-1) - logits.gather(-1, x_0[..., None])[..., 0]

    @checks.known_options
    def loss(
        self,
        x_0: Int[Tensor, "b d"],
        *,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        orders: int = 1,
        singles: int = 0,
        any_order: float = 0.0,
        learn_order: bool = False,
        calls: int | Sequence[int] | None = None,
        rows: Int[Tensor, " k"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " k"]:
        r"""The training loss: the cost of a random path of each sequence, in nats: unbiased for `J_score`, its mean.

        Its gradient reaches the network and, with `learn_order`, what the order learns. The network learns more from
        another sequence than from another order of the same one, so with `singles` only some sequences have several
        orders; their gradient in what the order learns stands for that of all.

        Args:
            x_0: data.
            label: classes, for a network that takes them.
            given: positions that come first in every order, and cost nothing: training for infilling.
            orders: number of orders per sequence.
            singles: sequences with a single order, per sequence with several.
            any_order: share of the paths whose order is drawn evenly from all, whatever the speeds, which learn nothing
                from them: so the network also learns conditionals that are not on the way of the usual orders.
            learn_order: also compute the gradient in what the order learns, such as speeds; needs at least two orders.
            calls: the cost of what `sample` draws with so many network calls. Several numbers divide the sequences of a
                batch at random, in shares that grow with their square roots. Default: one position per call.
            rows: compute the loss of these rows only. Orders are drawn for all rows, so that they do not depend on how
                a batch is split.
            generator: source of all randomness except dropout.
        """
        if orders < 1:
            raise ValueError(f"orders must be at least 1, got {orders}")
        if singles < 0:
            raise ValueError(f"singles must be at least 0, got {singles}")
        if learn_order and orders < 2:
            rule = "at least 2 to learn speeds, by comparing orders of a sequence"
            raise ValueError(f"orders must be {rule}, got {orders}")
        x_0, label, given = self._data(x_0, label, given)
        given = torch.zeros_like(x_0, dtype=torch.bool) if given is None else given
        every, rows = given.repeat(orders, 1), torch.arange(len(x_0), device=x_0.device) if rows is None else rows
        several = rows % (1 + singles) == 0
        # one path of each row, and then the others of those that have several
        others = len(x_0) * torch.arange(1, orders, device=x_0.device)[:, None] + rows[several]
        path = torch.cat([rows, others.flatten()])
        row, numbers = path % len(x_0), calls if isinstance(calls, Sequence) else [calls]
        plans = [self._plan(every, any_order, number, generator) for number in numbers]
        which = torch.zeros_like(path)
        if len(plans) > 1:  # the same for all orders of a sequence
            shuffled = torch.randperm(len(x_0), generator=generator, device=x_0.device)
            jitter = torch.rand(1, generator=generator, device=x_0.device, dtype=torch.float64)
            shares = torch.tensor(numbers, dtype=torch.float64, device=x_0.device).sqrt().cumsum(0)
            which = torch.searchsorted(shares / shares[-1], (shuffled + jitter) / len(x_0), right=True)[row]
        turn, seen, even = (torch.stack(each)[which, path] for each in zip(*plans, strict=True))
        cost = self.token_nats(x_0[row], seen, None if label is None else label[row])
        cost = torch.where(given[row], 0.0, cost)

        def by_order(values: Shaped[Tensor, "p d"]) -> Shaped[Tensor, "orders c d"]:
            """The values of sequences with several orders."""
            return torch.cat([values[: len(rows)][several], values[len(rows) :]]).unflatten(0, (orders, -1))

        total = by_order(cost).sum(-1)
        if learn_order:
            each = torch.stack([self.order_for(number).log_choices(turn, given[row]) for number in numbers])
            log_choices = torch.where(even[:, None], 0.0, each[which, torch.arange(len(path), device=path.device)])
            surrogate = order_surrogate(by_order(cost), by_order(turn), by_order(log_choices), by_order(seen))
            total = total + (1 + singles) * surrogate
        return cost[: len(rows)].sum(-1).masked_scatter(several, total.mean(0))

    def _plan(
        self,
        given: Bool[Tensor, "b d"],
        any_order: float,
        calls: int | None,
        generator: torch.Generator | None,
        grid: str | Float[Tensor, " k"] = "canonical",
    ) -> tuple[Int[Tensor, "b d"], Int[Tensor, "b d"], Bool[Tensor, " b"]]:
        """The turns of rows, the same with one turn for all positions of a call, and which rows follow any order."""
        turn = self.turns(len(given), calls=calls, given=given, generator=generator)
        turn, even = mixed_turns(turn, any_order, given=given, generator=generator)
        call = self.call_of(turn, calls, given, grid)
        return turn, turn if call is None else turns_of_calls(turn, call), even

    @checks.known_options
    @torch.no_grad()
    def bound(
        self,
        x_0: Int[Tensor, "N d"] | Split,
        *,
        label: Int[Tensor, " N"] | None = None,
        given: Bool[Tensor, "N d"] | None = None,
        samples: int = 1,
        any_order: float = 0.0,
        calls: int | None = None,
        sampler: str | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        batch_size: int = 128,
        generator: torch.Generator | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Bound:
        """An upper bound on `-log p(x_0)`, with its standard error: the mean cost of random paths.

        With `calls` it is that of what `sample` draws with so many: positions of one call are drawn independently.
        If lengths differ, the prior part is `-log p(length)`, and padding costs nothing.

        Args:
            x_0: data, or a split of a data set, such as `data.test`.
            label: classes, for a network that takes them.
            given: positions that are known; see `dmb.objectives.score_entropy.bound`.
            samples: orders per sequence, one network call each. For the mean over many sequences 1 is best.
            any_order: share of the paths whose order is drawn evenly from all, as for `loss`; the bound is then that of
                rows drawn in such orders.
            calls: network calls of the sampler. Default: one position per call.
            sampler: `ancestral` (default), which takes a number of calls; the others have none.
            grid: how many positions each call writes, as for `sample`: such as `dmb.orders.best_shares`.
            batch_size: sequences per network call.
            generator: source of all randomness.
            progress: called after every batch with its number of sequences.
        """
        if calls is None and (sampler is not None or isinstance(grid, Tensor) or grid != "canonical"):
            name = "grid" if sampler is None else "sampler"
            raise ValueError(f"{name} is of a bound with calls: give calls, too")
        self.step_sampler(sampler)
        x_0, label, given = self._rows(x_0, label, given)
        check_counts(len(x_0), samples, batch_size)
        x_0 = self.states.data("x_0", x_0).to(self.device)
        given, tokens = check_given(given, x_0)
        known = torch.zeros_like(x_0, dtype=torch.bool) if given is None else given
        score, prior = torch.zeros(2, len(x_0), dtype=torch.float64, device=x_0.device)
        if self.lengths is not None:
            prior += self.lengths.nats(self.lengths.of(x_0))
        for rows in samples * torch.arange(len(x_0), device=x_0.device).split(batch_size):
            _, seen, _ = self._plan(known[rows], any_order, calls, generator, grid)
            with self._evaluating():
                cost = self.token_nats(x_0[rows], seen, None if label is None else label[rows])
            cost = torch.where(known[rows], 0.0, cost)
            score[rows] += cost.double().sum(-1) / samples
            if progress is not None:
                progress(len(rows))
        return bound_of_rows(score, prior, self.num_positions, tokens)

    @checks.known_options
    def log_posterior(
        self,
        x_t: Int[Tensor, "b d"],
        t: Any = None,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log p(x_0 | x_t)` at each position. What is not masked shows how far the path has come, not `t`."""
        x_t = self.states.tokens("x_t", x_t).to(self.device)
        return self._conditionals(x_t, x_t != self.num_states - 1, None, label)

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
        """`log p(x_i | x_S)` for positions `i`, with `S` the known ones, see `Bridge.conditionals`.

        A network that follows one order only knows the next position, given all before it; anything else is an error.
        """
        if self.from_left:
            self._check_next(known.to(self.device), at)
        return self._conditionals(x, known, at, label)

    def _check_next(self, known: Bool[Tensor, "b d"], at: Int[Tensor, "b m"] | None) -> None:
        asked = torch.ones_like(known) if at is None else torch.zeros_like(known).scatter(1, at.to(known.device), True)
        order = self.ordered.order
        known, asked = known[:, order], asked[:, order]
        blanks = (~known).cumsum(-1)  # up to each position
        if (known & (blanks > 0)).any() or (asked & (blanks > 1)).any():
            kind = type(self.ordered).__name__
            raise ValueError(f"a {kind} follows one order only: ask for the next position alone, given all before it")

    @torch.no_grad()
    def _conditionals(
        self, x: Int[Tensor, "b d"], known: Bool[Tensor, "b d"], at: Int[Tensor, "b m"] | None, label: Tensor | None
    ) -> Float[Tensor, "b m n"]:
        x, known, label = x.to(self.device), known.to(self.device), self._label(label, len(x))
        x_t, states = torch.where(known, x, self.num_states - 1), self.states.data_states
        turn = self.ordered.default_turns(x_t)
        with self._evaluating():
            if at is None:
                output = self.network(x_t, turn=turn, label=label)
            else:
                at = at.to(self.device)
                output = self.ordered.outputs_at(x_t, at, turn, label)
                x, known, states = x.gather(1, at), known.gather(1, at), states.expand(self.num_positions, -1)[at]
        output = self.without_padding(output)
        log_p = torch.where(states, output.to(numerics.at_least_float32(output)), -torch.inf).double().log_softmax(-1)
        certain = torch.where(torch.arange(self.num_states, device=x.device) == x[..., None], 0.0, -torch.inf)
        return torch.where(known[..., None], certain.to(log_p), log_p)

    def write_order(self) -> WriteOrder:
        return self.order

    @checks.known_options
    def corrupt(
        self, x_0: Int[Tensor, "b d"], t: float, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """The share `t` of the positions of each row is masked, those of the last turns."""
        given, shares = self._given(x_0, None), torch.tensor([1.0, checks.times("t", t, 1, self.device).item(), 0.0])
        call = by_call(self.order.turns(len(x_0), given=given, generator=generator), shares, given)
        return torch.where(call > 0, self.num_states - 1, x_0)

    @checks.known_options
    def corruption_path(
        self, x_0: Int[Tensor, "b d"], states: int, *, generator: torch.Generator | None = None
    ) -> list[State]:
        given, shares = self._given(x_0, None), share_grid(states - 1)
        call = by_call(self.order.turns(len(x_0), given=given, generator=generator), shares, given)
        left = enumerate(shares.flip(0).tolist())
        return [State(t, torch.where(call >= states - 1 - step, self.num_states - 1, x_0)) for step, t in left]

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
        if not isinstance(sampler, str):
            raise ValueError(f"sampler must be one of {', '.join(self.samplers)} for an OrderedBridge, got a function")
        x_T = torch.full((count, self.num_positions), self.num_states - 1, device=self.device)
        if kept is not None and decoding.given is not None:
            x_T = torch.where(decoding.given, kept.expand(count, -1), x_T)
        turn = self.turns(count, calls=calls, given=decoding.given, generator=generator)
        if sampler == "speculative":
            return speculative(self.ordered, self.states, decoding, x_T, turn, generator)
        call = self.call_of(turn, calls, decoding.given, grid)
        return in_order(self.ordered, self.states, decoding, x_T, turn, call, generator)

    def arrivals(self, chains: int, *, calls: int, generator: torch.Generator | None) -> Float[Tensor, "b d n"]:
        x = self.sample(chains, calls=max(calls, self.least_calls), generator=generator)
        return F.one_hot(x, self.num_states).to(torch.get_default_dtype())

    # -- what training asks -------------------------------------------------------------------------------------------

    @property
    def corruption(self) -> WriteOrder:
        return self.order

    def with_parts(self, corruption: WriteOrder, network: nn.Module) -> "OrderedBridge":
        return type(self)(corruption, network, copy.deepcopy(self.states), self.lengths)

    @checks.known_options
    def prior_loss(self, mu: Float[Tensor, "h m"] | None = None) -> Float[Tensor, ""]:
        """0: a path ends only when everything is masked, and then nothing is left of the data."""
        return torch.zeros((), device=self.device)

    def check_settings(self, settings: "TrainingSettings", chosen: Collection[str] = ()) -> None:
        without_effect = OF_A_PROCESS | (OF_J_Q if settings.matrix_objective == "prior" else {})
        for name, nothing in without_effect.items():
            usual, value = getattr(type(settings), name), getattr(settings, name)
            if name in chosen and value not in (usual, nothing):
                why = "which has no forward process"
                raise ValueError(f"{name} has no effect on an OrderedBridge, {why}: leave it out")
        kind, learns = type(self.ordered).__name__, any(p.requires_grad for p in self.order.parameters())
        if self.from_left:
            plain = {"matrix_objective": "prior", "any_order": 0.0, "infill": 0.0}
            for name, value in plain.items():
                if (found := getattr(settings, name)) not in (value, None):
                    raise ValueError(f"{name} must be {value} for a {kind}, which follows one order only, got {found}")
            return
        if settings.matrix_objective == "prior":
            if learns:
                raise ValueError(
                    "J_Q cannot train the speeds of positions: learn them on the bound (matrix_objective=joint, "
                    "orders=2), or keep them (order.requires_grad_(False))"
                )
            return
        if not learns:
            kind = type(self.order).__name__
            raise ValueError(f"matrix_objective must be prior: {kind} is not learned, Smooth and Free are")
        if settings.orders < 2:
            raise ValueError(
                "orders must be at least 2 to learn an order, by comparing two orders of a sequence, "
                f"got {settings.orders}"
            )

    @property
    def _prefers_an_order(self) -> bool:
        """Whether a network that can follow any order may come to see one only."""
        return type(self.order) is not Random and not self.from_left

    def infill_share(self, settings: "TrainingSettings") -> float:
        """A network learns to begin with any positions only if training shows that."""
        if settings.infill is not None:
            return settings.infill
        return INFILL if self._prefers_an_order else 0.0

    def estimator(self, settings: "TrainingSettings") -> Estimator:
        """Where the order is fixed, half of the sequences are written in orders drawn evenly from all.

        So are those of the bound: the best weights must not be those that know the usual orders only.
        """
        fixed = not any(parameter.requires_grad for parameter in self.order.parameters())
        share = settings.any_order
        if share is None:
            share = ANY_ORDER if fixed and self._prefers_an_order and not self.order.budgets else 0.0
        several = {"orders": settings.orders, "singles": settings.fitting_singles}
        score: dict[str, Any] = several | {"any_order": share, "learn_order": settings.matrix_objective == "joint"}
        if self.order.budgets:
            score["calls"] = self.order.budgets
        return Estimator(score, several | {"learn_order": True}, {"any_order": share})

    def learned(self) -> dict[str, list[float] | None]:
        log_speeds = self.order.log_speeds
        learns = log_speeds is not None and any(True for _ in self.order.parameters())
        if log_speeds is None or not learns or len(log_speeds) > MOST_SPEEDS_LOGGED:
            return {"log_speeds": None}
        return {"log_speeds": log_speeds.tolist()}

    def describe_training(self, settings: "TrainingSettings") -> str:
        return "by whole paths" + (", which learn the order as well" if settings.matrix_objective == "joint" else "")


def put_together(
    process: ForwardProcess,
    order: WriteOrder | None,
    network: nn.Module,
    head: str | Head = "mean",
    lengths: Lengths | None = None,
) -> Bridge:
    """An `OrderedBridge` if the network follows an order, otherwise a `MarkovBridge`.

    Args:
        process: the forward process. If the network follows an order it must be masks only, and gives the states.
        order: the order of writing. Default, if the network needs one: its own, or any.
        network: the network.
        head: see `MarkovBridge`.
        lengths: see `MarkovBridge`.
    """
    if not isinstance(network, OrderedNetwork):
        if order is not None:
            raise ValueError(f"write_order must be None for a {type(network).__name__}, which follows no order")
        return MarkovBridge(process, network, head, lengths)
    kind = type(network).__name__
    if not (isinstance(process, BridgeProcess) and process.one_mask):
        raise ValueError(
            f"a {kind} follows an order, in which positions are masked: its process must have a mask as its only "
            "noise, BridgeProcess.from_marginals(marginals, mask=True, floor=0.0) (--process bridge --init gather "
            "--mask --floor 0)"
        )
    if head != "mean" and not isinstance(head, MeanHead):
        got = head if isinstance(head, str) else type(head).__name__
        raise ValueError(f"a network that follows orders needs head='mean', got {got}")
    if order is None:
        order = Random(process.num_positions) if network.order is None else Fixed(network.order)
    states = States(process.num_positions, process.num_states, names=process.names, legal=process.legal)
    return OrderedBridge(order, network, states, lengths)

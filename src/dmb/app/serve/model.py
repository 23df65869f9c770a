"""The model behind the page: draws, films, bounds and noise, for any number of threads. It knows nothing of pages."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.app.evaluation.drawing import AT_ONCE
from dmb.app.report.contents import SHOWN, OpenRun
from dmb.app.runs import Run
from dmb.app.serve.options import LARGEST_SEED, LONGEST, Options, number, whole
from dmb.sampling import State

FRAMES, KEPT = 64, 8  # about how many states a film has besides the last, and of how many samples
LARGEST = 1 << 27  # numbers in the posterior of all samples that are drawn at once
ROWS, ROUNDS = 32, 8  # draws of time and noise for a bound: per round, after which one can cancel, and rounds


class Moment(NamedTuple):
    """Where a draw stands: about which share is done, the time, and all samples, finished or on their way."""

    share: float
    t: float
    x: Int[Tensor, "k d"]


class Estimate(NamedTuple):
    """The bound of what a visitor wrote, so far.

    Args:
        bits: the bound; nan while blanks are filled in.
        stderr: its standard error; 0 if it is exact, nan if there is one draw only.
        tokens: how many were written.
        x: the sequence, blanks filled in.
        share: of the work that is done.
    """

    bits: float
    stderr: float
    tokens: int
    x: Int[Tensor, " d"]
    share: float


class Certainty(NamedTuple):
    """The likeliest clean tokens of one sample, and their probabilities, at every frame of a film."""

    likeliest: Int[Tensor, "f d"]
    probability: Float[Tensor, "f d"]


@dataclass
class Film:
    """States of the first samples, on their way from noise to data.

    Args:
        given: the positions that were known from the beginning; None if none were.
        label: class of the samples, if one was chosen.
    """

    given: Bool[Tensor, " d"] | None = None
    label: int | None = None
    t: list[float] = field(default_factory=list)
    frames: list[Int[Tensor, "k d"]] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def add(self, state: State) -> None:
        """Record a state, and thin the film out when it becomes too long; the last state stays in any case."""
        if self._seen % self._every == 0 or state.t == 0:
            self.t.append(state.t)
            self.frames.append(state.x[:KEPT].cpu().int())
        self._seen += 1
        if len(self.t) > 2 * FRAMES:
            self.t, self.frames = self.t[::2], self.frames[::2]
            self._every *= 2

    def __len__(self) -> int:
        return len(self.t)

    @property
    def samples(self) -> int:
        """How many samples it shows."""
        return len(self.frames[0]) if self.frames else 0

    def of(self, sample: int) -> Int[Tensor, "f d"]:
        """One sample at every frame."""
        return torch.stack([frame[sample] for frame in self.frames]).long()

    def decided(self, sample: int) -> Int[Tensor, " d"]:
        """The frame from which on each position has its final token; 0 where it had it from the beginning.

        >>> film = Film()
        >>> for t, x in ((1.0, [3, 3, 1]), (0.5, [3, 2, 1]), (0.0, [0, 2, 1])):
        ...     film.add(State(t, torch.tensor([x])))
        >>> film.decided(0)
        tensor([2, 1, 0])
        """
        x = self.of(sample)
        number = torch.arange(1, len(x) + 1)[:, None]
        return torch.where(x != x[-1], number, 0).amax(0)


class Playground(OpenRun):
    """A run's model, ready to play with.

    It keeps nothing between calls, and the model is never changed after it is made, so that threads do not disturb each
    other. Long computations are generators, which end when they are closed: nothing goes on in the background.

    Args:
        run: a run that has a model.
        device: where to compute.
    """

    def __init__(self, run: Run, device: str = "cpu"):
        super().__init__(run, device)
        self.bridge.eval().requires_grad_(False)
        self._per_call, self._per_row = self._measured()
        self._pace = 1.0  # how long the last draw took, of what those said

    # -- drawing ------------------------------------------------------------------------------------------------------

    def seconds(self, options: Options, blanks: int) -> float:
        """About how long so many blanks per sample will take, from the time of a network call in the last draw."""
        guided = 2 if options.label is not None and options.guidance != 1 else 1
        per_sample = self.bridge.network_calls(options.calls, options.sampler, blanks)
        per_call = math.ceil(options.n / AT_ONCE) * self._per_call + options.n * self._per_row  # of all batches
        return self._pace * guided * per_sample * per_call

    def draw(
        self, options: Options, template: Int[Tensor, " d"] | None = None, film: Film | None = None
    ) -> Iterator[Moment]:
        """Draw samples, or fill in the blanks of a template, step by step.

        Args:
            options: how.
            template: tokens to keep, -1 for blanks; default: nothing is known.
            film: where to record the states of the first batch.
        """
        size = self.bridge.num_positions * self.bridge.num_states
        blanks = self.bridge.num_positions if template is None else int((template < 0).sum())
        if min(options.n, AT_ONCE) * size > LARGEST:
            most = max(1, LARGEST // size)
            raise ValueError(f"number of samples must be at most {most} for a model of this size, got {options.n}")
        needed = self.seconds(options, blanks)
        if needed > LONGEST:
            raise ValueError(
                f"this would take about {needed / 60:,.0f} minutes, and {LONGEST / 60:,.0f} are allowed: "
                "ask for fewer samples or calls"
            )
        batches = torch.arange(options.n).split(AT_ONCE)
        per_batch = self.bridge.network_calls(options.calls, options.sampler, blanks)
        by_calls = options.sampler in self.bridge.step_samplers
        calls = max(options.calls, self.bridge.least_calls) if by_calls else None
        pace, spent, began = self._pace, 0.0, time.perf_counter()
        finished, generator = list[Tensor](), seeded(options.seed, "samples", device=self.bridge.device)
        for rows in batches:
            states = self.bridge.trajectory(
                len(rows), label=None if options.label is None else torch.full((len(rows),), options.label),
                template=template, calls=calls, sampler=options.sampler,
                temperature=options.temperature, guidance=1.0 if options.label is None else options.guidance,
                generator=generator,
            )  # fmt: skip
            for step, state in enumerate(states, 1):
                spent += time.perf_counter() - began  # without what is done with it, in between
                if film is not None and not finished:
                    film.add(state)
                share = (len(finished) + min(1.0, step / (per_batch + 1))) / len(batches)
                yield Moment(share, state.t, torch.cat([*finished, state.x.cpu()]))
                began = time.perf_counter()
            finished.append(state.x.cpu())
        if needed > 0:
            self._pace = pace * spent / needed

    def certainty(self, film: Film, sample: int) -> Certainty | None:
        """How certain the model was at every frame; None for a score head, which has no posterior."""
        if not self.bridge.has_posterior:
            return None
        x, device = film.of(sample), self.bridge.device
        likeliest, probability = x.clone(), torch.ones(x.shape)
        noisy = torch.tensor([t > 0 for t in film.t])
        given, at_once = film.given, max(1, LARGEST // (8 * self.bridge.num_positions * self.bridge.num_states))
        for rows in noisy.nonzero().squeeze(-1).split(min(16, at_once)):
            label = None if film.label is None else torch.full((len(rows),), film.label, device=device)
            known = None if given is None else given.expand(len(rows), -1).to(device)
            t = torch.tensor([film.t[row] for row in rows.tolist()], dtype=torch.float64, device=device)
            log_p = self.bridge.log_posterior(x[rows].to(device), t, label, known)
            found = log_p.float().max(-1)
            likeliest[rows], probability[rows] = found.indices.cpu(), found.values.exp().cpu()
        if given is not None:
            likeliest, probability = torch.where(given, x, likeliest), torch.where(given, 1.0, probability)
        return Certainty(likeliest, probability)

    # -- the bound ----------------------------------------------------------------------------------------------------

    def bound(self, template: Int[Tensor, " d"], seed: int = 0, label: int | None = None) -> Iterator[Estimate]:
        """An upper bound on `-log2 p` of what is written, with its standard error, better with every round.

        Where the template is blank the model fills it in first; then this is given, and costs nothing. A record ends
        after its last symbol. A network that writes from left to right needs none of this: its bound is exact, by the
        chain rule.

        Args:
            template: tokens, and blanks.
            seed: of all random numbers.
            label: class, if any.
        """
        whole("seed", seed, 0, LARGEST_SEED)
        bridge, lengths = self.bridge, self.bridge.lengths
        if lengths is not None:
            template = torch.where(template == -1, lengths.padding, template)
        blank = template < 0
        written = ~blank if lengths is None else ~blank & (template != lengths.padding)
        count, classes = int(written.sum()), None if label is None else torch.tensor([label], device=bridge.device)
        if not count:
            raise ValueError("there is nothing to compute a bound of: write or choose something first")
        x = template.clamp(min=0)[None]
        if bridge.from_left:
            if (written.int().diff() > 0).any():
                raise ValueError("this model writes from left to right: the blanks must come last")
            costs = bridge.token_nats(x.to(bridge.device), bridge.write_order().turns(1), classes)
            nats = costs[0, written.to(costs.device)].double().sum().item()
            nats += 0.0 if lengths is None else lengths.nats(lengths.of(x)).item()
            yield Estimate(nats / math.log(2), 0.0, count, x[0], 1.0)
            return
        given = None
        if blank.any():
            given, generator = blank.expand(ROWS, -1), seeded(seed, "bound", "rest", device=bridge.device)
            for state in bridge.trajectory(1, template=template, label=classes, generator=generator):
                x = state.x.cpu()
                yield Estimate(math.nan, math.nan, count, x[0], 0.0)
        total, variance, generator = 0.0, 0.0, seeded(seed, "bound", device=bridge.device)
        for done in range(1, ROUNDS + 1):
            label_of_rows = None if classes is None else classes.expand(ROWS)
            found = bridge.bound(x.expand(ROWS, -1), given=given, label=label_of_rows, generator=generator)
            total, variance = total + found.nats, variance + found.variance / ROWS
            nats, stderr = total / done, math.sqrt(variance) / done
            yield Estimate(nats / math.log(2), stderr / math.log(2), count, x[0], done / ROUNDS)

    # -- what noise destroys ------------------------------------------------------------------------------------------

    def noisy(self, example: int, t: int | float, seed: int = 0, copies: int = 4) -> Int[Tensor, "k d"]:
        """A validation example, followed by noisy copies of it at time `t`; padding stays."""
        x_0 = self._example(example, seed)
        number("time", t, 0.0, 1.0)
        generator = seeded(seed, "noise", device=self.bridge.device)
        return torch.cat([x_0, self.bridge.corrupt(x_0.expand(copies, -1), float(t), generator=generator)]).cpu()

    def way(self, example: int, seed: int = 0) -> list[State]:
        """A validation example on its way to noise, at times between which equal shares of all changes fall."""
        generator = seeded(seed, "way", device=self.bridge.device)
        return self.bridge.corruption_path(self._example(example, seed), SHOWN, generator=generator)

    def _example(self, example: int, seed: int) -> Int[Tensor, "1 d"]:
        whole("seed", seed, 0, LARGEST_SEED)
        row = whole("example", example, 1, len(self.examples)) - 1
        return self.examples[row : row + 1].to(self.bridge.device)

    def _measured(self) -> tuple[float, float]:
        """Seconds of a network call: a fixed part, and a part for each row."""
        took, calls = {}, max(2, self.bridge.least_calls)
        for rows in (1, 1, 8):  # the first one warms up
            began = time.perf_counter()
            states_seen = sum(1 for _ in self.bridge.trajectory(rows, calls=calls, generator=seeded(0, "speed")))
            took[rows] = (time.perf_counter() - began) / states_seen
        per_row = max(0.0, (took[8] - took[1]) / 7)
        return max(0.0, took[1] - per_row), per_row

"""The model behind the page: draws, films, bounds and noise, for any number of threads. It knows nothing of pages."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.app.evaluation.drawing import AT_ONCE
from dmb.app.records import best, read_bounds, read_metrics
from dmb.app.report.sampling import SHOWN
from dmb.app.report.symbols import Symbols
from dmb.app.runs import Run
from dmb.app.serve.film import Certainty, Film
from dmb.app.serve.options import LONGEST, Options, number, whole
from dmb.bridges import Bridge
from dmb.data.codecs import Cells
from dmb.sampling import State

LARGEST = 1 << 27
"""Numbers in the posterior of all samples that are drawn at once."""
ROWS, ROUNDS = 32, 8
"""Draws of time and noise for a bound: per round, after which one can cancel, and rounds."""


class Moment(NamedTuple):
    """Where a draw stands."""

    share: float
    """Of the work that is done, about."""
    t: float
    x: Int[Tensor, "k d"]
    """The samples that are finished, and those on their way."""


class Estimate(NamedTuple):
    """The bound of what a visitor wrote, so far."""

    bits: float
    stderr: float
    """Of `bits`; 0 if they are exact, nan if there is one draw only."""
    tokens: int
    """What was written."""
    x: Int[Tensor, " d"]
    """The sequence, blanks filled in."""
    share: float


class Playground:
    """A run's model, ready to play with.

    It keeps nothing between calls, and the model is never changed after it is made, so that threads do not disturb each
    other. Long computations are generators, which end when they are closed: nothing goes on in the background.

    Args:
        run: a run that has a model.
        device: where to compute.
    """

    def __init__(self, run: Run, device: str = "cpu"):
        self.run, self.codec = run, run.codec
        self.bridge: Bridge = run.bridge(device).eval().requires_grad_(False)
        self.symbols = Symbols(run.codec, self.bridge.states)
        self.examples: Int[Tensor, "e d"] = run.summary()["examples"]
        self.marginals = run.summary()["marginals"]
        self.view = run.codec.view(self.examples[:1])
        self.calls = 0
        """Network calls of all draws so far."""
        self._per_call, self._per_row = self._measured()

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def samplers(self) -> list[str]:
        """Names of the samplers that the model can use, the default first."""
        return list(self.bridge.samplers)

    @property
    def from_left(self) -> bool:
        """Whether the network follows one order, so that only a beginning can be given."""
        return self.bridge.from_left

    def about(self) -> list[tuple[str, str]]:
        """The model in a few facts."""
        bridge, run, source = self.bridge, self.run, Path(self.run.recipe.data.source).name
        names = "columns" if isinstance(self.view, Cells) else f"{self.codec.token}s"
        size = sum(parameter.numel() for parameter in bridge.network.parameters())
        masks = {0: "", 1: " with a mask"}.get(bridge.states.names, f" with {bridge.states.names} names")
        facts = [
            ("Data", f"{source}: {bridge.num_positions:,} {names}, {self.codec.num_states:,} states"),
            (bridge.corruption_title, f"{type(bridge.corruption).__name__}{masks}"),
            ("Network", f"{type(bridge.network).__name__} with {size:,} parameters"),
        ]
        record, found = best(read_metrics(run.path)), read_bounds(run.path)
        current = [b for b in found.values() if record is None or b.step == record.step]
        if current:
            facts.append(("Bound", next((b for b in current if b.split == "test"), current[0]).in_words()))
        elif record is not None and math.isfinite(record.bits):
            bits = f"{record.bits:.4f} ± {record.stderr:.4f} bits per {self.codec.token}"
            facts.append(("Bound", f"{bits} on validation, in training"))
        return facts

    # -- drawing ------------------------------------------------------------------------------------------------------

    def seconds(self, options: Options, blanks: int | None = None) -> float:
        """About how long a draw will take, from the time of one network call when the page was started."""
        calls, last = divmod(options.n, AT_ONCE)
        per_batch = [AT_ONCE] * calls + [last] * (last > 0)
        guided = 2 if options.label is not None and options.guidance != 1 else 1
        blanks = self.bridge.num_positions if blanks is None else blanks
        per_sample = self.bridge.network_calls(options.calls, options.sampler, blanks)
        return guided * per_sample * sum(self._per_call + rows * self._per_row for rows in per_batch)

    def draw(
        self, options: Options, template: Int[Tensor, " d"] | None = None, film: Film | None = None
    ) -> Iterator[Moment]:
        """Draw samples, or fill in the blanks of a template, step by step.

        Args:
            options: how.
            template: tokens to keep, -1 for blanks; default: nothing is known.
            film: where to record the states of the first batch.
        """
        blanks, size = self.bridge.num_positions, self.bridge.num_positions * self.bridge.num_states
        if template is not None:
            blanks = int((template < 0).sum())
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
        finished, generator = list[Tensor](), seeded(options.seed, "samples", device=self.bridge.device)
        for rows in batches:
            states = self.bridge.trajectory(
                len(rows), label=None if options.label is None else torch.full((len(rows),), options.label),
                template=template, calls=max(options.calls, self.bridge.least_calls), sampler=options.sampler,
                temperature=options.temperature, guidance=1.0 if options.label is None else options.guidance,
                generator=generator,
            )  # fmt: skip
            for step, state in enumerate(states, 1):
                self.calls += 1
                if film is not None and not finished:
                    film.add(state)
                share = (len(finished) + min(1.0, step / (per_batch + 1))) / len(batches)
                yield Moment(share, state.t, torch.cat([*finished, state.x.cpu()]))
            finished.append(state.x.cpu())

    def certainty(self, film: Film, sample: int) -> Certainty | None:
        """How certain the model was at every frame; None for a score head, which has no posterior."""
        if not self.bridge.has_posterior:
            return None
        x, device = film.of(sample), self.bridge.device
        likeliest, probability = x.clone(), torch.ones(x.shape)
        noisy = torch.tensor([t > 0 for t in film.t])
        given, at_once = film.given(), max(1, LARGEST // (8 * self.bridge.num_positions * self.bridge.num_states))
        for rows in noisy.nonzero().squeeze(-1).split(min(16, at_once)):
            label = None if film.label is None else torch.full((len(rows),), film.label, device=device)
            known = None if given is None else given.expand(len(rows), -1).to(device)
            t = torch.tensor([film.t[row] for row in rows.tolist()], dtype=torch.float64, device=device)
            log_p = self.bridge.log_posterior(x[rows].to(device), t, label, known)
            found = log_p.float().max(-1)
            likeliest[rows], probability[rows] = found.indices.cpu(), found.values.exp().cpu()
            self.calls += 1
        if given is not None:
            likeliest, probability = torch.where(given, x, likeliest), torch.where(given, 1.0, probability)
        return Certainty(likeliest, probability)

    # -- the bound ----------------------------------------------------------------------------------------------------

    def bound(self, template: Int[Tensor, " d"], seed: int = 0, label: int | None = None) -> Iterator[Estimate]:
        """An upper bound on `-log2 p` of what is written, with its standard error, better with every round.

        Where the template is blank the model fills it in first; then this is given, and costs nothing. A record ends
        after its last symbol. A network that writes from left to right needs none of this: its bound is exact.

        Args:
            template: tokens, and blanks.
            seed: of all random numbers.
            label: class, if any.
        """
        whole("seed", seed, 0, 1 << 53)
        bridge, lengths = self.bridge, self.bridge.lengths
        if lengths is not None:
            template = torch.where(template == -1, lengths.padding, template)
        written = template >= 0
        if lengths is not None:
            written = written & (template != lengths.padding)
        if not written.any():
            raise ValueError("there is nothing to compute a bound of: write or choose something first")
        classes = None if label is None else torch.tensor([label])
        if self.from_left:
            yield self._exact(template.clamp(min=0)[None], written, classes)
            return
        x = template[None]
        if (template < 0).any():
            generator = seeded(seed, "bound", "rest", device=bridge.device)
            for state in bridge.trajectory(1, template=template, label=classes, generator=generator):
                self.calls += 1
                x = state.x.cpu()
                yield Estimate(math.nan, math.nan, int(written.sum()), x[0], 0.0)
        total, variance, count = 0.0, 0.0, int(written.sum())
        generator = seeded(seed, "bound", device=bridge.device)
        given = (template < 0).expand(ROWS, -1) if (template < 0).any() else None
        for done in range(1, ROUNDS + 1):
            found = bridge.bound(
                x.expand(ROWS, -1), given=given, label=None if classes is None else classes.expand(ROWS),
                generator=generator,
            )  # fmt: skip
            self.calls += 1
            total, variance = total + found.nats, variance + found.variance / ROWS
            nats, stderr = total / done, math.sqrt(variance) / done
            yield Estimate(nats / math.log(2), stderr / math.log(2), count, x[0], done / ROUNDS)

    @torch.no_grad()
    def _exact(self, x: Int[Tensor, "1 d"], written: Bool[Tensor, " d"], label: Tensor | None) -> Estimate:
        """By the chain rule, from left to right: what is not written must come last."""
        if (written.int().diff() > 0).any():
            raise ValueError("this model writes from left to right: the blanks must come last")
        bridge, x = self.bridge, x.to(self.bridge.device)
        costs = bridge.token_nats(x, bridge.write_order().turns(1), None if label is None else label.to(x.device))
        nats = costs[0, written.to(costs.device)].double().sum().item()
        if bridge.lengths is not None:
            nats += bridge.lengths.nats(bridge.lengths.of(x)).item()
        return Estimate(nats / math.log(2), 0.0, int(written.sum()), x[0], 1.0)

    # -- the forward process ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def noisy(self, example: int, t: int | float, seed: int = 0, copies: int = 4) -> Int[Tensor, "k d"]:
        """A validation example, followed by noisy copies of it at time `t`; padding stays."""
        whole("example", example, 1, len(self.examples))
        number("time", t, 0.0, 1.0)
        whole("seed", seed, 0, 1 << 53)
        x_0 = self.examples[int(example) - 1 : int(example)].to(self.bridge.device)
        generator = seeded(seed, "noise", device=self.bridge.device)
        x_t = self.bridge.corrupt(x_0.expand(copies, -1), float(t), generator=generator)
        return torch.cat([x_0, x_t]).cpu()

    def way(self, example: int, seed: int = 0) -> list[State]:
        """A validation example on its way to noise, at times between which equal shares of all changes fall."""
        whole("example", example, 1, len(self.examples))
        x_0 = self.examples[int(example) - 1 : int(example)].to(self.bridge.device)
        generator = seeded(seed, "way", device=self.bridge.device)
        return [State(t, x.cpu()) for t, x in self.bridge.corruption_path(x_0, SHOWN, generator=generator)]

    def _measured(self) -> tuple[float, float]:
        """Seconds of a network call: a fixed part, and a part for each row."""
        took, calls = {}, max(2, self.bridge.least_calls)
        for rows in (1, 1, 8):  # the first one warms up
            began = time.perf_counter()
            states_seen = sum(1 for _ in self.bridge.trajectory(rows, calls=calls, generator=seeded(0, "speed")))
            took[rows] = (time.perf_counter() - began) / states_seen
        per_row = max(0.0, (took[8] - took[1]) / 7)
        return max(0.0, took[1] - per_row), per_row

"""The processes that the contract is checked on, each beside its dense generators built by loops."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np
import torch

import dmb

import oracles


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], dmb.ForwardProcess]  # float64
    states: tuple[int, ...] | None = None  # how many states each position has, if not all have as many

    @cached_property
    def built(self) -> dmb.ForwardProcess:
        """One to look at; tests that do more take a `process` of their own."""
        return self.build()

    def process(self, dtype=torch.float64):
        process = copy.deepcopy(self.built)
        return process if dtype == torch.float64 else process.to(dtype)

    @mpmath.workdps(50)
    def integrated(self, begin: float, end: float) -> np.ndarray:
        """`∫ Q du` between two clock times, `[d, n, n]` to 50 digits; all `Q` commute, so its exponential is exact."""
        return self._dense(lambda intensity: intensity(mpmath.mpf(end)) - intensity(mpmath.mpf(begin)))

    @mpmath.workdps(50)
    def generator(self, u: float) -> np.ndarray:
        """`Q` at a clock time, `[d, n, n]`."""
        return self._dense(lambda intensity: oracles.slope(intensity, mpmath.mpf(u))).astype(float)

    def _dense(self, measure: Callable) -> np.ndarray:
        """From the parameters that the process shows; `measure` is taken of how intensities grow with clock time."""
        process = self.built
        n, positions = process.num_states, range(process.num_positions)

        def rows(parameter):
            return parameter.detach().expand(process.num_positions, *parameter.shape[1:]).numpy()

        if isinstance(process, dmb.TokenwiseMasking):
            clocks = [[measure(oracles.delayed(mpmath.mpf(float(w)))) for w in row] for row in rows(process.exponents)]
            return np.stack([oracles.masking_rates(np.array(row, dtype=object)) for row in clocks])
        if isinstance(process, dmb.BridgeProcess):
            alpha, rank = rates_by_loops(process), rows(process.rank)
            clocks = alpha * measure(oracles.steady)
            if isinstance(process.clocks, dmb.Varying):
                profiles = [measure(profile) for profile in oracles.PROFILES]
                mixtures = [[oracles.softmax(logits) for logits in row.T] for row in rows(process.clocks.raw_profile)]
                clocks = alpha * np.dot(np.array(mixtures, dtype=object), profiles)
            return np.stack([oracles.bridge_rates(clocks[i], rank[i]) for i in positions])
        if isinstance(process, dmb.UniformProcess):
            Q = np.stack([oracles.uniform_rates(self.states[i] if self.states else n, n) for i in positions])
        else:
            Q = rows(process.rate_matrix())
        return Q.astype(object) * measure(oracles.steady)

    def legal(self) -> np.ndarray:
        process = self.built
        legal = np.ones((process.num_positions, process.num_states), bool)
        for i, count in enumerate(self.states or ()):
            legal[i, count:] = False
            legal[i, process.num_states - process.names :] = True
        return legal

    def pairs(self):
        """Every `(x_0, x_t)` of legal tokens, as two batches in which all positions run through the pairs at once."""
        legal = self.legal()
        pairs = [[(a, b) for a in np.flatnonzero(row) for b in np.flatnonzero(row)] for row in legal]
        size = max(map(len, pairs))
        grid = np.array([[p[k % len(p)] for p in pairs] for k in range(size)])
        return torch.tensor(grid[..., 0]), torch.tensor(grid[..., 1])


def rates_by_loops(process):
    """The rate of every clock of every position: its own or that of all."""
    clocks = process.clocks
    log_rates, running = clocks.log_rates.tolist(), clocks.running.tolist()
    rates = np.zeros((process.num_positions, len(log_rates[0])), dtype=object)
    for i, k in np.ndindex(*rates.shape):
        row = i % len(log_rates)
        rates[i, k] = mpmath.exp(mpmath.mpf(log_rates[row][k])) if running[row][k] else mpmath.mpf(0)
    return rates


def marginals(d, n, seed=0, states=None):
    p = torch.rand(d, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2
    for i, count in enumerate(states or ()):
        p[i, count:] = 0
    return p / p.sum(-1, keepdim=True)


def with_rates(process, low, high, seed=1):
    """Replace the rates of all clocks that run by log-uniform ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        raw = process.clocks.log_rates
        raw.copy_(torch.rand(raw.shape, generator=generator, dtype=raw.dtype) * np.log(high / low) + np.log(low))
    return process


RAGGED = (2, 5, 3)


def bridge(low=0.1, high=3.0, d=2, n=5, states=None, **options):
    counts = torch.tensor(states) if states else None
    process = dmb.BridgeProcess.from_marginals(marginals(d, n, states=states), state_counts=counts, **options)
    return with_rates(process, low, high)


def stages(**options):
    """The rates that `nested` starts from, 20 times as fast in each stage as in the next."""
    return dmb.BridgeProcess.from_marginals(marginals(2, 6), init="nested", floor=1e-3, **options)


def with_profiles(process):
    """Every clock a mixture of its own, some of them hardly steady at all."""
    with torch.no_grad():
        process.clocks.raw_profile.normal_(std=2.0, generator=torch.Generator().manual_seed(2))
    return process


def varying(**options):
    return with_profiles(bridge(clocks=dmb.Varying, **options))


def top_clock_only(d=2, states=None, **options):
    """Nothing but the top clock runs, into a state that data visit: what the paper sets for text."""
    counts = torch.tensor(states) if states else None
    p = marginals(d, 5, states=states)
    return dmb.BridgeProcess.from_marginals(p, floor=0.0, state_counts=counts, **options)


def tokenwise(low=0.3, high=3.0, d=2, n=4, states=None, **options):
    counts = torch.tensor(states) if states else None
    process = dmb.TokenwiseMasking.from_marginals(marginals(d, n, states=states), state_counts=counts, **options)
    with torch.no_grad():
        process.log_exponents.uniform_(np.log(low), np.log(high), generator=torch.Generator().manual_seed(4))
    return process


def random_dense():
    Q = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    Q = Q - torch.diag_embed(Q.diagonal(dim1=1, dim2=2))
    return dmb.DenseProcess(Q - torch.diag_embed(Q.sum(-1)))


class Chain(dmb.ForwardProcess):
    """A process of the user's own: its constructor, and its rates."""

    def __init__(self, num_positions, num_states, schedule=None, marginals=None):
        super().__init__(num_positions, num_states, schedule, marginals=marginals)
        self.log_speed = torch.nn.Parameter(torch.zeros(num_states - 1))

    def rate_matrix(self):
        up = torch.diag(self.log_speed.exp(), 1)
        return (up + up.T / 2 - torch.diag((up + up.T / 2).sum(1)))[None]


CASES = [
    Case("bridge ascending", lambda: bridge(init="uniform")),
    Case("bridge descending", lambda: bridge(order="descending")),
    Case("bridge natural order", lambda: bridge(order="natural")),
    Case("bridge with a permutation of one's own", lambda: bridge(order=torch.tensor([[4, 2, 0, 1, 3]]))),
    Case("bridge tied", lambda: bridge(tied=True)),
    Case("bridge in stages", stages),
    Case("bridge as published", lambda: dmb.BridgeProcess.from_marginals(marginals(2, 5))),
    Case("bridge as published for text", lambda: top_clock_only(order="descending", tied=True)),
    Case("bridge with the top clock only", top_clock_only),
    Case("ragged bridge with the top clock only", lambda: top_clock_only(d=3, states=RAGGED), RAGGED),
    Case("bridge in canonical time", lambda: bridge(schedule=dmb.Canonical())),
    Case("bridge with wild rates", lambda: bridge(1e-8, 1e4)),
    Case("bridge with fast rates", lambda: bridge(1.0, 1e4, order="descending")),
    Case("bridge with slow rates", lambda: bridge(1e-8, 1e-4)),
    Case("bridge with mask", lambda: bridge(mask=True)),
    Case("masked diffusion", lambda: dmb.BridgeProcess.from_marginals(marginals(2, 4), mask=True, floor=0.0)),
    Case("bridge matched to uniform", lambda: dmb.BridgeProcess.from_marginals(marginals(2, 5), init="match")),
    Case("ragged bridge", lambda: bridge(d=3, states=RAGGED), RAGGED),
    Case("ragged bridge with mask", lambda: bridge(d=3, states=RAGGED, mask=True), RAGGED),
    Case("ragged bridge matched to uniform", lambda: bridge_matched_ragged(), RAGGED),
    Case("uniform", lambda: dmb.UniformProcess(2, 5).double()),
    Case("ragged uniform", lambda: dmb.UniformProcess(3, 5, state_counts=torch.tensor(RAGGED)).double(), RAGGED),
    Case("uniform, geometric", lambda: dmb.UniformProcess(2, 5, schedule=dmb.processes.time.Geometric()).double()),
    Case("dense", random_dense),
    Case("a process of one's own", lambda: Chain(2, 4, marginals=marginals(2, 4)).double()),
    Case("varying bridge", lambda: varying(init="uniform")),
    Case("varying bridge, tied, in canonical time", lambda: varying(tied=True, schedule=dmb.Canonical())),
    Case("ragged varying bridge", lambda: varying(d=3, states=RAGGED), RAGGED),
    Case("varying bridge with mask", lambda: varying(n=4, mask=True)),
    Case("varying bridge in stages", lambda: with_profiles(stages(clocks=dmb.Varying))),
    Case("tokenwise masking", tokenwise),
    Case("tokenwise masking, tied, in canonical time", lambda: tokenwise(tied=True, schedule=dmb.Canonical())),
    Case("ragged tokenwise masking", lambda: tokenwise(d=3, n=5, states=RAGGED), RAGGED),
]


def bridge_matched_ragged():
    return dmb.BridgeProcess.from_marginals(
        marginals(3, 5, states=RAGGED), init="match", state_counts=torch.tensor(RAGGED)
    )

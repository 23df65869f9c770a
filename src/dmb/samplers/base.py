"""What all samplers share: the time grid, and the model with temperature, guidance and given positions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb import checks, numerics
from dmb.heads import MeanHead
from dmb.processes.base import ForwardProcess
from dmb.schedules import Canonical, Clock

if TYPE_CHECKING:  # which imports this module
    import dmb.bridge

GRIDS = ("canonical", "uniform", "cosine")


class State(NamedTuple):
    """The current state of a sampler."""

    t: float
    """The time of all rows, or the latest of them."""
    x: Int[Tensor, "b d"]


@runtime_checkable
class Sampler(Protocol):
    """Runs the chain in reverse from `x_T`, yielding every state on the way; the last has `t = 0`."""

    def __call__(
        self,
        denoiser: "Denoiser",
        x_T: Int[Tensor, "b d"],
        times: Float[Tensor, " k"],
        generator: torch.Generator | None,
    ) -> Iterator[State]: ...


@dataclass(frozen=True)
class Denoiser:
    """A model with the user's options for its samples.

    Args:
        model: the model.
        label: class of each row.
        guidance: classifier-free guidance. 1: the model given the label; 0: the model without it; above 1: further away
            from the model without it.
        temperature: temperature of the posterior over clean tokens.
        top_p: keep the likeliest clean tokens that have this total probability.
        given: positions that hold data and do not change.
        legal: the clean tokens that may be drawn at each position; see `legal_states`.
    """

    model: "dmb.bridge.Bridge"
    label: Int[Tensor, " b"] | None = None
    guidance: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    given: Bool[Tensor, "b d"] | None = None
    legal: Bool[Tensor, "b d n"] | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.guidance != 1 and self.label is None:
            raise ValueError("guidance needs a label: give one, or leave guidance at 1")
        if self.legal is not None and not isinstance(self.model.head, MeanHead):
            raise ValueError("legal restricts the posterior over clean tokens, which needs head='mean'")

    @property
    def process(self) -> ForwardProcess:
        return self.model.process

    def log_posterior(self, x_t: Int[Tensor, "b d"], clock: Clock) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)`, restricted to legal tokens, guided, tempered and cut to its nucleus."""
        return self.shaped(*map(self._restricted, self._told(self.model.log_posterior, x_t, clock)))

    def shaped(
        self, log_posterior: Float[Tensor, "b m n"], without: Float[Tensor, "b m n"] | None = None
    ) -> Float[Tensor, "b m n"]:
        """A posterior, guided away from the one `without` a label, tempered and cut to its nucleus."""
        log_posterior = self._guided(log_posterior, without)
        if without is not None or self.temperature != 1:
            log_posterior = numerics.log_normalise(log_posterior / self.temperature)
        if self.top_p < 1:
            log_posterior = _nucleus(log_posterior, self.top_p)
        return log_posterior

    def log_score(self, x_t: Int[Tensor, "b d"], clock: Clock) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)`; with the mean head that of the posterior above, with the score head guided itself."""
        if self.guidance == 1 and self.temperature == 1 and self.top_p == 1 and self.legal is None:
            return self.model.log_score(x_t, clock, self.label, self.given)
        if isinstance(self.model.head, MeanHead):
            return self.process.log_score(self.log_posterior(x_t, clock), x_t, clock)
        if self.temperature != 1 or self.top_p != 1:
            raise ValueError("temperature and top_p act on the posterior over clean tokens, which needs head='mean'")
        return self._guided(*self._told(self.model.log_score, x_t, clock))

    def keep_given(self, x: Int[Tensor, "b d"], x_T: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        return x if self.given is None else torch.where(self.given, x_T, x)

    def _told(self, evaluate: Callable[..., Tensor], x_t: Int[Tensor, "b d"], clock: Clock) -> list[Tensor]:
        """The model's output, and for guidance also its output without the label."""
        told = [evaluate(x_t, clock, self.label, self.given)]
        if self.label is not None and self.guidance != 1:
            told.append(evaluate(x_t, clock, torch.full_like(self.label, -1), self.given))
        return told

    def _restricted(self, log_posterior: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        if self.legal is None:
            return log_posterior
        return numerics.log_normalise(torch.where(self.legal, log_posterior, -torch.inf))

    def _guided(self, told: Float[Tensor, "b m n"], without: Float[Tensor, "b m n"] | None = None) -> Tensor:
        if without is None:
            return told
        guided = without + self.guidance * (told - without)
        return torch.where(without > -torch.inf, guided, -torch.inf)  # -inf - -inf is nan


def default_sampler(model: "dmb.bridge.Bridge") -> str:
    """`ancestral`, which is exact, for a mean head; `tweedie` for a score head, which has no posterior."""
    return "ancestral" if isinstance(model.head, MeanHead) else "tweedie"


def step_by_step(
    denoiser: Denoiser,
    x_T: Int[Tensor, "b d"],
    times: Float[Tensor, " k"],
    generator: torch.Generator | None,
    probabilities: Callable[..., Tensor],
) -> Iterator[State]:
    """Samplers that turn a score into unnormalised `p(x_s | x_t)` at each position."""
    x = x_T
    yield State(1.0, x)
    for (_, now), (s, earlier) in pairwise(clocks_at(denoiser.process, times, len(x_T))):
        weights = probabilities(denoiser.process, denoiser.log_score(x, now), x, now, earlier, to_data=s == 0)
        x = denoiser.keep_given(numerics.categorical(weights, generator=generator), x_T)
        yield State(s, x)


def clocks_at(process: ForwardProcess, times: Float[Tensor, " k"], batch: int) -> Iterator[tuple[float, Clock]]:
    """Every time of a grid, and the clock time of it for `batch` rows."""
    for t in times.tolist():
        yield t, process.clock(t, batch)


def time_grid(
    process: ForwardProcess, steps: int, grid: str | Float[Tensor, " k"] = "canonical"
) -> Float[Tensor, " k"]:
    """Times from 1 down to 0 (float64, `[steps + 1]`).

    Args:
        process: the forward process.
        steps: number of steps; ignored if `grid` is a tensor.
        grid: `canonical` (equal shares of all changes per step, whatever the schedule), `uniform` in `t`, `cosine` (few
            changes in the first steps, many in the last), or your own times, decreasing from 1 to 0.

    >>> from dmb import UniformProcess
    >>> time_grid(UniformProcess(1, 2), 4, "uniform")
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    if isinstance(grid, Tensor):
        return share_grid(steps, grid)
    share = share_grid(steps, grid).to(process.device)
    one = torch.ones(1, dtype=torch.float64, device=process.device)
    if grid == "uniform" or not (process.exits(one).intensity * process.p_0 > 0).any():  # or nothing ever changes
        return share
    # only shares of changes are read off it, so all that matters is that its range holds that of any schedule
    canonical = Canonical(survival=1e-12).bind(process.stage_mass)
    end = process.solve(one).sigma_bar
    clock_time = canonical(share * canonical.inverse(end, process.exits), process.exits).sigma_bar
    times = process.schedule.inverse(clock_time, process.exits).clamp(0, 1)
    times[0], times[-1] = 1.0, 0.0
    return times


def share_grid(steps: int, grid: str | Float[Tensor, " k"] = "canonical") -> Float[Tensor, " k"]:
    """The share of changes left after every step, from 1 down to 0 (float64, `[steps + 1]`); grids as in `time_grid`.

    >>> share_grid(4)
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    if isinstance(grid, Tensor):
        grid = grid.double()
        if grid.ndim != 1 or len(grid) < 2 or grid[0] != 1 or grid[-1] != 0 or (grid.diff() >= 0).any():
            raise ValueError(f"grid must fall strictly from 1 to 0, got {grid.tolist()[:8]}")
        return grid
    checks.choice("grid", grid, GRIDS)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    share = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return torch.sin(torch.pi / 2 * share) if grid == "cosine" else share


def split_template(
    process: ForwardProcess, template: Int[Tensor, "..."] | None
) -> tuple[Int[Tensor, "b d"] | None, Bool[Tensor, "b d"] | None]:
    """The tokens of a template, and where they are; -1 is a blank."""
    if template is None:
        return None, None
    template = template[None] if template.ndim == 1 else template
    given = template >= 0
    # blanks are checked as state 0, which every position has
    kept = process.data("template", torch.where(given, template, 0))
    return kept.to(process.device), given.to(process.device)


def legal_states(
    process: ForwardProcess,
    count: int,
    legal: Bool[Tensor, "..."] | None,
    given: Bool[Tensor, "b d"] | None = None,
) -> Bool[Tensor, "b d n"] | None:
    """The clean tokens that may be drawn at each position of `count` rows.

    Args:
        process: the forward process.
        count: number of rows.
        legal: which states may be drawn: `[n]`, `[d, n]` or `[b, d, n]`, or anything that broadcasts to the last. Names
            of the process, such as a mask, may be left out of `n`; they are never drawn. Default: all data states.
        given: positions that are not drawn, where nothing is restricted.

    >>> from dmb import UniformProcess
    >>> legal_states(UniformProcess(num_positions=2, num_states=3), 1, torch.tensor([True, True, False]))
    tensor([[[ True,  True, False],
             [ True,  True, False]]])
    """
    if legal is None:
        return None
    shape = (count, process.num_positions, process.num_states)
    wide = legal.to(process.device)
    if process.names and wide.shape[-1:] == (process.num_states - process.names,):
        wide = torch.nn.functional.pad(wide, (0, process.names))
    try:
        wide = wide.expand(shape)
    except RuntimeError:
        raise ValueError(f"legal must broadcast to shape {list(shape)}, got {list(legal.shape)}") from None
    wide = (wide if given is None else wide | given[..., None]) & process.data_states
    nothing = ~wide.any(-1)
    if nothing.any():
        row, position = nothing.nonzero()[0].tolist()
        raise ValueError(f"legal must allow a token at every blank, got none at row {row}, position {position}")
    return wide


def draw_prior(
    process: ForwardProcess,
    count: int,
    *,
    legal: Bool[Tensor, "b d n"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b d"]:
    """`x_T ~ p_T`, by inverse CDF, position by position; no `[b, d, n]` tensor.

    With `legal`, the noise that `p_0` restricted to legal tokens turns into: a token that survives to `t = 1` is legal.
    """
    if legal is not None:
        weights = torch.where(legal, process.p_0.detach(), 0.0).double()
        nothing = weights.sum(-1, keepdim=True) == 0  # a legal token that the marginals take for impossible
        x_0 = numerics.categorical(torch.where(nothing, legal.double(), weights), generator=generator)
        return process.sample(x_0, 1.0, generator=generator)
    cdf = process.p_T.detach().double().cumsum(-1).expand(process.num_positions, -1).contiguous()
    uniform = torch.rand(process.num_positions, count, generator=generator, device=cdf.device, dtype=torch.float64)
    drawn = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)
    last = (cdf < cdf[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum(drawn, last).T.contiguous()


def _nucleus(log_p: Float[Tensor, "b d n"], top_p: float) -> Float[Tensor, "b d n"]:
    """Keep the likeliest states until their mass reaches `top_p`; always at least one."""
    ordered, index = log_p.sort(-1, descending=True)
    before = numerics.prefix_sum(ordered.exp())
    ordered = ordered.masked_fill(before >= top_p, -torch.inf)
    return numerics.log_normalise(torch.empty_like(log_p).scatter_(-1, index, ordered))

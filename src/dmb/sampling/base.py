"""What all samplers share: the time grid, and the model with temperature, guidance and given positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import checks, numerics
from dmb.processes.base import ForwardProcess
from dmb.processes.states import States
from dmb.processes.time import Canonical, SolvedTime

if TYPE_CHECKING:  # which imports this module
    import dmb.bridges

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


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The user's options for samples, for every model that has a posterior over clean tokens.

    Args:
        label: class of each row.
        guidance: classifier-free guidance. 1: the model given the label; 0: the model without it; above 1: further away
            from the model without it.
        temperature: temperature of the posterior over clean tokens.
        top_p: keep the likeliest clean tokens that have this total probability.
        given: positions that hold data and do not change.
        legal: the clean tokens that may be drawn at each position; see `legal_states`.
    """

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

    def labels(self) -> list[Int[Tensor, " b"] | None]:
        """The labels to ask the model with: those of the rows, and for guidance also none."""
        without = self.label is not None and self.guidance != 1
        return [self.label, torch.full_like(self.label, -1)] if without and self.label is not None else [self.label]

    def shaped(
        self, log_posterior: Float[Tensor, "b m n"], without: Float[Tensor, "b m n"] | None = None
    ) -> Float[Tensor, "b m n"]:
        """A posterior, guided away from the one `without` a label, tempered and cut to its nucleus."""
        log_posterior = self.guided(log_posterior, without)
        if without is not None or self.temperature != 1:
            log_posterior = numerics.log_normalise(log_posterior / self.temperature)
        if self.top_p < 1:
            log_posterior = _nucleus(log_posterior, self.top_p)
        return log_posterior

    def guided(self, output: Float[Tensor, "b m n"], without: Float[Tensor, "b m n"] | None = None) -> Tensor:
        """Outputs with the label, away from those `without` it."""
        if without is None:
            return output
        guided = without + self.guidance * (output - without)
        return torch.where(without > -torch.inf, guided, -torch.inf)  # -inf - -inf is nan

    def keep_given(self, x: Int[Tensor, "b d"], x_T: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        return x if self.given is None else torch.where(self.given, x_T, x)


@dataclass(frozen=True)
class Denoiser(Decoding):
    """A model with the user's options for its samples, which are those of `Decoding`.

    Args:
        model: the model.
    """

    model: "dmb.bridges.MarkovBridge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.legal is not None and not self.model.has_posterior:
            raise ValueError("legal restricts the posterior over clean tokens, which needs head='mean'")

    @property
    def process(self) -> ForwardProcess:
        return self.model.process

    def log_posterior(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)`, restricted to legal tokens, guided, tempered and cut to its nucleus."""
        each = (self.model._log_posterior(x_t, now, label, self.given) for label in self.labels())
        return self.shaped(*map(self._restricted, each))

    def log_score(self, x_t: Int[Tensor, "b d"], now: SolvedTime) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)`; with the mean head that of the posterior above, with the score head guided itself."""
        if self.guidance == 1 and self.temperature == 1 and self.top_p == 1 and self.legal is None:
            return self.model._log_score(x_t, now, self.label, self.given)
        if self.model.has_posterior:
            return self.process._log_score(self.log_posterior(x_t, now), x_t, now)
        if self.temperature != 1 or self.top_p != 1:
            raise ValueError("temperature and top_p act on the posterior over clean tokens, which needs head='mean'")
        return self.guided(*(self.model._log_score(x_t, now, label, self.given) for label in self.labels()))

    def _restricted(self, log_posterior: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        if self.legal is None:
            return log_posterior
        return numerics.log_normalise(torch.where(self.legal, log_posterior, -torch.inf))


def time_grid(
    process: ForwardProcess, calls: int, grid: str | Float[Tensor, " k"] = "canonical"
) -> Float[Tensor, " k"]:
    """Times from 1 down to 0 (float64, `[calls + 1]`).

    Args:
        process: the forward process.
        calls: number of steps, one network call each; ignored if `grid` is a tensor.
        grid: `canonical` (equal shares of all changes per step, whatever the schedule), `uniform` in `t`, `cosine` (few
            changes in the first steps, many in the last), or your own times, decreasing from 1 to 0.

    >>> from dmb import UniformProcess
    >>> time_grid(UniformProcess(1, 2), 4, "uniform")
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    if isinstance(grid, Tensor):
        return share_grid(calls, grid)
    share = share_grid(calls, grid).to(process.device)
    one = torch.ones(1, dtype=torch.float64, device=process.device)
    if grid == "uniform" or not (process.exits(one).intensity * process.p_0 > 0).any():  # or nothing ever changes
        return share
    # only shares of changes are read off it, so all that matters is that its range holds that of any schedule
    canonical = Canonical(survival=1e-12).bind(process.stage_mass)
    end = process._solve(one).sigma_bar
    clock_time = canonical(share * canonical.inverse(end, process.exits), process.exits).sigma_bar
    times = process.schedule.inverse(clock_time, process.exits).clamp(0, 1)
    times[0], times[-1] = 1.0, 0.0
    return times


def share_grid(calls: int, grid: str | Float[Tensor, " k"] = "canonical") -> Float[Tensor, " k"]:
    """The share of changes left after every step, from 1 down to 0 (float64, `[calls + 1]`); grids as in `time_grid`.

    >>> share_grid(4)
    tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
    """
    if isinstance(grid, Tensor):
        grid = grid.double()
        if grid.ndim != 1 or len(grid) < 2 or grid[0] != 1 or grid[-1] != 0 or (grid.diff() >= 0).any():
            raise ValueError(f"grid must fall strictly from 1 to 0, got {grid.tolist()[:8]}")
        return grid
    checks.choice("grid", grid, GRIDS)
    if calls < 1:
        raise ValueError(f"calls must be at least 1, got {calls}")
    share = torch.linspace(1, 0, calls + 1, dtype=torch.float64)
    return torch.sin(torch.pi / 2 * share) if grid == "cosine" else share


def split_template(
    space: States, template: Int[Tensor, "..."] | None
) -> tuple[Int[Tensor, "b d"] | None, Bool[Tensor, "b d"] | None]:
    """The tokens of a template, and where they are; -1 is a blank."""
    if template is None:
        return None, None
    template = template[None] if template.ndim == 1 else template
    given = template >= 0
    # blanks are checked as state 0, which every position has
    kept = space.data("template", torch.where(given, template, 0))
    return kept.to(space.device), given.to(space.device)


def legal_states(
    space: States,
    count: int,
    legal: Bool[Tensor, "..."] | None,
    given: Bool[Tensor, "b d"] | None = None,
) -> Bool[Tensor, "b d n"] | None:
    """The clean tokens that may be drawn at each position of `count` rows.

    Args:
        space: the states of each position.
        count: number of rows.
        legal: which states may be drawn: `[n]`, `[d, n]` or `[b, d, n]`, or anything that broadcasts to the last.
            Names, such as a mask, may be left out of `n`; they are never drawn. Default: all data states.
        given: positions that are not drawn, where nothing is restricted.

    >>> from dmb import UniformProcess
    >>> legal_states(UniformProcess(num_positions=2, num_states=3), 1, torch.tensor([True, True, False]))
    tensor([[[ True,  True, False],
             [ True,  True, False]]])
    """
    if legal is None:
        return None
    shape = (count, space.num_positions, space.num_states)
    wide = legal.to(space.device)
    if space.names and wide.shape[-1:] == (space.num_states - space.names,):
        wide = torch.nn.functional.pad(wide, (0, space.names))
    try:
        wide = wide.expand(shape)
    except RuntimeError:
        raise ValueError(f"legal must broadcast to shape {list(shape)}, got {list(legal.shape)}") from None
    wide = (wide if given is None else wide | given[..., None]) & space.data_states
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

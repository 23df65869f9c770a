"""The bridge: one object that scores, bounds, denoises, samples, infills, saves and loads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb import checks, losses
from dmb.configurable import Configurable
from dmb.heads import Head
from dmb.losses import Bound
from dmb.networks.base import Network
from dmb.pretrained import Pretrained
from dmb.processes.base import ForwardProcess
from dmb.reverse import ReverseModel
from dmb.samplers import SAMPLERS, Denoiser, default_sampler, draw_prior, estimate_marginals, time_grid

_PARTS = {"process": ForwardProcess, "network": Network, "head": Head}


class Bridge(ReverseModel, Pretrained):
    """A generative model of discrete data: a forward process, and a network that reverses it.

    Args:
        process: the forward process, with its estimate `p_0` of the data's marginals.
        network: a network of the same size.
        head: `mean` (the default), `score` or `unscaled_score` (as published), or a `Head` with options of its own.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]), init="uniform")
    >>> bridge = dmb.Bridge(process, dmb.MLP(process.num_states, process.num_positions, width=16))
    >>> generator = torch.Generator().manual_seed(0)
    >>> bridge.sample(4, steps=8, generator=generator).shape
    torch.Size([4, 2])
    >>> data = torch.tensor([[0, 1], [2, 1], [0, 2]])
    >>> bridge.loss(data, generator=generator).shape
    torch.Size([3])
    """

    kind = "bridge"

    def __init__(self, process: ForwardProcess, network: Network, head: str | Head = "mean"):
        super().__init__(process, network, head)

    def loss(
        self,
        x_0: Int[Tensor, "b d"],
        *,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " b"]:
        """What Score-learning minimises: an unbiased estimate of `J_score` for each sequence, in nats."""
        return losses.score_loss(self, x_0, label=label, given=given, generator=generator)

    def prior_loss(self, mu: Float[Tensor, "h n"] | None = None) -> Float[Tensor, ""]:
        """What Matrix-learning minimises: `J_Q` in nats a sequence, exact and differentiable in the rates, no batch.

        Args:
            mu: marginals to take the expectation over; the process's own estimate `p_0`, unless given.
        """
        mu = self.process.p_0 if mu is None else self.process.marginals("mu", mu)
        per_position = (mu * self.process.prior_kl_table(self.process.p_T)).sum(-1)
        return per_position.expand(self.num_positions).sum()

    def bound(self, x_0: Int[Tensor, "N d"], **options: Any) -> Bound:
        """An upper bound on `-log p(x_0)`, by part, with its standard error; options as for `dmb.losses.bound`."""
        with self._evaluating():
            return losses.bound(self, x_0, **options)

    def sample(
        self,
        count: int | None = None,
        *,
        steps: int | None = None,
        sampler: str | None = None,
        grid: str | Float[Tensor, " k"] = "canonical",
        label: Int[Tensor, " b"] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        template: Int[Tensor, "..."] | None = None,
        frozen: Bool[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """Draw sequences; or fill in the blanks of a template.

        For the states on the way, call a sampler of `dmb.samplers` and iterate.

        Args:
            count: how many; that of the template or of the labels, unless given.
            steps: network calls; 64 unless given. `first_hitting` calls the network when something moves, and with
                `steps` also at that many times in between.
            sampler: `ancestral` (exact for any step; the default), `first_hitting`, `tweedie` or `euler` (as
                published). With a score head `tweedie`, the default then, or `euler`.
            grid: see `dmb.samplers.time_grid`.
            label: class of each sequence.
            guidance: classifier-free guidance; 1 is none.
            temperature: below 1, likelier sequences than the model's own.
            top_p: draw clean tokens from the nucleus of this mass only.
            template: tokens to keep, `[d]` or `[b, d]`, with -1 where the model is to choose.
            frozen: which tokens of the template to keep, instead of marking the others by -1.
            generator: source of all randomness.
        """
        sampler = checks.choice("sampler", sampler or default_sampler(self), tuple(SAMPLERS))
        template, given = self._template(template, frozen)
        if count is None:
            count = len(label) if label is not None else len(template) if template is not None else 1
        x_T = draw_prior(self.process, count, generator=generator)
        if template is not None and given is not None:
            if len(template) not in (1, count):
                raise ValueError(f"template must have 1 row or {count}, got {len(template)}")
            given = given.expand(count, -1)
            x_T = torch.where(given, template.expand(count, -1), x_T)
        if label is not None and label.shape != (count,):
            raise ValueError(f"label must have shape [{count}], got {list(label.shape)}")
        denoiser = Denoiser(self, label, guidance, temperature, top_p, given)
        if steps is None:
            steps = 1 if sampler == "first_hitting" else 64
        times = time_grid(self.process, steps, grid)
        with self._evaluating():
            *_, last = SAMPLERS[sampler](denoiser, x_T, times, generator)
        return last.x

    def estimate_marginals(self, **options: Any) -> Float[Tensor, "d n"]:
        """The model's own marginals by sampling (Eq. 10); options as for `dmb.samplers.estimate_marginals`."""
        with self._evaluating():
            return estimate_marginals(self, **options)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout, and every part back to what it was."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def _template(self, template: Tensor | None, frozen: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if template is None:
            if frozen is not None:
                raise ValueError("frozen needs a template to take the tokens from")
            return None, None
        template = template[None] if template.ndim == 1 else template
        given = template >= 0 if frozen is None else (frozen[None] if frozen.ndim == 1 else frozen)
        if given.shape != template.shape:
            raise ValueError(f"frozen must have the template's shape {list(template.shape)}, got {list(given.shape)}")
        # blanks may hold anything, so they are checked as state 0, which every position has
        kept = self.data("template", torch.where(given, template, 0).to(self.device))
        return kept.to(self.device), given.to(self.device)

    # -- files --------------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        return {name: getattr(self, name).to_config() for name in _PARTS}

    @classmethod
    def described(cls, config: dict[str, Any]) -> "Bridge":
        parts = {name: Configurable.from_config(config[name]) for name in _PARTS}
        for name, kind in _PARTS.items():
            if not isinstance(parts[name], kind):
                raise TypeError(f"{name} is a {type(parts[name]).__name__}, not a {kind.__name__}")
        return cls(**parts)

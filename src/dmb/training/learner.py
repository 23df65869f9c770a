"""What training changes: the model that learns, its average, the optimisers and how far they have come."""

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dmb._core.configuration import typed
from dmb._core.seeding import seeded
from dmb.bridges import Bridge
from dmb.networks.base import given_embedding, init_given_embedding
from dmb.training.checkpoint import Checkpoint
from dmb.training.engine import Engine, averaged
from dmb.training.loop import Progress
from dmb.training.settings import TrainingSettings


@dataclass
class TrainingState(Progress):
    """Where Algorithm 1 has come to; `step` counts the steps of Score-learning in all cycles."""

    cycle: int = 0
    phase: str = "matrix"
    phase_step: int = 0
    running_bits: float | None = None
    """Running mean of J_score on training batches, bits per token."""
    prior_bits: float = math.nan
    """J_Q on the data's marginals, with p_T from p_0, bits per token."""
    seen_bits: float = 0.0
    """Sum of J_score over the steps since the last report."""
    seen_steps: int = 0


class Learner:
    """A bridge in training: a copy that learns, a copy whose weights are its average, two optimisers.

    The bridge that is given stays as it is until `hand_over`; so it is never caught half-trained.

    Args:
        bridge: where to start.
        settings: how to train.
        fabric: the engine that places, wraps and synchronises the network.
        marginals: those of the data, which `J_Q` is a mean over. Default: the bridge's estimate of them.
    """

    def __init__(
        self, bridge: Bridge, settings: TrainingSettings, fabric: Engine, marginals: Float[Tensor, "d m"] | None = None
    ):
        self.settings, self.fabric, self.progress = settings, fabric, TrainingState()
        self.marginals = None if marginals is None else marginals.to(fabric.device)
        self.corruption = copy.deepcopy(bridge.corruption).to(fabric.device)
        self.network = copy.deepcopy(bridge.network)
        self.infill = bridge.infill_share(settings)
        if (marks := given_embedding(self.network)) is not None:
            # marks that no loss reaches would keep several processes waiting for their gradient
            marks.requires_grad_(self.infill > 0 or bridge.lengths is not None)
            if marks.requires_grad:
                init_given_embedding(self.network, seeded(settings.seed, "marks", device=marks.device))
        self.average = AveragedModel(self.network, multi_avg_fn=self._move_average)
        self.average.requires_grad_(False)
        if settings.compile:
            self.network.compile()
        self.wrapped = fabric.setup_module(self.network)
        if any(map(_sharded, self.network.parameters())):
            fabric.setup_module(self.average.module)  # sharded like the network that it averages
        else:
            self.average.to(fabric.device)
        self.average.n_averaged = self.average.n_averaged.cpu()  # read at every step: no device is to be waited for
        self.model = bridge.with_parts(self.corruption, self.wrapped)
        self.averaged = bridge.with_parts(self.corruption, self.average.module)
        for model in (self.model, self.averaged):
            model.states.to(fabric.device)
        self.estimator = self.model.estimator(settings)  # which lies where the model lies

        decayed = [p for p in self.network.parameters() if p.requires_grad and p.ndim >= 2]
        others = [p for p in self.network.parameters() if p.requires_grad and p.ndim < 2]
        groups = [{"params": decayed, "decays": True}, {"params": others, "decays": False, "weight_decay": 0.0}]
        self._score_optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate)
        wrapped_optimiser = fabric.setup_optimizers(self._score_optimiser)
        assert not isinstance(wrapped_optimiser, tuple)
        self.score_optimiser = wrapped_optimiser
        rates = [p for p in self.corruption.parameters() if p.requires_grad]
        self.matrix_optimiser = None
        if rates:
            decay = settings.matrix_weight_decay
            self.matrix_optimiser = torch.optim.AdamW(rates, lr=settings.matrix_learning_rate, weight_decay=decay)
        if settings.start == "random":
            self.model.start_random(seeded(settings.seed, "start", device=fabric.device))
        self.progress.prior_bits = self.prior_bits()

    @property
    def joint(self) -> bool:
        """Whether every step of Score-learning teaches the rates as well."""
        return self.settings.matrix_objective == "joint"

    def reduce(self, value: Tensor) -> Tensor:
        """The mean of `value` over all processes."""
        return averaged(self.fabric, value)

    def step_rates(self) -> float:
        """Add the gradient of `J_Q` to that of the rates, and move them; gives `J_Q` before the step, bits per token.

        Every process has to call it. `J_Q` is summed over positions as in Eq. 5; beside the gradient of `J_score`,
        which is per token, it is per token.
        """
        optimiser, progress, settings = self.matrix_optimiser, self.progress, self.settings
        assert optimiser is not None
        self.estimator.learn_costs(self.reduce)
        prior = self.model.prior_loss(self.marginals)
        loss = prior if settings.matrix_objective == "prior" else prior / self.model.mean_length
        if loss.requires_grad:  # by whole paths it is a constant
            loss.backward()
        rates = [parameter for parameter in self.corruption.parameters() if parameter.grad is not None]
        for parameter in rates:
            assert parameter.grad is not None
            parameter.grad = self.reduce(parameter.grad)
        norm = torch.nn.utils.clip_grad_norm_(rates, settings.matrix_clip or math.inf)
        if not (loss.isfinite() & norm.isfinite()):
            where = f"{progress.phase.title()}-learning, cycle {progress.cycle}, step {progress.phase_step}"
            if not loss.isfinite():
                cause = "does p_0 give probability 0 to a state of the data?"
                raise FloatingPointError(f"J_Q is {loss.item()} in {where}: {cause}")
            raise FloatingPointError(
                f"the gradient in the rates is not finite in {where}; try a lower matrix_learning_rate"
            )
        optimiser.step()
        optimiser.zero_grad()
        self.corruption.normalise()
        return self.bits(prior.item())

    @torch.no_grad()
    def prior_bits(self) -> float:
        """`J_Q` on the data's marginals, with `p_T` from the current estimate `p_0`, in bits per token."""
        return self.bits(self.model.prior_loss(self.marginals).item())

    @torch.no_grad()
    def marginal_bits(self) -> float | None:
        """`KL(μ || p_0)`: how far the estimate of Eq. 10 is from the data's marginals, in bits per token."""
        nats = None if self.marginals is None else self.model.marginal_nats(self.marginals)
        return None if nats is None else nats / math.log(2)

    def bits(self, nats: float) -> float:
        """Bits per token from nats per sequence."""
        return nats / self.model.mean_length / math.log(2)

    def _move_average(self, average: Any, current: Any, _: Any) -> None:
        """An exponential average that forgets its start faster than `ema` alone would: the first steps are poor."""
        count = float(self.average.n_averaged)
        get_ema_multi_avg_fn(min(self.settings.ema, (1 + count) / (10 + count)))(average, current, count)

    def set_rates(self) -> None:
        """Give the optimiser the learning rate and the weight decay of this step: functions of the progress alone."""
        settings, step = self.settings, self.progress.step
        rate = settings.learning_rate * self.progress.warmth(settings.warmup)
        if settings.decay == "cosine":
            rate *= (1 + math.cos(math.pi * self.progress.schedule(settings.total_steps))) / 2
        until = settings.weight_decay_until
        decay = settings.weight_decay if until is None or step < until else 0.0
        for group in self._score_optimiser.param_groups:
            group["lr"] = rate
            group["weight_decay"] = decay if group["decays"] else 0.0
        if self.joint and self.matrix_optimiser is not None:
            self.matrix_optimiser.param_groups[0]["lr"] = settings.matrix_learning_rate * rate / settings.learning_rate

    @property
    def learning_rate(self) -> float:
        return self._score_optimiser.param_groups[0]["lr"]

    def reestimate_marginals(self) -> None:
        """Replace `p_0` by the model's own marginals (Eq. 10)."""
        settings = self.settings
        generator = seeded(settings.seed, "marginals", self.progress.cycle, device=self.fabric.device)
        self.averaged.reestimate(chains=settings.chains, calls=settings.chain_calls, generator=generator)
        self.progress.prior_bits = self.prior_bits()

    def hand_over(self, bridge: Bridge) -> None:
        """Give the averaged weights and the corruption to `bridge`. Every process has to call it."""
        bridge.corruption.load_state_dict(self.corruption.state_dict())
        fill(bridge.network, self.average.module.state_dict())

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """All that a resumed run needs. All processes must call it, to gather shards; the first one gets the result."""
        tensors = {}
        for name, tensor in self._tensors():
            gathered = whole(tensor)  # one at a time, so that no device has to hold them all
            if self.fabric.is_global_zero:
                tensors[name] = gathered.detach().to("cpu", copy=True)
        return Checkpoint(tensors, asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what was saved."""
        tensors, state = checkpoint
        self.corruption.load_state_dict(checkpoint.under(self.model.corruption_name))
        fill(self.network, checkpoint.under("network"))
        fill(self.average.module, checkpoint.under("average"))
        self.average.n_averaged.copy_(tensors["average_count"])
        for name, tensor in self.estimator.tensors().items():
            tensor.copy_(tensors[name])
        for optimised in self._optimised():
            restore_optimiser(*optimised, checkpoint)
        self.progress = typed(TrainingState, state)

    def _optimised(self) -> list[tuple[torch.optim.Optimizer, str, dict[str, nn.Parameter]]]:
        pairs: list[tuple[torch.optim.Optimizer, str, dict[str, nn.Parameter]]] = [
            (self._score_optimiser, "score_optimiser", dict(self.network.named_parameters()))
        ]
        if self.matrix_optimiser is not None:
            pairs.append((self.matrix_optimiser, "matrix_optimiser", dict(self.corruption.named_parameters())))
        return pairs

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        modules = {self.model.corruption_name: self.corruption, "network": self.network, "average": self.average.module}
        for prefix, module in modules.items():
            for name, tensor in module.state_dict().items():
                yield f"{prefix}.{name}", tensor
        yield "average_count", self.average.n_averaged
        yield from self.estimator.tensors().items()
        for optimised in self._optimised():
            yield from optimiser_tensors(*optimised)


def optimiser_tensors(
    optimiser: torch.optim.Optimizer, prefix: str, parameters: dict[str, nn.Parameter]
) -> Iterator[tuple[str, Tensor]]:
    """What an optimiser remembers of its parameters, by names for a checkpoint."""
    for name, parameter in parameters.items():
        for slot, value in optimiser.state.get(parameter, {}).items():
            yield f"{prefix}.{name}.{slot}", value


def restore_optimiser(
    optimiser: torch.optim.Optimizer, prefix: str, parameters: dict[str, nn.Parameter], checkpoint: Checkpoint
) -> None:
    """Give it back what `optimiser_tensors` has named."""
    kinds = set()
    for name, parameter in parameters.items():
        slots = checkpoint.under(f"{prefix}.{name}")
        for slot, value in slots.items():
            if value.ndim and (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
                raise ValueError(f"{prefix}.{name}.{slot} is {value.dtype} {list(value.shape)}")
        if slots:  # of a parameter that had no gradient yet, it knows nothing
            kinds.add(frozenset(slots))
            optimiser.state[parameter] = {slot: _scattered(value, parameter) for slot, value in slots.items()}
    if len(kinds) > 1:
        raise ValueError(f"{prefix} does not know the same of all parameters")


def cause_of(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Why numbers are not finite, in words."""
    broken = [name for name, parameter in named if not parameter.detach().isfinite().all()]
    return f"{broken[0]} is no longer finite" if broken else "the network's outputs are too large"


def whole(tensor: Any) -> Tensor:
    """`tensor`, gathered from all processes if it is sharded."""
    return tensor.full_tensor() if _sharded(tensor) else tensor


def _sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, a name that takes a second to import."""
    return hasattr(tensor, "full_tensor")


def _scattered(tensor: Tensor, like: Any) -> Tensor:
    """`tensor`, on the device and in the shards of `like`; scalars stay where optimisers keep them."""
    if tensor.ndim == 0:
        return tensor
    if _sharded(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor.to(like.device)


@torch.no_grad()
def fill(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a module these tensors, in the shards that it has; a KeyError or ValueError if they are of another one."""
    own = module.state_dict()
    if own.keys() != tensors.keys():
        raise KeyError(f"tensors differ: {', '.join(sorted(own.keys() ^ tensors.keys()))}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(f"{name} has shape {list(tensors[name].shape)}, not {list(tensor.shape)}")
        tensor.copy_(_scattered(whole(tensors[name]), tensor))

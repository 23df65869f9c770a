"""What training changes: how far a run has come, and a model whose weights learn, with its average and optimisers."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dmb._core.configuration import typed
from dmb._core.pretrained import Pretrained
from dmb._core.seeding import seed_of, seeded
from dmb.bridges import Bridge
from dmb.data.base import DataSet
from dmb.data.splits import Batch
from dmb.networks.base import given_embedding, init_given_embedding
from dmb.objectives.bound import Bound
from dmb.training.calibration import calibration, can_be_calibrated
from dmb.training.checkpoint import Checkpoint, fill, is_sharded, optimiser_tensors, restore_optimiser, whole
from dmb.training.engine import Engine, averaged, gathered, seeded_globally, skips_bad_steps
from dmb.training.reporting import Report, TrainingReport
from dmb.training.settings import TrainingSettings


@dataclass
class Progress:
    """How far a run has come. With the tensors and the settings it decides all that follows.

    Args:
        step: Steps of Score-learning in all cycles.
        best: The lowest loss of an evaluation so far.
        finished_step: The best step, if its model has been calibrated.
        stale: Evaluations since the best one.
        share: How much of its schedule the run has used up by the clock, if its time is limited; 1 is all.
        phase_step: Steps of this phase in this cycle.
        running_bits: Running mean of J_score on training batches, bits per token.
        prior_bits: J_Q on the data's marginals, with p_T from p_0, bits per token.
        seen_bits: Sum of J_score over the steps since the last report.
    """

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reports: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluated_step: int | None = None
    finished_step: int | None = None
    stale: int = 0
    share: float = 0.0
    cycle: int = 0
    phase: Literal["matrix", "score"] = "matrix"
    phase_step: int = 0
    running_bits: float | None = None
    prior_bits: float = 0.0
    seen_bits: float = 0.0
    seen_steps: int = 0

    def schedule(self, total_steps: int) -> float:
        """Where in [0, 1] the schedule of the learning rate is: as far as the steps are, or the clock if that is ahead.

        >>> Progress(step=3).schedule(10), Progress(step=3, share=0.5).schedule(10)
        (0.3, 0.5)
        """
        return max(min(1.0, self.step / total_steps), self.share)

    def warmup_factor(self, warmup: int) -> float:
        """The share of the learning rate, in (0, 1], that this step has while it rises over `warmup` steps.

        If time is limited, warming up takes at most a tenth of it: else short runs would spend most of it so.

        >>> Progress(step=3).warmup_factor(10), Progress(step=3, share=0.08).warmup_factor(10)
        (0.4, 0.8)
        """
        return min(1.0, max((self.step + 1) / max(1, warmup), 10 * self.share))


class Learner(ABC):
    """A model in training: all that `Trainer` needs of it, and what a checkpoint holds of it.

    All processes call its methods together. A model without a forward process, such as a VQ-VAE, has Score-learning
    only: steps on its own loss.

    Args:
        best: the model that is handed in. From the first evaluation on it has the best weights so far.
        settings: has `cycles`, `score_steps`, `total_steps`, `score_tolerance`, `tolerance`, `minutes`, `patience`,
            `log_every`, `evaluate_every` and `keep`.
        fabric: the engine that places, wraps and synchronises the network.
    """

    def __init__(self, best: Pretrained, settings: Any, fabric: Engine):
        self.best, self.settings, self.fabric, self.progress = best, settings, fabric, Progress()
        self.modules: dict[str, nn.Module] = {}
        self.optimisers: dict[str, tuple[torch.optim.Optimizer, nn.Module]] = {}  # with the modules that they move
        self.others: dict[str, Tensor] = {}  # a resumed run fills them in place

    def matrix_is_over(self) -> bool:
        """Whether Matrix-learning of this cycle has ended, or does not take place."""
        return True

    def matrix_step(self) -> None:  # noqa: B027
        """Move the rates once."""

    def matrix_report(self) -> Report | None:  # noqa: B027
        """J_Q and the rates as they are."""

    def estimate_marginals(self) -> None:  # noqa: B027
        """Replace `p_0` by the model's own marginals (Eq. 10), if it has a use for them."""

    @abstractmethod
    def score_step(self) -> tuple[float, float]:
        """Move the weights of the network once; gives the loss of the batch, and the norm of the gradient."""

    @abstractmethod
    def score_report(self, loss: float, steps_per_second: float, gradient_norm: float) -> Report:
        """Figures of Score-learning since the last report; `loss` is the mean."""

    @abstractmethod
    def evaluate(self) -> tuple[float, Report]:
        """What the best model has the lowest of, on validation data; and figures of the evaluation."""

    @abstractmethod
    def hand_over(self) -> None:
        """Give the weights of the last evaluation to `best`."""

    def calibrate(self, at_best: Callable[[], Checkpoint | None]) -> Iterator[Report | None]:
        """What `best` still needs after training, a round at a time: None after each, then a report when it is done.

        `best` changes with the report only. `at_best` reads the checkpoint of its step, from which calibration is the
        same however often it is interrupted.
        """
        yield from ()

    def checkpoint(self) -> Checkpoint:
        """All that a resumed run needs. All processes must call it, to gather shards; the first one gets the result."""
        own = {f"{prefix}.{k}": v for prefix, module in self.modules.items() for k, v in module.state_dict().items()}
        own |= self.others
        for prefix, (optimiser, module) in self.optimisers.items():
            own |= optimiser_tensors(optimiser, prefix, module)
        tensors = {}
        for name, tensor in own.items():
            full = whole(tensor)  # one at a time, so that no device has to hold them all
            if self.fabric.is_global_zero:
                tensors[name] = full.detach().to("cpu", copy=True)
        return Checkpoint(tensors, asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what was saved; a KeyError, RuntimeError, TypeError or ValueError if it is of another model."""
        for prefix, module in self.modules.items():
            fill(module, checkpoint.under(prefix))
        for name, tensor in self.others.items():
            tensor.copy_(checkpoint.tensors[name])
        for prefix, (optimiser, module) in self.optimisers.items():
            restore_optimiser(optimiser, prefix, module, checkpoint)
        self.progress = typed(Progress, checkpoint.state)


class BridgeLearner(Learner):
    """A bridge in training: a copy that learns, a copy whose weights are its average, two optimisers.

    The bridge that is given stays as it is until `hand_over`; so it is never caught half-trained.

    Args:
        bridge: where to start.
        data: batches come from `data.train`, and `J_Q` is a mean over its marginals; `data.validation` tells the best.
        settings: how to train.
        fabric: the engine that places, wraps and synchronises the network.
    """

    def __init__(self, bridge: Bridge, data: DataSet, settings: TrainingSettings, fabric: Engine):
        super().__init__(bridge, settings, fabric)
        self.bridge, self.data = bridge, data
        self.marginals = data.marginals().to(fabric.device)
        self.corruption = copy.deepcopy(bridge.corruption).to(fabric.device)
        self.network = copy.deepcopy(bridge.network)
        self.infill = bridge.infill_share(settings)
        self.joint = settings.matrix_objective == "joint"  # every step of Score-learning teaches the rates as well
        if (embedding := given_embedding(self.network)) is not None:
            # one that no loss reaches would keep several processes waiting for its gradient
            embedding.requires_grad_(self.infill > 0 or bridge.lengths is not None)
            if embedding.requires_grad:
                init_given_embedding(self.network, seeded(settings.seed, "marks", device=embedding.device))
        self.average = AveragedModel(self.network, multi_avg_fn=self._move_average)
        self.average.requires_grad_(False)
        if settings.compile:
            self.network.compile()
        self.wrapped = fabric.setup_module(self.network)
        if any(map(is_sharded, self.network.parameters())):
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
        self.score_optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate)
        self._wrapped_optimiser: Any = fabric.setup_optimizers(self.score_optimiser)
        self.optimisers["score_optimiser"] = self.score_optimiser, self.network
        rates = [p for p in self.corruption.parameters() if p.requires_grad]
        self.matrix_optimiser = None
        if rates:
            decay = settings.matrix_weight_decay
            self.matrix_optimiser = torch.optim.AdamW(rates, lr=settings.matrix_learning_rate, weight_decay=decay)
            self.optimisers["matrix_optimiser"] = self.matrix_optimiser, self.corruption
        corruption = self.model.corruption_name
        self.modules = {corruption: self.corruption, "network": self.network, "average": self.average.module}
        self.others = {"average_count": self.average.n_averaged, **self.estimator.tensors()}
        if settings.start == "random":
            self.model.start_random(seeded(settings.seed, "start", device=fabric.device))
        self._unread: list[tuple[int, Tensor]] = []  # J_Q and the norm of its gradient, at steps of Matrix-learning
        self.progress.prior_bits = self.prior_bits()

    def bits(self, nats: float) -> float:
        """Bits per token from nats per sequence."""
        return nats / self.model.mean_length / math.log(2)

    @torch.no_grad()
    def prior_bits(self) -> float:
        """`J_Q` on the data's marginals, with `p_T` from the current estimate `p_0`, in bits per token."""
        self._check_rates()
        return self.bits(self.model.prior_loss(self.marginals).item())

    @torch.no_grad()
    def marginal_bits(self) -> float | None:
        """`KL(μ || p_0)`: how far the estimate of Eq. 10 is from the data's marginals, in bits per token."""
        nats = self.model.marginal_nats(self.marginals)
        return None if nats is None else nats / math.log(2)

    def _reduce(self, value: Tensor) -> Tensor:
        return averaged(self.fabric, value)

    def _move_average(self, average: Any, current: Any, _: Any) -> None:
        """An exponential average that forgets its start faster than `ema` alone would: the first steps are poor."""
        count = float(self.average.n_averaged)
        get_ema_multi_avg_fn(min(self.settings.ema, (1 + count) / (10 + count)))(average, current, count)

    # -- Matrix-learning ----------------------------------------------------------------------------------------------

    def matrix_is_over(self) -> bool:
        """Whether it has taken all steps, or `J_Q < ε_Q`; there is none if rates are learned jointly, or `J_Q` is 0."""
        settings, by_prior = self.settings, self.settings.matrix_objective == "prior"
        if self.matrix_optimiser is None or self.joint or (by_prior and not self.model.has_prior):
            return True
        low = by_prior and self.progress.prior_bits < settings.matrix_tolerance
        return low or self.progress.phase_step >= settings.matrix_steps

    def matrix_step(self) -> None:
        """Lower the objective in the rates, while the network stays as it is.

        On `J_Q` (Eq. 5) a step is exact and has no batch. On the whole bound it looks at a noisy batch through the
        averaged network.
        """
        if self.settings.matrix_objective == "bound":
            self._matrix_backward()
        self._move_rates()

    def _matrix_backward(self) -> None:
        """Add to the rates the gradient of J_score per token, on the batch of this step of Matrix-learning."""
        settings, progress, model = self.settings, self.progress, self.averaged
        step = progress.cycle * settings.matrix_steps + progress.phase_step
        batch = self.data.train.batch(settings.sequences, step=step, seed=seed_of(settings.seed, "matrix"))
        model.network.eval()
        for rows, _ in self._parts():
            loss = model.loss(
                batch.x_0,
                label=batch.label if model.num_classes else None,
                rows=rows,
                generator=seeded(settings.seed, "matrix noise", step, device=self.fabric.device),
                **self.estimator.matrix,
            )
            (loss.mean() / settings.accumulate / model.mean_length).backward()

    def _move_rates(self) -> None:
        """Add the gradient of `J_Q` to that of the rates, and move them.

        `J_Q` is summed over positions as in Eq. 5; beside the gradient of `J_score`, which is per token, it is per
        token. Nothing waits for a GPU, unless a tolerance or the bound is to be read at every step anyway.
        """
        optimiser, settings = self.matrix_optimiser, self.settings
        assert optimiser is not None
        self.estimator.learn_costs(self._reduce)
        prior = self.model.prior_loss(self.marginals)
        loss = prior if settings.matrix_objective == "prior" else prior / self.model.mean_length
        if loss.requires_grad:  # by whole paths it is a constant
            loss.backward()
        rates = [parameter for parameter in self.corruption.parameters() if parameter.grad is not None]
        for parameter in rates:
            assert parameter.grad is not None
            parameter.grad = self._reduce(parameter.grad)
        norm = torch.nn.utils.clip_grad_norm_(rates, settings.matrix_clip or math.inf)
        figures = torch.stack([prior.detach().double(), norm.to(prior.device, torch.float64)])
        self._unread.append((self.progress.phase_step, figures))
        if settings.matrix_tolerance or settings.matrix_objective != "prior":
            self._check_rates()
        optimiser.step()
        optimiser.zero_grad()
        self.corruption.normalise()

    def _check_rates(self) -> None:
        """Read what the last steps of the rates have seen: `J_Q` before each; an error if a number is not finite."""
        steps, figures = [step for step, _ in self._unread], [figures for _, figures in self._unread]
        self._unread = []
        for step, (prior, norm) in zip(steps, torch.stack(figures).tolist() if figures else [], strict=True):
            where = f"{self.progress.phase.title()}-learning, cycle {self.progress.cycle}, step {step}"
            if not math.isfinite(prior):
                cause = "does p_0 give probability 0 to a state of the data?"
                raise FloatingPointError(f"J_Q is {prior} in {where}: {cause}")
            if not math.isfinite(norm):
                cure = "try a lower matrix_learning_rate"
                raise FloatingPointError(f"the gradient in the rates is not finite in {where}; {cure}")
            self.progress.prior_bits = self.bits(prior)

    def estimate_marginals(self) -> None:
        settings, bridge = self.settings, self.bridge
        if not (settings.reestimate and bridge.has_prior and bridge.lengths is None):
            return  # if lengths differ, chains would have to end
        generator = seeded(settings.seed, "marginals", self.progress.cycle, device=self.fabric.device)
        self.averaged.reestimate(chains=settings.chains, calls=settings.chain_calls, generator=generator)
        self.progress.prior_bits = self.prior_bits()

    # -- Score-learning -----------------------------------------------------------------------------------------------

    def score_step(self) -> tuple[float, float]:
        """Lower `J_score` in the network (Eq. 8) on the batch of this step; gives it in bits per token.

        The batch and its noise are functions of the seed and the step alone: each process takes its rows of it, in
        `accumulate` parts. So a run that was interrupted, or is spread over more of either, learns the same.
        """
        settings, progress, fabric = self.settings, self.progress, self.fabric
        batch = self.data.train.batch(settings.sequences, step=progress.step, seed=settings.seed)
        self.set_rates()
        self.network.train()
        with seeded_globally(fabric, settings.seed, "dropout", progress.step):
            parts = [self._score_backward(batch, rows, last) for rows, last in self._parts()]
        loss, plain = (torch.cat(each) for each in zip(*parts, strict=True))
        norm = fabric.clip_gradients(
            self.wrapped, self._wrapped_optimiser, max_norm=settings.clip or math.inf, error_if_nonfinite=False
        )
        assert norm is not None
        seen = self._reduce(torch.stack([loss.mean(), (plain * loss).mean(), plain.mean()]))
        # the one wait for a GPU
        mean, of_plain, share, gradient_norm = torch.cat([seen, whole(norm).to(seen)[None]]).tolist()
        # rows that nothing is given of estimate J_score; if there are no such rows, all do
        bits = self.bits(of_plain / share if share > 0 and math.isfinite(mean) else mean)
        if not math.isfinite(bits) or not (math.isfinite(gradient_norm) or skips_bad_steps(fabric)):
            raise self._not_finite(loss)
        self._wrapped_optimiser.step()
        self._wrapped_optimiser.zero_grad()
        self.estimator.learn(self._reduce, fabric.world_size)
        self.average.update_parameters(self.network)
        if self.joint:
            self._move_rates()
        return bits, gradient_norm

    def _score_backward(
        self, batch: Batch, rows: Int[Tensor, " p"], last: bool
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
        """Add the gradient of a part's share of the mean loss per token; processes talk once, after the last part.

        Gives the loss of each row, and 1 for rows that nothing is given of. Noise is a function of the seed and the
        step, drawn for the whole batch whatever the rows.
        """
        settings, fabric, model, step = self.settings, self.fabric, self.model, self.progress.step
        generator = seeded(settings.seed, "noise", step, device=fabric.device)
        given = _given(batch.x_0, self.infill, generator)
        with fabric.no_backward_sync(self.wrapped, enabled=not last):
            loss = model.loss(
                batch.x_0,
                label=batch.label if model.num_classes else None,
                given=given,
                rows=rows,
                generator=generator,
                **self.estimator.score,
            )
            fabric.backward(loss.mean() / settings.accumulate / model.mean_length)
        plain = torch.ones_like(loss) if given is None else (~given[rows].any(-1)).to(loss.dtype)
        return loss.detach().double(), plain.double()

    def _parts(self) -> Iterator[tuple[Int[Tensor, " p"], bool]]:
        """The rows of a batch that this process takes, in `accumulate` parts, each with whether it is the last."""
        settings, fabric = self.settings, self.fabric
        mine = torch.arange(settings.sequences, device=fabric.device).chunk(fabric.world_size)[fabric.global_rank]
        for index, part in enumerate(mine.chunk(settings.accumulate)):
            yield part, index == settings.accumulate - 1

    def set_rates(self) -> None:
        """Give the optimiser the learning rate and the weight decay of this step: functions of the progress alone."""
        settings, step = self.settings, self.progress.step
        rate = settings.learning_rate * self.progress.warmup_factor(settings.warmup)
        if settings.decay == "cosine":
            rate *= (1 + math.cos(math.pi * self.progress.schedule(settings.total_steps))) / 2
        until = settings.weight_decay_until
        decay = settings.weight_decay if until is None or step < until else 0.0
        for group in self.score_optimiser.param_groups:
            group["lr"] = rate
            group["weight_decay"] = decay if group["decays"] else 0.0
        if self.joint and self.matrix_optimiser is not None:
            self.matrix_optimiser.param_groups[0]["lr"] = settings.matrix_learning_rate * rate / settings.learning_rate

    def _not_finite(self, loss: Float[Tensor, " b"]) -> FloatingPointError:
        bad = int((~loss.isfinite()).sum())
        where = f"step {self.progress.step} (cycle {self.progress.cycle}, Score-learning)"
        cause = cause_of([*self.corruption.named_parameters(), *self.network.named_parameters()])
        if not bad:
            return FloatingPointError(f"the gradient is not finite at {where}: {cause}; try a lower learning_rate")
        at = f"for {bad} of {len(loss)} sequences"
        return FloatingPointError(
            f"the loss is not finite at {where}, {at}: {cause}; try a lower learning_rate or clip"
        )

    # -- the best model -----------------------------------------------------------------------------------------------

    def evaluate(self) -> tuple[float, TrainingReport]:
        """The bound on validation data with the averaged weights, and one sample."""
        settings, bound = self.settings, self._bound(self.averaged)
        sample = self.averaged.sample(
            1,
            calls=max(settings.chain_calls, self.averaged.least_calls),
            generator=seeded(settings.seed, "sample", device=self.fabric.device),
        )
        report = self._report(
            "validation", validation=bound, sample=sample.cpu(), marginal_bits=self.marginal_bits(),
            **self.model.learned(),
        )  # fmt: skip
        return bound.bits_per_token, report

    def _bound(self, model: Bridge) -> Bound:
        """The bound on validation data, each process on its share."""
        settings, fabric = self.settings, self.fabric
        split, world = self.data.validation, fabric.world_size
        chosen = split.spread(settings.evaluate_sequences)
        if len(chosen) < world:
            raise ValueError(f"validation data must have a sequence for each of {world} processes, got {len(chosen)}")
        rows = chosen[: len(chosen) // world * world].chunk(world)[fabric.global_rank]
        label = split.labels(rows) if model.num_classes else None
        bound = model.bound(
            split[rows].to(fabric.device),
            label=None if label is None else label.to(fabric.device),
            batch_size=max(1, settings.batch_size // world // settings.accumulate),
            generator=seeded(settings.seed, "validation", fabric.global_rank, device=fabric.device),
            **self.estimator.bound,
        )
        if world > 1:
            score, prior = gathered(fabric, bound.score), gathered(fabric, bound.prior)
            variance = self._reduce(torch.tensor(bound.variance, device=fabric.device)).item()
            tokens = None if bound.tokens is None else gathered(fabric, bound.tokens.double()).long()
            bound = Bound(score, prior, bound.num_positions, variance, tokens)
        return bound

    def hand_over(self) -> None:
        """Give the averaged weights and the corruption to the bridge."""
        self.bridge.corruption.load_state_dict(self.corruption.state_dict())
        fill(self.bridge.network, self.average.module.state_dict())

    def calibrate(self, at_best: Callable[[], Checkpoint | None]) -> Iterator[TrainingReport | None]:
        """Calibrate the best model, if its columns are written in one order."""
        if not can_be_calibrated(self.bridge):
            return
        model, checkpoint = copy.deepcopy(self.bridge).to(self.fabric.device), at_best()
        if checkpoint is not None:  # the model in the folder may have been calibrated, just before a kill
            fill(model.network, checkpoint.under("average"))
        errors = []
        for error in calibration(model, self.data.train, self.fabric):
            errors.append(error)
            yield None
        self.bridge.load_state_dict(model.state_dict())
        yield self._report("calibration", validation=self._bound(model), share_error=errors[-1])

    # -- reports ------------------------------------------------------------------------------------------------------

    def matrix_report(self) -> TrainingReport:
        step, learned = self.progress.phase_step, self.model.learned()
        return self._report("matrix", matrix_step=step, marginal_bits=self.marginal_bits(), **learned)

    def score_report(self, loss: float, steps_per_second: float, gradient_norm: float) -> TrainingReport:
        return self._report(
            "score",
            score_bits=loss,
            tokens_per_second=steps_per_second * self.settings.batch_size * self.bridge.mean_length,
            gradient_norm=gradient_norm,
            learning_rate=self.score_optimiser.param_groups[0]["lr"],
        )

    def _report(self, phase: Literal["matrix", "score", "validation", "calibration"], **parts: Any) -> TrainingReport:
        progress = self.progress
        progress.prior_bits = self.prior_bits()  # the rates may have moved since the report before
        tokens = round(progress.step * self.settings.batch_size * self.bridge.mean_length)
        return TrainingReport(
            phase=phase, token=self.data.codec.token, cycle=progress.cycle, tokens=tokens,
            prior_bits=progress.prior_bits, **parts,
        )  # fmt: skip

    def checkpoint(self) -> Checkpoint:
        self._check_rates()
        return super().checkpoint()


def cause_of(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Why numbers are not finite, in words."""
    broken = [name for name, parameter in named if not parameter.detach().isfinite().all()]
    return f"{broken[0]} is no longer finite" if broken else "the network's outputs are too large"


def _given(x_0: Tensor, share: float, generator: torch.Generator) -> Bool[Tensor, "b d"] | None:
    """For a share of the rows, positions that are given; each row draws its own rate."""
    if share == 0:
        return None
    device = generator.device
    chosen = torch.rand(len(x_0), 1, generator=generator, device=device) < share
    rate = torch.rand(len(x_0), 1, generator=generator, device=device)
    return chosen & (torch.rand(x_0.shape, generator=generator, device=device) < rate)

"""All settings of a training run."""

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

Accelerator = Literal["auto", "cpu", "cuda"]
Strategy = Literal["auto", "ddp", "fsdp"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]

MOST_RATE, MOST_ROWS = 1_000_000, 1 << 24
"""Maximum learning rates, and sizes of batches: larger ones overflow, or would take forever."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Algorithm 1 and its optimisers. Tolerances are in bits per token; 0 never stops early.

    Args:
        cycles: Number of cycles; each is Matrix-learning (of the rates), then Score-learning (of the network).
        score_steps: Maximum number of Score-learning steps per cycle.
        matrix_steps: Maximum number of Matrix-learning steps per cycle; 0 leaves the rates as they are (unless learned
            jointly).
        matrix_objective: The loss of the rates: J_Q as in the paper (prior); the whole bound, in alternation with the
            network (bound); or the whole bound in every step of Score-learning, without Matrix-learning (joint).
        score_tolerance: Score-learning of a cycle ends when the running mean of J_score falls below it: ε_score.
        matrix_tolerance: Matrix-learning of a cycle ends when J_Q falls below it: ε_Q.
        tolerance: Training ends when J_score + J_Q is below it after a cycle: ε.
        start: The first p_0: the data's histogram, or one random vector for all positions as in the paper.
        reestimate: Between cycles, replace p_0 by the marginals of the model's samples (Eq. 10).
        chains: Number of samples for this estimate of p_0.
        chain_calls: Steps per sample for this estimate of p_0.
        batch_size: Sequences (or paths, with several orders) per step, over all processes and accumulated parts.
        orders: Orders per sequence, for a network that follows orders; a batch then has fewer sequences. Learning the
            speeds of positions needs at least 2.
        singles: With several orders: after each sequence that has them, up to this many have one order only, as
            batch_size allows.
        accumulate: Number of parts into which each process splits its share of a batch; more parts need less memory.
        learning_rate: Learning rate of the network, after warm-up.
        matrix_learning_rate: Learning rate of the rates, or of their logarithms, as the process learns them.
        matrix_weight_decay: Weight decay of what matrix_learning_rate is for.
        matrix_clip: Maximum norm of the gradient of the rates; 0: no clipping.
        warmup: Steps over which the learning rate rises from 0; if minutes are given, at most the first tenth of them.
        decay: The learning rate after warm-up: constant, or falling to 0 along a cosine by the last step.
        weight_decay: Weight decay of the network's matrices, not of biases and norms.
        weight_decay_until: The step at which weight decay ends; None: never.
        clip: Maximum norm of the gradient; 0: no clipping.
        ema: Decay of the averaged weights, which are evaluated and saved.
        adapt_times: Draw times where the loss varied most in previous steps (its mean is unchanged); otherwise evenly.
        infill: Share of the training sequences with some positions given, to prepare for filling in templates; None:
            0.25 if noise can look like data, or if an order is learned; otherwise 0.
        any_order: Share of the training sequences that are written in an order drawn evenly from all, whatever the
            speeds of positions, to prepare for any set of given positions, and of the orders of an evaluation; for a
            network that follows any order. None: 0.5 if speeds are fixed, otherwise 0.
        compile: Compile the network with torch.compile.
        seed: Seed of data order, noise and dropout.
        minutes: Stop after this many minutes, counted from the start or from resuming; None: no limit. With
            decay=cosine, the learning rate falls to 0 by then. There is an evaluation in each tenth of them, too.
        patience: Stop after this many evaluations in a row without improvement; 0: never.
        log_every: Steps between reports.
        evaluate_every: Steps between evaluations on validation data; each is followed by a checkpoint.
        evaluate_sequences: Maximum number of validation sequences per evaluation; always the same ones.
        keep: Number of checkpoints to keep, besides that of the best evaluation.
    """

    cycles: int = 4
    score_steps: int = 1000
    matrix_steps: int = 100
    matrix_objective: Literal["prior", "bound", "joint"] = "prior"
    score_tolerance: float = 0.0
    matrix_tolerance: float = 0.0
    tolerance: float = 0.0
    start: Literal["histogram", "random"] = "histogram"
    reestimate: bool = True
    chains: int = 256
    chain_calls: int = 32

    batch_size: int = 128
    orders: int = 1
    singles: int = 0
    accumulate: int = 1
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 1e-2
    matrix_weight_decay: float = 0.0
    matrix_clip: float = 0.0
    warmup: int = 100
    decay: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.01
    weight_decay_until: int | None = None
    clip: float = 1.0
    ema: float = 0.999
    adapt_times: bool = True
    infill: float | None = None
    any_order: float | None = None
    compile: bool = False

    seed: int = 0
    minutes: float | None = None
    patience: int = 0
    log_every: int = 50
    evaluate_every: int = 500
    evaluate_sequences: int = 2048
    keep: int = 2

    @property
    def sequences(self) -> int:
        """Number of different sequences per step.

        >>> TrainingSettings(batch_size=64, orders=2, singles=6).sequences
        56
        """
        return self.batch_size // (self.orders + self.fitting_singles) * (1 + self.fitting_singles)

    @property
    def fitting_singles(self) -> int:
        """The most `singles` with which a batch divides into groups.

        >>> TrainingSettings(batch_size=12, orders=2, singles=6).fitting_singles
        4
        """
        sizes = range(self.singles, -1, -1)
        return next(size for size in sizes if self.batch_size % ((self.orders + size) * self.accumulate) == 0)

    @property
    def total_steps(self) -> int:
        """Steps of Score-learning in all cycles, if nothing ends them early.

        >>> TrainingSettings(cycles=2, score_steps=500).total_steps
        1000
        """
        return self.cycles * self.score_steps

    def __post_init__(self) -> None:
        check_ranges(self)
        _check(self.orders > 1 or not self.singles, "singles", "0 with one order", self.singles)
        parts = self.orders * self.accumulate
        rule = f"a multiple of orders × accumulate = {parts}"
        _check(self.batch_size % parts == 0, "batch_size", rule, self.batch_size)


TrainingOptions = TypedDict(  # noqa: UP013 - thirty-six lines would say no more
    "TrainingOptions",
    {
        "cycles": int, "score_steps": int, "matrix_steps": int,
        "matrix_objective": Literal["prior", "bound", "joint"],
        "score_tolerance": float, "matrix_tolerance": float, "tolerance": float,
        "start": Literal["histogram", "random"], "reestimate": bool, "chains": int, "chain_calls": int,
        "batch_size": int, "orders": int, "singles": int, "accumulate": int,
        "learning_rate": float, "matrix_learning_rate": float, "matrix_weight_decay": float, "matrix_clip": float,
        "warmup": int, "decay": Literal["constant", "cosine"],
        "weight_decay": float, "weight_decay_until": int | None, "clip": float, "ema": float,
        "adapt_times": bool, "infill": float | None, "any_order": float | None, "compile": bool,
        "seed": int, "minutes": float | None, "patience": int, "log_every": int, "evaluate_every": int,
        "evaluate_sequences": int, "keep": int,
    },
    total=False,
)  # fmt: skip
"""The fields of `TrainingSettings` as keywords, for type checkers."""

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "at least 1": (
        lambda value: value >= 1,
        "batch_size log_every evaluate_every keep cycles score_steps chains chain_calls orders accumulate "
        "evaluate_sequences steps evaluate_images",
    ),
    "at least 0": (
        lambda value: value >= 0,
        "seed warmup patience matrix_steps score_tolerance matrix_tolerance tolerance weight_decay clip singles "
        "matrix_weight_decay matrix_clip detail commitment adversarial_steps adversarial",
    ),
    f"at most {MOST_RATE:,}": (lambda value: value <= MOST_RATE, "weight_decay matrix_weight_decay"),
    f"at most {MOST_ROWS:,}": (lambda value: value <= MOST_ROWS, "batch_size orders accumulate chains chain_calls"),
    f"in (0, {MOST_RATE:,}]": (lambda value: 0 < value <= MOST_RATE, "learning_rate matrix_learning_rate"),
    "in [0, 1)": (lambda value: 0 <= value < 1, "ema"),
    "in [0, 1]": (lambda value: 0 <= value <= 1, "infill any_order"),
    "positive": (lambda value: value > 0, "minutes"),
}
"""The ranges of settings, of all kinds of training; None is in each."""


def check_ranges(settings: Any) -> None:
    """Raise a ValueError if a setting, of any kind of training, is out of range or not one of its choices."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, value in values.items():
        _check(not isinstance(value, float) or math.isfinite(value), name, "finite", value)
    for rule, (holds, names) in RULES.items():
        for name in names.split():
            value = values.get(name)
            _check(value is None or holds(value), name, rule, value)
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal:
            _check(values[name] in get_args(hint), name, " or ".join(map(repr, get_args(hint))), values[name])


def settings_from(options: TrainingOptions) -> TrainingSettings:
    """Settings from keywords; an unknown one is an error that names the nearest."""
    known = [field.name for field in fields(TrainingSettings)]
    for name in options.keys() - set(known):
        nearest = [f"did you mean {close}? " for close in difflib.get_close_matches(name, known, n=1)]
        raise ValueError(f"no training setting called {name}: {''.join(nearest)}choose from {', '.join(known)}")
    return TrainingSettings(**options)


def spelled_out(function: F) -> F:
    """Let `help` and completion show the fields of `TrainingSettings` where `function` takes `**options`."""
    signature = inspect.signature(function)
    *own, options = signature.parameters.values()
    each = [options.replace(name=f.name, kind=options.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in fields(TrainingSettings)]  # fmt: skip
    function.__signature__ = signature.replace(parameters=[*own, *each])  # type: ignore[attr-defined]
    return function


def _check(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value}")

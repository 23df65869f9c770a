"""All settings of a training run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

MOST_RATE, MOST_ROWS = 1_000_000, 1 << 24
"""Maximum learning rates, and sizes of batches: larger ones overflow, or would take forever."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Algorithm 1 and its optimisers. Tolerances are in bits per token; 0 never stops early."""

    cycles: int = 4
    """Number of cycles; each is Matrix-learning (of the rates), then Score-learning (of the network)."""
    score_steps: int = 1000
    """Maximum number of Score-learning steps per cycle."""
    matrix_steps: int = 100
    """Maximum number of Matrix-learning steps per cycle; 0 leaves the rates as they are (unless learned jointly)."""
    matrix_objective: Literal["prior", "bound", "joint"] = "prior"
    """The loss of the rates: J_Q as in the paper (prior); the whole bound, in alternation with the network (bound);
    or the whole bound in every step of Score-learning, without Matrix-learning (joint)."""
    score_tolerance: float = 0.0
    """ε_score: Score-learning of a cycle ends when the running mean of J_score falls below this value."""
    matrix_tolerance: float = 0.0
    """ε_Q: Matrix-learning of a cycle ends when J_Q falls below this value."""
    tolerance: float = 0.0
    """ε: training ends when J_score + J_Q is below this value after a cycle."""
    start: Literal["histogram", "random"] = "histogram"
    """The first p_0: the data's histogram, or one random vector for all positions as in the paper."""
    reestimate: bool = True
    """Between cycles, replace p_0 by the marginals of the model's samples (Eq. 10)."""
    chains: int = 256
    """Number of samples for this estimate of p_0."""
    chain_calls: int = 32
    """Steps per sample for this estimate of p_0."""

    batch_size: int = 128
    """Sequences (or paths, with several orders) per step, over all processes and accumulated parts."""
    orders: int = 1
    """Orders per sequence, for a network that follows orders; a batch then has fewer sequences. Learning the speeds of
    positions needs at least 2."""
    singles: int = 0
    """With several orders: after each sequence that has them, up to this many have one order only, as batch_size
    allows."""
    accumulate: int = 1
    """Number of parts into which each process splits its share of a batch; more parts need less memory."""
    learning_rate: float = 1e-3
    """Learning rate of the network, after warm-up."""
    matrix_learning_rate: float = 1e-2
    """Learning rate of the rates, or of their logarithms, as the process learns them."""
    matrix_weight_decay: float = 0.0
    """Weight decay of what matrix_learning_rate is for."""
    matrix_clip: float = 0.0
    """Maximum norm of the gradient of the rates; 0: no clipping."""
    warmup: int = 100
    """Steps over which the learning rate rises from 0; if minutes are given, at most the first tenth of them."""
    decay: Literal["constant", "cosine"] = "constant"
    """The learning rate after warm-up: constant, or falling to 0 along a cosine by the last step."""
    weight_decay: float = 0.01
    """Weight decay of the network's matrices, not of biases and norms."""
    weight_decay_until: int | None = None
    """The step at which weight decay ends; None: never."""
    clip: float = 1.0
    """Maximum norm of the gradient; 0: no clipping."""
    ema: float = 0.999
    """Decay of the averaged weights, which are evaluated and saved."""
    adapt_times: bool = True
    """Draw times where the loss varied most in previous steps (its mean is unchanged); otherwise evenly."""
    infill: float | None = None
    """Share of the training sequences with some positions given, to prepare for filling in templates;
    None: 0.25 if noise can look like data, or if an order is learned; otherwise 0."""
    any_order: float | None = None
    """Share of the training sequences that are written in an order drawn evenly from all, whatever the speeds of
    positions, to prepare for any set of given positions, and of the orders of an evaluation; for a network that follows
    any order. None: 0.5 if speeds are fixed, otherwise 0."""
    compile: bool = False
    """Compile the network with torch.compile."""

    seed: int = 0
    """Seed of data order, noise and dropout."""
    minutes: float | None = None
    """Stop after this many minutes, counted from the start or from resuming; None: no limit.
    With decay=cosine, the learning rate falls to 0 by then."""
    patience: int = 0
    """Stop after this many evaluations in a row without improvement; 0: never."""
    log_every: int = 50
    """Steps between reports."""
    evaluate_every: int = 500
    """Steps between evaluations on validation data; each is followed by a checkpoint."""
    evaluate_sequences: int = 2048
    """Maximum number of validation sequences per evaluation; always the same ones."""
    keep: int = 2
    """Number of checkpoints to keep, besides that of the best evaluation."""

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
        counts = ("cycles", "score_steps", "chains", "chain_calls", "orders", "accumulate", "evaluate_sequences")
        others = ("matrix_steps", "score_tolerance", "matrix_tolerance", "tolerance", "weight_decay", "clip", "singles",
                  "matrix_weight_decay", "matrix_clip")  # fmt: skip
        check_common(self, counts, others)
        rate = self.matrix_learning_rate
        _require(0 < rate <= MOST_RATE, "matrix_learning_rate", f"in (0, {MOST_RATE:,}]", rate)
        for name in ("weight_decay", "matrix_weight_decay"):
            _require(getattr(self, name) <= MOST_RATE, name, f"at most {MOST_RATE:,}", getattr(self, name))
        for name in ("orders", "accumulate", "chains", "chain_calls"):
            _require(getattr(self, name) <= MOST_ROWS, name, f"at most {MOST_ROWS:,}", getattr(self, name))
        _require(0 <= self.ema < 1, "ema", "in [0, 1)", self.ema)
        _require(self.infill is None or 0 <= self.infill <= 1, "infill", "in [0, 1]", self.infill)
        _require(self.any_order is None or 0 <= self.any_order <= 1, "any_order", "in [0, 1]", self.any_order)
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                choices = get_args(hint)
                _require(getattr(self, name) in choices, name, " or ".join(map(repr, choices)), getattr(self, name))
        _require(self.orders > 1 or not self.singles, "singles", "0 with one order", self.singles)
        parts = self.orders * self.accumulate
        rule = f"a multiple of orders × accumulate = {parts}"
        _require(self.batch_size % parts == 0, "batch_size", rule, self.batch_size)


def check_common(settings: Any, counts: Sequence[str], others: Sequence[str]) -> None:
    """Raise a ValueError if a setting that all kinds of training have is out of range, or one of a kind's own.

    Args:
        settings: of any kind of training.
        counts: settings of its own that are at least 1.
        others: settings of its own that are at least 0.
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, value in values.items():
        _require(not isinstance(value, float) or math.isfinite(value), name, "finite", value)
    for name in ("batch_size", "log_every", "evaluate_every", "keep", *counts):
        _require(values[name] >= 1, name, "at least 1", values[name])
    for name in ("seed", "warmup", "patience", *others):
        _require(values[name] >= 0, name, "at least 0", values[name])
    rate, size, minutes = values["learning_rate"], values["batch_size"], values["minutes"]
    _require(0 < rate <= MOST_RATE, "learning_rate", f"in (0, {MOST_RATE:,}]", rate)
    _require(size <= MOST_ROWS, "batch_size", f"at most {MOST_ROWS:,}", size)
    _require(minutes is None or minutes > 0, "minutes", "positive", minutes)


def settings_from(options: dict[str, object]) -> TrainingSettings:
    """Settings from a dictionary; an unknown name is an error that lists the known ones."""
    known = [field.name for field in fields(TrainingSettings)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"no training setting called {', '.join(unknown)}: choose from {', '.join(known)}")
    return TrainingSettings(**options)  # type: ignore[arg-type]


def _require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value}")

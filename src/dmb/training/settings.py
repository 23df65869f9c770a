"""Everything that can be chosen about a training run."""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Algorithm 1 and its optimisers. Tolerances are in bits per token; 0 means never to stop early."""

    cycles: int = 4
    """How often Matrix-learning and Score-learning take turns."""
    score_steps: int = 1000
    """Most steps of Score-learning in a cycle."""
    matrix_steps: int = 100
    """Most steps of Matrix-learning in a cycle; 0 leaves the forward process as it is (unless learned jointly)."""
    matrix_objective: Literal["prior", "bound", "joint"] = "prior"
    """What the rates are learned on: J_Q, as printed; the whole bound, in turn with the network; or the whole bound in
    every step of Score-learning, and no Matrix-learning besides."""
    score_tolerance: float = 0.0
    """ε_score: a cycle's Score-learning ends when the running mean of J_score falls below."""
    matrix_tolerance: float = 0.0
    """ε_Q: a cycle's Matrix-learning on J_Q ends when it falls below."""
    tolerance: float = 0.0
    """ε: training ends when, after a cycle, J_score + J_Q is below."""
    start: Literal["histogram", "random"] = "histogram"
    """What p_0, and with it p_T, starts as: the data's histogram, or random as printed."""
    reestimate: bool = True
    """Between cycles, replace p_0 by the model's own marginals (Eq. 10)."""
    chains: int = 256
    """Samples that estimate is averaged over."""
    chain_steps: int = 32
    """Steps of each of them."""

    batch_size: int = 128
    """Sequences per step, over all processes and all accumulated parts; or paths, if there are several `orders`."""
    orders: int = 1
    """In how many orders each sequence is shown, by a network that follows orders; a batch then has so many times fewer
    sequences. To learn the speeds of positions it takes at least 2."""
    accumulate: int = 1
    """Parts that each process's share of a batch is cut into; more need less memory and give the same result."""
    learning_rate: float = 1e-3
    """Of the network, after warm-up."""
    matrix_learning_rate: float = 1e-2
    """Of the rates' logarithms."""
    warmup: int = 100
    """Steps over which the learning rate rises from 0."""
    decay: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after warm-up: stay, or fall to 0 along a cosine by the last step."""
    weight_decay: float = 0.01
    """Of the network's matrices (not of biases and norms)."""
    weight_decay_until: int | None = None
    """The step at which weight decay turns to 0. Default: never."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    ema: float = 0.999
    """Decay of the averaged weights, which are the ones that are evaluated and saved."""
    adapt_times: bool = True
    """Draw times where the loss varies most, as the steps before have shown, with weights that leave its mean as it is;
    otherwise evenly."""
    infill: float = 0.0
    """Share of the sequences that are shown with some positions given, so that templates can be filled in later."""
    compile: bool = False
    """Compile the network with `torch.compile`."""

    seed: int = 0
    """Of data order, noise and dropout."""
    minutes: float | None = None
    """Stop after so much time, counted anew when a run is resumed. With decay="cosine" the learning rate has then
    fallen to 0. Default: as long as the steps take."""
    patience: int = 0
    """Stop after so many evaluations in a row without a better one. Default: 0, never."""
    log_every: int = 50
    """Steps between reports."""
    evaluate_every: int = 500
    """Steps between evaluations on validation data; each is followed by a checkpoint."""
    evaluate_sequences: int = 2048
    """Most validation sequences an evaluation looks at; always the same ones."""
    keep: int = 2
    """Checkpoints that are kept, besides the best on validation."""

    @property
    def sequences(self) -> int:
        """Different sequences per step."""
        return self.batch_size // self.orders

    @property
    def total_steps(self) -> int:
        """Steps of Score-learning in all cycles, if no tolerance ends them before.

        >>> TrainingSettings(cycles=2, score_steps=500).total_steps
        1000
        """
        return self.cycles * self.score_steps

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _require(not isinstance(value, float) or math.isfinite(value), field.name, "finite", value)
        _require(self.seed >= 0, "seed", "at least 0", self.seed)
        whole = ("cycles", "score_steps", "chains", "chain_steps", "batch_size", "orders", "accumulate", "log_every",
                 "evaluate_every", "evaluate_sequences", "keep")  # fmt: skip
        for name in whole:
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        positive = ("learning_rate", "matrix_learning_rate")
        for name in positive:
            _require(getattr(self, name) > 0, name, "positive", getattr(self, name))
        others = {"matrix_steps", "score_tolerance", "matrix_tolerance", "tolerance", "warmup", "weight_decay", "clip",
                  "patience"}  # fmt: skip
        for name in others:
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        _require(0 <= self.ema < 1, "ema", "in [0, 1)", self.ema)
        _require(0 <= self.infill <= 1, "infill", "in [0, 1]", self.infill)
        _require(self.minutes is None or self.minutes > 0, "minutes", "positive", self.minutes)
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                choices = get_args(hint)
                _require(getattr(self, name) in choices, name, " or ".join(map(repr, choices)), getattr(self, name))
        parts = self.orders * self.accumulate
        rule = f"a multiple of orders × accumulate = {parts}"
        _require(self.batch_size % parts == 0, "batch_size", rule, self.batch_size)


def settings_from(options: dict[str, object]) -> TrainingSettings:
    """Settings from a dictionary; a name that is none of them is an error that lists those that are."""
    known = [field.name for field in fields(TrainingSettings)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"no training setting called {', '.join(unknown)}; there are {', '.join(known)}")
    return TrainingSettings(**options)  # type: ignore[arg-type]


def _require(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value}")

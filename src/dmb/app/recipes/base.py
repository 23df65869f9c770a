"""A recipe: data, forward process, network, head and training settings, as plain data that can be written as JSON.

You may replace a section by your own: any frozen dataclass with the method `load` of `DataChoice`, or `build` of
`ProcessChoice` or `NetworkChoice`. Its fields become flags of the command line like all others.
"""

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import dmb.data
import dmb.training
from dmb._core.configuration import check_types, typed
from dmb.app.recipes.choices import BROUGHT_BY, DataChoice, NetworkChoice, OrderChoice, ProcessChoice, meaningless
from dmb.data.reading import as_value_error
from dmb.training.settings import TrainingSettings

SECTIONS: dict[str, type[Any]] = {
    "data": DataChoice, "process": ProcessChoice, "order": OrderChoice, "network": NetworkChoice,
    "training": TrainingSettings,
}  # fmt: skip
"""The sections of a recipe that has none of the user's own."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run, before it has data: `build` makes the bridge, `training` says how to train it.

    Args:
        name: Its name for `dmb.app.recipes.recipe`; `FILE.py:FUNCTION` for your own.
        data: A `DataChoice`, or your own dataclass with the same `load`.
        process: A `ProcessChoice`, or your own dataclass with the same `build`.
        order: An `OrderChoice`, or your own dataclass with the same `build`.
        network: A `NetworkChoice`, or your own dataclass with the same `build`.
    """

    name: str
    data: Any
    process: Any
    order: Any = field(default_factory=OrderChoice)
    network: Any
    head: Literal["mean", "score", "unscaled_score"] = "mean"
    training: TrainingSettings

    def sections(self) -> dict[str, Any]:
        """The parts that have settings: dataclasses, ours or the user's."""
        return {each.name: value for each in fields(self) if is_dataclass(value := getattr(self, each.name))}

    def settings(self) -> dict[str, Any]:
        """Every setting with its value, by section and name: `network.width`."""
        parts = self.sections().items()
        own = {f"{name}.{each.name}": getattr(part, each.name) for name, part in parts for each in fields(part)}
        return {"head": self.head, **own}

    def differences(self, other: "Recipe") -> dict[str, Any]:
        """The settings of `other` that differ from this recipe's."""
        own = self.settings()
        return {name: value for name, value in other.settings().items() if name not in own or own[name] != value}

    def adapted_to(self, wanted: "Recipe") -> "Recipe":
        """The recipe with the settings that come with the choices of `wanted`, where those are of another kind."""
        before, after = (_by_name(recipe.settings()) for recipe in (self, wanted))
        brought = dict[str, Any]()
        for choice, bundles in BROUGHT_BY.items():
            old, new = (bundles.get(values.get(choice), {}) for values in (before, after))
            brought |= new if new != old else {}
        return self.changed(**{name: value for name, value in brought.items() if name in before})

    def meaningless(self) -> dict[str, str]:
        """The names of settings that mean nothing in this recipe, with reasons."""
        return meaningless(_by_name(self.settings()))

    def check_changes(self, wanted: "Recipe") -> None:
        """Raise a ValueError if a setting that differs in `wanted` means nothing there."""
        reasons, changes = wanted.meaningless(), _by_name(self.differences(wanted))
        idle = [" ".join([*as_flags({name: changes[name]}), reasons[name]]) for name in changes if name in reasons]
        if idle:
            raise ValueError("; ".join(idle))

    def check_same(self, there: "Recipe", what: str) -> None:
        """Raise a ValueError that says `what` is there, and how its settings differ from these."""
        own = self.settings()
        differ = [f"{name}={value}, not {own.get(name)}" for name, value in self.differences(there).items()]
        if differ:
            raise ValueError(f"{what}, with {'; '.join(differ)}: choose another --out")

    def changed(self, **settings: Any) -> "Recipe":
        """The recipe with other values of single settings, whichever section they are in.

        >>> from dmb.app.recipes import recipe
        >>> recipe("digits").changed(width=64, cycles=1).network.width
        64
        """
        changes: dict[str, Any] = {"head": settings.pop("head", self.head)}
        for section, value in self.sections().items():
            own = {each.name: settings.pop(each.name) for each in fields(value) if each.name in settings}
            changes[section] = replace(value, **own)
        if settings:
            raise ValueError(f"no setting called {', '.join(settings)}: choose from {', '.join(self.settings())}")
        return replace(self, **changes)

    def public(self) -> "Recipe":
        """The recipe as others may read it: of every full path, the last part."""
        settings = {name: public(value) for name, value in _by_name(self.settings()).items()}
        return replace(self.changed(**settings), name=public(self.name))

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, config: Any, like: "Recipe | None" = None) -> "Recipe":
        """The recipe that `to_json` described.

        Args:
            config: the JSON.
            like: a recipe with the same sections, if some of them are the user's own.
        """
        if not isinstance(config, dict):
            raise ValueError(f"not a recipe: {config!r}")
        kinds = SECTIONS if like is None else {name: type(value) for name, value in like.sections().items()}
        config = _upgraded(config)
        with as_value_error("not a recipe", KeyError, TypeError, ValueError):
            given = {each.name: config[each.name] for each in fields(cls)}
            check_types(cls, given)
            made = {name: typed(kind, _tupled(config[name], getattr(like, name, None))) for name, kind in kinds.items()}
            return cls(**given | made)

    def build(self, data: "dmb.data.DataSet") -> "dmb.Bridge":
        """The bridge for `data`, with initial weights drawn from the training seed."""
        import torch  # for which help does not wait

        from dmb._core.seeding import seed_of, seeded
        from dmb.bridges import put_together

        generator = seeded(self.training.seed, "process")
        process, order = self.process.build(data, generator), self.order.build(data, generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.training.seed, "init"))
            return put_together(process, order, self.network.build(process, data), self.head, data.lengths)

    def check(self, model: "dmb.Bridge", data: "dmb.data.DataSet", fabric: "dmb.training.Engine") -> None:
        """A ValueError if `model` cannot be trained on `data`, or not be loaded when it is saved."""
        model.check_round_trip()
        dmb.training.check_trainable(model, data, self.training, fabric)

    def describe(self, model: "dmb.Bridge", steps: str | None = None) -> str:
        """How the model is trained, with so many steps; default: all."""
        steps = steps or f"{self.training.total_steps:,}"
        return f"{steps} steps of Score-learning {model.describe_training(self.training)}"


def public(value: Any) -> Any:
    """A setting as others may read it: without the folders of one machine.

    >>> public("/home/me/novel.txt"), public("runs/novel"), public(7)
    ('novel.txt', 'runs/novel', 7)
    """
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Settings as flags of a command line, one after the other.

    >>> as_flags({"training.cycles": 2, "process.mask": True, "data.length": None})
    ['--cycles', '2', '--mask', '--length', 'None']
    >>> as_flags({"network.widths": (32, 64)})
    ['--widths', '32', '64']
    """
    words: list[str] = []
    for name, value in _by_name(settings).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return words


def _by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without their sections: no two have one name."""
    return {name.rpartition(".")[2]: value for name, value in settings.items()}


def _upgraded(config: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a recipe as this version writes it.

    `chain_calls` was called `chain_steps`; in 0.2 the speeds of a process were the order of writing.
    """
    training, process = config.get("training"), config.get("process")
    if isinstance(training, dict) and "chain_steps" in training:
        config = {**config, "training": {"chain_calls" if k == "chain_steps" else k: v for k, v in training.items()}}
    if "order" in config or not isinstance(process, dict) or "speeds" not in process:
        return config
    process = dict(process)
    learned, fixed, tilt = (process.pop(name) for name in ("speeds", "in_turn", "tilt"))
    order = {"write_order": "learned" if learned else "fixed" if fixed else None, "tilt": tilt}
    return {**config, "process": process, "order": order}


def _tupled(config: Any, like: Any) -> Any:
    """The settings of a section; JSON has made lists of what are tuples in `like`."""
    if not isinstance(config, dict):
        return config
    return {
        name: tuple(value) if isinstance(getattr(like, name, None), tuple) else value for name, value in config.items()
    }

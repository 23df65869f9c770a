"""Objects that a JSON file can describe, so that a saved model is rebuilt without unpickling anything."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor


class Configurable:
    """An object that describes itself: `to_config` gives JSON, and `from_config` builds the object again from it.

    A subclass is known by its name as soon as it is defined. It owes `config`, and `build` where its constructor needs
    more than plain JSON.
    """

    _known: ClassVar[dict[str, type["Configurable"]]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        known = Configurable._known.get(cls.__name__)
        if known is not None and known.__module__.startswith("dmb.") and cls.__module__ != known.__module__:
            raise TypeError(
                f"dmb has a {cls.__name__} of its own, and saved models refer to it by name: choose another name"
            )
        Configurable._known[cls.__name__] = cls

    @staticmethod
    def class_named(name: str) -> type["Configurable"] | None:
        """The class that files call by this name; None if there is none."""
        return Configurable._known.get(name)

    def config(self) -> dict[str, Any]:
        """The arguments that `build` needs."""
        return {}

    @classmethod
    def build(cls, *tensors: Any, **config: Any) -> Any:
        """`build(tensors, **config)`: make the object that `config` describes, of the shapes of its saved `tensors`.

        The constructor is the only way to make one. `load_state_dict` then restores every last bit of the tensors.
        """
        return cls(**config)

    def to_config(self) -> dict[str, Any]:
        """A JSON description of this object."""
        return {"type": type(self).__name__, **self.config()}

    @staticmethod
    def from_config(config: dict[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Any:
        """The object that `to_config` described; `tensors` are those that were saved of it, if it has any."""
        options = dict(config)
        name = options.pop("type", None)
        if name not in Configurable._known:
            known = ", ".join(sorted(Configurable._known))
            raise ValueError(f"type must be one of {known}, got {name!r}: if it is yours, import it first")
        try:
            return Configurable._known[name].build(tensors or {}, **options)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name} cannot be built from {options}: {error}") from error


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix` and a dot, without them.

    >>> under({"process.rank": Tensor(), "network.weight": Tensor()}, "process")
    {'rank': tensor([])}
    """
    prefix += "."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

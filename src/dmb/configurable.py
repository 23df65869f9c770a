"""Objects that a JSON file can describe, so that a saved model is rebuilt without unpickling anything."""

from typing import Any, ClassVar


class Configurable:
    """Says how it was made: `to_config` gives JSON, and `from_config` builds the object again, but for its tensors.

    A subclass is known by its name as soon as it is defined. It owes `config`, and `build` where the arguments of its
    constructor are not plain JSON.
    """

    _known: ClassVar[dict[str, type["Configurable"]]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        Configurable._known[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """The arguments that `build` needs."""
        return {}

    @classmethod
    def build(cls, *args: Any, **config: Any) -> Any:
        """Make the object that `config` describes; tensors are filled in afterwards by `load_state_dict`."""
        return cls(*args, **config)

    def to_config(self) -> dict[str, Any]:
        """A JSON description of this object."""
        return {"type": type(self).__name__, **self.config()}

    @staticmethod
    def from_config(config: dict[str, Any]) -> Any:
        """The object that `to_config` described."""
        options = dict(config)
        name = options.pop("type", None)
        if name not in Configurable._known:
            raise ValueError(f"type must be one of {', '.join(sorted(Configurable._known))}, got {name!r}")
        try:
            return Configurable._known[name].build(**options)
        except TypeError as error:
            raise ValueError(f"{name} cannot be built from {options}: {error}") from error

"""JSON into objects, without unpickling: classes that describe themselves, and dataclasses whose types are checked."""

import inspect
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_MOST = 1 << 63  # the first whole number that tensors cannot hold
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}


def from_json(text: str | bytes, **options: Any) -> Any:
    """What JSON says; a ValueError if it is none, or nested too deeply. Options are those of `json.loads`."""
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError(str(error)) from error


class Configurable:
    """An object that describes itself: `to_config` gives JSON, and `from_config` builds the object again from it.

    A subclass is known by its name as soon as it is defined. It owes `build` where its constructor
    needs more than plain JSON, and `config` where that is more than arguments kept under their own names.
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

    @classmethod
    def class_named(cls, name: Any) -> type["Configurable"]:
        """The class that files call by this name: this one or a subclass."""
        known = Configurable._known.get(name) if isinstance(name, str) else None
        if known is None:
            names = ", ".join(sorted(name for name, kind in Configurable._known.items() if issubclass(kind, cls)))
            raise ValueError(f"type must be one of {names}, got {name!r}: if it is yours, import it first")
        if not issubclass(known, cls):
            raise ValueError(f"it is of class {name}, not {cls.__name__}")
        return known

    def config(self) -> dict[str, Any]:
        """The arguments that `build` needs. Default: those of the constructor that are kept under their own names."""
        return {name: vars(self)[name] for name in inspect.signature(type(self)).parameters if name in vars(self)}

    @classmethod
    def build(cls, tensors: Mapping[str, "torch.Tensor"], **config: Any) -> Any:
        """Make the object that `config` describes, of the shapes of its saved `tensors`.

        The constructor is the only way to make one. Tensors that are called like its arguments are passed to it, too;
        `load_state_dict` then restores every last bit of all tensors.
        """
        own = {name: tensors[name] for name in inspect.signature(cls).parameters if name in tensors}
        return cls(**own | config)

    def to_config(self) -> dict[str, Any]:
        """A JSON description of this object."""
        return {"type": type(self).__name__, **self.config()}

    @classmethod
    def from_config(cls, config: dict[str, Any], tensors: Mapping[str, "torch.Tensor"] | None = None) -> Any:
        """The object of this class that `to_config` described; `tensors` are those that were saved of it, if any."""
        options = dict(config)
        kind = cls.class_named(options.pop("type", None))
        check_types(kind.__init__, options)
        try:
            return kind.build(tensors or {}, **options)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{kind.__name__} cannot be built from {options}: {error}") from error


def under(tensors: Mapping[str, "torch.Tensor"], prefix: str) -> "dict[str, torch.Tensor]":
    """The tensors whose names begin with `prefix` and a dot, without them.

    >>> import torch
    >>> under({"process.rank": torch.zeros(0), "network.weight": torch.zeros(0)}, "process")
    {'rank': tensor([])}
    """
    prefix += "."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def typed(kind: type[T], values: Any) -> T:
    """An object of the dataclass `kind` with these `values`; a ValueError if one is missing, unknown or wrong.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Size:
    ...     width: int
    >>> typed(Size, {"width": 8})
    Size(width=8)
    >>> typed(Size, {"width": "8"})
    Traceback (most recent call last):
    ValueError: width must be a whole number, got '8'
    """
    if not isinstance(values, dict):
        raise ValueError(f"it must be a JSON object, got {values!r:.80}")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values.keys() - known.keys():
        raise ValueError(f"it has an unknown entry, {name}")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"it has no {name}")
    check_types(kind, values)
    return kind(**values)


def check_types(kind: Callable[..., Any], values: dict[str, Any]) -> None:
    """Raise a ValueError if one of `values` is of another type than the field, or argument, of its name."""
    try:
        hints = get_type_hints(kind)
    except NameError:  # of a user's own class, in which names are not resolved
        return
    for name, value in values.items():
        if name in hints and not conforms(value, hints[name]):
            raise ValueError(f"{name} must be {_in_words(hints[name])}, got {value!r:.80}")


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value from JSON is of a type; of types that JSON does not know, everything is.

    >>> conforms(1, float), conforms(True, int), conforms(None, int | None), conforms([1, 2], tuple[int, ...])
    (True, False, True, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return conforms(value, inner[0])
    if origin is Literal:
        return value in inner and not isinstance(value, bool)
    if origin in (Union, types.UnionType):
        return any(conforms(value, choice) for choice in inner)
    if origin in (list, tuple) and inner:
        return isinstance(value, list | tuple) and all(conforms(item, inner[0]) for item in value)
    if origin is dict and inner:
        return isinstance(value, dict) and all(conforms(item, inner[1]) for item in value.values())
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
    if hint is float:
        return isinstance(value, float) or conforms(value, int)
    return isinstance(value, hint) if hint in (str, list, dict, bool, types.NoneType) else True


def _in_words(hint: Any) -> str:
    """What a value must be."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    return _NAMES.get(hint, "a list of the right type" if origin in (list, tuple) else "a JSON object")

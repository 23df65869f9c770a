"""JSON into dataclasses: a value of another type than its field is an error that names the field."""

import types
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST = 1 << 63  # the first whole number that tensors cannot hold
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}


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


def check_types(kind: type, values: dict[str, Any]) -> None:
    """Raise a ValueError if one of `values` is of another type than the field of its name."""
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
    if hint in (None, types.NoneType):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
    if hint is float:
        return isinstance(value, float) or conforms(value, int)
    return isinstance(value, hint) if hint in (str, list, dict) else True


def _in_words(hint: Any) -> str:
    """What a value must be."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    return _NAMES.get(hint, "a list of the right type" if origin in (list, tuple) else "a JSON object")

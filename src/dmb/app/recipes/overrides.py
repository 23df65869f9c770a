"""Changing single settings of a recipe by name, as `--set name=value` does."""

import dataclasses
import difflib
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dmb.app.recipes.base import Recipe


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """`recipe` with every `name=value` applied; a name may be given with its section, `training.cycles=2`.

    >>> from dmb.app.recipes import digits
    >>> changed = override(digits(), ["cycles=2", "network.width=64", "minutes=none"])
    >>> changed.training.cycles, changed.network.width, changed.training.minutes
    (2, 64, None)
    """
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"a setting must look like name=value, got {assignment!r}")
        recipe = _with(recipe, name.strip(), text.strip())
    return recipe


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every setting that `override` knows, by its full name, with its value; what is trained before how."""
    found: dict[str, Any] = {}
    for field in sorted(dataclasses.fields(recipe), key=lambda field: field.name == "training"):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{inner.name}": getattr(value, inner.name) for inner in dataclasses.fields(value)}
        elif field.name != "name":
            found[field.name] = value
    return found


def _with(recipe: Recipe, name: str, text: str) -> Recipe:
    known = list(settings_of(recipe))
    matches = [full for full in known if full == name or full.endswith(f".{name}")]
    if not matches:
        close = difflib.get_close_matches(name, known + [full.rpartition(".")[2] for full in known], n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else f"; there are {', '.join(known)}"
        raise ValueError(f"no setting called {name!r}{hint}")
    section, _, leaf = matches[0].rpartition(".")
    owner = getattr(recipe, section) if section else recipe
    value = _parse(matches[0], text, get_type_hints(type(owner))[leaf])
    changed: Any = dataclasses.replace(owner, **{leaf: value})
    if not section:
        return changed
    sections: dict[str, Any] = {section: changed}
    return dataclasses.replace(recipe, **sections)


def _parse(name: str, text: str, kind: Any) -> Any:
    """`text` as a value of the annotated type, or an error that says what is wanted."""
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {text!r}")
        return text
    if get_origin(kind) in (Union, types.UnionType):
        if text.lower() == "none":
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, got {text!r}")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{name} must be {wanted}, got {text!r}") from None

"""Which settings two recipes differ in."""

from dataclasses import fields, is_dataclass
from typing import Any


def differences(a: Any, b: Any, section: str = "") -> dict[str, tuple[Any, Any]]:
    """The values of two dataclasses of one type where they differ, by dotted name.

    >>> from dataclasses import replace
    >>> from dmb.app.recipes import digits
    >>> differences(digits(), replace(digits(), network=replace(digits().network, width=64)))
    {'network.width': (256, 64)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for field in fields(a):
        name, pair = section + field.name, (getattr(a, field.name), getattr(b, field.name))
        if is_dataclass(pair[0]):
            found |= differences(*pair, f"{name}.")
        elif pair[0] != pair[1]:
            found[name] = pair
    return found


def refuse_differences(what: str, there: Any, wanted: Any) -> None:
    """Raise a ValueError that says `what`, and how the recipe that is there differs from the one that is wanted."""
    differ = [f"{name}={a}, not {b}" for name, (a, b) in differences(there, wanted).items()]
    if differ:
        raise ValueError(f"{what}, with {'; '.join(differ)}: choose another --out")

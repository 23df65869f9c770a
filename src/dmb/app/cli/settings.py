"""Settings of a recipe as ordinary flags, made from its dataclasses."""

import re
from dataclasses import field, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from tyro.conf import arg

from dmb.app.cli.parsing import parsed
from dmb.app.recipes import RECIPES, Recipe, recipe, recipe_for
from dmb.data.kinds import NAMES

Flags = TypeVar("Flags")

FEW = (
    "minutes",
    "length",
    "network",
    "width",
    "blocks",
    "batch_size",
    "score_steps",
    "cycles",
    "learning_rate",
    "seed",
)
"""Settings that `--help` shows; `--help-all` shows every one."""
_HEAD = "The network's output: logits of the clean token, log scores scaled as in SEDD, or plain log scores."


def with_settings(flags: type[Flags], default: Recipe, arguments: list[str]) -> tuple[Flags, Recipe]:
    """A command's own flags, and the recipe with the settings that the command line changes.

    Args:
        flags: the options of the command itself: a dataclass of its name, which has the beginning of `--help`.
        default: the recipe to change.
        arguments: the command line.
    """
    sections = [(name, type(value), field(default=value)) for name, value in default.sections().items()]
    head: Any = ("head", Annotated[get_type_hints(Recipe)["head"], arg(help=_HEAD)], field(default=default.head))
    if "--help" in arguments or "-h" in arguments:
        few = _few(default)
        sections, head = [], ("settings", few, field(default=few()))
    whole: Any = make_dataclass("_", [*sections, head], bases=(flags,), frozen=True, kw_only=True)
    whole.__doc__ = flags.__doc__
    found = parsed(whole, arguments, prog=f"dmb {flags.__name__.lower()}")
    return found, replace(default, **{name: getattr(found, name) for name in ("head", *default.sections())})


def _few(default: Recipe) -> type[Any]:
    """The settings of a recipe that matter most, as one section of `--help`."""
    found = [
        (name, get_type_hints(type(section))[name], getattr(section, name), about)
        for section in default.sections().values()
        for name, about in re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", type(section).__doc__ or "", re.MULTILINE)
        if name in FEW
    ]
    few = make_dataclass("_", [(name, hint, field(default=value)) for name, hint, value, _ in found], frozen=True)
    lines = "".join(f"    {name}: {' '.join(about.split())}\n" for name, *_, about in found)
    few.__doc__ = f"The settings that matter most; --help-all has all {len(default.settings())}.\n\nArgs:\n{lines}"
    return few


def recipe_asked_for(source: str | None, name: str | None) -> Recipe:
    """The recipe called `name`, or the one for the data, trained on the data at `source`."""
    if source is None and name is None:
        raise ValueError(f"DATA is missing: give a file, a folder of images, or one of {', '.join(NAMES)}")
    chosen = recipe_for(source) if name is None and source is not None else recipe(name or "")
    return chosen if source is None else chosen.changed(source=from_anywhere(source))


def from_anywhere(source: str) -> str:
    """The full path of a file or folder, so that a run finds it from anywhere; the name of built-in data."""
    return source if source in NAMES or not Path(source).exists() else str(Path(source).resolve())


def first_look(flags: type[Any], arguments: list[str]) -> tuple[Recipe, list[str]]:
    """The recipe that the command line or its data select, and the arguments to parse with its defaults.

    Args:
        flags: the options of the command, with `path` and `recipe` among them.
        arguments: the command line; if it asks for help, only `--help` or `--help-all` is returned.
    """
    others = [argument for argument in arguments if argument not in ("--help", "-h", "--help-all")]
    helping = len(others) < len(arguments)
    first = next(iter(others), "")
    if first in RECIPES and first not in NAMES and not Path(first).exists():
        raise ValueError(
            f"{first} is a recipe, and no file or folder: name the data first, as in dmb train DATA --recipe {first}"
        )
    # which recipe it will be is not known yet: this one allows what any other allows
    given, _ = with_settings(flags, recipe(named_recipe(others) or "array"), others)
    nothing = given.path is None and given.recipe is None
    found = recipe("text") if nothing and helping else recipe_asked_for(given.path, given.recipe)
    wanted = ["--help-all"] if "--help-all" in arguments else ["--help"]
    return found, wanted if helping else arguments


def named_recipe(arguments: list[str]) -> str | None:
    """The value of `--recipe`. It is read before all other flags, because a user's recipe may add flags.

    >>> named_recipe(["digits", "--recipe", "mine.py:deep"]), named_recipe(["digits"])
    ('mine.py:deep', None)
    """
    found = [word.removeprefix("--recipe=") for word in arguments if word.startswith("--recipe=")]
    return next(iter(found + [after for word, after in pairwise(arguments) if word == "--recipe"]), None)

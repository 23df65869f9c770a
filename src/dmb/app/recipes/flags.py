"""Settings as a command line has them."""

import shlex
from pathlib import Path
from typing import Any

from dmb.app.recipes.base import Recipe
from dmb.app.recipes.finding import RECIPES, recipe as find


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Settings as flags, one after the other.

    >>> as_flags({"training.cycles": 2, "process.mask": True, "data.length": None})
    ['--cycles', '2', '--mask', '--length', 'None']
    >>> as_flags({"network.widths": (32, 64)})
    ['--widths', '32', '64']
    """
    words: list[str] = []
    for name, value in settings.items():
        flag = name.rpartition(".")[2].replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return words


def command_line(recipe: Recipe, out: Path | None = None) -> str:
    """The command that trains `recipe`: its data, the recipe that it started from, and every setting that was changed.

    >>> from dmb.app.recipes import recipe
    >>> command_line(recipe("digits").changed(width=64))
    'dmb train digits --recipe digits --width 64'
    """
    if recipe.name not in RECIPES and ".py:" not in recipe.name:  # made in Python, for one run
        return shlex.join(["dmb", "train", "--recipe", str(out)])
    changes = find(recipe.name).differences(recipe)
    changes.pop("data.source", None)  # the first word
    words = ["dmb", "train", recipe.data.source, "--recipe", recipe.name, *as_flags(changes)]
    return shlex.join(words + ([] if out is None else ["--out", str(out)]))

"""The recipe that a command line asks for."""

import time
from dataclasses import replace
from pathlib import Path

from dmb.app import recipes
from dmb.app.recipes import Recipe
from dmb.data import BUILT_IN


def changed(recipe: Recipe, source: str | None, assignments: tuple[str, ...]) -> Recipe:
    """The recipe with other data and settings; a file by its full path, for the run is to find it from any folder."""
    if source is not None:
        recipe = replace(recipe, data=replace(recipe.data, source=source))
    recipe = recipes.override(recipe, assignments)
    source = recipe.data.source
    if source not in BUILT_IN and Path(source).exists():
        recipe = replace(recipe, data=replace(recipe.data, source=str(Path(source).resolve())))
    return recipe


def new_folder(recipe: Recipe) -> Path:
    """Where to put a run, unless the user says."""
    return Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"

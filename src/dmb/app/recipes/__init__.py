"""Recipes: published settings, and ones sized for a laptop, as functions that return a `Recipe`."""

import json
from collections.abc import Callable
from pathlib import Path

from dmb.app.recipes.base import DataChoice as DataChoice
from dmb.app.recipes.base import NetworkChoice as NetworkChoice
from dmb.app.recipes.base import ProcessChoice as ProcessChoice
from dmb.app.recipes.base import Recipe as Recipe
from dmb.app.recipes.overrides import override as override
from dmb.app.recipes.overrides import settings_of as settings_of
from dmb.app.recipes.settings import VQ_RUN as VQ_RUN
from dmb.app.recipes.settings import cifar10 as cifar10
from dmb.app.recipes.settings import cifar10_paper as cifar10_paper
from dmb.app.recipes.settings import digits as digits
from dmb.app.recipes.settings import pixels as pixels
from dmb.app.recipes.settings import pydocs as pydocs
from dmb.app.recipes.settings import table as table
from dmb.app.recipes.settings import text8 as text8
from dmb.app.recipes.settings import text8_paper as text8_paper

RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe for recipe in (digits, pydocs, table, text8, text8_paper, pixels, cifar10, cifar10_paper)
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`; or the one in a JSON file, as `to_json` writes it."""
    if name.endswith(".json"):
        return Recipe.from_json(json.loads(Path(name).read_text(encoding="utf-8")))
    if name not in RECIPES:
        raise ValueError(f"no recipe called {name!r}: there are {', '.join(RECIPES)}")
    return RECIPES[name]()

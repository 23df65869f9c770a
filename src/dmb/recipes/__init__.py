"""Recipes: published settings, and ones sized for a laptop, as functions that return a `Recipe`."""

from collections.abc import Callable

from dmb.recipes.base import DataChoice as DataChoice
from dmb.recipes.base import NetworkChoice as NetworkChoice
from dmb.recipes.base import ProcessChoice as ProcessChoice
from dmb.recipes.base import Recipe as Recipe
from dmb.recipes.overrides import override as override
from dmb.recipes.overrides import settings_of as settings_of
from dmb.recipes.settings import digits as digits
from dmb.recipes.settings import pydocs as pydocs
from dmb.recipes.settings import table as table
from dmb.recipes.settings import text8 as text8
from dmb.recipes.settings import text8_paper as text8_paper

RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe for recipe in (digits, pydocs, table, text8, text8_paper)
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise ValueError(f"no recipe called {name!r}: there are {', '.join(RECIPES)}")
    return RECIPES[name]()

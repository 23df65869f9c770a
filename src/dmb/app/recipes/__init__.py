"""Recipes: published settings, and ones sized for a laptop, as functions that return a `Recipe`."""

from dmb.app.recipes.base import Recipe as Recipe, as_flags as as_flags, public as public
from dmb.app.recipes.choices import (
    DataChoice as DataChoice,
    NetworkChoice as NetworkChoice,
    OrderChoice as OrderChoice,
    ProcessChoice as ProcessChoice,
)
from dmb.app.recipes.finding import (
    LOCAL as LOCAL,
    RECIPES as RECIPES,
    command_line as command_line,
    recipe as recipe,
    recipe_for as recipe_for,
    register as register,
    with_places as with_places,
)

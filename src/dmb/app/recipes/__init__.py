"""Recipes: published settings, and ones sized for a laptop, as functions that return a `Recipe`."""

from dmb.app.recipes.base import Recipe as Recipe
from dmb.app.recipes.choices import DataChoice as DataChoice
from dmb.app.recipes.choices import NetworkChoice as NetworkChoice
from dmb.app.recipes.choices import OrderChoice as OrderChoice
from dmb.app.recipes.choices import ProcessChoice as ProcessChoice
from dmb.app.recipes.finding import RECIPES as RECIPES
from dmb.app.recipes.finding import recipe as recipe
from dmb.app.recipes.finding import recipe_for as recipe_for
from dmb.app.recipes.finding import register as register
from dmb.app.recipes.flags import as_flags as as_flags
from dmb.app.recipes.flags import command_line as command_line

"""Comparisons: one command that trains every row with every seed, and makes one table of them."""

from dmb.app.comparison.plan import plan as plan
from dmb.app.comparison.running import compare as compare
from dmb.app.comparison.running import cores as cores

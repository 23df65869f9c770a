"""Comparisons: one command that trains every row with every seed, and makes one table of them."""

from dmb.app.compare.plan import plan as plan
from dmb.app.compare.running import compare as compare, cores as cores

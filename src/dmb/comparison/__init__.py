"""Comparisons: one command that trains every row with every seed, and makes one table of them."""

from dmb.comparison.comparing import compare as compare
from dmb.comparison.plan import Plan as Plan
from dmb.comparison.plan import plan as plan
from dmb.comparison.rows import Row as Row
from dmb.comparison.rows import rows_for as rows_for
from dmb.comparison.running import cores as cores

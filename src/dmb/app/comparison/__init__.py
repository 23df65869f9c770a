"""Comparisons: one command that trains every row with every seed, and makes one table of them."""

from dmb.app.comparison.comparing import compare as compare
from dmb.app.comparison.plan import Plan as Plan
from dmb.app.comparison.plan import plan as plan
from dmb.app.comparison.rows import Row as Row
from dmb.app.comparison.rows import rows_for as rows_for
from dmb.app.comparison.running import cores as cores

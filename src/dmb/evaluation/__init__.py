"""Evaluation: the bound with its standard error, beside the baseline that every model must beat."""

from dmb.evaluation.likelihood import Likelihood as Likelihood
from dmb.evaluation.likelihood import likelihood as likelihood

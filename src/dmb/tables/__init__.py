"""A generative model of a data frame, and how like real rows its rows are."""

from dmb.tables.model import LogProb as LogProb, TableModel as TableModel

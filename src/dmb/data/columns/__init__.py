"""Kinds of columns of a table: how their values become states, and states become values."""

from dmb.data.columns.base import Column as Column, Value as Value
from dmb.data.columns.category import Category as Category
from dmb.data.columns.date import Date as Date
from dmb.data.columns.finding import KINDS as KINDS, column_of as column_of
from dmb.data.columns.number import Number as Number

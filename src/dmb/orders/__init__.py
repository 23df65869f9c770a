"""Orders of writing, one per file: which position is written when."""

from dmb.orders.base import WriteOrder as WriteOrder, by_call as by_call
from dmb.orders.blocks import Blocks as Blocks
from dmb.orders.budget import best_shares as best_shares
from dmb.orders.fixed import Fixed as Fixed
from dmb.orders.random import Free as Free, Random as Random
from dmb.orders.smooth import Smooth as Smooth, waves as waves
from dmb.orders.streams import BUDGETS as BUDGETS, Streams as Streams

"""Orders of writing, one per file: which position is written when."""

from dmb.orders.base import WriteOrder as WriteOrder
from dmb.orders.base import by_call as by_call
from dmb.orders.fixed import Fixed as Fixed
from dmb.orders.random import Free as Free
from dmb.orders.random import Random as Random
from dmb.orders.smooth import Smooth as Smooth
from dmb.orders.smooth import waves as waves

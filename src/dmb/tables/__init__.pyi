"""The names of this package; `__init__` imports each on first use."""

from .columnwise import column_network as column_network, column_training as column_training, is_narrow as is_narrow
from .model import LogProb as LogProb, TableModel as TableModel

"""The names of this package; `__init__` imports each on first use."""

from .columnwise import (
    column_network as column_network,
    column_training as column_training,
    fitting_width as fitting_width,
    is_narrow as is_narrow,
)  # fmt: skip
from .model import LogProb as LogProb, TableModel as TableModel

"""Forward processes: Markov chains on discrete states that turn data into noise."""

from dmb.processes import grouping as grouping
from dmb.processes.base import ForwardProcess as ForwardProcess
from dmb.processes.bridge import BridgeProcess as BridgeProcess
from dmb.processes.dense import DenseProcess as DenseProcess
from dmb.processes.tokenwise import TokenwiseMasking as TokenwiseMasking
from dmb.processes.uniform import UniformProcess as UniformProcess

"""Discrete Markov Bridge: generative modelling of discrete data with a learned forward process."""

from dmb import theory as theory
from dmb.processes import BridgeProcess as BridgeProcess
from dmb.processes import DenseProcess as DenseProcess
from dmb.processes import ForwardProcess as ForwardProcess
from dmb.processes import UniformProcess as UniformProcess
from dmb.schedules import Canonical as Canonical
from dmb.schedules import Geometric as Geometric
from dmb.schedules import Linear as Linear
from dmb.schedules import LogLinear as LogLinear
from dmb.schedules import Schedule as Schedule

__version__ = "0.1.0"

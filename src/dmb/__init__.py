"""Discrete Markov Bridge: generative modelling of discrete data with a learned forward process."""

from dmb import data as data
from dmb import recipes as recipes
from dmb import samplers as samplers
from dmb import theory as theory
from dmb.bridge import Bridge as Bridge
from dmb.heads import Head as Head
from dmb.heads import MeanHead as MeanHead
from dmb.heads import ScoreHead as ScoreHead
from dmb.losses import Bound as Bound
from dmb.networks import MLP as MLP
from dmb.networks import Network as Network
from dmb.networks import Tabular as Tabular
from dmb.networks import Transformer as Transformer
from dmb.processes import BridgeProcess as BridgeProcess
from dmb.processes import DenseProcess as DenseProcess
from dmb.processes import ForwardProcess as ForwardProcess
from dmb.processes import UniformProcess as UniformProcess
from dmb.schedules import Canonical as Canonical
from dmb.schedules import Geometric as Geometric
from dmb.schedules import Linear as Linear
from dmb.schedules import LogLinear as LogLinear
from dmb.schedules import Schedule as Schedule
from dmb.training import Report as Report
from dmb.training import Settings as Settings
from dmb.training import train as train
from dmb.version import __version__ as __version__

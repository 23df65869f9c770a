"""Discrete Markov Bridge: generative modelling of discrete data with a learned forward process.

Names are imported on first use, so that `dmb --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dmb.version import __version__ as __version__

if TYPE_CHECKING:
    from dmb import data as data
    from dmb import grouping as grouping
    from dmb import orders as orders
    from dmb import samplers as samplers
    from dmb import theory as theory
    from dmb.bridges import Bridge as Bridge
    from dmb.bridges import MarkovBridge as MarkovBridge
    from dmb.bridges import OrderedBridge as OrderedBridge
    from dmb.clocks import Clocks as Clocks
    from dmb.clocks import Steady as Steady
    from dmb.clocks import Varying as Varying
    from dmb.heads import Head as Head
    from dmb.heads import MeanHead as MeanHead
    from dmb.heads import ScoreHead as ScoreHead
    from dmb.hierarchies import Hierarchy as Hierarchy
    from dmb.hierarchies import Line as Line
    from dmb.hierarchies import Tree as Tree
    from dmb.lengths import Lengths as Lengths
    from dmb.losses import Bound as Bound
    from dmb.networks import MLP as MLP
    from dmb.networks import CausalTransformer as CausalTransformer
    from dmb.networks import Network as Network
    from dmb.networks import OrderedMLP as OrderedMLP
    from dmb.networks import OrderedNetwork as OrderedNetwork
    from dmb.networks import OrderedTransformer as OrderedTransformer
    from dmb.networks import Tabular as Tabular
    from dmb.networks import Transformer as Transformer
    from dmb.processes import BridgeProcess as BridgeProcess
    from dmb.processes import DenseProcess as DenseProcess
    from dmb.processes import ForwardProcess as ForwardProcess
    from dmb.processes import TokenwiseMasking as TokenwiseMasking
    from dmb.processes import UniformProcess as UniformProcess
    from dmb.schedules import Canonical as Canonical
    from dmb.schedules import Geometric as Geometric
    from dmb.schedules import Linear as Linear
    from dmb.schedules import LogLinear as LogLinear
    from dmb.schedules import Schedule as Schedule
    from dmb.states import States as States
    from dmb.tables import TableModel as TableModel
    from dmb.training import TrainingReport as TrainingReport
    from dmb.training import TrainingSettings as TrainingSettings
    from dmb.training import train as train
    from dmb.variance import CostBaseline as CostBaseline
    from dmb.variance import TimeDensity as TimeDensity

_MODULES = ("data", "grouping", "orders", "samplers", "theory")
_NAMES = {
    "dmb.bridges": (
        "Bridge",
        "MarkovBridge",
        "OrderedBridge",
    ),
    "dmb.clocks": (
        "Clocks",
        "Steady",
        "Varying",
    ),
    "dmb.heads": (
        "Head",
        "MeanHead",
        "ScoreHead",
    ),
    "dmb.hierarchies": (
        "Hierarchy",
        "Line",
        "Tree",
    ),
    "dmb.lengths": ("Lengths",),
    "dmb.losses": ("Bound",),
    "dmb.networks": (
        "MLP",
        "CausalTransformer",
        "Network",
        "OrderedMLP",
        "OrderedNetwork",
        "OrderedTransformer",
        "Tabular",
        "Transformer",
    ),
    "dmb.processes": (
        "BridgeProcess",
        "DenseProcess",
        "ForwardProcess",
        "TokenwiseMasking",
        "UniformProcess",
    ),
    "dmb.schedules": (
        "Canonical",
        "Geometric",
        "Linear",
        "LogLinear",
        "Schedule",
    ),
    "dmb.states": ("States",),
    "dmb.tables": ("TableModel",),
    "dmb.training": (
        "TrainingReport",
        "TrainingSettings",
        "train",
    ),
    "dmb.variance": (
        "CostBaseline",
        "TimeDensity",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dmb.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'dmb' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOME})

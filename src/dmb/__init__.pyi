"""The public names, in one list; `__init__` imports each on first use."""

from . import (
    bridges as bridges,
    data as data,
    networks as networks,
    objectives as objectives,
    orders as orders,
    processes as processes,
    sampling as sampling,
    tables as tables,
    theory as theory,
    training as training,
)
from .bridges import Bridge as Bridge, MarkovBridge as MarkovBridge, OrderedBridge as OrderedBridge
from .data.lengths import Lengths as Lengths
from .networks import (
    MLP as MLP,
    CausalTransformer as CausalTransformer,
    Network as Network,
    OrderedMLP as OrderedMLP,
    OrderedNetwork as OrderedNetwork,
    OrderedTransformer as OrderedTransformer,
    Tabular as Tabular,
    Transformer as Transformer,
)
from .objectives.bound import Bound as Bound
from .processes import (
    BridgeProcess as BridgeProcess,
    DenseProcess as DenseProcess,
    ForwardProcess as ForwardProcess,
    TokenwiseMasking as TokenwiseMasking,
    UniformProcess as UniformProcess,
)
from .processes.clocks import Steady as Steady, Varying as Varying
from .processes.hierarchies import Line as Line, Tree as Tree
from .processes.states import States as States
from .processes.time import Canonical as Canonical, Linear as Linear, LogLinear as LogLinear
from .tables import TableModel as TableModel
from .training import TrainingSettings as TrainingSettings, train as train

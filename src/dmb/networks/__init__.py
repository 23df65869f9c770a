"""Networks: noisy tokens and a time in, one number per state out."""

from dmb.networks.base import Network as Network
from dmb.networks.mlp import MLP as MLP
from dmb.networks.ordered import (
    CausalTransformer as CausalTransformer,
    OrderedNetwork as OrderedNetwork,
    OrderedTransformer as OrderedTransformer,
)
from dmb.networks.ordered_mlp import OrderedMLP as OrderedMLP
from dmb.networks.tabular import Tabular as Tabular
from dmb.networks.transformer import Transformer as Transformer

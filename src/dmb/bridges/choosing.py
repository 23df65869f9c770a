"""The model that a network is for."""

from torch import nn

from dmb.bridges.base import Bridge
from dmb.bridges.markov import MarkovBridge
from dmb.bridges.ordered import OrderedBridge
from dmb.data.lengths import Lengths
from dmb.networks import OrderedNetwork
from dmb.networks.heads import Head, MeanHead
from dmb.orders import Fixed, Random, WriteOrder
from dmb.processes import BridgeProcess, ForwardProcess
from dmb.processes.states import States


def put_together(
    process: ForwardProcess,
    order: WriteOrder | None,
    network: nn.Module,
    head: str | Head = "mean",
    lengths: Lengths | None = None,
) -> Bridge:
    """An `OrderedBridge` if the network follows an order, otherwise a `MarkovBridge`.

    Args:
        process: the forward process. If the network follows an order it must be masks only, and gives the states.
        order: the order of writing. Default, if the network needs one: its own, or any.
        network: the network.
        head: see `MarkovBridge`.
        lengths: see `MarkovBridge`.
    """
    if not isinstance(network, OrderedNetwork):
        if order is not None:
            raise ValueError(f"write_order must be None for a {type(network).__name__}, which follows no order")
        return MarkovBridge(process, network, head, lengths)
    kind = type(network).__name__
    if not (isinstance(process, BridgeProcess) and process.one_mask):
        raise ValueError(
            f"a {kind} follows an order, in which positions are masked: its process must have a mask as its only "
            "noise, BridgeProcess.from_marginals(marginals, mask=True, floor=0.0) (--process bridge --init gather "
            "--mask --floor 0)"
        )
    if head != "mean" and not isinstance(head, MeanHead):
        got = head if isinstance(head, str) else type(head).__name__
        raise ValueError(f"a network that follows orders needs head='mean', got {got}")
    if order is None:
        order = Random(process.num_positions) if network.order is None else Fixed(network.order)
    states = States(process.num_positions, process.num_states, names=process.names, legal=process.legal)
    return OrderedBridge(order, network, states, lengths)

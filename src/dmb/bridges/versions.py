"""Model folders of earlier versions, brought up to date when they are read."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dmb._core.configuration import Configurable
from dmb.networks import CausalTransformer, OrderedNetwork

_APART = 15.0  # where one order was meant, logarithms of speeds were 16 apart


def upgraded(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The description and the tensors of a bridge as this version writes them.

    In 0.2 they had no type: what `network` is told the two models apart. The clocks of the process had the speeds of
    positions, which are now those of an order, or factors of its rates.
    """
    if "type" in config:
        return config, tensors
    tensors = dict(tensors)
    if (given := tensors.get("network.given")) is not None:  # in 0.1 one vector for all states, or those of a position
        given, rows = given.reshape(-1, 1, given.shape[-1]), len(tensors["network.tokens.weight"])
        tensors["network.given"] = given.expand(-1, rows // len(given), -1).flatten(0, 1)
    clocks = {name: tensors.pop(f"process.clocks.{name}", None) for name in ("speed_weights", "basis", "turns")}
    weights, basis, turns = clocks["speed_weights"], clocks["basis"], clocks["turns"]
    speeds = weights if weights is None or basis is None else basis @ weights
    network = Configurable.class_named(config["network"]["type"])
    if not issubclass(network, OrderedNetwork):
        if speeds is not None:
            _multiply(tensors, speeds)
        return {"type": "MarkovBridge", **config}, tensors
    legal, size = tensors["process.legal"], config["process"]["num_positions"]
    order, own = _order(tensors["process.clocks.log_rates"][:, -1].expand(size), weights, basis)
    if turns is not None or issubclass(network, CausalTransformer):
        order, own = {"type": "Fixed"}, {"order": torch.arange(size) if turns is None else turns.argsort()}
    if not legal.all():
        legal = legal.expand(size, -1).contiguous()
    counts = None if len(legal) == 1 else (legal.sum(-1) - 1).tolist()
    states = {"type": "States", "num_positions": size, "num_states": legal.shape[1], "names": 1, "state_counts": counts}
    kept = {name: value for name, value in config.items() if name not in ("process", "head")}
    tensors = {name: value for name, value in tensors.items() if not name.startswith(("process.", "head."))}
    tensors |= {"states.legal": legal, **{f"order.{name}": value for name, value in own.items()}}
    return {"type": "OrderedBridge", "order": order, "states": states, **kept}, tensors


def _multiply(tensors: dict[str, Tensor], log_speeds: Float[Tensor, " d"]) -> None:
    """Make the speed of each position a factor of its rates."""
    for name in ("running", "raw_profile", "log_rates", "linear_rates"):
        key = f"process.clocks.{name}"
        if key in tensors:
            tensors[key] = tensors[key].expand(len(log_speeds), *tensors[key].shape[1:]).contiguous()
    if "process.clocks.log_rates" in tensors:
        tensors["process.clocks.log_rates"] += log_speeds[:, None]
    else:
        tensors["process.clocks.linear_rates"] *= log_speeds.exp()[:, None]


def _order(
    log_rate: Float[Tensor, " d"], weights: Tensor | None, basis: Tensor | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The order that rates and speeds stood for: its description, and its tensors."""
    size, alike = {"num_positions": len(log_rate)}, bool((log_rate == log_rate[0]).all())
    if weights is None and alike:
        return {"type": "Random", **size}, {}
    if weights is not None and basis is not None and alike:
        return {"type": "Smooth"}, {"basis": basis, "weights": weights}
    speeds = log_rate if weights is None else log_rate + (weights if basis is None else basis @ weights)
    if (speeds.sort().values.diff() > _APART).all():
        return {"type": "Fixed"}, {"order": speeds.argsort()}
    return {"type": "Free", **size}, {"weights": speeds}

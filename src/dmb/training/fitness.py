"""What cannot be trained is refused before training starts, with a reason."""

from dmb.bridge import Bridge
from dmb.data.base import DataSet
from dmb.networks.base import marks_of
from dmb.processes import BridgeProcess
from dmb.schedules import Canonical
from dmb.training.engine import Engine, skips_bad_steps
from dmb.training.settings import TrainingSettings

INFILL, ANY_ORDER = 0.25, 0.5


def refuse_unfit(bridge: Bridge, data: DataSet, settings: TrainingSettings, fabric: Engine) -> None:
    """A ValueError if this bridge cannot be trained on these data with these settings."""
    if data.num_positions != bridge.num_positions:
        raise ValueError(f"data has {data.num_positions} positions, the bridge {bridge.num_positions}")
    share = fabric.world_size * settings.accumulate * (settings.orders + settings.fitting_singles)
    if settings.batch_size % share:
        rule = f"a multiple of processes × (orders + singles) × accumulate = {share}"
        raise ValueError(f"batch_size must be {rule}, got {settings.batch_size}")
    process = bridge.process
    learns = any(parameter.requires_grad for parameter in process.parameters())
    if settings.matrix_objective != "prior" and skips_bad_steps(fabric):
        raise ValueError("rates are not learned on the bound in float16: choose precision bf16-mixed or 32-true")
    if bridge.ordered is not None:
        _refuse_unfit_paths(bridge, settings)
        return
    if settings.any_order:
        raise ValueError(f"any_order must be 0 for a network that does not follow orders, got {settings.any_order}")
    if settings.orders > 1:
        raise ValueError(f"orders must be 1 for a network that does not follow orders, got {settings.orders}")
    if settings.matrix_objective == "prior":
        ends_by_rates = isinstance(process.schedule, Canonical) and process.schedule.end is None
        if learns and settings.matrix_steps and ends_by_rates:
            raise ValueError(
                "J_Q cannot train rates in canonical time, where faster clocks have less time: fix its end "
                "(schedule=paced, Canonical(end=…)), keep the rates (matrix_steps=0), or learn them on the bound "
                "(matrix_objective=joint)"
            )
        return
    if not learns:
        raise ValueError(f"matrix_objective must be prior: {type(process).__name__} has no rates to learn")
    if not isinstance(process.schedule, Canonical):
        raise ValueError(
            "schedule must be canonical to learn rates on the bound: on any other, fast clocks could hide changes "
            "at times that are hardly ever drawn"
        )
    if isinstance(process, BridgeProcess) and process.clocks.running.sum() < 2 and process.clocks.log_speeds is None:
        raise ValueError(
            "a single clock has nothing to learn from the bound, since its rate has no effect in canonical time: "
            "switch on others (floor above 0, or init=uniform)"
        )


def infill_share(bridge: Bridge, settings: TrainingSettings) -> float:
    """The share of training sequences with given positions, chosen if the settings leave it open.

    Where noise can look like data, a network believes a given token only if it has learned to. And where positions have
    speeds, which may come to prefer one order, a network that follows it learns to begin with any positions only if
    training shows that.
    """
    if settings.infill is not None:
        return settings.infill
    doubts = marks_of(bridge.network) is not None and bool(bridge.process.doubtful.any())
    return INFILL if doubts or _prefers_an_order(bridge) else 0.0


def any_order_share(bridge: Bridge, settings: TrainingSettings) -> float:
    """The share of training sequences in orders drawn evenly from all, chosen if the settings leave it open.

    Speeds that are fixed may leave one order, of which a network that follows it learns little else.
    """
    if settings.any_order is not None:
        return settings.any_order
    fixed = not any(parameter.requires_grad for parameter in bridge.process.parameters())
    return ANY_ORDER if fixed and _prefers_an_order(bridge) else 0.0


def _prefers_an_order(bridge: Bridge) -> bool:
    """Whether a network that can follow any order may come to see one only."""
    clocks = getattr(bridge.process, "clocks", None)
    speeds = clocks is not None and clocks.speed_weights is not None
    return bridge.ordered is not None and bridge.ordered.order is None and speeds


def _refuse_unfit_paths(bridge: Bridge, settings: TrainingSettings) -> None:
    """The same for a bridge by whole paths."""
    network, process = bridge.ordered, bridge.process
    assert network is not None
    clocks = process.clocks if isinstance(process, BridgeProcess) else None
    learns = any(parameter.requires_grad for parameter in process.parameters())
    if network.order is not None:
        kind = type(network).__name__
        if settings.matrix_objective != "prior":
            raise ValueError(f"matrix_objective must be prior for a {kind}, which follows one order only")
        if clocks is not None and clocks.speed_weights is not None:
            raise ValueError(f"a {kind} follows one order only: make the process without speeds")
        if settings.any_order:
            raise ValueError(
                f"any_order must be 0 for a {kind}, which follows one order only, got {settings.any_order}"
            )
        if settings.infill:
            raise ValueError(f"infill must be 0 for a {kind}, which follows one order only, got {settings.infill}")
        return
    if settings.matrix_objective == "prior":
        if learns and clocks is not None and clocks.speed_weights is not None:
            raise ValueError(
                "J_Q cannot train the speeds of positions: learn them on the bound (matrix_objective=joint, "
                "orders=2), or keep them (process.requires_grad_(False))"
            )
        return
    if not learns or (clocks is not None and clocks.rows == 1):
        raise ValueError("matrix_objective must be prior: all positions share one speed, there is no order to learn")
    if settings.orders < 2:
        raise ValueError(
            f"orders must be at least 2 to learn an order, by comparing two orders of a sequence, got {settings.orders}"
        )

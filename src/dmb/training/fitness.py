"""What cannot be trained is refused before training starts, with a reason."""

from dmb.bridges import Bridge
from dmb.data.base import DataSet
from dmb.training.engine import Engine, skips_bad_steps
from dmb.training.settings import TrainingSettings


def refuse_unfit(bridge: Bridge, data: DataSet, settings: TrainingSettings, fabric: Engine) -> None:
    """A ValueError if this bridge cannot be trained on these data with these settings."""
    if data.num_positions != bridge.num_positions:
        raise ValueError(f"data has {data.num_positions} positions, the bridge {bridge.num_positions}")
    share = fabric.world_size * settings.accumulate * (settings.orders + settings.fitting_singles)
    if settings.batch_size % share:
        rule = f"a multiple of processes × (orders + singles) × accumulate = {share}"
        raise ValueError(f"batch_size must be {rule}, got {settings.batch_size}")
    if settings.matrix_objective != "prior" and skips_bad_steps(fabric):
        raise ValueError("rates are not learned on the bound in float16: choose precision bf16-mixed or 32-true")
    bridge.check_settings(settings)

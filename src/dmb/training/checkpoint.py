"""Checkpoints: one safetensors file each, whole or not there, with a digest; and what goes into them and back."""

import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dmb._core.configuration import from_json, under
from dmb._core.files import read_tensors, remove_orphans, write_tensors

FORMAT = 2
_NAME = re.compile(r"step_(\d{9,18})\.safetensors", re.ASCII)


class Checkpoint(NamedTuple):
    """What a resumed run needs: tensors, and a JSON object."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, without them."""
        return under(self.tensors, prefix)


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Args:
        folder: where they lie; made when the first is saved.
        keep: how many of the last to keep.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """Steps at which there is a checkpoint, ascending."""
        names = [_NAME.fullmatch(path.name) for path in self.folder.glob("step_*.safetensors")]
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:09d}.safetensors"

    def save(self, step: int, checkpoint: Checkpoint, best: int | None = None) -> None:
        """Write a checkpoint, then delete old ones; the one of step `best` is kept however old it is.

        Later ones, left over from when the run went on from an earlier one, are deleted too.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.path(step), checkpoint)
        for later in [other for other in self.steps() if other > step]:
            self.path(later).unlink()
        remove_orphans(self.folder)
        for old in self.steps()[: -self.keep]:
            if old != best:
                self.path(old).unlink()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read, with a warning for every newer one that cannot; None if none can."""
        return next(filter(None, map(self.at, reversed(self.steps()))), None)

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of a step; None, with a warning, if it cannot be read."""
        try:
            return read(self.path(step))
        except ValueError as error:
            warnings.warn(f"{error}; going back to what was saved before", stacklevel=2)
            return None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` whole or not at all."""
    write_tensors(path, checkpoint.tensors, format=str(FORMAT), state=json.dumps(checkpoint.state))


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; a ValueError if it is truncated, altered or of another format."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != str(FORMAT):
        raise ValueError(f"{path} has format {metadata.get('format')}, but this version of dmb reads {FORMAT}")
    try:
        state = from_json(metadata["state"])
        if "digest" not in metadata or not isinstance(state["step"], int):
            raise ValueError("it has no digest, or its step is not a whole number")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    return Checkpoint(tensors, state)


# -- tensors, gathered from all processes and shared out again ---------------------------------------------------------


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """What an optimiser remembers of the parameters of a module, by names for a checkpoint."""
    return {
        f"{prefix}.{name}.{slot}": value
        for name, parameter in module.named_parameters()
        for slot, value in optimiser.state.get(parameter, {}).items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, prefix: str, module: nn.Module, checkpoint: Checkpoint) -> None:
    """Give it back what `optimiser_tensors` has named."""
    kinds = set()
    for name, parameter in module.named_parameters():
        slots = checkpoint.under(f"{prefix}.{name}")
        for slot, value in slots.items():
            if value.ndim and (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
                raise ValueError(f"{prefix}.{name}.{slot} is {value.dtype} {list(value.shape)}")
        if slots:  # of a parameter that had no gradient yet, it knows nothing
            kinds.add(frozenset(slots))
            optimiser.state[parameter] = {slot: _scattered(value, parameter) for slot, value in slots.items()}
    if len(kinds) > 1:
        raise ValueError(f"{prefix} does not know the same of all parameters")


@torch.no_grad()
def fill(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a module these tensors, in the shards that it has; a KeyError or ValueError if they are of another one."""
    own = module.state_dict()
    if own.keys() != tensors.keys():
        raise KeyError(f"tensors differ: {', '.join(sorted(own.keys() ^ tensors.keys()))}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(f"{name} has shape {list(tensors[name].shape)}, not {list(tensor.shape)}")
        tensor.copy_(_scattered(whole(tensors[name]), tensor))


def whole(tensor: Any) -> Tensor:
    """`tensor`, gathered from all processes if it is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, a name that takes a second to import."""
    return hasattr(tensor, "full_tensor")


def _scattered(tensor: Tensor, like: Any) -> Tensor:
    """`tensor`, on the device and in the shards of `like`; scalars stay where optimisers keep them."""
    if tensor.ndim and is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor.to(like.device) if tensor.ndim else tensor

"""Checkpoints: one safetensors file each, whole or not there, with a digest of what it holds."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dmb.configurable import under
from dmb.files import written_whole

FORMAT = 2


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
        return sorted(int(path.stem.removeprefix("step_")) for path in self.folder.glob("step_*.safetensors"))

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
        for part in self.folder.glob(".step_*"):  # what a kill has left of writing one
            part.unlink()
        for old in self.steps()[: -self.keep]:
            if old != best:
                self.path(old).unlink()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read, with a warning for every newer one that cannot; None if none can."""
        for step in reversed(self.steps()):
            try:
                return read(self.path(step))
            except ValueError as error:
                warnings.warn(f"{error}; going back to the checkpoint before", stacklevel=2)
        return None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    metadata = {"format": str(FORMAT), "state": json.dumps(checkpoint.state)}
    metadata["digest"] = _digest(tensors, metadata["state"])
    with written_whole(path) as part:
        save_file(tensors, part, metadata=metadata)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; a ValueError if it is truncated, altered or of another format."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if metadata.get("format") != str(FORMAT):
        raise ValueError(f"{path} has format {metadata.get('format')}, but this version of dmb reads {FORMAT}")
    if metadata["digest"] != _digest(tensors, metadata["state"]):
        raise ValueError(f"{path} is corrupted: its digest does not match")
    return Checkpoint(tensors, json.loads(metadata["state"]))


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    digest = hashlib.blake2b(state.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

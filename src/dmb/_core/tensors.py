"""Files of tensors: safetensors, written whole or not at all, with a digest of what they hold."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dmb._core.files import written_whole


class Stored(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write a file whole or not at all.

    Args:
        path: of the file.
        tensors: what it holds.
        metadata: kept beside them; the digest covers the tensors and the entry `state`. Without metadata, equal tensors
            give equal files; the library writes several entries in any order.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata["digest"] = _digest(plain, metadata.get("state", ""))
    with written_whole(path) as part:
        try:
            save_file(plain, part, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error


def read_tensors(path: Path) -> Stored:
    """What a file holds; a ValueError if it cannot be read, or has a digest that does not match."""
    with _reading(path), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        digest = metadata.get("digest")
        whole = digest is None or digest == _digest(tensors, metadata.get("state", ""))
    if not whole:
        raise ValueError(f"{path} is damaged, because its digest does not match: restore it from a copy")
    return Stored(tensors, metadata)


def read_sizes(path: Path) -> dict[str, int]:
    """How many numbers each tensor of a file has, read off its table of contents."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a file can be broken in any way
        raise ValueError(f"{path} cannot be read: {error}") from error


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    digest = hashlib.blake2b(state.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

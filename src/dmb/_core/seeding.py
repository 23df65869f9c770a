"""Random numbers that depend on a key alone: no state of them is ever saved."""

import hashlib

import torch


def seeded(*key: int | str, device: torch.device | str | None = None) -> torch.Generator:
    """A generator that depends on `key` alone, so that no random state needs to be saved to repeat a step.

    >>> torch.rand(1, generator=seeded(0, "noise", 7)) == torch.rand(1, generator=seeded(0, "noise", 7))
    tensor([True])
    """
    return torch.Generator(device=device or "cpu").manual_seed(seed_of(*key))


def seed_of(*key: int | str) -> int:
    """A 63-bit seed from `key`; neighbouring keys give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big") >> 1

"""Any number of samples, a part at a time."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dmb.bridge import Bridge
from dmb.seeding import seeded

AT_ONCE = 64  # a change of it changes what a seed gives

Advance = Callable[[int, int], None]


def draw(
    bridge: Bridge,
    count: int,
    *,
    labels: Int[Tensor, " count"] | None = None,
    seed: int = 0,
    advance: Advance | None = None,
    **options: Any,
) -> Iterator[Int[Tensor, "b d"]]:
    """Batches of samples on the CPU, `count` in all. A seed gives the same ones whoever draws them.

    Args:
        bridge: the model.
        count: how many.
        labels: class of each.
        seed: of everything random.
        advance: told how many are done, and of how many.
        options: of `Bridge.sample`.

    >>> import dmb, torch
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
    >>> bridge = dmb.Bridge(process, dmb.MLP(process.num_states, process.num_positions, width=16))
    >>> [len(part) for part in draw(bridge, 100, steps=4)]
    [64, 36]
    """
    generator = seeded(seed, "samples", device=bridge.device)
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        label = None if labels is None else labels[first : first + size].to(bridge.device)
        part = bridge.sample(size, label=label, generator=generator, **options).cpu()
        if advance is not None:
            advance(first + size, count)
        yield part

"""Any number of samples, a part at a time."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.bridges import Bridge
from dmb.data.reading import Progress, ignore_progress
from dmb.sampling import State

AT_ONCE = 64  # a change of it changes what a seed gives

Advance = Progress


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

    `labels` are their classes, `options` those of `Bridge.sample`; `advance` is told how many are done and of how many.

    >>> import dmb, torch
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
    >>> bridge = dmb.MarkovBridge(process, dmb.MLP(process.num_states, process.num_positions, width=16))
    >>> [len(part) for part in draw(bridge, 100, calls=4)]
    [64, 36]
    """
    for first, batch in groupby(states(bridge, count, labels=labels, seed=seed, **options), key=itemgetter(0)):
        *_, (_, last) = batch
        (advance or ignore_progress)(first + len(last.x), count)
        yield last.x.cpu()


def states(
    bridge: Bridge, count: int, *, labels: Int[Tensor, " count"] | None = None, seed: int = 0, **options: Any
) -> Iterator[tuple[int, State]]:
    """The states of `draw`, one by one: the number of the first sample of a batch, and a state of this batch."""
    generator = seeded(seed, "samples", device=bridge.device)
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        label = None if labels is None else labels[first : first + size].to(bridge.device)
        for state in bridge.trajectory(size, label=label, generator=generator, **options):
            yield first, state

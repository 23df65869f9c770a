"""Text beyond the length that a model was trained on: window by window."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core.seeding import seeded
from dmb.app.evaluation.drawing import AT_ONCE, Advance
from dmb.bridges import Bridge


def draw_long(
    bridge: Bridge,
    count: int,
    length: int,
    *,
    labels: Int[Tensor, " count"] | None = None,
    seed: int = 0,
    advance: Advance | None = None,
    template: Int[Tensor, " d"] | None = None,
    **options: Any,
) -> Iterator[Int[Tensor, "b l"]]:
    """Batches of sequences of at least `length` tokens, on the CPU.

    The first window is a sample like any other, and the only one that `template` is for. The first half of every later
    one is given: it is the second half of the window before. So a token knows at most the last window, and the text as
    a whole is not a sample of any one model.

    Args:
        bridge: the model.
        count: how many sequences.
        length: how many tokens each has at least.
        labels: class of each.
        seed: of everything random.
        advance: told how many windows are done, and of how many.
        template: what is known of the first window, -1 for blanks.
        options: of `Bridge.sample`.
    """
    window, half = bridge.num_positions, bridge.num_positions // 2
    if half < 1:
        raise ValueError("--length needs a model with at least 2 positions to write longer texts, got 1")
    later = -(-(length - window) // (window - half))
    batches = [torch.arange(count)[first : first + AT_ONCE] for first in range(0, count, AT_ONCE)]
    generator, done = seeded(seed, "samples", device=bridge.device), 0
    for rows in batches:
        label = None if labels is None else labels[rows].to(bridge.device)
        text, known = list[Tensor](), template
        for place in range(1 + later):
            drawn = bridge.sample(len(rows), label=label, generator=generator, template=known, **options).cpu()
            text.append(drawn if place == 0 else drawn[:, half:])
            known = torch.full_like(drawn, -1)
            known[:, :half] = drawn[:, window - half :]
            done += 1
            if advance is not None:
                advance(done, len(batches) * (1 + later))
        yield torch.cat(text, dim=1)

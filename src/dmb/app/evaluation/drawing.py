"""Any number of samples of any length, a batch at a time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dmb._core.seeding import seeded
from dmb.bridges import Bridge
from dmb.data.reading import Progress, ignore_progress

AT_ONCE = 64  # a change of it changes what a seed gives

# called with what is about to be done, gives a context, whose value is called with what is done and all there is
Stages = Callable[[str], AbstractContextManager[Progress]]


def unwatched(what: str) -> AbstractContextManager[Progress]:
    """Stages that nobody watches."""
    return nullcontext(ignore_progress)


def draw(
    bridge: Bridge,
    count: int,
    *,
    length: int | None = None,
    labels: Int[Tensor, " count"] | None = None,
    template: Int[Tensor, " d"] | None = None,
    calls: int | None = None,
    sampler: str | None = None,
    grid: str | Float[Tensor, " k"] = "canonical",
    guidance: float = 1.0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Iterator[Int[Tensor, "b l"]]:
    """Batches of samples on the CPU, `count` in all. The same seed gives the same samples.

    A text longer than the model is written window by window: the first is a sample like any other, and the only one
    that `template` is for; the first half of every later one is given, the second half of the window before. So a token
    knows at most the last window, and the text as a whole is not a sample of any one model.

    Args:
        bridge: the model.
        count: how many samples.
        length: how many tokens each has at least, if more than the model has positions.
        labels: class of each.
        template, calls, sampler, grid, guidance, temperature, top_p: see `Bridge.sample`.
        seed: of all random numbers.
        progress: called with the number of windows done, and of all.

    >>> import dmb, torch
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
    >>> bridge = dmb.MarkovBridge(process, dmb.MLP(process.num_states, process.num_positions, width=16))
    >>> [tuple(part.shape) for part in draw(bridge, 100, calls=4)]
    [(64, 2), (36, 2)]
    """
    window, half = bridge.num_positions, bridge.num_positions // 2
    windows, done = 1, 0
    if length is not None and length > window:
        if half < 1:
            raise ValueError("--length needs a model with at least 2 positions to write longer texts, got 1")
        windows += -(-(length - window) // (window - half))
    generator = seeded(seed, "samples", device=bridge.device)
    for rows in torch.arange(count).split(AT_ONCE):
        label = None if labels is None else labels[rows].to(bridge.device)
        text, known = list[Tensor](), template
        for place in range(windows):
            drawn = bridge.sample(
                len(rows), label=label, template=known, calls=calls, sampler=sampler, grid=grid,
                guidance=guidance, temperature=temperature, top_p=top_p, generator=generator,
            ).cpu()  # fmt: skip
            text.append(drawn if place == 0 else drawn[:, half:])
            known = F.pad(drawn[:, window - half :], (0, window - half), value=-1)
            done += len(rows)
            progress(done, count * windows)
        yield torch.cat(text, dim=1)

"""For networks that follow an order: write position after position, and read what stands only once."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb import numerics
from dmb.networks.ordered import OrderedNetwork
from dmb.paths import turns_for
from dmb.samplers.base import Denoiser, State


@torch.no_grad()
def in_order(
    denoiser: Denoiser,
    x_T: Int[Tensor, "b d"],
    shares: Float[Tensor, " k"] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[State]:
    """Draw an order, the given positions first, and write the others in that order.

    The positions of one step are drawn independently, given all that was written in the steps before, and that is the
    only error: with one position per step the samples are exact. The time of a state is the share of positions that are
    still to be written.

    Args:
        denoiser: the model, with a network that follows orders.
        x_T: masks, and tokens at the given positions.
        shares: how much of the blanks is left after every step, falling from 1 to 0. Default: one position per step.
        generator: source of all randomness.
    """
    model, network = denoiser.model, denoiser.model.ordered
    assert network is not None
    (batch, positions), device = x_T.shape, x_T.device
    given = torch.zeros_like(x_T, dtype=torch.bool) if denoiser.given is None else denoiser.given
    order = turns_for(model, batch, given=given, generator=generator).argsort(dim=-1)
    known = given.sum(-1, keepdim=True)
    if batch == 0:
        yield State(0.0, x_T)
        return
    first, blanks = int(known.max()), positions - int(known.min())
    # rows with fewer blanks than others leave their last columns empty
    column = known + torch.arange(blanks, device=device)
    at, there = order.gather(1, column.clamp(max=positions - 1)), column < positions
    if shares is None:
        shares = torch.linspace(1, 0, max(blanks, 1) + 1)
    ends = (blanks * (1 - shares.double())).round().long().tolist()
    reader = _Reader(denoiser, network, batch, first + blanks)
    before = order[:, :first]
    new = x_T.gather(1, before), before, torch.arange(first, device=device) < known
    x = x_T
    yield State(1.0, x)
    for start, end in pairwise(ends):
        if start < end:
            ask, really = at[:, start:end], there[:, start:end]
            log_posterior = reader.read(*new, ask)
            drawn = numerics.categorical(log_posterior.exp(), generator=generator)
            # an empty column is written into one more position, which is cut off again
            padded = torch.cat([x, x[:, :1]], dim=1)
            x = padded.scatter(1, torch.where(really, ask, positions), drawn)[:, :-1]
            new = drawn, ask, really
        yield State(1 - end / blanks if blanks else 0.0, x)


class _Reader:
    """What the model says of the positions to come, as the user wants it; for guidance also without a label."""

    def __init__(self, denoiser: Denoiser, network: OrderedNetwork, batch: int, slots: int):
        self._denoiser, self._network = denoiser, network
        labels = [denoiser.label]
        if denoiser.label is not None and denoiser.guidance != 1:
            labels.append(torch.full_like(denoiser.label, -1))
        self._memories = [network.begin(batch, slots, label, denoiser.model.device) for label in labels]

    def read(
        self, tokens: Int[Tensor, "b k"], at: Int[Tensor, "b k"], filled: Tensor, ask: Int[Tensor, "b m"]
    ) -> Float[Tensor, "b m n"]:
        process = self._denoiser.process
        states = process.data_states.expand(process.num_positions, -1)[ask]
        if self._denoiser.legal is not None:
            states = self._denoiser.legal[torch.arange(len(ask), device=ask.device)[:, None], ask]
        told = [
            torch.where(states, self._network.extend(memory, tokens, at, filled, ask).to(process.dtype), -torch.inf)
            for memory in self._memories
        ]
        return self._denoiser.shaped(*(numerics.log_normalise(outputs) for outputs in told))

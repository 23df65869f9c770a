"""Whole paths: write position after position, and read what stands only once."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb.networks.ordered import OrderedNetwork
from dmb.orders import turns_of_calls
from dmb.processes.states import States
from dmb.sampling.base import Decoding, State


@torch.no_grad()
def in_order(
    network: OrderedNetwork,
    states: States,
    decoding: Decoding,
    x_T: Int[Tensor, "b d"],
    turn: Int[Tensor, "b d"],
    call: Int[Tensor, "b d"] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[State]:
    """Write the positions of each row by their turns, given positions first.

    The positions of one call are drawn independently, given all that was written by the calls before, and that is the
    only error: with one position per call the samples are exact. The time of a state is the share of positions that are
    still to be written.

    Args:
        network: gives the token at any position, from the tokens of earlier turns.
        states: of each position.
        decoding: the user's options.
        x_T: masks, and tokens at the given positions.
        turn: of each position, those of given positions first.
        call: the call that writes each position; -1 for given ones. Rows with fewer calls than others are finished
            first. Default: one position per call.
        generator: source of all randomness.
    """
    (batch, positions), device = x_T.shape, x_T.device
    if batch == 0:
        yield State(0.0, x_T)
        return
    given = torch.zeros_like(x_T, dtype=torch.bool) if decoding.given is None else decoding.given
    order, known = turn.argsort(dim=-1), given.sum(-1, keepdim=True)
    blanks, first = positions - known, int(known.max())
    call = turn - known if call is None else call
    sizes = turn.new_zeros(batch, max(1, int(call.max()) + 1)).scatter_add_(1, call.clamp(min=0), (call >= 0).long())
    turn = turns_of_calls(turn, call)  # positions of one call do not see each other
    left = (blanks - sizes.cumsum(-1)) / blanks.clamp(min=1).double()
    widths, times = sizes.amax(0).tolist(), left.amax(0).tolist()
    reader = Reader(network, states, decoding, batch, first + sum(widths))
    new = order[:, :first], torch.arange(first, device=device) < known
    x, written = x_T, known
    yield State(1.0, x)
    for size, width, time in zip(sizes.split(1, dim=-1), widths, times, strict=True):
        if width:
            column = torch.arange(width, device=device)
            # rows that write fewer positions in this call leave their last columns empty
            at, real = order.gather(1, (written + column).clamp(max=positions - 1)), column < size
            x = put(x, at, real, numerics.categorical(reader.law(x, turn, new, at), generator=generator))
            new, written = (at, real), written + size
        yield State(time, x)


class Reader:
    """A network that follows an order, with the user's options for its samples, and what it has read of them.

    Args:
        network: the network.
        states: of each position.
        decoding: the user's options.
        batch: number of samples.
        slots: tokens of a sample that it reads at most.
    """

    def __init__(self, network: OrderedNetwork, states: States, decoding: Decoding, batch: int, slots: int):
        legal = states.data_states.expand(batch, states.num_positions, -1)
        self._network, self._decoding = network, decoding
        self._legal = legal if decoding.legal is None else decoding.legal
        self._asked = [(label, network.cache(batch, slots)) for label in decoding.labels()]

    def law(
        self,
        x: Int[Tensor, "b d"],
        turn: Int[Tensor, "b d"],
        new: tuple[Int[Tensor, "b k"], Bool[Tensor, "b k"]],
        at: Int[Tensor, "b m"],
    ) -> Float[Tensor, "b m n"]:
        """What the tokens of some positions are drawn from, given those of earlier turns.

        Args:
            x: tokens, and masks.
            turn: of each position.
            new: the positions of tokens that were not read yet, and which of them exist.
            at: the positions to answer for.
        """
        legal, log_p = self._legal.take_along_dim(at[..., None], 1), []
        for label, cache in self._asked:
            if cache is None:
                output = self._network.outputs_at(x, at, turn, label)
            else:
                output = cache.outputs_at(x, turn, *new, at, label)
            exact = output.to(numerics.at_least_float32(output))
            log_p.append(numerics.log_normalise(torch.where(legal, exact, -torch.inf)))
        return self._decoding.shaped(*log_p).exp()

    def forget(self, count: Int[Tensor, "b 1"]) -> None:
        """Take the last tokens of each row, so many of them, for unread."""
        for _, cache in self._asked:
            if cache is not None:
                cache.forget(count)


def put(
    x: Int[Tensor, "b d"], at: Int[Tensor, "b m"], real: Bool[Tensor, "b m"], token: Int[Tensor, "b m"]
) -> Int[Tensor, "b d"]:
    """The tokens of `x` with others at some positions; columns that are not real have no effect.

    >>> put(torch.tensor([[7, 7, 7]]), torch.tensor([[2, 0]]), torch.tensor([[True, False]]), torch.tensor([[1, 1]]))
    tensor([[7, 7, 1]])
    """
    # an empty column is written into one more position, which is cut off again
    padded = torch.cat([x, x[:, :1]], dim=1)
    return padded.scatter(1, torch.where(real, at, x.shape[1]), token)[:, :-1]

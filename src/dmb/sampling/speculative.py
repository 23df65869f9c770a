"""Whole paths in fewer calls: guess tokens ahead, and keep those that one position per call would have written."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from dmb._core import numerics
from dmb.networks.ordered import OrderedNetwork
from dmb.processes.states import States
from dmb.sampling.base import Decoding, State
from dmb.sampling.in_order import Reader, put

WINDOW = 8
"""Positions that a call answers for. More save calls where guesses are good, and cost time where they are not."""


@torch.no_grad()
def speculative(
    network: OrderedNetwork,
    states: States,
    decoding: Decoding,
    x_T: Int[Tensor, "b d"],
    turn: Int[Tensor, "b d"],
    generator: torch.Generator | None = None,
) -> Iterator[State]:
    r"""Write the positions of each row by their turns, several per call, by the law of one position per call.

    All randomness is drawn beforehand: `E_{i,k} ~ Exp(1)` for every position `i` and state `k`. With `p_i` the law of
    the token at `i` given those of earlier turns, shaped by the user's options, the sample is

    `x_i = argmin_k E_{i,k} / p_i(k),`

    whose law is `p_i`, because `E_i` is independent of all that `p_i` depends on. A call of the network answers for the
    next positions of each row at once, with guesses for the tokens between them. Its first token depends on no guess
    and stands; each one after it stands as long as all guesses before it were what came out. The others are the guesses
    of the next call. So every call writes one position at least, and neither guesses nor other rows change a sample.

    (Speculative decoding, arXiv 2211.17192, in any order as in arXiv 2504.20456. There a guess is accepted by its
    probabilities, and a wrong one replaced by a draw from a residual. Guesses from the noise of the sample itself, as
    in arXiv 2002.09928, need neither.)

    The time of a state is the share of positions that are still to be written, of the row with most of them left.

    Args:
        network: gives the token at any position, from the tokens of earlier turns.
        states: of each position.
        decoding: the user's options.
        x_T: masks, and tokens at the given positions.
        turn: of each position, those of given positions first.
        generator: source of all randomness.

    >>> import dmb
    >>> network, turn = dmb.OrderedTransformer(4, 64, width=16, heads=2, blocks=1), torch.arange(64).expand(2, -1)
    >>> x_T = torch.full((2, 64), 3)
    >>> times = [state.t for state in speculative(network, dmb.States.with_mask(64, 3), Decoding(), x_T, turn)]
    >>> len(times) < 20  # an untrained network does not depend on what it reads, and so all guesses are right
    True
    """
    (batch, positions), device = x_T.shape, x_T.device
    if batch == 0:
        yield State(0.0, x_T)
        return
    reader = Reader(network, states, decoding, batch, positions)
    arrivals = numerics.exponential((batch, positions, states.num_states), generator=generator, device=device)
    known = turn.new_zeros(batch, 1) if decoding.given is None else decoding.given.sum(-1, keepdim=True)
    order, first, column = turn.argsort(dim=-1), int(known.max()), torch.arange(WINDOW, device=device)
    new = order[:, :first], torch.arange(first, device=device) < known
    x, written, guessed = x_T, known, torch.zeros_like(known)
    yield State(1.0, x)
    while (left := positions - written).any():
        place = written + column
        at = order.gather(1, place.clamp(max=positions - 1))
        # what is not even guessed has the same turn everywhere, and is seen by none
        law = reader.law(x, torch.minimum(turn, written + guessed), new, at)
        token = numerics.first_to_arrive(law, arrivals.take_along_dim(at[..., None], 1))
        right = (token == x.gather(1, at)).long().cumprod(-1).sum(-1, keepdim=True)
        gained = torch.minimum(right + 1, left)
        numerics.check_total(law.sum(-1)[column < gained])  # a wrong guess may be impossible, and then there is no law
        x = put(x, at, place < positions, token)
        reader.forget(guessed + 1 - gained)  # wrong guesses; the token in place of the first is to be read
        written = written + gained
        guessed = torch.minimum(WINDOW - gained, positions - written)
        new = order.gather(1, (written - 1 + column).clamp(max=positions - 1)), column <= guessed
        share = (positions - written) / (positions - known).clamp(min=1).double()
        yield State(share.max().item(), torch.where(turn < written, x, states.num_states - 1))

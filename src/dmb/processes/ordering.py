"""The permutation `A`: which state gets which rank (§5.2 of the paper)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import checks

ORDERS = ("ascending", "descending", "natural")


def ranks_by_frequency(marginals: Float[Tensor, "g n"], order: str, legal: Bool[Tensor, "g n"]) -> Int[Tensor, "g n"]:
    """Rank of each token: its place when the states of a position are sorted by their marginal probability.

    Args:
        marginals: the data's distribution over the states of each position.
        order: `ascending` puts the most frequent state on top (the paper's text), `descending` the rarest (the authors'
            code), `natural` keeps the token order (grey levels and other ordinal values).
        legal: which states a position has. The others get the lowest ranks: clocks only lead upwards, so the process
            never enters them.

    >>> everything = torch.ones(1, 3, dtype=torch.bool)
    >>> ranks_by_frequency(torch.tensor([[0.5, 0.2, 0.3]]), "ascending", everything)
    tensor([[2, 0, 1]])
    """
    checks.choice("order", order, ORDERS)
    if order == "natural":
        key = torch.arange(marginals.shape[-1], device=marginals.device).expand(marginals.shape).to(marginals.dtype)
    else:
        key = marginals if order == "ascending" else -marginals
    return invert(torch.where(legal, key, -torch.inf).argsort(dim=-1, stable=True))


def invert(permutation: Int[Tensor, "g n"]) -> Int[Tensor, "g n"]:
    """The inverse of each row.

    >>> invert(torch.tensor([[2, 0, 1]]))
    tensor([[1, 2, 0]])
    """
    return permutation.argsort(dim=-1)

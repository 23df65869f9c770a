"""How many positions each of a few calls should write."""

import torch
from jaxtyping import Float
from torch import Tensor


def best_shares(costs: Float[Tensor, " d"], calls: int) -> Float[Tensor, " k"]:
    r"""The share of blanks that is left after each of so many calls, from 1 to 0, at the least cost (ARDM, arXiv 2110.02037).

    With `L_j` the mean cost of a token when `j` are known, writing `m` tokens in one call from `j` on costs `m L_j`. The
    least sum over calls follows by dynamic programming: `C_k(j) = min_m m L_j + C_{k-1}(j + m)`. It is exact in the mean
    where all orders are equally likely. For `grid=` of `sample` and `bound`.

    Args:
        costs: `L_0 … L_{d-1}`, such as the means over rows of `token_nats` by turn.
        calls: `K`, at most `d`.

    >>> best_shares(torch.tensor([4.0, 2.0, 1.0, 1.0]), 2)  # one token, then three, which costs 4 + 3 * 2
    tensor([1.0000, 0.7500, 0.0000], dtype=torch.float64)
    """
    d = len(costs)
    if not 1 <= calls <= d:
        raise ValueError(f"calls must lie in [1, {d}], got {calls}")
    start, end = torch.arange(d)[:, None], torch.arange(1, d + 1)
    once = torch.where(end > start, (end - start) * costs.double().cpu()[:, None], torch.inf)
    least, choices = once[:, -1], []  # with one call left, it writes all
    for _ in range(calls - 1):
        total = once + torch.cat([least[1:], least.new_full((1,), torch.inf)])  # least cost of what is left after it
        least, choice = total.min(-1)
        choices.append(choice + 1)
    known = [0]
    for choice in reversed(choices):
        known.append(int(choice[known[-1]]))
    return 1 - torch.tensor([*known, d], dtype=torch.float64) / d

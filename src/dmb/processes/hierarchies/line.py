"""Lines: the order of the paper, with cumulative sums and binary search."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from dmb._core import numerics
from dmb.processes.hierarchies.base import Hierarchy


class Line(Hierarchy):
    """Ranks: every state lies below all states of higher rank. This is the `A` of the paper's `Q_α = A H A⁻¹`.

    Args:
        rank: token -> rank, `[d, n]`, or `[1, n]` if all positions share one order.
        names: number of names, the last states, which data never visit (such as a mask); they have the top ranks.

    >>> line = Line(torch.tensor([[2, 0, 1]]))
    >>> line.sum_above(torch.tensor([[1.0, 2.0, 4.0]])), line.sum_below(torch.tensor([[1.0, 2.0, 4.0]]))
    (tensor([[0., 5., 1.]]), tensor([[6., 0., 2.]]))
    """

    rank: Int[Tensor, "h n"]
    token: Int[Tensor, "h n"]

    def __init__(self, rank: Int[Tensor, "h n"], names: int = 0):
        super().__init__(rank.shape[-1], rank.shape[-1] - 1, names)
        self.register_buffer("rank", _checked(rank, names).clone())
        self.register_buffer("token", rank.argsort(dim=-1), persistent=False)
        self.register_load_state_dict_post_hook(_check_rank)

    @property
    def clock_into(self) -> Int[Tensor, "h n"]:
        return self.rank

    def spread(self, rates: Float[Tensor, "c g m"]) -> tuple[Float[Tensor, "c f n"], Float[Tensor, "c f n"]]:
        own, above = self.by_rank(rates)
        return self.to_tokens(own), self.to_tokens(above)

    def rates_at(
        self, rates: Float[Tensor, "c g m"], x: Int[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        (own, above), rank = self.by_rank(rates), self.rank_of(x)
        return numerics.pick(own, rank), numerics.pick(above, rank)

    def by_rank(self, rates: Float[Tensor, "c g m"]) -> tuple[Float[Tensor, "c g n"], Float[Tensor, "c g n"]]:
        """For every rank, the rate of its own clock (rank 0 has none) and the total rate of all clocks above it."""
        own = F.pad(rates, (1, 0))
        return own, numerics.suffix_sum(own)

    def sum_above(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        return self.to_tokens(numerics.suffix_sum(self.to_ranks(values)))

    def sum_below(self, values: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        return self.to_tokens(numerics.prefix_sum(self.to_ranks(values)))

    def from_cumulative(self, totals: Float[Tensor, "*b n"]) -> Float[Tensor, "*c n"]:
        by_rank = self.to_ranks(totals)
        return self.to_tokens(by_rank.diff(dim=-1, prepend=torch.zeros_like(by_rank[..., :1])))

    def is_below(self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        return self.rank_of(x) < self.rank_of(y)

    def mask_below(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        return self.rank < self.rank_of(x)[..., None]

    def mask_above(self, x: Int[Tensor, "b d"]) -> Bool[Tensor, "b d n"]:
        return self.rank > self.rank_of(x)[..., None]

    def gather_path(self, values: Shaped[Tensor, "c g n"], x: Int[Tensor, "b d"]) -> Shaped[Tensor, "c g n"]:
        return values  # all of a line is on the path

    def path_mask(
        self, x: Int[Tensor, "b d"], y: Int[Tensor, "b d"]
    ) -> tuple[Bool[Tensor, "b d n"], Bool[Tensor, "b d n"]]:
        here = torch.arange(self.num_states, device=x.device) == x[..., None]
        return ~self.mask_below(x) & self.mask_below(y), here

    def climb(
        self, x: Int[Tensor, "b d"], rates: Float[Tensor, "c g m"], level: Float[Tensor, "b d"]
    ) -> Int[Tensor, "b d"]:
        ascending = self.by_rank(rates)[1].flip(-1)  # searchsorted wants it rising
        rows, positions, num_states = ascending.shape
        if rows == positions == 1:
            found = torch.searchsorted(ascending[0, 0], level, right=True)
        elif rows == 1:
            found = torch.searchsorted(ascending[0], level.T.contiguous(), right=True).T
        elif positions == 1:
            found = torch.searchsorted(ascending[:, 0].contiguous(), level, right=True)
        else:
            found = torch.searchsorted(ascending, level[..., None], right=True).squeeze(-1)
        return numerics.pick(self.token[None], torch.maximum(self.rank_of(x), num_states - found))

    def draw(self, weights: Float[Tensor, "b d n"], generator: torch.Generator | None = None) -> Int[Tensor, "b d"]:
        """By inverse CDF over ranks, so that close uniform numbers give close ranks."""
        return numerics.pick(self.token[None], numerics.categorical(self.to_ranks(weights), generator=generator))

    def rank_of(self, x: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """The rank of each token."""
        return numerics.pick(self.rank[None], x)

    def to_ranks(self, values: Shaped[Tensor, "*b n"]) -> Shaped[Tensor, "*c n"]:
        """From the order of tokens to that of ranks."""
        return numerics.permute(values, self.token)

    def to_tokens(self, values: Shaped[Tensor, "*b n"]) -> Shaped[Tensor, "*c n"]:
        """From the order of ranks to that of tokens."""
        return numerics.permute(values, self.rank)


def _checked(rank: Tensor, names: int) -> Int[Tensor, "h n"]:
    """`rank` as int64 if every row is a permutation of `0 … n-1` in which names are on top."""
    if rank.ndim != 2 or rank.is_floating_point():
        raise ValueError(f"rank must be an integer tensor [positions, states], got {rank.dtype} {list(rank.shape)}")
    num_states = rank.shape[-1]
    wrong = (rank.sort(dim=-1).values != torch.arange(num_states, device=rank.device)).any(-1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"rank must hold a permutation of 0 … {num_states - 1} in every row, "
            f"got row {row} = {rank[row].tolist()[:8]}"
        )
    if names and (rank[:, -names:] < num_states - names).any():
        raise ValueError(f"rank must place the last {names} states, which are names, on top of all others")
    return rank.long()


def _check_rank(line: Line, _: object) -> None:
    line.token.copy_(_checked(line.rank, line.names).argsort(dim=-1))

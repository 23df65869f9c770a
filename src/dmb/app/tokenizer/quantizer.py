"""The codebook: vectors to the nearest of a few, which follow the vectors that they stand for."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed, nn
from torch.nn import functional as F

_CHUNK = 1 << 24
"""Distances held at once."""
_ROUNDS = 10
"""Of k-means, before the first step."""


class Quantized(NamedTuple):
    """Vectors at their codes."""

    vectors: Float[Tensor, "b d e"]
    """The codes; in training their gradient is handed to the encoder's vectors as it is (straight through)."""
    tokens: Int[Tensor, "b d"]
    """Which codes they are."""
    commitment: Float[Tensor, ""]
    """The mean of `(z - e)²` over all numbers, with no gradient to the codes."""


class Quantizer(nn.Module):
    """`z -> e_k`, `k = argmin_k |z - e_k|` (van den Oord et al. 2017), over a codebook `[codes, code_width]`.

    In training, every call moves each code towards the mean of the vectors it stands for: with `n_k` vectors of sum
    `s_k` in the batch, `N_k ← decay N_k + (1 - decay) n_k`, `S_k ← decay S_k + (1 - decay) s_k`, `e_k = S_k / N_k`. The
    first call finds the codes by k-means. A code whose count `N_k` falls below `revive` times the mean is dead: it
    comes back as one of the batch's vectors, with the mean count, and has `log(revive) / log(decay)` calls to find use.

    Of several processes, each with an equal share of the batch, all have the codes that one would have, if they draw
    from generators of one seed. Whatever training goes by is a buffer: a state restored by `load_state_dict` goes on to
    the same codes.
    """

    codebook: Float[Tensor, "n e"]
    counts: Float[Tensor, " n"]
    sums: Float[Tensor, "n e"]
    started: Bool[Tensor, ""]

    def __init__(self, codes: int, code_width: int, *, decay: float = 0.9, revive: float = 0.1):
        super().__init__()
        if codes < 2 or code_width < 1:
            raise ValueError(f"codes must be at least 2 and code_width at least 1, got {codes} and {code_width}")
        if not (0 < decay < 1 and 0 < revive < 1):
            raise ValueError(f"decay and revive must lie in (0, 1), got {decay} and {revive}")
        self.codes, self.code_width, self.decay, self.revive = codes, code_width, decay, revive
        self.register_buffer("codebook", torch.randn(codes, code_width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())
        self.register_buffer("started", torch.tensor(False))

    def forward(self, z: Float[Tensor, "b d e"], generator: torch.Generator | None = None) -> Quantized:
        """In training mode also updates the codes; what is random about that comes from `generator`, on the CPU."""
        # not in the half precision of autocast: the counts and sums would lose digits at every step
        with torch.autocast(z.device.type, enabled=False):
            z = z.to(self.codebook.dtype)
            if self.training and not self.started:
                self._start(z.detach().flatten(0, 1), generator)
            tokens = self.nearest(z.detach())
            vectors = self.vectors(tokens)
            commitment = F.mse_loss(z, vectors)
            if self.training:
                self._learn(z.detach().flatten(0, 1), tokens.flatten(), generator)
                vectors = z + (vectors - z).detach()
            return Quantized(vectors, tokens, commitment)

    def nearest(self, z: Float[Tensor, "*b e"]) -> Int[Tensor, "*b"]:
        """The codes that vectors are nearest to."""
        # |z - e|² without |z|², which no code changes
        squares = self.codebook.square().sum(-1)
        rows = z.flatten(0, -2).split(max(1, _CHUNK // self.codes))
        parts = [torch.addmm(squares, row, self.codebook.T, alpha=-2).argmin(-1) for row in rows]
        return torch.cat(parts).view(z.shape[:-1])

    def vectors(self, tokens: Int[Tensor, "b d"]) -> Float[Tensor, "b d e"]:
        """The vectors of codes."""
        return F.embedding(tokens, self.codebook)

    def start_from(self, codebook: Float[Tensor, "n e"]) -> None:
        """Take the codes that another has learned; training, if there is any, goes on from them."""
        self.codebook.copy_(codebook)
        self.counts.fill_(1.0)
        self.sums.copy_(codebook)
        self.started.fill_(True)

    @torch.no_grad()
    def _start(self, z: Float[Tensor, "m e"], generator: torch.Generator | None) -> None:
        """k-means from random vectors; a code that is left without any is dead, and the first step revives it."""
        z = _gathered(z)
        rows = torch.randperm(len(z), generator=generator)[torch.arange(self.codes) % len(z)]
        self.codebook.copy_(z[rows.to(z.device)])
        for _ in range(_ROUNDS):
            counts, sums = self._totals(z, self.nearest(z))
            self.counts.copy_(counts)
            self.sums.copy_(sums)
            self.codebook.copy_(torch.where(counts[:, None] > 0, sums / counts[:, None], self.codebook))
        self.started.fill_(True)

    @torch.no_grad()
    def _learn(self, z: Float[Tensor, "m e"], tokens: Int[Tensor, " m"], generator: torch.Generator | None) -> None:
        for average, total in zip((self.counts, self.sums), self._totals(z, tokens), strict=True):
            if _processes() > 1:
                distributed.all_reduce(total)
            average.mul_(self.decay).add_(total, alpha=1 - self.decay)
        mean = self.counts.mean()
        dead = self.counts < self.revive * mean
        if dead.any():
            z = _gathered(z)
            rows = torch.randint(len(z), (int(dead.sum()),), generator=generator)
            self.counts[dead], self.sums[dead] = mean, mean * z[rows.to(z.device)]
        self.codebook.copy_(self.sums / self.counts[:, None])

    def _totals(
        self, z: Float[Tensor, "m e"], tokens: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n e"]]:
        """How many vectors each code stands for, and their sums."""
        counts = tokens.bincount(minlength=self.codes).to(z.dtype)
        return counts, torch.zeros_like(self.sums).index_add_(0, tokens, z)


def _processes() -> int:
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def _gathered(z: Float[Tensor, "m e"]) -> Float[Tensor, "k e"]:
    """The vectors of all processes, as many of each, in the order of their shares of the batch."""
    if _processes() == 1:
        return z
    parts = [torch.empty_like(z) for _ in range(_processes())]
    distributed.all_gather(parts, z.contiguous())
    return torch.cat(parts)

"""The codebook: vectors to the nearest of a few, which follow the vectors that they stand for."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, distributed, nn
from torch.nn import functional as F

_CHUNK = 1 << 24  # distances held at once
_ROUNDS = 10  # of k-means, before the first step


class Quantizer(nn.Module):
    """`z -> e_k`, `k = argmin_k |z - e_k|` (van den Oord et al. 2017), over a codebook `[codes, code_width]`.

    In training, every call moves each code towards the mean of the vectors it stands for: with `n_k` vectors of sum
    `s_k` in the batch, `N_k ← decay N_k + (1 - decay) n_k`, `S_k ← decay S_k + (1 - decay) s_k`, `e_k = S_k / N_k`. The
    first call finds the codes by k-means. A code whose count `N_k` falls below `revive` times the mean is dead: it
    comes back as one of the batch's vectors, with the mean count, and has `log(revive) / log(decay)` calls to find use.

    If `cosine`, only directions count: `z / |z|` takes the place of `z`, and `e_k = S_k / |S_k|`. Then the nearest code
    is that of the highest cosine, and no vector can escape its code by growing (ViT-VQGAN, arXiv 2110.04627).

    Of several processes, each with an equal share of the batch, all have the codes that one would have, if they draw
    from generators of one seed. Whatever training goes by is a buffer: a state restored by `load_state_dict` goes on to
    the same codes.
    """

    def __init__(self, codes: int, code_width: int, *, cosine: bool = True, decay: float = 0.9, revive: float = 0.1):
        super().__init__()
        if codes < 2 or code_width < 1:
            raise ValueError(f"codes must be at least 2 and code_width at least 1, got {codes} and {code_width}")
        if not (0 < decay < 1 and 0 < revive < 1):
            raise ValueError(f"decay and revive must lie in (0, 1), got {decay} and {revive}")
        self.codes, self.code_width, self.cosine, self.decay, self.revive = codes, code_width, cosine, decay, revive
        self.codebook = nn.Buffer(self._compared(torch.randn(codes, code_width)))
        self.counts, self.sums = nn.Buffer(torch.ones(codes)), nn.Buffer(self.codebook.clone())
        self.started = nn.Buffer(torch.tensor(False))

    def forward(
        self, z: Float[Tensor, "b d e"], generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "b d e"], Int[Tensor, "b d"], Float[Tensor, ""]]:
        """Vectors at their codes; which codes these are; and the mean of `(z - e)²`, with no gradient to the codes.

        In training mode the gradient of the first is handed to `z` as it is (straight through; if `cosine`, to its
        direction), and the codes are updated; what is random about that comes from `generator`, on the CPU.
        """
        # not in the half precision of autocast: the counts and sums would lose digits at every step
        with torch.autocast(z.device.type, enabled=False):
            z = self._compared(z.to(self.codebook.dtype))
            everywhere = _gathered(z.detach().flatten(0, 1)) if self.training else z
            if self.training and not self.started:
                self._start(everywhere, generator)
            tokens = self._nearest(z.detach())
            vectors = self.codebook[tokens]
            commitment = F.mse_loss(z, vectors)
            if self.training:
                self._learn(everywhere, _gathered(tokens.flatten()), generator)
                vectors = z + (vectors - z).detach()
            return vectors, tokens, commitment

    def nearest(self, z: Float[Tensor, "*b e"]) -> Int[Tensor, "*b"]:
        """The codes that vectors are nearest to."""
        return self._nearest(self._compared(z))

    def _compared(self, z: Float[Tensor, "*b e"]) -> Float[Tensor, "*b e"]:
        """What of vectors is compared with codes."""
        return F.normalize(z, dim=-1) if self.cosine else z

    def _nearest(self, z: Float[Tensor, "*b e"]) -> Int[Tensor, "*b"]:
        # |z - e|² without |z|², which no code changes
        squares = self.codebook.square().sum(-1)
        rows = z.flatten(0, -2).split(max(1, _CHUNK // self.codes))
        parts = [torch.addmm(squares, row, self.codebook.T, alpha=-2).argmin(-1) for row in rows]
        return torch.cat(parts).view(z.shape[:-1])

    @torch.no_grad()
    def _start(self, z: Float[Tensor, "m e"], generator: torch.Generator | None) -> None:
        """k-means from random vectors; a code that is left without any is dead, and the first step revives it."""
        rows = torch.randperm(len(z), generator=generator)[torch.arange(self.codes) % len(z)]
        self.codebook.copy_(z[rows.to(z.device)])
        for _ in range(_ROUNDS):
            counts, sums = self._totals(z, self._nearest(z))
            self.counts.copy_(counts)
            self.sums.copy_(sums)
            self.codebook.copy_(torch.where(counts[:, None] > 0, self._compared(sums / counts[:, None]), self.codebook))
        self.started.fill_(True)

    @torch.no_grad()
    def _learn(self, z: Float[Tensor, "m e"], tokens: Int[Tensor, " m"], generator: torch.Generator | None) -> None:
        for average, total in zip((self.counts, self.sums), self._totals(z, tokens), strict=True):
            average.mul_(self.decay).add_(total, alpha=1 - self.decay)
        mean = self.counts.mean()
        dead = self.counts < self.revive * mean
        if dead.any():
            rows = torch.randint(len(z), (int(dead.sum()),), generator=generator)
            self.counts[dead], self.sums[dead] = mean, mean * z[rows.to(z.device)]
        self.codebook.copy_(self._compared(self.sums / self.counts[:, None]))

    def _totals(
        self, z: Float[Tensor, "m e"], tokens: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n e"]]:
        """How many vectors each code stands for, and their sums."""
        counts = tokens.bincount(minlength=self.codes).to(z.dtype)
        return counts, torch.zeros_like(self.sums).index_add_(0, tokens, z)


def _gathered(values: Shaped[Tensor, "m *e"]) -> Shaped[Tensor, "k *e"]:
    """The values of all processes, as many of each, in the order of their shares of the batch."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return values
    parts = [torch.empty_like(values) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, values.contiguous())
    return torch.cat(parts)

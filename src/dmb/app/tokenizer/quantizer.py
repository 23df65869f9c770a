"""The codebook: vectors to the nearest of a few, with the library that learns them behind this one file."""

from importlib import import_module
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed, nn
from torch.nn import functional as F

_CHUNK = 1 << 24
"""Distances held at once."""


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
    first call finds the codes by k-means, and codes that hardly any vector is near to are put where a vector is. That
    is the work of `vector-quantize-pytorch`, which must be installed for it, and draws from torch's global generator.
    Nearest codes and vectors of codes need the codebook alone.

    Whatever training goes by is a buffer: a state restored by `load_state_dict` goes on to the same codes.

    Args:
        codes: how many.
        code_width: their dimension.
        decay: of the averages, a call.
        revive: a code is dead when its count `N_k` falls below this share of the mean. It comes back as one of the
            batch's vectors, with the mean count, so that it has `log(revive) / log(decay)` calls to find use.
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

    def forward(self, z: Float[Tensor, "b d e"]) -> Quantized:
        """In training mode also updates the codes."""
        if self.training:
            # not in the half precision of autocast: the counts and sums would lose digits at every step
            with torch.autocast(z.device.type, enabled=False):
                vectors, tokens, _, losses = self._learner()(z, return_loss_breakdown=True)
            return Quantized(vectors, tokens, losses.commitment)
        tokens = self.nearest(z.detach())
        vectors = self.vectors(tokens)
        return Quantized(vectors, tokens, F.mse_loss(z, vectors))

    def nearest(self, z: Float[Tensor, "b d e"]) -> Int[Tensor, "b d"]:
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

    def _learner(self) -> Any:
        """The library's module, made for one call: it works in place, on our buffers."""
        learner = library().VectorQuantize(
            dim=self.code_width,
            codebook_size=self.codes,
            decay=self.decay,
            kmeans_init=True,
            threshold_ema_dead_code=1,
            rotation_trick=False,
            # it would remember the answer of the first time
            sync_codebook=distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1,
        )
        inner = learner._codebook
        inner.embed, inner.embed_avg, inner.cluster_size = self.codebook[None], self.sums[None], self.counts[None]
        inner.initted = self.started
        inner.reset_cluster_size = self.counts.mean()
        inner.threshold_ema_dead_code = self.revive * inner.reset_cluster_size
        return learner.train()


def library() -> Any:
    """The library, which takes a second to import and is an extra; a ValueError if it is not installed."""
    try:
        found = import_module("vector_quantize_pytorch")
    except ImportError as error:
        raise ValueError("VQ-VAEs need the extra `image`: pip install 'discrete-markov-bridge[image]'") from error
    # it prints when a first batch has fewer vectors than there are codes; the codes left over are revived
    import_module("loguru").logger.disable("vector_quantize_pytorch")
    return found

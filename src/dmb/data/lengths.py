"""Sequences of different lengths: the law of the length, and the padding that stands after the end."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import numerics
from dmb._core.configuration import Configurable

BLANK = -2
"""In a template: a blank that is a token of the sequence. After the end of the sequence there are none."""


class Lengths(Configurable):
    r"""The law of the length, for a bridge over sequences that are padded to `d` positions.

    The model is `p(length) p(tokens | length)`. A length is drawn first; it tells which positions hold padding, and
    padding is *given*: the network sees it, it stays clean, it costs nothing, and it is never drawn. So the bound on
    `-log p(x)` is `-log p(length)`, which is exact, plus the bound of the tokens before the padding.

    Training lengths are smoothed by a discrete Gaussian, whose width makes each of them likeliest given all others, or
    by none if that is best; and one more sequence has any length, so that no length is impossible.

    Args:
        counts: how many training sequences have length 1, 2, …, `d`.
        padding: the state that stands after the end of a sequence.

    Attributes:
        p: the probability of each length.
        present: the share of training sequences that reach each position.
        mean: the mean length of training sequences.

    >>> lengths = Lengths([0, 30, 10], padding=4)
    >>> lengths.p
    tensor([0.0081, 0.7398, 0.2520], dtype=torch.float64)
    >>> lengths.of(torch.tensor([[3, 1, 4], [0, 0, 2]]))
    tensor([2, 3])
    """

    def __init__(self, counts: list[int], padding: int):
        if not counts or min(counts) < 0 or sum(counts) == 0:
            raise ValueError(f"counts must be numbers of sequences, not all 0, got {counts[:8]}")
        self.counts, self.padding, self.num_positions = list(counts), padding, len(counts)
        number = torch.tensor(counts, dtype=torch.float64)
        self.p = _smoothed(number)
        self.present = number.flip(0).cumsum(0).flip(0) / number.sum()
        self.mean = float(self.present.sum())

    def absent(self, x_0: Int[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        """The positions after the end of each sequence; a ValueError if padding stands anywhere else."""
        absent = x_0 == self.padding
        wrong = absent[:, :-1] & ~absent[:, 1:]
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"padding, state {self.padding}, must stand at the end of a sequence only, "
                f"got it before another token at row {row}, position {position}"
            )
        if absent[:, 0].any():
            raise ValueError(
                f"a sequence must have a token, got padding only at row {int(absent[:, 0].long().argmax())}"
            )
        return absent

    def of(self, x_0: Int[Tensor, "b d"]) -> Int[Tensor, " b"]:
        """The length of each sequence."""
        return (~self.absent(x_0)).sum(-1)

    def nats(self, length: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """`-log p(length)`."""
        return -self.p.to(length.device).log()[length - 1]

    def complete_template(
        self,
        template: Int[Tensor, "..."] | None,
        count: int,
        *,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b d"]:
        """A template for each of `count` sequences that says where it ends: lengths are drawn, and padding is given.

        Args:
            template: what is known, `[d]` or `[b, d]`: tokens; padding where sequences have ended; `BLANK` for a token
                that is not known; -1 where nothing is known, be it a token or the end. Default: nothing is known.
            count: number of sequences.
            device: the device of the template.
            generator: source of all randomness.
        """
        place = torch.arange(self.num_positions, device=device)
        known = torch.full_like(place, -1) if template is None else template.to(device)
        known = known.expand(count, -1)
        over = known == self.padding
        shortest = torch.where((known != -1) & ~over, place + 1, 1).amax(-1, keepdim=True)
        longest = torch.where(over, place, self.num_positions).amin(-1, keepdim=True)
        if (shortest > longest).any():
            raise ValueError(f"the template must have padding, state {self.padding}, after all other tokens only")
        possible = (place + 1 >= shortest) & (place + 1 <= longest)
        length = 1 + numerics.categorical(torch.where(possible, self.p.to(device), 0.0), generator=generator)
        return torch.where(place >= length[:, None], self.padding, known.clamp(min=-1))


def _smoothed(counts: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """The probability of each length."""
    lengths, total = torch.arange(1, len(counts) + 1, dtype=torch.float64), counts.sum()
    seen, anything = counts > 0, 1 / len(counts)
    widths = [0.0, *(2.0**k for k in range(20) if 2**k < len(counts) / 2)]
    best, likeliest = counts, -torch.inf
    for width in widths:
        apart = lengths[:, None] - lengths[seen]
        kernel = torch.exp(-0.5 * (apart / width) ** 2) if width else (apart == 0).double()
        kernel = kernel / kernel.sum(0)
        spread = kernel @ counts[seen]
        others = spread[seen] - kernel[seen].diagonal() + anything  # each sequence by all the others
        likely = float((counts[seen] * others.log()).sum())
        if likely > likeliest:
            best, likeliest = spread, likely
    return (best + anything) / (total + 1)

"""The reverse process as a film: what stood where at each step, when it was decided, how certain the model was."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.sampling import State

FRAMES, KEPT = 64, 8  # about how many states a film has besides the last, and of how many samples


class Certainty(NamedTuple):
    """The likeliest clean tokens of one sample, and their probabilities, at every frame of a film."""

    likeliest: Int[Tensor, "f d"]
    probability: Float[Tensor, "f d"]


@dataclass
class Film:
    """States of the first samples, on their way from noise to data.

    Args:
        template: what was known from the beginning: tokens, and -1 for blanks; None if nothing was.
        label: class of the samples, if one was chosen.
    """

    template: Int[Tensor, " d"] | None = None
    label: int | None = None
    t: list[float] = field(default_factory=list)
    frames: list[Int[Tensor, "k d"]] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def add(self, state: State) -> None:
        """Record a state, and thin the film out when it becomes too long; the last state stays in any case."""
        if self._seen % self._every == 0 or state.t == 0:
            self.t.append(state.t)
            self.frames.append(state.x[:KEPT].cpu().int())
        self._seen += 1
        if len(self.t) > 2 * FRAMES:
            kept = range(0, len(self.t), 2)
            self.t, self.frames = [self.t[k] for k in kept], [self.frames[k] for k in kept]
            self._every *= 2

    def __len__(self) -> int:
        return len(self.t)

    @property
    def samples(self) -> int:
        """How many samples it shows."""
        return len(self.frames[0]) if self.frames else 0

    def of(self, sample: int) -> Int[Tensor, "f d"]:
        """One sample at every frame."""
        return torch.stack([frame[sample] for frame in self.frames]).long()

    def given(self) -> Bool[Tensor, " d"] | None:
        """The positions that were known from the beginning."""
        return None if self.template is None else self.template >= 0

    def decided(self, sample: int) -> Int[Tensor, " d"]:
        """The frame from which on each position has its final token; 0 where it had it from the beginning.

        >>> film = Film()
        >>> for t, x in ((1.0, [3, 3, 1]), (0.5, [3, 2, 1]), (0.0, [0, 2, 1])):
        ...     film.add(State(t, torch.tensor([x])))
        >>> film.decided(0)
        tensor([2, 1, 0])
        """
        x = self.of(sample)
        number = torch.arange(1, len(x) + 1)[:, None]
        return torch.where(x != x[-1], number, 0).amax(0)

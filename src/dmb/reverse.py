"""The learned reverse direction: a process, a network, and a head that says what the network's outputs mean."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb import checks
from dmb.heads import Head, MeanHead, ScoreHead
from dmb.networks.base import Network
from dmb.processes.base import ForwardProcess, Time

HEADS: dict[str, Callable[[], Head]] = {
    "mean": MeanHead,
    "score": ScoreHead,
    "unscaled_score": partial(ScoreHead, scaled=False),
}


class ReverseModel(nn.Module):
    """Everything that is needed to score, bound and reverse the process at one time; `Bridge` builds on it.

    Args:
        process: the forward process.
        network: a network of the same size.
        head: `mean` (outputs are logits of the clean token; the default), `score` (outputs are log scores, as
            published, scaled as SEDD does), `unscaled_score` (as printed), or a `Head` with options of its own.
    """

    def __init__(self, process: ForwardProcess, network: Network, head: str | Head = "mean"):
        super().__init__()
        for name in ("num_positions", "num_states"):
            if getattr(network, name) != getattr(process, name):
                raise ValueError(
                    f"network must have the process's {name}, got {getattr(network, name)} and {getattr(process, name)}"
                )
        self.process, self.network = process, network
        self.head = HEADS[checks.choice("head", head, tuple(HEADS))]() if isinstance(head, str) else head

    @property
    def num_positions(self) -> int:
        return self.process.num_positions

    @property
    def num_states(self) -> int:
        return self.process.num_states

    @property
    def device(self) -> torch.device:
        return self.process.device

    def data(self, name: str, x_0: Tensor) -> Int[Tensor, "b d"]:
        """Return `x_0` as int64 if it is data: legal tokens, none of them the mask."""
        x_0 = self.process.tokens(name, x_0)
        mask_token = getattr(self.process, "mask_token", None)
        if mask_token is not None and (x_0 == mask_token).any():
            row, position = (x_0 == mask_token).nonzero()[0].tolist()
            raise ValueError(f"{name} must not hold the mask ({mask_token}), got it at row {row}, position {position}")
        return x_0

    def outputs(
        self,
        x_t: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """What the network says; a head makes sense of it."""
        x_t = self.process.tokens("x_t", x_t)
        return self.network(x_t, checks.times("t", t, len(x_t), x_t.device), label, given)

    def log_mean(
        self,
        x_t: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log π(x_0 | x_t)` at each position; needs the mean head."""
        if not isinstance(self.head, MeanHead):
            raise ValueError("a posterior over clean tokens needs head='mean'; this model's head gives scores only")
        output = self.outputs(x_t, t, label, given)
        return self.head.log_mean(output, self.process, x_t, checks.times("t", t, len(x_t), x_t.device))

    def log_score(
        self,
        x_t: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """`log s(x_t, t)_y`, the estimated ratios `p_t(y) / p_t(x_t)` at each position."""
        output = self.outputs(x_t, t, label, given)
        return self.head.log_score(output, self.process, x_t, checks.times("t", t, len(x_t), x_t.device))

    def integrand(
        self,
        x_t: Int[Tensor, "b d"],
        x_0: Int[Tensor, "b d"],
        t: Time,
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """The integrand of `J_score` at each position, in the process's precision; 0 where the data are given."""
        times = checks.times("t", t, len(x_t), x_t.device)
        if (times == 0).any():
            raise ValueError("the integrand needs t > 0: at 0 it is a limit, and a single time weighs nothing")
        value = self.head.integrand(self.outputs(x_t, t, label, given), self.process, x_t, x_0, times)
        return value if given is None else torch.where(given, 0.0, value)

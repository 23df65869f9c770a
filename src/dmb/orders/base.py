"""Orders of writing: which position is written when, row by row."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dmb._core.configuration import Configurable


class WriteOrder(nn.Module, Configurable, ABC):
    """Decides the turn of each position: turn 0 is written first. Given positions come before all others.

    It is the forward process of an `OrderedBridge`: read backwards, the position of the last turn is masked first.

    Args:
        num_positions: `d`.
    """

    budgets: tuple[int, ...] = ()
    """Numbers of calls that have an order of their own, see `for_calls`; training takes all of them in each batch."""

    def __init__(self, num_positions: int):
        super().__init__()
        if num_positions < 1:
            raise ValueError(f"num_positions must be at least 1, got {num_positions}")
        self.num_positions = num_positions

    @abstractmethod
    def turns(
        self, batch: int, *, given: Bool[Tensor, "b d"] | None = None, generator: torch.Generator | None = None
    ) -> Int[Tensor, "b d"]:
        """The turn of each position, for `batch` rows; that of a row does not depend on other rows."""

    def log_choices(self, turn: Int[Tensor, "b d"], given: Bool[Tensor, "b d"] | None = None) -> Float[Tensor, "b d"]:
        """The log-probability of each choice that made these turns, by turns; nothing is chosen where data are given.

        The sum over turns is the log-probability of the order. Where there are no `log_speeds`, there is one order.
        """
        speeds = self.log_speeds
        return torch.zeros(turn.shape, device=turn.device) if speeds is None else log_choices(speeds, turn, given)

    def for_calls(self, calls: int) -> "WriteOrder":
        """The order that is used for so many calls of the network: this one, unless there are orders for few calls."""
        return self

    def budget_for(self, calls: int) -> int | None:
        """The budget whose order is used for so many calls: the largest of at most so many, or the smallest of all."""
        return max((budget for budget in self.budgets if budget <= calls), default=min(self.budgets, default=None))

    def divide(
        self, turn: Int[Tensor, "b d"], calls: int, given: Bool[Tensor, "b d"] | None = None
    ) -> Int[Tensor, "b d"]:
        """Which of so many calls writes each position of rows with these turns; -1 for given ones.

        A row with fewer blanks than calls is written one position per call.
        """
        known = turn.new_zeros(len(turn), 1) if given is None else given.sum(-1, keepdim=True)
        call = by_call(turn, torch.linspace(1, 0, calls + 1, dtype=torch.float64), given)
        return torch.where((turn.shape[1] - known <= calls) & (turn >= known), turn - known, call)

    def describe(self) -> str:
        """What happens to tokens, in a sentence."""
        learned = any(True for _ in self.parameters())
        how = ", each at a speed of its own" if learned else f" in an order of kind {type(self).__name__}"
        return f"Masked diffusion: positions are masked one by one{how}, and the model learns to put tokens back."

    @property
    def log_speeds(self) -> Float[Tensor, " d"] | None:
        """How fast each position is masked, and so how late it is written, if the order is drawn by such speeds."""
        return None

    def normalise(self) -> None:
        """After a training step: if several sets of parameters are equivalent, choose a standard one."""


def by_call(
    turn: Int[Tensor, "b d"], shares: Float[Tensor, " k"], given: Bool[Tensor, "b d"] | None = None
) -> Int[Tensor, "b d"]:
    """Which of several calls writes each position, if calls write positions by their turns; -1 for given positions.

    Args:
        turn: the turn of each position, those of given positions first.
        shares: the share of a row's blanks that is left before the first call and after each, falling from 1 to 0.
        given: positions that are known. Default: none.

    >>> by_call(torch.tensor([[3, 0, 2, 1]]), torch.tensor([1.0, 0.5, 0.0]))
    tensor([[1, 0, 1, 0]])
    """
    known = turn.new_zeros(len(turn), 1) if given is None else given.sum(-1, keepdim=True)
    ends = ((turn.shape[1] - known) * (1 - shares.to(turn.device, torch.float64))).round().long()
    return torch.searchsorted(ends, turn - known, right=True) - 1


def turns_of_calls(turn: Int[Tensor, "b d"], call: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
    """Turns in which the positions that one call writes share one, after those of given positions, which come first.

    >>> turns_of_calls(torch.tensor([[3, 0, 2, 1]]), torch.tensor([[1, -1, 0, 0]]))
    tensor([[2, 0, 1, 1]])
    """
    return torch.where(call < 0, turn, (call < 0).sum(-1, keepdim=True) + call)


def given_first(order: Int[Tensor, "b d"], given: Bool[Tensor, "b d"] | None) -> Int[Tensor, "b d"]:
    """The turns of positions that are written in this order, given ones before all others.

    >>> given_first(torch.tensor([[2, 0, 1]]), torch.tensor([[False, True, False]]))
    tensor([[2, 0, 1]])
    """
    if given is not None:  # a stable sort moves given positions to the front
        order = order.gather(-1, given.gather(-1, order).long().argsort(dim=-1, descending=True, stable=True))
    return order.argsort(dim=-1)


def log_choices(
    log_speeds: Float[Tensor, " d"], turn: Int[Tensor, "b d"], given: Bool[Tensor, "b d"] | None = None
) -> Float[Tensor, "b d"]:
    r"""The log-probability of each choice in an order (Plackett-Luce), by turns: `log v_r - log Σ_{s ≤ r} v_s`.

    The position written last was masked first, among all; the one before it was next, among all others; and so on. The
    sum over turns is the log-probability of the order.

    >>> log_choices(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([[2, 0, 1]])).exp()  # one, of two, of three
    tensor([[1.0000, 0.5000, 0.3333]])
    """
    order = turn.argsort(dim=-1)
    speeds = log_speeds.expand_as(turn).gather(-1, order)
    if given is None:
        return speeds - speeds.logcumsumexp(-1)
    drawn = ~given.gather(-1, order)
    log_total = torch.where(drawn, speeds, -torch.inf).logcumsumexp(-1)
    return torch.where(drawn, speeds - torch.where(drawn, log_total, 0.0), 0.0)

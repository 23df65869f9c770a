"""The base class of all networks, and the parts they share."""

import inspect
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core.configuration import Configurable
from dmb.processes.states import States

N = TypeVar("N", bound="Network")

MOST_BLOCKS = 1024


class Network(nn.Module, Configurable, ABC):
    """Maps noisy tokens to one number per state at every position; a head defines what the numbers mean."""

    num_positions: int
    num_states: int
    num_classes: int = 0

    @classmethod
    def for_states(cls: type[N], states: States, **options: Any) -> N:
        """A network for these states of positions; options as for the class."""
        return cls(states.num_states, states.num_positions, **options)

    @classmethod
    def for_process(cls: type[N], process: States, **options: Any) -> N:
        """A network for the states of a process: `for_states` by the name that fits there."""
        return cls.for_states(process, **options)

    @abstractmethod
    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        """Outputs for every state of every position.

        Args:
            x_t: noisy tokens.
            t: their times, in [0, 1].
            label: class of each row, or -1 for none; only for a network made with `num_classes`.
            given: positions that are known to hold data, not noise. A network that learns what this means has a
                parameter `given`, see `marks_of`. Its bridge then tells it only of positions in doubt.
        """

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *others: Any) -> None:
        """Load; models saved before 0.2.0 have one mark for all states (of a position)."""
        marks, saved = marks_of(self), state_dict.get(f"{prefix}given")
        if marks is not None and saved is not None and saved.shape != marks.shape:
            rows = saved.reshape(-1, 1, saved.shape[-1])
            if rows.shape[-1] == marks.shape[-1] and len(marks) % len(rows) == 0:
                state_dict[f"{prefix}given"] = rows.expand(-1, len(marks) // len(rows), -1).flatten(0, 1)
        super()._load_from_state_dict(state_dict, prefix, *others)


class TimeEmbedding(nn.Module):
    r"""`t ∈ [0, 1]` as Fourier features of the angle `φ = arcsin(√t)`, through a small MLP.

    The angle is bounded and, unlike `t`, log-odds or `σ̄(t)`, well-scaled at both ends: near 0 it is the square root of
    the share of noisy tokens, near 1 a right angle less that of the clean ones.
    """

    frequencies: Float[Tensor, " f"]

    def __init__(self, width: int, features: int = 64):
        super().__init__()
        # over φ ∈ [0, π/2] the lowest frequency makes a quarter of a turn, the highest eight turns
        self.register_buffer("frequencies", torch.linspace(1.0, 32.0, features // 2), persistent=False)
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, width)

    def forward(self, t: Float[Tensor, " b"]) -> Float[Tensor, "b w"]:
        angle = torch.asin(t.double().sqrt()).float()[:, None] * self.frequencies.float()
        features = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.first.weight.dtype)
        return self.second(F.silu(self.first(features)))


class LabelEmbedding(nn.Module):
    """A vector for each class, and one for "no class"; training hides a share of the labels, to allow guidance later.

    Args:
        num_classes: number of classes.
        width: size of the vectors.
        dropout: share of labels that training hides.
    """

    def __init__(self, num_classes: int, width: int, dropout: float = 0.1):
        super().__init__()
        self.num_classes, self.dropout = num_classes, dropout
        self.table = nn.Embedding(num_classes + 1, width)

    def forward(self, label: Int[Tensor, " b"] | None, batch: int) -> Float[Tensor, "b w"]:
        device = self.table.weight.device
        if label is None:
            label = torch.full((batch,), -1, device=device)
        if self.training and self.dropout > 0:
            label = torch.where(torch.rand(batch, device=device) < self.dropout, -1, label)
        return self.table(label % (self.num_classes + 1))  # -1 is the last row


class Conditioning(nn.Module):
    """The vector that all layers receive: the time, and the class if the network has classes."""

    def __init__(self, width: int, num_classes: int = 0, label_dropout: float = 0.1):
        super().__init__()
        self.time = TimeEmbedding(width)
        self.label = LabelEmbedding(num_classes, width, label_dropout) if num_classes else None

    def forward(self, t: Float[Tensor, " b"], label: Int[Tensor, " b"] | None) -> Float[Tensor, "b w"]:
        if self.label is None:
            refuse_label(label)
            return F.silu(self.time(t))
        return F.silu(self.time(t) + self.label(label, len(t)))


def marks_of(network: nn.Module) -> nn.Parameter | None:
    """The vectors added to those of given tokens, one per state; None if the network does not learn such marks.

    They are 0, and so say nothing, until training draws them. One vector for all states would not do: a mark says much
    of a token that is mostly noise, and nothing of a token that noise never takes.
    """
    marks = getattr(unwrapped(network), "given", None)
    return marks if isinstance(marks, nn.Parameter) else None


def draw_marks(network: nn.Module, generator: torch.Generator) -> None:
    """Draw marks that are still 0, large beside the vectors of tokens: a given token is another token from the start.

    From 0, or as small as the vectors of a transformer's tokens, they are learned more slowly.
    """
    marks = marks_of(network)
    if marks is not None and not marks.any():
        nn.init.normal_(marks, std=0.5, generator=generator)


def refuse_many(blocks: int) -> None:
    """Raise a ValueError for a number of blocks that would take forever to make."""
    if not 0 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"blocks must lie in [0, {MOST_BLOCKS:,}], got {blocks}")


def refuse_label(label: Tensor | None) -> None:
    """For networks made without classes."""
    if label is not None:
        raise ValueError("label needs a network made with num_classes > 0")


def takes(network: nn.Module, keyword: str) -> bool:
    """Whether the network's `forward` takes this keyword; an engine's wrapper is looked through."""
    parameters = inspect.signature(unwrapped(network).forward).parameters
    return keyword in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside the wrapper of an engine or of torch.compile, which passes on all keywords."""
    inside = getattr(network, "_orig_mod", getattr(network, "module", None))  # torch.compile has the former
    passes_on = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(network.forward).parameters.values())
    return unwrapped(inside) if isinstance(inside, nn.Module) and passes_on else network

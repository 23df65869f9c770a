"""The base class of all networks, and the parts they share."""

import inspect
from abc import ABC
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dmb._core.configuration import Configurable
from dmb.processes.states import States

MOST_BLOCKS = 1024


class Network(nn.Module, Configurable, ABC):
    """Maps tokens to one number per state at every position.

    That of a `MarkovBridge` has `forward(x_t, t)`, or `forward(x_t, t, label=None, given=None)`, with noisy tokens
    `x_t` at times `t` in [0, 1], the class of each row (-1: none), and the positions that are known to hold data, not
    noise; a head defines what the numbers mean. That of an `OrderedBridge` is an `OrderedNetwork`.

    A network that learns what given tokens mean has a parameter `given`, see `given_embedding`. Its bridge then gives
    it only positions whose token noise might have produced.

    The networks here take a process, or `States`, in place of the numbers of states and positions.
    """

    num_positions: int
    num_states: int
    num_classes: int = 0
    _options: dict[str, Any] | None = None
    """The arguments of the constructor besides both sizes, for `config`."""

    def _set_sizes(self, num_states: int | States, num_positions: int | None) -> None:
        if isinstance(num_states, States):
            self.num_states, self.num_positions = num_states.num_states, num_states.num_positions
        elif num_positions is None:
            raise ValueError("num_positions must be given, unless a process or States stand in place of num_states")
        else:
            self.num_states, self.num_positions = num_states, num_positions

    def config(self) -> dict[str, Any]:
        if self._options is None:
            return super().config()
        return {"num_states": self.num_states, "num_positions": self.num_positions, **self._options}


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
            check_unlabelled(label)
            return F.silu(self.time(t))
        return F.silu(self.time(t) + self.label(label, len(t)))


def given_embedding(network: nn.Module) -> nn.Parameter | None:
    """The vectors added to those of given tokens, one per state; None if the network does not learn them.

    They are 0, and so say nothing, until training draws them. One vector for all states would not do: it says much of a
    token that is mostly noise, and nothing of a token that noise never takes.
    """
    vectors = getattr(unwrapped(network), "given", None)
    return vectors if isinstance(vectors, nn.Parameter) else None


def init_given_embedding(network: nn.Module, generator: torch.Generator) -> None:
    """Draw vectors that are still 0, large beside those of tokens: a given token is another token from the start.

    From 0, or as small as the vectors of a transformer's tokens, they are learned more slowly.
    """
    vectors = given_embedding(network)
    if vectors is not None and not vectors.any():
        nn.init.normal_(vectors, std=0.5, generator=generator)


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer, giving 0 until it learns."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def check_num_blocks(blocks: int) -> None:
    """Raise a ValueError for a number of blocks that would take forever to make."""
    if not 0 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"blocks must lie in [0, {MOST_BLOCKS:,}], got {blocks}")


def check_unlabelled(label: Tensor | None) -> None:
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

"""Rows written token by token, by a bridge that has conditionals; and their probabilities."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.bridges import Bridge

_MOST_CALLS = 128  # of the network, to write a row
_MOST_ROWS, _MOST_CELLS = 1024, 1 << 24  # of a network call: rows, and numbers that come out of it


def draw(
    bridge: Bridge,
    template: Int[Tensor, "b d"],
    generator: torch.Generator,
    legal: Bool[Tensor, "d n"] | None = None,
    temperature: float = 1.0,
) -> Int[Tensor, "b d"]:
    """Fill the blanks of each row one after the other, in the order of the bridge, without any error of step size.

    If there are more than 128 positions, `⌈d / 128⌉` of them are drawn at once, independently given those before; but
    always one if the bridge writes from left to right only.

    Args:
        bridge: a bridge with conditionals.
        template: rows, with -1 for blanks.
        generator: of orders and tokens.
        legal: the tokens that may be drawn at each position; default: all.
        temperature: values below 1 favour likely tokens.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), mask=True, floor=0.0)
    >>> bridge = dmb.MarkovBridge(process, dmb.MLP(3, 2, width=16, blocks=1))
    >>> draw(bridge, torch.tensor([[1, -1]]), torch.Generator().manual_seed(0))
    tensor([[1, 0]])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    tokens = template.clone()
    for _ in _written(bridge, tokens, generator, legal, temperature):
        pass
    return tokens


def shares(bridge: Bridge, template: Int[Tensor, " d"], count: int, generator: torch.Generator) -> Float[Tensor, "d n"]:
    """How often each token occurs in rows that are drawn for a template: the mean law of `count` draws.

    A token's law given the template alone is another estimate of the same, of which rows know nothing: a network learns
    both, and each has an error of its own.
    """
    tokens, total = template.expand(count, -1).clone(), torch.zeros(len(template), bridge.num_states).double()
    for position, p in _written(bridge, tokens, generator):
        total.index_add_(0, position.flatten(), p)
    known = (template >= 0).nonzero()[:, 0]
    total[known] = 0
    total[known, template[known]] = 1
    return total / total.sum(-1, keepdim=True)


def _written(
    bridge: Bridge,
    tokens: Int[Tensor, "b d"],
    generator: torch.Generator,
    legal: Bool[Tensor, "d n"] | None = None,
    temperature: float = 1.0,
) -> Iterator[tuple[Int[Tensor, "k m"], Float[Tensor, "km n"]]]:
    """Fill the blanks of `tokens`; after each call, where it has written, and the laws that it has drawn from."""
    at_once = _at_once(bridge)
    for part in _parts(bridge, tokens):  # a view
        blank = part < 0
        turn = bridge.write_order().turns(len(part), generator=generator)
        order = turn.cpu().masked_fill(~blank, part.shape[1]).argsort(-1)
        left = blank.sum(-1)  # a row's blanks come first in its order
        for first in range(0, int(left.max()), at_once):
            rows = (left > first).nonzero().squeeze(-1)
            position, x = order[rows, first : first + at_once], part[rows]
            log_p = bridge.conditionals(x.clamp(min=0), x >= 0, at=position).cpu().double()
            old = x.gather(-1, position)
            if legal is not None:
                log_p = torch.where(legal[position] | (old >= 0)[..., None], log_p, -torch.inf)
            p = (log_p / temperature).softmax(-1).flatten(0, 1)
            drawn = torch.multinomial(p, 1, generator=generator).view(position.shape)
            part[rows] = x.scatter(-1, position, torch.where(old < 0, drawn, old))
            yield position, p


@torch.no_grad()
def log_prob(bridge: Bridge, tokens: Int[Tensor, "b d"], generator: torch.Generator) -> Float[Tensor, " b"]:
    r"""`Σ_k log p(x_{σ_k} | those before it)` in an order `σ` of the bridge, for each row.

    Its mean over orders is at most `log p(x)`; with one order they are equal. Positions that are drawn at once do not
    see each other.
    """
    parts, write_order, at_once = list[Tensor](), bridge.write_order(), _at_once(bridge)
    bridge = bridge.eval()
    for part in _parts(bridge, tokens):
        turn = write_order.turns(len(part), generator=generator).to(bridge.device) // at_once
        parts.append(-bridge.token_nats(part.to(bridge.device), turn).double().sum(-1).cpu())
    return torch.cat(parts)


def conditionals(bridge: Bridge, tokens: Int[Tensor, "b d"]) -> Iterator[Float[Tensor, "k d n"]]:
    """`log p(x_i | x_S)` of all positions, where `S` are those without blanks (-1); a part of the rows at a time."""
    for part in _parts(bridge, tokens):
        yield bridge.conditionals(part.clamp(min=0), part >= 0).double().cpu()


def _at_once(bridge: Bridge) -> int:
    """How many positions are drawn at once; a network from left to right has never seen a gap before a position."""
    return 1 if bridge.from_left else -(-bridge.num_positions // _MOST_CALLS)


def _parts(bridge: Bridge, tokens: Int[Tensor, "b d"]) -> tuple[Int[Tensor, "k d"], ...]:
    cells = bridge.num_positions * bridge.num_states
    return tokens.split(max(1, min(_MOST_ROWS, _MOST_CELLS // cells)))

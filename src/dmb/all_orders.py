"""A bridge with a mask as the model that it is: rows written token by token, in any order."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb.bridge import Bridge
from dmb.paths import draw_turns
from dmb.processes import BridgeProcess

_MOST_CALLS = 128  # of the network, to write a row
_MOST_ROWS, _MOST_CELLS = 1024, 1 << 24  # of a network call: rows, and numbers that come out of it


class AllOrders:
    r"""The conditionals `p(x_i | x_S)` of a bridge whose only noise is a mask, for all positions `i` and sets `S`.

    Blanks are -1 in all tokens. Rows are drawn one blank after the other in a random order `σ`, without any error of
    step size, and `log p(x) ≥ E_σ Σ_k log p(x_{σ_k} | x_{σ_1}, …, x_{σ_{k-1}})`. The speeds of positions, if they have
    any, decide which orders are likely; speeds that are far apart leave one order, and the bound is an equality. If
    there are more than 128 positions, `⌈d / 128⌉` of them are drawn at once, independently given those before, and the
    bound is that of this model. A network that follows orders gives all terms of the bound in one call.

    Args:
        bridge: the bridge; its process must have a mask as its only noise.

    >>> import dmb
    >>> process = dmb.BridgeProcess.from_marginals(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), mask=True, floor=0.0)
    >>> model = AllOrders(dmb.Bridge(process, dmb.MLP(3, 2, width=16, blocks=1)))
    >>> model.log_conditionals(torch.tensor([[1, -1]])).shape
    torch.Size([1, 2, 3])
    """

    def __init__(self, bridge: Bridge):
        if not (isinstance(bridge.process, BridgeProcess) and bridge.process.only_masks):
            raise ValueError(
                "the bridge must have a mask as its only noise, so that known tokens are never noise: make its process "
                "with mask=True, floor=0.0 (dmb train --mask --floor 0)"
            )
        self.bridge = bridge
        cells = bridge.num_positions * bridge.num_states
        self._group = -(-bridge.num_positions // _MOST_CALLS)
        self._rows = max(1, min(_MOST_ROWS, _MOST_CELLS // cells))

    @torch.no_grad()
    def log_conditionals(self, tokens: Int[Tensor, "b d"]) -> Float[Tensor, "b d n"]:
        """`log p(x_i | x_S)` for all positions `i`, with `S` those that are not blank; time is the share of blanks."""
        bridge, blank = self.bridge.eval(), tokens < 0
        x_t = torch.where(blank, bridge.num_states - 1, tokens)
        if bridge.ordered is not None:
            known = torch.where(torch.arange(bridge.num_states) == x_t[..., None], 0.0, -torch.inf).double()
            return torch.where(blank[..., None], self._log_p(x_t), known)
        t = blank.double().mean(-1).clamp_min(0.5 / tokens.shape[1])
        return bridge.log_posterior(x_t.to(bridge.device), t.to(bridge.device)).cpu()

    def draw(
        self,
        template: Int[Tensor, "b d"],
        generator: torch.Generator,
        legal: Bool[Tensor, "d n"] | None = None,
        temperature: float = 1.0,
    ) -> Int[Tensor, "b d"]:
        """Fill the blanks of each row, in an order drawn by the speeds of positions.

        Args:
            template: rows with blanks.
            generator: of orders and tokens.
            legal: the tokens that may be drawn at each position; default: all.
            temperature: values below 1 favour likely tokens.
        """
        tokens = template.clone()
        for part in tokens.split(self._rows):  # a view
            blank = part < 0
            order = self._turns(part, generator).masked_fill(~blank, part.shape[1]).argsort(-1)
            left = blank.sum(-1)  # a row's blanks come first in its order
            for first in range(0, int(left.max()), self._group):
                rows = (left > first).nonzero().squeeze(-1)
                position = order[rows, first : first + self._group]
                log_p = self._at(part[rows], position)
                if legal is not None:
                    log_p = torch.where(legal[position], log_p, -torch.inf)
                p = (log_p / temperature).softmax(-1).flatten(0, 1)
                drawn = torch.multinomial(p, 1, generator=generator).view(position.shape)
                old = part[rows].gather(-1, position)
                part[rows] = part[rows].scatter(-1, position, torch.where(old < 0, drawn, old))
        return tokens

    def log_prob(self, tokens: Int[Tensor, "b d"], generator: torch.Generator) -> Float[Tensor, " b"]:
        """`Σ_k log p(x_{σ_k} | those before it)` in a random order `σ`, for each row."""
        parts = []
        for part in tokens.split(self._rows):
            turn = self._turns(part, generator)
            if self.bridge.ordered is not None:
                log_p = self._log_p(part, turn // self._group)  # those of a turn do not see each other
                parts.append(log_p.gather(-1, part[..., None]).double().flatten(1).sum(-1))
                continue
            order = turn.argsort(-1)
            known, total = torch.full_like(part, -1), torch.zeros(len(part), dtype=torch.float64)
            for position in order.split(self._group, dim=-1):
                token = part.gather(-1, position)
                total += self._at(known, position).gather(-1, token[..., None]).flatten(1).sum(-1)
                known.scatter_(-1, position, token)
            parts.append(total)
        return torch.cat(parts)

    def batches(self, tokens: Int[Tensor, "b d"]) -> Iterator[Float[Tensor, "k d n"]]:
        """`log_conditionals` of any number of rows, a part at a time."""
        return (self.log_conditionals(part).double() for part in tokens.split(self._rows))

    def _turns(self, tokens: Int[Tensor, "b d"], generator: torch.Generator) -> Int[Tensor, "b d"]:
        """The turn of each position, by the speeds of the process; if it has none, all orders are alike."""
        bridge = self.bridge
        if bridge.ordered is not None and bridge.ordered.order is not None:  # the only one that it can follow
            return bridge.ordered.order.argsort().cpu().expand(len(tokens), -1)
        speeds = bridge.process.log_speeds
        speeds = torch.zeros(bridge.num_positions) if speeds is None else speeds.detach().cpu()
        return draw_turns(speeds, len(tokens), generator=generator)

    @torch.no_grad()
    def _log_p(self, tokens: Int[Tensor, "b d"], turn: Int[Tensor, "b d"] | None = None) -> Float[Tensor, "b d n"]:
        """`log p(x_i | tokens of earlier turns)`, by a network that follows orders."""
        bridge = self.bridge.eval()
        output = bridge.network(tokens.to(bridge.device), turn=None if turn is None else turn.to(bridge.device))
        return torch.where(bridge.process.data_states, output.double(), -torch.inf).log_softmax(-1).cpu()

    def _at(self, tokens: Int[Tensor, "b d"], position: Int[Tensor, "b g"]) -> Float[Tensor, "b g n"]:
        """`log_conditionals` at some positions of each row."""
        return self.log_conditionals(tokens).take_along_dim(position[..., None], 1).double()

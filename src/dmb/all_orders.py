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
        bridge, blank, x_t = self.bridge.eval(), tokens < 0, self._masked(tokens)
        if bridge.ordered is not None:
            known = torch.where(torch.arange(bridge.num_states) == tokens[..., None], 0.0, -torch.inf).double()
            return torch.where(blank[..., None], self._log_p(bridge.network(x_t), bridge.process.data_states), known)
        t = blank.double().mean(-1).clamp_min(0.5 / tokens.shape[1])
        return bridge.log_posterior(x_t, t.to(bridge.device)).cpu()

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

    @torch.no_grad()
    def log_prob(self, tokens: Int[Tensor, "b d"], generator: torch.Generator) -> Float[Tensor, " b"]:
        """`Σ_k log p(x_{σ_k} | those before it)` in a random order `σ`, for each row."""
        bridge, parts = self.bridge.eval(), []
        for part in tokens.split(self._rows):
            turn = self._turns(part, generator)
            if bridge.ordered is not None:
                turn = (turn // self._group).to(bridge.device)  # those of a turn do not see each other
                log_p = self._log_p(bridge.network(part.to(bridge.device), turn=turn), bridge.process.data_states)
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

    @property
    def turns(self) -> Int[Tensor, " d"] | None:
        """The turn of each position, if rows are written in one order."""
        ordered, turns = self.bridge.ordered, self.bridge.process.turns
        if ordered is not None and ordered.order is not None:  # the only one that it can follow
            turns = ordered.order.argsort()
        return None if turns is None else turns.cpu()

    def _turns(self, tokens: Int[Tensor, "b d"], generator: torch.Generator) -> Int[Tensor, "b d"]:
        """The turn of each position of each row, drawn by the speeds of the process; without them, orders are alike."""
        if self.turns is not None:
            return self.turns.expand(len(tokens), -1)
        speeds = self.bridge.process.log_speeds
        speeds = torch.zeros(self.bridge.num_positions) if speeds is None else speeds.detach().cpu()
        return draw_turns(speeds, len(tokens), generator=generator)

    def _log_p(self, output: Float[Tensor, "b m n"], states: Bool[Tensor, "*s n"]) -> Float[Tensor, "b m n"]:
        """From what a network that follows orders has said."""
        return torch.where(states, output.double(), -torch.inf).log_softmax(-1).cpu()

    @torch.no_grad()
    def _at(self, tokens: Int[Tensor, "b d"], position: Int[Tensor, "b g"]) -> Float[Tensor, "b g n"]:
        """`log p(x_i | x_S)` at some positions `i` of each row that are blank."""
        bridge = self.bridge.eval()
        if bridge.ordered is None:
            return self.log_conditionals(tokens).take_along_dim(position[..., None], 1).double()
        x_t, position = self._masked(tokens), position.to(bridge.device)
        states = bridge.process.data_states.expand(bridge.num_positions, -1)[position]
        return self._log_p(bridge.ordered.outputs_at(x_t, position), states)

    def _masked(self, tokens: Int[Tensor, "b d"]) -> Int[Tensor, "b d"]:
        """With masks for blanks, on the bridge's device."""
        return torch.where(tokens < 0, self.bridge.num_states - 1, tokens).to(self.bridge.device)

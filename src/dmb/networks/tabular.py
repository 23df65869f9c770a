"""The exact outputs for a distribution that can be enumerated, in place of a trained network."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dmb._core import checks
from dmb.networks.base import Network, check_unlabelled
from dmb.processes.base import ForwardProcess

OUTPUTS = ("mean", "score")


class Tabular(Network):
    r"""The optimal network for a data distribution `μ` given as a table, for tests and small studies.

    With `output="mean"` it gives `log ρ(x_0^i | x_t^{-i})`, the distribution of position `i` given all others, as the
    leave-one-out mean head expects. With `output="score"` it gives the log ratios
    `log p_t(x_t with y at i) - log p_t(x_t)`.

    Args:
        mu: the distribution over all sequences, one axis of length `n` per position.
        process: the forward process; shared, not copied.
        output: `mean` or `score`.
    """

    sequences: Int[Tensor, "N d"]
    log_mu: Float[Tensor, " N"]

    def __init__(self, mu: Float[Tensor, "*joint"], process: ForwardProcess, output: str = "mean"):
        super().__init__()
        self.num_states, self.num_positions = process.num_states, process.num_positions
        if tuple(mu.shape) != (self.num_states,) * self.num_positions:
            raise ValueError(f"mu must have shape {[self.num_states] * self.num_positions}, got {list(mu.shape)}")
        checks.distribution("mu", mu.flatten()[None], (1, mu.numel()))
        self.output = checks.choice("output", output, OUTPUTS)
        self._process = (process,)  # in a tuple, so that its parameters are not counted twice
        visited = mu.flatten() > 0
        sequences = torch.cartesian_prod(*[torch.arange(self.num_states, device=mu.device)] * self.num_positions)
        self.register_buffer("sequences", sequences.view(mu.numel(), self.num_positions)[visited])
        self.register_buffer("log_mu", mu.flatten()[visited].log())

    def config(self) -> dict[str, Any]:
        raise ValueError("a Tabular network cannot be saved: save mu, and build it again")

    def forward(
        self,
        x_t: Int[Tensor, "b d"],
        t: Float[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        given: Bool[Tensor, "b d"] | None = None,
    ) -> Float[Tensor, "b d n"]:
        check_unlabelled(label)
        process = self._process[0]
        states = torch.arange(self.num_states, device=x_t.device)
        log_likelihood = process.log_likelihood(x_t, t)
        if given is not None:  # known, not seen through noise
            known = torch.where(states == x_t[..., None], 0.0, -torch.inf)
            log_likelihood = torch.where(given[..., None], known.to(log_likelihood.dtype), log_likelihood)
        positions = range(self.num_positions)
        # log p(x_t^j | x_0^j) for every sequence x_0 of the table, [d, b, N]
        evidence = torch.stack([log_likelihood[:, j, self.sequences[:, j]] for j in positions])
        columns = []
        for i in positions:
            others = self.log_mu + evidence[[j for j in positions if j != i]].sum(0)
            same = self.sequences[:, i, None] == states
            columns.append(torch.where(same, others[..., None], -torch.inf).logsumexp(1))
        log_rho = torch.stack(columns, dim=1)
        if self.output == "mean":
            return log_rho
        return process.log_score((log_rho + log_likelihood).log_softmax(-1), x_t, t)

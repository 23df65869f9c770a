"""Small distributions and the models that are exact for them."""

import torch

import dmb
from dmb import theory
from dmb.networks import heads
from dmb.processes import grouping


def distribution(*shape, seed=0):
    p = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    return p / p.sum()


def stir(process, seed=0):
    with torch.no_grad():
        raw = process.clocks.log_rates
        noise = torch.randn(raw.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        raw.copy_(noise + 0.5)  # fast enough that next to nothing of the data is left at t = 1
    return process


def _varying(marginals):
    process = stir(dmb.BridgeProcess.from_marginals(marginals, clocks=dmb.Varying))
    with torch.no_grad():
        process.clocks.raw_profile.normal_(generator=torch.Generator().manual_seed(1))
    return process


def _tokenwise(marginals):
    process = dmb.TokenwiseMasking.from_marginals(marginals, schedule=dmb.Canonical())
    with torch.no_grad():
        process.log_exponents.uniform_(-1, 1, generator=torch.Generator().manual_seed(1))
    return process


def _bridge(**options):
    return lambda marginals: stir(dmb.BridgeProcess.from_marginals(marginals, **options))


PROCESSES = {
    "bridge": _bridge(),
    "bridge descending": _bridge(order="descending"),
    "bridge in canonical time": lambda m: stir(dmb.BridgeProcess.from_marginals(m, schedule=dmb.Canonical())),
    "bridge with mask": _bridge(mask=True),
    "tree": lambda m: stir(dmb.BridgeProcess.from_marginals(m, tree=grouping.by_value(m.shape[1]))),
    "masked diffusion": lambda m: dmb.BridgeProcess.from_marginals(m, mask=True, floor=0.0),
    "varying bridge": _varying,
    "tokenwise masking": _tokenwise,
    "uniform": lambda m: dmb.UniformProcess(*m.shape, marginals=m).double(),
    "dense": lambda m: dmb.DenseProcess(_dense_rates(m.shape[1])[None], num_positions=len(m), marginals=m),
}


def _dense_rates(n):
    Q = torch.rand(n, n, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    Q = Q - torch.diag(Q.diagonal())
    return Q - torch.diag(Q.sum(-1))


class Distinct(dmb.Tabular):
    """Works out each sequence once that many rows share: samples by the thousand are of a few sequences."""

    def forward(self, x_t, t, label=None, given=None):
        if (t != t[0]).any():
            return super().forward(x_t, t, label, given)
        columns = x_t if given is None else torch.cat([x_t, given.long()], 1)
        _, row = (columns * self.num_states ** torch.arange(columns.shape[1])).sum(1).unique(return_inverse=True)
        one = torch.zeros(row.max() + 1, dtype=torch.long).index_copy(0, row, torch.arange(len(row)))
        return super().forward(x_t[one], t[one], label, None if given is None else given[one])[row]


def with_mask_axis(mu, process):
    """`mu` on all states of the process; the mask, if there is one, is never visited."""
    extra = process.num_states - mu.shape[0]
    return torch.nn.functional.pad(mu, (0, extra) * mu.ndim)


def exact_bridge(mu, process, head="mean"):
    """A bridge whose network is the oracle."""
    output = "score" if head == "score" else "mean"
    head = {"mean": heads.MeanHead(), "score": heads.ScoreHead(scaled=False)}[head]
    return dmb.MarkovBridge(process, Distinct(with_mask_axis(mu, process), process, output), head)


def model(name, mu, head="mean"):
    return exact_bridge(mu, PROCESSES[name](theory.position_marginals(mu)), head)


class Conditionals(dmb.OrderedNetwork):
    """The exact conditionals of a table at every position given the tokens of an earlier turn, by enumeration.

    With `wrong` they are bent, in a smooth way that goes by the position and the visible tokens alone.
    """

    def __init__(self, mu, wrong=0.0):
        super().__init__()
        self.num_positions, self.num_states = mu.ndim, len(mu) + 1
        sequences = torch.cartesian_prod(*[torch.arange(len(mu))] * mu.ndim).view(-1, mu.ndim)
        self.register_buffer("sequences", sequences)
        self.register_buffer("mu", mu.flatten())
        self.wrong = torch.nn.Parameter(torch.tensor(wrong, dtype=mu.dtype))

    def config(self):
        raise ValueError("a table is not a model to save")

    def forward(self, x_t, turn=None, label=None):
        turn = self.default_turns(x_t) if turn is None else turn
        seen = turn[:, None] < turn[:, :, None]
        differs = (x_t[..., None] != self.sequences.T).to(self.mu)
        fits = torch.einsum("bij,bjk->bik", seen.to(self.mu), differs) == 0
        token = torch.nn.functional.one_hot(self.sequences, self.num_states).to(self.mu)
        exact = torch.einsum("bik,kiy->biy", fits * self.mu, token).log()
        place, state = (torch.arange(count).to(self.mu) for count in (self.num_positions, self.num_states))
        heard = (seen * (place + 1) * (x_t[:, None] + 1)).sum(-1, keepdim=True)
        return exact + self.wrong * torch.sin(heard + 2.1 * (place[:, None] + 1) + 1.7 * state)


def ordered_bridge(mu, speeds, wrong=0.0):
    """A bridge by whole paths with exact conditionals, or bent ones."""
    order = dmb.orders.Free(mu.ndim).double()
    with torch.no_grad():
        order.weights.copy_(torch.tensor(speeds, dtype=torch.float64).log())
    return dmb.OrderedBridge(order, Conditionals(mu, wrong), dmb.States.with_mask(mu.ndim, len(mu)))


class AtTimes(torch.nn.Module):
    """The same conditionals, whatever the time, for a forward process that masks each position at its speed."""

    def __init__(self, conditionals):
        super().__init__()
        self.conditionals = conditionals

    def forward(self, x_t, t):
        return self.conditionals(x_t)


def masked_bridge(mu, speeds, wrong=0.0):
    """The same model with drawn times; next to nothing is left unmasked at `t = 1`."""
    process = dmb.BridgeProcess.from_marginals(
        theory.position_marginals(mu), mask=True, floor=0.0, schedule=dmb.LogLinear(1e-10)
    )
    with torch.no_grad():
        process.clocks.log_rates[:, -1] = torch.tensor(speeds, dtype=torch.float64).log()
    return dmb.MarkovBridge(process, AtTimes(Conditionals(mu, wrong)))

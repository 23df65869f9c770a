"""The paper's theorems as runnable functions."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dmb._core import checks
from dmb._core.numerics import rate_exponential
from dmb.processes.base import ForwardProcess
from dmb.processes.bridge import BridgeProcess
from dmb.processes.initial import accessibility as accessibility

_ROWS = 1 << 16  # pairs of sequences, each at one time, that are looked at together


def rate_matrix(alpha: Float[Tensor, " k"]) -> Float[Tensor, "n n"]:
    """`H(α)` (Eq. 3): the rate into state `k` from every lower state is `alpha[k-1]`.

    >>> rate_matrix(torch.tensor([1.0, 2.0]))
    tensor([[-3.,  1.,  2.],
            [ 0., -2.,  2.],
            [ 0.,  0.,  0.]])
    """
    rates = torch.nn.functional.pad(checks.rates("alpha", alpha), (1, 0))
    upper = torch.triu(rates.expand(len(rates), -1), diagonal=1)
    return upper - torch.diag(upper.sum(-1))


def diagonalisation(
    alpha: Float[Tensor, " k"],
) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """`U`, the diagonal of `Λ`, and `U⁻¹` with `H(α) = U Λ U⁻¹` (Lemma 4.3); only `Λ` depends on `α`.

    >>> U, eigenvalues, inverse = diagonalisation(torch.tensor([1.0, 2.0]))
    >>> eigenvalues
    tensor([-3., -2., -0.])
    """
    size = len(alpha) + 1
    U = torch.triu(torch.ones(size, size, dtype=alpha.dtype))
    inverse = torch.eye(size, dtype=alpha.dtype) - torch.diag(torch.ones(size - 1, dtype=alpha.dtype), 1)
    eigenvalues = -torch.nn.functional.pad(alpha.flip(0).cumsum(0).flip(0), (0, 1))
    return U, eigenvalues, inverse


def conservation(mu: Float[Tensor, " n"], Q: Float[Tensor, "n n"]) -> tuple[float, float]:
    """The sums of `mu` and of `mu exp(Q)`, which Proposition 4.1 says are equal for any vector `mu`.

    >>> before, after = conservation(torch.tensor([3.0, -1.0]), torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))
    >>> before, round(after, 5)
    (2.0, 2.0)
    """
    return mu.sum().item(), (mu @ rate_exponential(Q)).sum().item()


def optimal_log_score(
    mu: Float[Tensor, "*joint"], process: ForwardProcess, x_t: Int[Tensor, "b d"], t: float
) -> Float[Tensor, "b d n"]:
    r"""The score that minimises the score entropy (Prop. 4.6): `log p_t(x_t with y at position i) - log p_t(x_t)`.

    `-inf` where the forward rate `y -> x_t` is 0 and the score is never used.

    Args:
        mu: the data distribution over all sequences, one axis of length `n` per position.
        process: a process with as many positions.
        x_t: noisy tokens.
        t: one time.
    """
    log_joint, (here, changed) = joint_marginal(mu, process, t).log().flatten(), _places(x_t, process.num_states)
    log_score = log_joint[changed] - log_joint[here][:, None, None]
    return torch.where(process.rates_into(x_t, t) > 0, log_score, -torch.inf)


def joint_marginal(mu: Float[Tensor, "*joint"], process: ForwardProcess, t: float) -> Float[Tensor, "*joint"]:
    """The distribution of all of `x_t` at once, for a joint `mu` with one axis per position."""
    expected = (process.num_states,) * process.num_positions
    checks.distribution("mu", mu.flatten()[None], (1, math.prod(expected)))
    if tuple(mu.shape) != expected:
        raise ValueError(f"mu must have shape {list(expected)}, got {list(mu.shape)}")
    for position, kernel in enumerate(process.to_dense(t)):
        mu = torch.tensordot(mu, kernel.to(mu.dtype), dims=([position], [0])).movedim(-1, position)
    return mu


def all_sequences(num_states: int, num_positions: int) -> Int[Tensor, "b d"]:
    """Every sequence, in the order of `mu.flatten()`.

    >>> all_sequences(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return torch.tensor(list(itertools.product(range(num_states), repeat=num_positions)))


def _places(x: Int[Tensor, "b d"], num_states: int) -> tuple[Int[Tensor, " b"], Int[Tensor, "b d n"]]:
    """Where each sequence stands in `all_sequences`, and where it would with `y` at position `i`."""
    digits = num_states ** torch.arange(x.shape[1]).flip(0)
    here = (x * digits).sum(-1)
    return here, here[:, None, None] + digits[:, None] * (torch.arange(num_states) - x[..., None])


@dataclass(frozen=True)
class ExactBound:
    """Both parts of the bound in nats: `J_score` by quadrature, `J_Q` exactly."""

    score: float
    prior: float

    @property
    def total(self) -> float:
        return self.score + self.prior


def exact_bound(
    mu: Float[Tensor, "*joint"], process: ForwardProcess, p_T: Float[Tensor, "d n"] | None = None, nodes: int = 81
) -> ExactBound:
    r"""`J_score` with the exact score and `J_Q`, for an enumerable `mu`.

    With `p_T` the product of the process's own marginals at `t = 1` and one position, the two add up to the entropy of
    `mu`. The time integral runs over all of `[0, 1]`: the substitution `t = sigmoid(π sinh z)` (tanh-sinh quadrature)
    turns the logarithmic singularity at 0 and the steep end at 1 into tails that fall double-exponentially.

    Args:
        mu: the data distribution over all sequences, one axis of length `n` per position.
        process: a process with as many positions.
        p_T: the prior. Default: the marginals of `mu` carried to `t = 1`.
        nodes: quadrature points.
    """
    marginals = position_marginals(mu)
    if p_T is None:
        p_T = process.evolve(marginals, 1.0)
    prior = (marginals * process.prior_kl_table(p_T)).sum().item()

    sequences = all_sequences(process.num_states, process.num_positions)
    visited = (mu.flatten() > 0).nonzero().squeeze(-1)
    pairs = torch.cartesian_prod(visited, torch.arange(len(sequences)))
    _, changed = _places(sequences, process.num_states)
    z = torch.linspace(-3.4, 3.4, nodes, dtype=torch.float64)
    times = torch.sigmoid(math.pi * z.sinh())
    weights = math.pi * z.cosh() * times * torch.sigmoid(-math.pi * z.sinh()) * (z[1] - z[0])
    score = 0.0
    for some in torch.arange(nodes).split(max(1, _ROWS // len(pairs))):
        t, (start, end) = times[some].repeat_interleave(len(pairs)), pairs.repeat(len(some), 1).T
        chance = mu.flatten()[start] * process.log_prob(sequences[end], sequences[start], t).sum(-1).exp()
        log_joint = chance.view(len(some), len(visited), -1).sum(1).log()
        possible = chance > 0
        row = torch.arange(len(some)).repeat_interleave(len(pairs))[possible]
        t, start, end = t[possible], start[possible], end[possible]
        log_score = log_joint[row[:, None, None], changed[end]] - log_joint[row, end][:, None, None]
        log_score = torch.where(process.rates_into(sequences[end], t) > 0, log_score, -torch.inf)
        integrand = process.integrand_from_score(log_score, sequences[end], sequences[start], t).sum(-1)
        score += (weights[some][row] * chance[possible] * integrand).sum().item()
    return ExactBound(score, prior)


def position_marginals(mu: Float[Tensor, "*joint"]) -> Float[Tensor, "d n"]:
    """The marginal of each position of a joint distribution."""
    return torch.stack([mu.movedim(axis, 0).reshape(len(mu), -1).sum(1) for axis in range(mu.ndim)])


@dataclass(frozen=True)
class ExactCycle:
    """One turn of Algorithm 1 with exact phases; all in nats.

    Args:
        cycle: its number; 0 is the start.
        kl: `KL(μ || p_0)` of the estimate that the cycle ends with.
        prior: `J_Q` after the matrix phase, with the estimate that the cycle started from.
        score: `J_score` with the optimal score.
    """

    cycle: int
    kl: float
    prior: float
    score: float


def exact_bridge(
    mu: Float[Tensor, " n"],
    process: BridgeProcess,
    p_0: Float[Tensor, " n"],
    *,
    cycles: int = 10,
    matrix_steps: int = 20,
    learning_rate: float = 0.1,
) -> Iterator[ExactCycle]:
    r"""Algorithm 1 on one position with every phase exact; `KL(μ || p_0)` never rises (Theorem 4.7).

    Matrix-learning takes Adam steps on the exact `J_Q = E_μ KL(p_{1|0} || p_0 P)`. Score-learning is replaced by its
    optimum, whose reverse chain is Bayes' rule under `μ`,

    `B(x_0|x_1) = μ(x_0) P(x_1|x_0) / (μP)(x_1);`

    and the next estimate of `μ` is `p_0 P B` (Eq. 10). Cycle 0 reports the start.

    Args:
        mu: the data distribution.
        process: a process of one position; its rates are changed in place.
        p_0: the first estimate of `mu`.
        cycles: how many turns.
        matrix_steps: gradient steps in each matrix phase.
        learning_rate: Adam's, on the process's raw parameters.
    """
    if process.num_positions != 1:
        raise ValueError(f"the exact bridge needs a process of one position, got {process.num_positions}")
    mu = checks.distribution("mu", mu, (process.num_states,))
    p_0 = checks.distribution("p_0", p_0, (process.num_states,))
    optimiser = torch.optim.Adam(process.parameters(), lr=learning_rate)

    def prior_kl() -> Tensor:
        return (mu * process.prior_kl_table(process.evolve(p_0[None], 1.0))[0]).sum()

    for cycle in range(cycles + 1):
        for _ in range(matrix_steps if cycle > 0 else 0):
            optimiser.zero_grad()
            prior_kl().backward()
            optimiser.step()
        with torch.no_grad():
            prior, score = prior_kl().item(), exact_bound(mu, process).score
            if cycle > 0:
                kernel = process.to_dense(1.0)[0]
                joint = mu[:, None] * kernel
                reverse = (joint / joint.sum(0)).T.nan_to_num()  # a state that μ cannot reach is left nowhere
                p_0 = p_0 @ kernel @ reverse
            yield ExactCycle(cycle, kl_divergence(mu, p_0), prior, score)


def kl_divergence(p: Float[Tensor, " n"], q: Float[Tensor, " n"]) -> float:
    """`Σ p log(p / q)` in nats, as a sum of non-negative terms: it keeps its digits, and its sign, when `p ≈ q`.

    >>> kl_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    0.6931471824645996
    """
    delta = torch.where(p == q, 0.0, (p - q) / q)
    return torch.where(q > 0, q * (torch.special.xlog1py(1 + delta, delta) - delta), delta).sum().item()


def entropy(mu: Float[Tensor, "*joint"]) -> float:
    """`-Σ μ log μ` in nats."""
    return -torch.xlogy(mu, mu).sum().item()

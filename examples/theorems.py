"""Every equation and statement of the paper on five states: one line each, and by how much the library misses it.

The other side of each line is written out with dense matrices. Takes a few seconds.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

import dmb
from dmb import theory

STATES, TIME, CHAINS = 5, 0.6, 1 << 15
Check = tuple[str, str, float]
"""Where in the paper, what in words, and the largest error."""

exp = torch.linalg.matrix_exp
generator = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    """Random numbers between 0.05 and 1.05."""
    return 0.05 + torch.rand(shape, generator=generator, dtype=torch.float64)


def error(one: Tensor, other: Tensor) -> float:
    """The largest difference."""
    return (one - other).abs().max().item()


mu, p_0 = (weights / weights.sum() for weights in draw(2, STATES))
alpha, x = draw(STATES - 1), torch.arange(STATES)[:, None]
A = torch.eye(STATES, dtype=torch.float64)[torch.tensor([2, 0, 4, 1, 3])]  # rows are tokens, columns ranks
H = theory.rate_matrix(alpha)
Q = A @ H @ A.T
others = 1 - torch.eye(STATES, dtype=torch.float64)
process = dmb.BridgeProcess(dmb.Line(A.argmax(1)[None]), dmb.Steady(alpha[None]), marginals=p_0[None])
process.requires_grad_(False)


def sigma(t: float) -> float:
    """`σ(t)` of the loglinear schedule."""
    return 0.999 / (1 - 0.999 * t)


def dense(t: float) -> Tensor:
    """`exp(∫σ Q)` from 0 to t."""
    return exp(-torch.tensor(1 - 0.999 * t, dtype=torch.float64).log() * Q)


def forward_process() -> Iterator[Check]:
    """Equations of `Q`, of its exponential, and of what can be reached."""
    now, p_t = dense(TIME), process.evolve(mu[None], TIME)[0]
    later, earlier = (process.evolve(mu[None], TIME + h)[0] for h in (1e-5, -1e-5))
    yield "Eq. 1", "dp/dt = p Q, by finite differences", error((later - earlier) / 2e-5, sigma(TIME) * p_t @ Q)
    rates = process.rates_into(x, TIME)[:, 0].T  # a column for each state that is entered
    yield "Eq. 3", "Q = A H A⁻¹", error(rates, sigma(TIME) * Q * others)
    yield "Eq. 4", "p_t = p_0 exp(∫σ Q)", error(p_t, mu @ now)
    yield "Eq. 6", "p_{t|0} is a row of exp(∫σ Q)", error(process.log_transition(x, TIME)[:, 0].exp(), now)
    before, after = theory.conservation(mu, Q)
    yield "Proposition 4.1", "μ exp(Q) has the sum of μ", abs(after - before)
    U, eigenvalues, inverse = theory.diagonalisation(alpha)
    yield "Lemma 4.3", "H = U Λ U⁻¹", error(U @ torch.diag(eigenvalues) @ inverse, H)
    yield "Lemma 4.5", "A H A⁻¹ is a rate matrix", max(Q.sum(1).abs().max().item(), -(Q * others).min().item())
    D = draw(STATES, STATES) + torch.eye(STATES)
    conjugate = exp(D @ Q @ D.inverse())
    yield "Proposition 5.1", "exp(D Q D⁻¹) = D exp(Q) D⁻¹", error(conjugate, D @ exp(Q) @ D.inverse())
    yield "Eq. 13", "exp(H) = U exp(Λ) U⁻¹", error(U @ torch.diag(eigenvalues.exp()) @ inverse, exp(H))
    reaching, rank = theory.accessibility(mu, p_0)
    p, q = mu[rank.argsort()], p_0[rank.argsort()]
    descents = (p.cumsum(0) / q.cumsum(0)).diff().clamp(max=0)
    yield "Eq. 12, Lemma 4.4", "ratios of cumulative sums ascend to 1", descents.abs().max().item()
    yield "Eq. 11, Theorem 4.2", "p = q exp(Q) for any p and q", error(q @ exp(theory.rate_matrix(reaching)), p)


def both_losses() -> Iterator[Check]:
    """Reversal, `J_Q`, `J_score` and the bound."""
    now, P = dense(TIME), dense(1.0)
    score = theory.optimal_log_score(mu, process, x, TIME)[:, 0].exp()  # a row for each x_t
    reverse = process.rates_into(x, TIME)[:, 0] * score
    p_t = mu @ now
    flow = p_t @ (reverse - torch.diag(reverse.sum(1)))
    yield "Eq. 2, 7, Theorem 3.1", "the reverse rates undo the flow of p_t", error(flow, -sigma(TIME) * p_t @ Q)
    divergence = torch.special.xlogy(P, P / (p_0 @ P)).sum(1)
    yield "Eq. 5", "J_Q = E_μ KL(p_{T|0} || p_T), p_T from p_0", error(process.prior_loss(mu[None]), mu @ divergence)
    pairs = torch.cartesian_prod(x[:, 0], x[:, 0])
    x_0, x_t = pairs[now[pairs[:, 0], pairs[:, 1]] > 0].T
    ratio, s = now[x_0] / now[x_0, x_t][:, None], 2 * score[x_t]  # any score
    terms = s - ratio + torch.special.xlogy(ratio, ratio / s.where(s > 0, 1.0))
    rates = sigma(TIME) * (Q * others).T[x_t]
    ours = process.integrand_from_score(s.log()[:, None], x_t[:, None], x_0[:, None], TIME)[:, 0]
    yield "Eq. 8", "the integrand of J_score", error(ours, (rates * terms).sum(1))
    exact = theory.exact_bound(mu, process)
    yield "Eq. 9", "J_score + J_Q is the entropy at best", abs(exact.total - theory.entropy(mu))
    weight, logits = mu[x_0] * now[x_0, x_t], score.log()[x_t].requires_grad_()
    loss = (weight * process.integrand_from_score(logits[:, None], x_t[:, None], x_0[:, None], TIME)[:, 0]).sum()
    (slope,) = torch.autograd.grad(loss, logits)
    slope = torch.zeros_like(score).index_add(0, x_t, slope)
    yield "Proposition 4.6", "J_score is least at p_t(y) / p_t(x)", slope.abs().max().item()
    pair = dmb.BridgeProcess(process.hierarchy, process.clocks, num_positions=2)
    ends, prior = torch.kron(P, P), torch.kron(p_0, p_0) @ torch.kron(P, P)
    joint = torch.special.xlogy(ends, ends / prior).sum(1)
    by_position = pair.prior_kl(theory.all_sequences(STATES, 2), pair.evolve(p_0[None], 1.0)).sum(1)
    yield "Eq. 14, Proposition 5.2", "the divergence is a sum over positions", error(by_position, joint)


def estimates() -> Iterator[Check]:
    """The estimate of the marginals, once by sampling and for ten cycles with exact phases."""
    single = dmb.BridgeProcess(process.hierarchy, process.clocks, marginals=mu[None])
    exact = dmb.MarkovBridge(single, dmb.Tabular(mu, single))
    estimate = exact.estimate_marginals(chains=CHAINS, calls=8, generator=generator)[0]
    yield "Eq. 10", f"E[p_{{0|1}}] is μ: {CHAINS:,} samples, exact score", error(estimate, mu)
    live = dmb.BridgeProcess.from_marginals(mu[None], floor=0.0, learn="linear", schedule=dmb.Linear(0.2, 0.2))
    trace = theory.exact_bridge(mu, live, p_0, cycles=10, matrix_steps=3, learning_rate=0.05)
    rises = [late.kl - early.kl for early, late in pairwise(trace)]
    yield "Theorem 4.7", "KL(μ || p_0) never rises: largest rise", max(*rises, 0.0)


def main() -> None:
    """Print all checks."""
    for check in (forward_process, both_losses, estimates):
        for where, what, by in check():
            print(f"{where:24} {what:48} {by:.0e}")


if __name__ == "__main__":
    main()

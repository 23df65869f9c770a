"""Independent code that the tests compare with: loops, scipy and mpmath, nothing of dmb."""

import mpmath
import numpy as np
import scipy.linalg
import scipy.special


def bridge_rates(alpha, rank):
    """Q of one position: rank r > rank of x is entered from x at rate alpha[r - 1]."""
    n = len(rank)
    Q = np.zeros((n, n), dtype=alpha.dtype)
    for x in range(n):
        higher = rank > rank[x]
        Q[x, higher] = alpha[rank[higher] - 1]
        Q[x, x] = -Q[x].sum()
    return Q


def uniform_rates(states, n):
    Q = np.zeros((n, n))
    Q[:states, :states] = 1 / states
    Q[range(states), range(states)] -= 1
    return Q


def masking_rates(alpha):
    """Q of one position: state x jumps to the mask, the last state, at rate alpha[x]."""
    Q = np.zeros((len(alpha) + 1, len(alpha) + 1), dtype=alpha.dtype)
    for x, rate in enumerate(alpha):
        Q[x, -1], Q[x, x] = rate, -rate
    return Q


def steady(u):
    return u


def delayed(power):
    """-log(1 - s^p), s = 1 - exp(-u): a clock that has rung by u with chance s^p.

    As it stands, with digits enough that s^p may come as close to 0 or 1 as it likes.
    """
    return mpmath.workdps(400)(lambda u: -mpmath.log(1 - (1 - mpmath.exp(-u)) ** power))


@mpmath.workdps(400)
def early(u):
    return 1 - mpmath.exp(-u)


PROFILES = (steady, delayed(2), delayed(4), early)


def slope(function, u):
    """Its derivative, taken in log u so that the step is small beside any u."""
    return mpmath.diff(lambda log_u: function(mpmath.exp(log_u)), mpmath.log(u)) / u


def softmax(logits):
    weights = [mpmath.exp(mpmath.mpf(float(logit))) for logit in logits]
    return [weight / mpmath.fsum(weights) for weight in weights]


def loglinear(t, survival=1e-3):
    return float(-np.log1p(-(1 - survival) * t)), float((1 - survival) / (1 - (1 - survival) * t))


def transition(Q, elapsed=1.0):
    return scipy.linalg.expm((elapsed * Q).astype(float))


@mpmath.workdps(50)
def transition_to_50_digits(integrated):
    return np.array(mpmath.expm(mpmath.matrix(integrated.tolist())).tolist(), dtype=float)


def chi_square_p_value(counts, probabilities):
    """P-value of the counts, rare outcomes pooled so that every expected count is at least 5."""
    counts = np.asarray(counts, float)
    expected = np.asarray(probabilities, float) * counts.sum()
    assert counts[expected < 1e-12].sum() == 0, "an impossible outcome was drawn"
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    pooled_counts, pooled_expected = [0.0], [0.0]
    for c, e in zip(counts, expected, strict=True):
        if pooled_expected[-1] >= 5:
            pooled_counts.append(0.0)
            pooled_expected.append(0.0)
        pooled_counts[-1] += c
        pooled_expected[-1] += e
    if len(pooled_counts) > 1 and pooled_expected[-1] < 5:
        last_c, last_e = pooled_counts.pop(), pooled_expected.pop()
        pooled_counts[-1] += last_c
        pooled_expected[-1] += last_e
    if len(pooled_counts) == 1:
        return 1.0
    pooled_expected = np.array(pooled_expected) * np.sum(pooled_counts) / np.sum(pooled_expected)
    statistic = np.sum((np.array(pooled_counts) - pooled_expected) ** 2 / pooled_expected)
    return scipy.special.chdtrc(len(pooled_counts) - 1, statistic)


def score_entropy(Q, P, x_0, x_t, log_score):
    """The integrand of J_score (Eq. 8) at one position, by a loop over y; Q are rates per unit of t."""
    total = 0.0
    for y in range(len(Q)):
        if y == x_t or Q[y, x_t] == 0:
            continue
        ratio = P[x_0, y] / P[x_0, x_t]
        score = np.exp(log_score[y])
        total += Q[y, x_t] * (score - ratio + (ratio * (np.log(ratio) - log_score[y]) if ratio > 0 else 0))
    return total


def tree_rates(alpha, parent, clock):
    """Q of one position: x is lifted to each node above it at the rate of that node's clock, counted from 1."""
    n = len(parent)
    Q = np.zeros((n, n), dtype=alpha.dtype)
    for x in range(n):
        v = x
        while parent[v] != v:
            v = parent[v]
            Q[x, v] = alpha[clock[v] - 1]
        Q[x, x] = -Q[x].sum()
    return Q

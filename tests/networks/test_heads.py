"""The score head against SEDD's own formulas, written out by hand in numpy (arXiv 2310.16834 and its code)."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import dmb
from dmb.processes.time import SolvedTime

import oracles


class Silent(nn.Module):
    """A network whose outputs are all 0."""

    def __init__(self, num_states):
        super().__init__()
        self.num_states = num_states

    def forward(self, x_t, t):
        return torch.zeros(*x_t.shape, self.num_states, dtype=torch.float64)


def masked_diffusion(n, dtype):
    return dmb.BridgeProcess.from_marginals(torch.full((1, n), 1 / n, dtype=dtype), mask=True, floor=0.0)


def uniform_noise(n, dtype):
    return dmb.UniformProcess(1, n).to(dtype)


def clock_of(sigma_bar):
    """A clock that has run so far. Its speed and time are of no account to a score."""
    far = torch.tensor([sigma_bar], dtype=torch.float64)
    return SolvedTime(t=torch.full_like(far, torch.nan), sigma_bar=far, sigma=torch.full_like(far, torch.nan))


# exact in float32, so that only the head's own rounding is seen: from the first moment to where LogLinear ends, and on
CLOCK_TIMES = [2.0**-20, 2.0**-7, 0.5, 2.0, 6.875, 20.0]


@pytest.mark.parametrize("sigma_bar", CLOCK_TIMES)
@pytest.mark.parametrize("n", [27, 50_257])
def test_on_a_mask_the_scaled_score_head_subtracts_what_sedd_subtracts(n, sigma_bar):
    """`x = x - esigm1_log - np.log(x.shape[-1] - 1)`, where the last axis has the mask as well."""
    process = masked_diffusion(n, torch.float32)
    output = torch.randn(1, 1, n + 1, generator=torch.Generator().manual_seed(0))
    log_score = dmb.networks.heads.ScoreHead().log_score(output, process, torch.tensor([[n]]), clock_of(sigma_bar))
    assert log_score.dtype == torch.float32
    expected = output[0, 0, :n].double().numpy() - np.log(np.expm1(sigma_bar)) - np.log(n)
    np.testing.assert_allclose(log_score[0, 0, :n].detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sigma_bar", CLOCK_TIMES)
@pytest.mark.parametrize(
    ("n", "dtype", "tolerance"),
    [
        (27, torch.float32, 1e-6),
        (50_257, torch.float64, 1e-9),
        # in float32 torch's log_softmax adds so many equal terms that it loses up to 2.3e-4 of their sum
        (50_257, torch.float32, 3e-4),
    ],
)
def test_on_uniform_noise_the_scaled_score_head_subtracts_nothing_as_in_sedd(n, dtype, tolerance, sigma_bar):
    output = torch.randn(1, 1, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    log_score = dmb.networks.heads.ScoreHead().log_score(
        output, uniform_noise(n, dtype), torch.tensor([[5]]), clock_of(sigma_bar)
    )
    assert log_score.dtype == dtype
    np.testing.assert_allclose(log_score[0, 0], output[0, 0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{"init": "uniform"}, {"init": "nested"}, {"floor": 0.1, "mask": True}, {"floor": 0.0}], ids=str
)
def test_on_any_process_the_scaled_score_head_adds_the_score_of_uniform_data(options):
    mu = torch.tensor([[0.4, 0.1, 0.3, 0.2]], dtype=torch.float64)
    process = dmb.BridgeProcess.from_marginals(mu, **options)
    n, rank = process.num_states, process.rank[0].numpy()
    kernel = oracles.transition(
        oracles.bridge_rates(process.alpha[0].detach().numpy(), rank), oracles.loglinear(0.4)[0]
    )
    p_t = np.full(4, 0.25) @ kernel[:4]
    output = torch.randn(n, 1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_t = torch.arange(n)[:, None]
    log_score = (
        dmb.networks.heads.ScoreHead().log_score(output, process, x_t, process.solve(0.4, n)).detach()[:, 0].numpy()
    )
    assert np.isfinite(log_score).all()
    compared = 0
    for x in range(n):
        for y in range(4):
            if rank[y] < rank[x] and process.alpha[0, rank[x] - 1] > 0:
                assert log_score[x, y] == pytest.approx(output[x, 0, y].item() + np.log(p_t[y] / p_t[x]), rel=1e-9)
                compared += 1
    assert compared >= 3


def test_the_unscaled_score_head_gives_the_outputs_themselves():
    output = torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    head, process = dmb.networks.heads.ScoreHead(scaled=False), masked_diffusion(4, torch.float64)
    assert torch.equal(head.log_score(output, process, torch.tensor([[4]]), clock_of(0.3)), output)


# -- SEDD's loss at outputs of 0, by its code: graph_lib.score_entropy, losses.loss_fn with noise_lib.LogLinearNoise -----


def absorbing_loss_of_sedd(n, t):
    """`σ'(t) E score_entropy` at one position over what `x_t` may be: with chance exp(-σ) the token, which costs 0."""
    sigma, dsigma = -np.log1p(-(1 - 1e-3) * t), (1 - 1e-3) / (1 - (1 - 1e-3) * t)
    esigm1 = np.expm1(sigma)
    score = 0.0 - np.log(esigm1) - np.log(n)  # scale_by_sigma; of each of the n states
    ratio = 1 / esigm1
    entropy = n * np.exp(score) - ratio * score + ratio * (np.log(ratio) - 1)
    return dsigma * -np.expm1(-sigma) * entropy


def uniform_loss_of_sedd(n, t):
    """The same, where `x_t` is the token itself or one of n - 1 others, which all cost the same."""
    sigma, dsigma = -np.log1p(-(1 - 1e-3) * t), (1 - 1e-3) / (1 - (1 - 1e-3) * t)
    esigm1 = np.expm1(sigma)
    ratio = esigm1 / (esigm1 + n)  # theirs is 1 - n / (esigm1 + n), which at the earliest times is 0 in floats
    score = 0.0
    neg_term = n * score / n - score / n
    pos_term = n * np.exp(score) / n - np.exp(score) / n
    stayed = pos_term - ratio * neg_term + (n - 1) / n * ratio * (np.log(ratio) - 1)
    moved = pos_term - (score / esigm1 + neg_term) + ((-np.log(ratio) - 1) / ratio - (n - 2)) / n
    chance = -np.expm1(-sigma) / n
    return dsigma * ((1 - (n - 1) * chance) * stayed + (n - 1) * chance * moved)


def nodes_and_weights():
    """Quadrature on (0, 1): t = sigmoid(π sinh z) takes out of the way whatever is steep at either end."""
    z = np.linspace(-3.0, 3.0, 81)
    t = 1 / (1 + np.exp(-np.pi * np.sinh(z)))
    return t, np.pi * np.cosh(z) * t / (1 + np.exp(np.pi * np.sinh(z))) * (z[1] - z[0])


@pytest.mark.long
@pytest.mark.parametrize("n", [27, 50_257])
@pytest.mark.parametrize(
    ("build", "loss_of_sedd"),
    [(masked_diffusion, absorbing_loss_of_sedd), (uniform_noise, uniform_loss_of_sedd)],
    ids=["absorbing", "uniform"],
)
def test_untrained_the_scaled_score_head_costs_what_sedd_costs_about_log_n(build, loss_of_sedd, n):
    process = build(n, torch.float64)
    bridge = dmb.MarkovBridge(process, Silent(process.num_states), "score")
    t, weights = nodes_and_weights()
    theirs = weights * loss_of_sedd(n, t)
    assert 2 * theirs[::2].sum() == pytest.approx(theirs.sum(), rel=1e-8)  # so that quadrature is not what is tested

    # x_0 itself, and the mask or all others; where there are many, which are alike, one stands for all of them
    x_0, rest = 3, 1 if process.names else n - 1
    others = [n] if process.names else [x for x in range(n) if x != x_0] if n < 100 else [7]
    multiplicity = np.array([1, *[rest / len(others)] * len(others)])
    x_t = torch.tensor([x_0, *others])[:, None]
    ours = np.zeros_like(t)
    for k, time in enumerate(t.tolist()):
        with torch.no_grad():
            chance = process.log_prob(x_t, torch.full_like(x_t, x_0), time).exp()[:, 0].numpy()
            value = bridge.integrand(x_t, torch.full_like(x_t, x_0), time)[:, 0].numpy()
        assert (multiplicity * chance).sum() == pytest.approx(1)
        ours[k] = weights[k] * (multiplicity * chance * value).sum()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9 * theirs.sum())
    assert ours.sum() == pytest.approx(theirs.sum(), rel=1e-6)
    assert ours.sum() == pytest.approx(math.log(n), rel=2e-3)

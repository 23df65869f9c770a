"""The fused integrand against the closed form that autograd differentiates, which the contract suite checks."""

import pytest
import torch

import dmb
from dmb.processes import fused

from contracts.cases import CASES

BRIDGES = [case for case in CASES if isinstance(case.build(), dmb.BridgeProcess)]


def noisy_pairs(case, t):
    """Pairs of legal tokens that the process can make, none of the clean ones a name."""
    process = case.process()
    x_0, x_t = case.pairs()
    x_0 = torch.where(x_0 < process.num_states - process.names, x_0, 0)
    likeliest = process.log_transition(x_0, t).argmax(-1)
    return x_0, torch.where(process.log_prob(x_t, x_0, t).exp() > 1e-30, x_t, likeliest)


def value_and_gradient(process, logits, x_t, x_0, t, weights, of="logits"):
    logits = logits.detach().requires_grad_()
    value = getattr(process, f"integrand_from_{of}")(logits, x_t, x_0, t)
    return value.detach(), torch.autograd.grad((weights * value).sum(), logits)[0]


@pytest.mark.parametrize("t", [1e-6, 0.3, 1.0])
@pytest.mark.parametrize("of", ["logits", "score"])
@pytest.mark.parametrize("case", BRIDGES, ids=lambda case: case.name)
def test_the_fused_integrand_and_its_gradient_equal_the_closed_form(case, of, t, monkeypatch):
    process, (x_0, x_t) = case.process(), noisy_pairs(case, t)
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(*x_t.shape, process.num_states, generator=generator, dtype=torch.float64)
    weights = torch.rand(x_t.shape, generator=generator, dtype=torch.float64)
    composed = value_and_gradient(process, logits, x_t, x_0, t, weights, of)
    for chunk in (1, 1 << 19):
        monkeypatch.setattr(fused, "_CHUNK", chunk)
        with process.fixed():
            one_pass = value_and_gradient(process, logits, x_t, x_0, t, weights, of)
        torch.testing.assert_close(one_pass, composed, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("t", [1e-6, 0.3, 1.0])
@pytest.mark.parametrize("case", BRIDGES, ids=lambda case: case.name)
def test_the_integrand_from_weights_and_all_gradients_equal_the_closed_form_in_logarithms(case, t):
    process, (x_0, x_t) = case.process(), noisy_pairs(case, t)
    logits = 2 * torch.randn(*x_t.shape, process.num_states, generator=torch.Generator().manual_seed(0)).double()

    def value_and_gradients(integrand):
        process.zero_grad()
        leaf = logits.clone().requires_grad_()
        value = integrand(leaf)
        value.sum().backward()
        return value.detach(), leaf.grad, [p.grad.clone() for p in process.parameters() if p.grad is not None]

    assert process._integrand_from_weights(logits, x_t, x_0, process.solve(t, len(x_t))) is not None
    by_weights = value_and_gradients(lambda leaf: process.integrand_from_logits(leaf, x_t, x_0, t))
    in_logarithms = value_and_gradients(
        lambda leaf: process.integrand_from_posterior(process.log_posterior(leaf, x_t, t), x_t, x_0, t)
    )
    torch.testing.assert_close(by_weights, in_logarithms, rtol=1e-8, atol=1e-10)
    assert all(gradient.isfinite().all() for gradient in by_weights[2])


@pytest.mark.parametrize("counts", [None, [2, 4, 3]])
@pytest.mark.parametrize("t", [1e-6, 0.3, 1.0])
def test_a_mask_as_the_only_noise_costs_a_weighted_cross_entropy(t, counts):
    counts = None if counts is None else torch.tensor(counts)
    marginals = torch.tensor([[0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.5, 0]], dtype=torch.float64)
    process = dmb.BridgeProcess.from_marginals(marginals, mask=True, floor=0.0, state_counts=counts).double()
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.stack([torch.randint(2 + k, (40,), generator=generator) for k in (0, 2, 1)], dim=1)
    x_t = torch.where(torch.rand(x_0.shape, generator=generator) < 0.5, 4, x_0)
    logits = torch.randn(*x_0.shape, 5, generator=generator, dtype=torch.float64)
    with process.fixed():
        one_pass = value_and_gradient(process, logits, x_t, x_0, t, 1.0)
    torch.testing.assert_close(one_pass, value_and_gradient(process, logits, x_t, x_0, t, 1.0), rtol=1e-8, atol=1e-10)
    known = process.data_states[:1] if counts is None else process.data_states
    log_rho = torch.where(known, logits, -torch.inf).log_softmax(-1).gather(-1, x_0[..., None]).squeeze(-1)
    sigma_bar = process.schedule(torch.tensor([t], dtype=torch.float64)).sigma_bar
    rate = process.schedule(torch.tensor([t], dtype=torch.float64)).sigma
    expected = torch.where(x_t == 4, -log_rho * rate / torch.expm1(sigma_bar), 0.0)
    torch.testing.assert_close(one_pass[0], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("of", ["logits", "score"])
@pytest.mark.parametrize("t", [1e-12, 1e-6, 0.3, 1.0])
@pytest.mark.parametrize("low", [1e-8, 1.0, 1e4])
def test_in_float32_it_has_six_digits_at_extreme_rates_and_times(low, t, of):
    generator = torch.Generator().manual_seed(0)
    alpha = low * torch.rand(1, 26, generator=generator, dtype=torch.float64)
    line = dmb.Line(torch.randperm(27, generator=generator)[None])
    process = dmb.BridgeProcess(line, dmb.Steady(alpha), num_positions=64)
    x_0 = torch.randint(27, (64, 64), generator=generator)
    x_t = process.sample(x_0, t, generator=generator)
    logits = torch.randn(64, 64, 27, generator=generator, dtype=torch.float64)
    exact = value_and_gradient(process, logits, x_t, x_0, t, 1.0, of)
    process = process.float()
    with process.fixed():
        single = value_and_gradient(process, logits.float(), x_t, x_0, t, 1.0, of)
    for value, reference in zip(single, exact, strict=True):
        assert value.dtype == torch.float32
        scale = reference.abs().amax().item() * 1e-6
        torch.testing.assert_close(value.double(), reference, rtol=3e-5, atol=max(scale, 1e-30))


@pytest.mark.parametrize("gap", [30.0, 80.0, 200.0, 1e4])
@pytest.mark.parametrize(
    "options", [{"init": "uniform"}, {"init": "uniform", "mask": True}, {"mask": True, "floor": 0.0}], ids=str
)
def test_logits_far_apart_neither_overflow_nor_flatter_the_model(options, gap):
    """Where float32's exponent ends, the closed form in log space takes over: the loss is the true one."""
    marginals = torch.full((1, 5), 0.2, dtype=torch.float64)
    process = dmb.BridgeProcess.from_marginals(marginals, **options)
    x_0, x_t = torch.tensor([[1]]), torch.tensor([[process.num_states - 1]])
    logits = torch.zeros(1, 1, process.num_states)
    logits[..., 1] = -gap
    exact = process.integrand_from_posterior(process.log_posterior(logits.double(), x_t, 0.5), x_t, x_0, 0.5).detach()
    process = process.float()
    with process.fixed():
        value = process.integrand_from_logits(logits, x_t, x_0, 0.5)
    learning = process.integrand_from_logits(logits, x_t, x_0, 0.5).detach()
    torch.testing.assert_close(torch.stack([value, learning]).double(), exact.expand(2, 1, 1), rtol=1e-5, atol=0)
    if "floor" in options:  # no other clock can explain the token: the loss grows with the gap
        assert value.item() > gap


def test_no_gradient_reaches_a_process_that_is_fixed_and_it_is_learnable_again_afterwards():
    process = dmb.BridgeProcess.from_marginals(torch.full((2, 3), 1 / 3))
    bridge = dmb.MarkovBridge(process, dmb.MLP(3, 2, width=8))
    bridge.loss(torch.tensor([[0, 1], [2, 2]])).mean().backward()
    assert process.clocks.log_rates.grad is None
    assert process.clocks.log_rates.requires_grad
    assert bridge.network.output.weight.grad is not None
    bridge.prior_loss().backward()
    assert process.clocks.log_rates.grad is not None


def test_gradients_keep_the_precision_of_the_logits():
    process = dmb.BridgeProcess.from_marginals(torch.full((2, 3), 1 / 3))
    logits = torch.randn(4, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    x_0, x_t = torch.zeros(4, 2, dtype=torch.long), torch.full((4, 2), 2)
    with process.fixed():
        value = process.integrand_from_logits(logits, x_t, x_0, 0.5)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert logits.grad.dtype == torch.bfloat16

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from dmb.app.images import TokenizerSettings, losses
from dmb.app.images.adversary import Discriminator, balance, passing, telling
from dmb.app.images.training import TokenizerLearner
from dmb.training import engine
from dmb.training.checkpoint import Checkpoints
from stopping import StopAfter, same
from striped import QUICK, images, make, pictures, train

ALONE = {"steps": 10, "adversarial_steps": 9, "adversarial": 0.8}


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def discriminator(channels=1, size=8):
    torch.manual_seed(0)
    return Discriminator(channels, size)


# -- the discriminator and its losses ---------------------------------------------------------------------------------


def test_the_losses_are_the_formulas():
    real, made = ([noise(2, 3, 2, 2, seed=s), noise(2, 1, 2, 2, seed=s + 1)] for s in (0, 10))
    truth, fake = real[-1].flatten().tolist(), made[-1].flatten().tolist()
    hinge = sum(max(0, 1 - x) for x in truth) / 8 + sum(max(0, 1 + x) for x in fake) / 8
    assert telling(real, made).item() == pytest.approx(hinge, rel=1e-6)
    apart = [abs(a - b) for a, b in zip(real[0].flatten().tolist(), made[0].flatten().tolist(), strict=True)]
    assert passing(real, made).item() == pytest.approx(sum(apart) / 24 - sum(fake) / 8, rel=1e-6)


def test_features_of_real_images_are_not_moved_towards_those_of_others():
    real, made = ([noise(2, 3, 2, 2, seed=s).requires_grad_(), noise(2, 1, 2, 2)] for s in (0, 1))
    passing(real, made).backward()
    assert real[0].grad is None
    assert made[0].grad.abs().max() > 0


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_images_of_any_size_have_patches(size):
    judged = discriminator(3, size)(noise(2, 3, size, size))
    assert [len(features) for features in judged] == [2] * 4
    assert judged[-1].shape[1] == 1
    assert judged[-1].shape[-1] == max(1, size // 4)


def test_a_judgement_is_of_a_patch_and_the_discriminator_is_small():
    large = discriminator(3, 64)
    assert sum(p.numel() for p in large.parameters()) == 213_409
    pixels = noise(1, 3, 64, 64).requires_grad_()
    large(pixels)[-1][0, 0, 8, 8].backward()
    rows = pixels.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert rows.max() - rows.min() + 1 == 26


def test_layers_have_a_spectral_norm_of_one():
    made = discriminator(3, 32)
    for _ in range(50):
        made(noise(1, 3, 32, 32))
    for layer in made.layers:
        assert np.linalg.svd(layer.weight.detach().flatten(1).numpy())[1][0] == pytest.approx(1, rel=0.02)


def test_the_factor_makes_gradients_at_the_last_weights_equally_long():
    torch.manual_seed(0)
    body, last = nn.Linear(3, 4), nn.Linear(4, 5)
    image = last(body(noise(7, 3)))
    first, second = image.square().mean(), (image * noise(7, 5, seed=1)).sum().exp()
    main, other = (torch.autograd.grad(loss, image, retain_graph=True)[0] for loss in (first, second))
    lengths = [
        torch.autograd.grad(loss, last.weight, retain_graph=True)[0].square().sum().sqrt().item()
        for loss in (first, second)
    ]
    assert balance(image, last.weight, main, other).item() == pytest.approx(lengths[0] / lengths[1], rel=1e-5)
    assert balance(image, last.weight, main, torch.zeros_like(other)).item() == 0
    assert balance(image, last.weight, torch.zeros_like(main), other).item() == 0


# -- a step -----------------------------------------------------------------------------------------------------------


def learner(**options):
    """Whose decoder learns alone."""
    settings = TokenizerSettings(**QUICK | ALONE | options)
    made = TokenizerLearner(make(), pictures(), settings, engine(accelerator="cpu"))
    made._begin_alone()
    return made


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0])
def test_gradients_are_those_of_one_loss_with_a_factor_found_by_autograd(weight):
    made, some = learner(detail=0.3), images(pictures(), pictures().train)[:8]
    twin = copy.deepcopy(made)
    loss = made._alone(some, made.discriminator, weight)
    decoder, critic = twin.model.decoder, twin.discriminator
    tokens = twin.model.encode(some)
    vectors = twin.model.quantizer.codebook[tokens].view(8, 4, 4, 4).permute(0, 3, 1, 2)
    image, pixels = decoder(vectors), some.permute(0, 3, 1, 2) / 127.5 - 1
    layers = critic(torch.cat([pixels, image]))
    real, fake = ([x[part] for x in layers] for part in (slice(8), slice(8, 16)))
    error = (image - pixels) / 2
    main = 16 * error.square().mean() + 0.3 * losses.detail(error)
    apart = sum((a.detach() - b).abs().mean() for a, b in zip(real[:-1], fake[:-1], strict=True))
    other = apart - fake[-1].mean()
    long, short = (torch.autograd.grad(x, decoder[-1].weight, retain_graph=True)[0].norm() for x in (main, other))
    total = main + weight * (long / short).detach() * other
    wanted = torch.autograd.grad(total, [*decoder.parameters()], retain_graph=True)
    hinge = (1 - real[-1]).clamp(min=0).mean() + (1 + fake[-1]).clamp(min=0).mean()
    against = torch.autograd.grad(hinge, [*critic.parameters()])
    assert loss.item() == pytest.approx(main.item(), rel=1e-5)
    for module, gradients in ((made.model.decoder, wanted), (made.discriminator, against)):
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            assert torch.allclose(parameter.grad, gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max().item())
    assert all(parameter.grad is None for parameter in made.model.encoder.parameters())
    assert made._hinge == pytest.approx(hinge.item(), rel=1e-4)


def test_the_weight_of_the_discriminator_rises_over_a_tenth_of_the_steps():
    made, weights = learner(adversarial_steps=40, adversarial=0.5), []
    real, made.progress.step = made._alone, 10
    made._alone = lambda images, discriminator, weight: weights.append(weight) or real(images, discriminator, weight)
    for _ in range(6):
        made.score_step()
        made.progress.step += 1
    assert weights == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.5])


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    vqvae, folder = make(), tmp_path_factory.mktemp("straight")
    reports = list(train(vqvae, pictures(), folder, **ALONE))
    return vqvae, reports, Checkpoints(folder / "checkpoints").newest()


def figures(reports):
    return [(r.index, r.phase, r.step, r.loss, r.psnr, r.perplexity, r.discriminator, r.learning_rate, r.improved)
            for r in reports]  # fmt: skip


def test_codes_of_images_are_the_same_before_and_after_to_the_last_bit(tmp_path):
    data, vqvae = pictures(), make()
    everything = images(data, data.train)
    for report in train(vqvae, data, tmp_path, learning_rate=0.05, **ALONE):
        if report.phase == "validation" and report.improved and report.step <= 10:
            digest = vqvae.digest()
            codes, back = vqvae.encode(everything), vqvae.decode(vqvae.encode(everything))
            before = {name: tensor.clone() for name, tensor in vqvae.tensors().items()}
    after = vqvae.tensors()
    assert vqvae.digest() == digest
    assert torch.equal(vqvae.encode(everything), codes)
    assert not torch.equal(vqvae.decode(codes), back)
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if name.startswith("decoder.")}


def test_the_decoder_goes_on_from_the_best_model_not_from_the_last(tmp_path):
    options = ALONE | {"steps": 10, "evaluate_every": 1, "learning_rate": 0.2, "seed": 3}
    vqvae, best = make(), None
    for report in train(vqvae, pictures(), tmp_path, **options):
        if report.phase == "validation" and report.step <= 10 and report.improved:
            best, at = vqvae.digest(), report.step
    assert at < 10
    assert vqvae.digest() == best


def test_every_model_of_the_decoder_alone_is_kept_whatever_its_psnr(straight):
    reports = [r for r in straight[1] if r.phase == "validation" and r.step > 10]
    assert [(r.step, r.improved) for r in reports] == [(15, True), (19, True)]


def test_reports_have_a_line_of_their_own(straight):
    lines = [r for r in straight[1] if r.phase == "decoder"]
    assert [r.step for r in lines] == [12, 15, 18]
    for report in lines:
        assert 0 <= report.discriminator <= 2.5
        assert f"decoder     loss {report.loss:.4f}  discriminator {report.discriminator:.3f}  " in report.line()
        assert report.record()["discriminator"] == report.discriminator
        assert report.total_steps == 19
    rates = [r.learning_rate for r in lines]
    assert rates == pytest.approx([2e-4 * math.cos(math.pi / 2 * part / 9) for part in (1, 4, 7)])


@pytest.mark.parametrize("steps", [7, 10, 11, 16])
def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(straight, tmp_path, steps):
    vqvae, reports, last = straight
    before = list(train(make(), pictures(), tmp_path, stop=StopAfter(steps), **ALONE))
    assert len(before) < len(reports)
    again = make(seed=9)
    after = list(train(again, pictures(), tmp_path, resume=True, **ALONE))
    assert same(again.tensors(), vqvae.tensors())
    assert same(last.tensors, Checkpoints(tmp_path / "checkpoints").newest().tensors)
    assert "against.discriminator.layers.0.bias.exp_avg" in last.tensors
    assert figures(before + after) == figures(reports)


def test_a_finished_run_can_have_its_decoder_go_on(straight, tmp_path):
    plain = list(train(make(), pictures(), tmp_path, steps=10))
    again = make(seed=9)
    more = list(train(again, pictures(), tmp_path, resume=True, **ALONE))
    assert same(again.tensors(), straight[0].tensors())
    assert figures(plain + more) == figures(straight[1])


def test_the_weight_of_the_discriminator_has_its_effect(straight):
    without = make()
    list(train(without, pictures(), **ALONE | {"adversarial": 0.0}))
    assert without.digest() == straight[0].digest()
    assert not same(without.tensors(), straight[0].tensors())


def test_the_decoder_has_its_share_of_the_time(monkeypatch):
    seconds = iter(range(10**6))
    monkeypatch.setattr("dmb.training.trainer.time.perf_counter", lambda: float(next(seconds)))
    options = ALONE | {
        "steps": 3000,
        "adversarial_steps": 1000,
        "minutes": 5.0,
        "log_every": 1,
        "evaluate_every": 10**4,
    }
    phases = [r.phase for r in train(make(), pictures(), **options) if r.phase != "validation"]
    alone = phases.count("decoder")
    assert phases == ["train"] * (len(phases) - alone) + ["decoder"] * alone
    assert alone / len(phases) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("name", ["adversarial_steps", "adversarial"])
def test_settings_that_make_no_sense_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        TokenizerSettings(**{name: -1})


def test_patience_would_end_a_run_before_the_decoder_has_its_turn():
    with pytest.raises(
        ValueError, match=r"patience must be 0 with adversarial_steps, which come after all others, got 3"
    ):
        TokenizerSettings(adversarial_steps=1, patience=3)


def test_broken_weights_end_a_run_with_a_reason(tmp_path):
    reports = train(make(), pictures(), tmp_path, **ALONE)
    while next(reports).phase != "decoder":
        pass
    reports.gi_frame.f_locals["self"].learner.model.decoder[0].weight.data.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"the loss is not finite at step 12: decoder.0.weight is no longer"):
        list(reports)

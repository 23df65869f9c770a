import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import dmb
import forks
from dmb._core.seeding import seeded
from dmb.app.images import VQVAE, TokenizerSettings, perplexity, psnr
from dmb.app.images.training import TokenizerLearner
from dmb.data import DataSet, Picture, Rows
from dmb.training import engine
from dmb.training.checkpoint import Checkpoint, Checkpoints
from stopping import StopAfter, same
from striped import QUICK, images, make, pictures, train


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    vqvae, folder = make(), tmp_path_factory.mktemp("straight")
    return vqvae, list(train(vqvae, pictures(), folder)), Checkpoints(folder / "checkpoints").newest()


@pytest.mark.parametrize("steps", [1, 4, 5, 8])
def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(straight, tmp_path, steps):
    (vqvae, reports, last), data = straight, pictures()
    broken, again = make(), make(seed=9)
    before = list(train(broken, data, tmp_path / "broken", stop=StopAfter(steps)))
    assert len(before) < len(reports)
    after = list(train(again, data, tmp_path / "broken", resume=True))
    assert same(again.state_dict(), vqvae.state_dict())
    assert {"vqvae.quantizer.sums", "vqvae.quantizer.counts", "optimiser.encoder.0.weight.exp_avg_sq"} <= {
        *last.tensors
    }
    assert same(last.tensors, Checkpoints(tmp_path / "broken" / "checkpoints").newest().tensors)
    told, again = (
        [(r.index, r.phase, r.step, r.loss, r.psnr, r.perplexity, r.improved) for r in made]
        for made in (reports, before + after)
    )
    assert again == told


def test_a_run_begun_with_version_0_2_goes_on_to_the_same_bits(straight, tmp_path):
    (vqvae, reports, _), data = straight, pictures()
    before = list(train(make(), data, tmp_path, stop=StopAfter(8)))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    newest = checkpoints.newest()
    own = {"cycle", "phase", "phase_step", "running_bits", "prior_bits", "seen_bits"}  # which it did not have
    state = {name: value for name, value in newest.state.items() if name not in own}
    checkpoints.save(8, Checkpoint(newest.tensors, state | {"seen_loss": newest.state["seen_bits"]}))
    again = make(seed=9)
    after = list(train(again, data, tmp_path, resume=True))
    assert same(again.state_dict(), vqvae.state_dict())
    assert [report.loss for report in before + after] == [report.loss for report in reports]


def test_reports_come_when_they_should_and_evaluations_tell_what_the_model_does():
    data, vqvae = pictures(), make()
    truth = images(data, data.validation)
    seen = []
    for report in train(vqvae, data):
        seen.append((report.phase, report.step))
        if report.improved:  # from here on the model holds these weights
            back = vqvae.decode(vqvae.encode(truth))
            error = (truth.double() - back.double()) / 255
            assert report.psnr == psnr(truth, back)
            assert report.psnr == pytest.approx(-10 * math.log10(error.square().mean()))
            assert report.perplexity == perplexity(vqvae.encode(truth), 16)
    assert seen == [("train", 3), ("validation", 5), ("train", 6), ("train", 9), ("validation", 10), ("train", 12),
                    ("validation", 12)]  # fmt: skip


def test_the_loss_falls_and_images_come_back(tmp_path):
    data, vqvae = pictures(), make(width=16)
    reports = list(train(vqvae, data, tmp_path, steps=150, batch_size=16, log_every=15, evaluate_every=75))
    losses = [report.loss for report in reports if report.phase == "train"]
    assert losses[-1] < 0.3 * losses[0]
    truth = images(data, data.validation)
    mean = truth.double().mean((1, 2, 3), keepdim=True).round().to(torch.uint8).expand_as(truth)
    assert psnr(truth, vqvae.reconstruct(truth)) > psnr(truth, mean) + 3
    assert same(VQVAE.from_pretrained(tmp_path).tensors(), vqvae.tensors())


def test_the_loss_is_the_mean_over_the_batches_since():
    data, weights = pictures(), {"detail": 0.3, "commitment": 0.7}
    singly = [report.loss for report in itertools.islice(train(make(), data, log_every=1, **weights), 3)]
    assert next(train(make(), data, log_every=3, **weights)).loss == pytest.approx(sum(singly) / 3)
    learner = TokenizerLearner(make(), data, TokenizerSettings(**QUICK | weights), engine(accelerator="cpu"))
    batch = torch.from_numpy(data.codec.images(data.train.batch(8, step=0, seed=0).x_0))
    assert learner.model.loss(batch, **weights, generator=seeded(0, "codes", 0)).item() == singly[0]


def test_the_learning_rate_warms_up_and_falls_along_a_quarter_of_a_cosine():
    reports = train(make(), pictures(), steps=20, warmup=4, learning_rate=0.01, log_every=1, evaluate_every=100)
    rates = {report.step: report.learning_rate for report in reports if report.phase == "train"}
    assert rates[1] == pytest.approx(0.01 / 4)
    assert rates[4] == pytest.approx(0.01 * math.cos(math.radians(13.5)))
    assert rates[11] == pytest.approx(0.01 * math.sqrt(0.5))
    assert rates[20] == pytest.approx(0.01 * math.sin(math.radians(4.5)))


def test_the_vqvae_holds_what_was_best_on_validation(tmp_path):
    vqvae, best, bits = make(), None, -math.inf
    for report in train(vqvae, pictures(), tmp_path, steps=30, learning_rate=0.2, evaluate_every=1):
        if report.phase == "validation":
            assert report.improved == (report.psnr > bits)
            if report.improved:
                best, bits = {name: tensor.clone() for name, tensor in vqvae.tensors().items()}, report.psnr
    assert report.psnr < bits
    assert same(vqvae.tensors(), best)
    assert same(VQVAE.from_pretrained(tmp_path).tensors(), best)


def test_the_clock_ends_a_run_with_an_evaluation_and_a_checkpoint(tmp_path):
    reports = list(train(make(), pictures(), tmp_path, minutes=1e-9))
    assert [(report.phase, report.step) for report in reports] == [("validation", 1)]
    assert Checkpoints(tmp_path / "checkpoints").steps() == [0, 1]
    again = list(train(make(), pictures(), tmp_path, minutes=1e-9, resume=True))  # it has its time anew
    assert [(report.phase, report.step) for report in again] == [("validation", 2)]


def test_patience_ends_training(tmp_path):
    options = {"steps": 60, "learning_rate": 0.2, "evaluate_every": 1, "patience": 3}
    improved = [r.improved for r in train(make(), pictures(), tmp_path, **options) if r.phase == "validation"]
    assert improved[-3:] == [False] * 3
    assert [False] * 3 not in [improved[at : at + 3] for at in range(len(improved) - 3)]
    assert len(improved) < 60
    assert list(train(make(), pictures(), tmp_path, resume=True, **options)) == []


def test_training_leaves_the_global_generator_as_it_was():
    learner = TokenizerLearner(make(), pictures(), TokenizerSettings(), engine(accelerator="cpu"))
    before = torch.get_rng_state()
    learner.score_step()
    assert torch.equal(torch.get_rng_state(), before)


def test_in_half_precision_the_codes_are_kept_in_full():
    learner = TokenizerLearner(
        make(), pictures(), TokenizerSettings(), engine(accelerator="cpu", precision="bf16-mixed")
    )
    inner = []
    learner.model.encoder[0].register_forward_hook(lambda *parts: inner.append(parts[-1].dtype))
    learner.score_step()
    assert inner == [torch.bfloat16]
    assert learner.model.quantizer.codebook.dtype == torch.float32


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_and_leaves_the_last_good_checkpoint(tmp_path, what):
    reports = train(make(), pictures(), tmp_path)
    while next(reports).phase == "train":
        pass
    model = reports.gi_frame.f_locals["self"].learner.model
    if what == "loss":
        model.decoder[0].weight.data.fill_(math.nan)
        cause = r"decoder.0.weight is no longer finite; try a lower learning_rate"
    else:
        model.decoder[0].weight.register_hook(lambda gradient: gradient * math.inf)
        cause = "the network's outputs are too large"
    with pytest.raises(FloatingPointError, match=rf"the {what} is not finite at step 5: {cause}"):
        list(reports)
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest.state["step"] == 5


SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
from test_training import fixed_codes, pictures
from dmb.app.images import TokenizerSettings, train_tokenizer
from dmb.training import engine
fabric = engine(accelerator="cpu", devices=2)
reports = list(train_tokenizer(fixed_codes(), pictures(), TokenizerSettings(**{settings!r}), fabric=fabric))
if fabric.is_global_zero:
    print(json.dumps([[report.loss, report.psnr, report.perplexity] for report in reports]), flush=True)
"""


def fixed_codes():
    """Codes that are there from the start and never die leave nothing to chance."""
    vqvae = make(revive=1e-9)
    vqvae.load_tensors(vqvae.tensors() | {"codebook": torch.randn(16, 4)})
    return vqvae


@pytest.mark.long
def test_two_processes_learn_what_one_does(tmp_path):
    settings = QUICK | {"log_every": 1, "learning_rate": 1e-3}
    alone = [[r.loss, r.psnr, r.perplexity] for r in train(fixed_codes(), pictures(), **settings)]
    code = SCRIPT.format(tests=str(Path(__file__).parent), settings=settings)
    both, words = forks.pair(forks.script, code, output=tmp_path / "words"), tmp_path / "words.0"
    assert forks.codes(*both) == [0, 0], words.read_text()
    together = json.loads(words.read_text().splitlines()[-1])
    assert len(alone) == len(together) == 15
    for one, two in zip(alone, together, strict=True):
        assert two == [None if value is None else pytest.approx(value, rel=1e-3) for value in one]


def test_a_vqvae_has_the_size_of_its_images_and_its_first_weights_from_the_seed():
    sizes = {"grid": 4, "codes": 32, "width": 8, "blocks": 1, "code_width": 4, "cosine": False, "decay": 0.8, "revive": 0.2}  # fmt: skip
    vqvae = TokenizerSettings(**sizes).build(pictures(size=16))
    assert vqvae.config() == {"size": 16, "channels": 1} | sizes
    torch.manual_seed(3)
    again, other = (TokenizerSettings(**sizes, seed=seed).build(pictures(size=16)) for seed in (0, 1))
    assert torch.equal(again.encoder[0].weight, vqvae.encoder[0].weight)
    assert not torch.equal(other.encoder[0].weight, vqvae.encoder[0].weight)


def test_warming_up_takes_at_most_a_tenth_of_the_time(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr("dmb.training.trainer.time.perf_counter", lambda: float(next(seconds)))
    options = {"steps": 10_000, "warmup": 1000, "log_every": 1, "evaluate_every": 10_000, "minutes": 5.0}
    rates = [r.learning_rate for r in train(make(), pictures(), **options) if r.phase == "train"]
    assert rates[0] < 0.5 * 2e-3  # it does warm up
    assert max(rates) > 0.95 * 2e-3
    assert rates.index(max(rates)) <= len(rates) // 10 + 1


def test_images_that_are_not_square_are_refused():
    rows = [Rows(np.zeros((10, 8, 6, 1), dtype=np.uint8), 256) for _ in range(3)]
    data = DataSet(
        name="wide",
        source="",
        codec=Picture([8, 6, 1]),
        **dict(zip(("train", "validation", "test"), rows, strict=True)),
    )
    with pytest.raises(ValueError, match=r"VQ-VAE, got 6 × 8: add --size 16 .* to crop each image to a square and"):
        TokenizerSettings().build(data)


def test_data_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match="a VQ-VAE needs images: give cifar10, or a folder of images; got digits"):
        train(make(), dmb.data.digits())


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"images must be uint8 \[batch, 16, 16, 1\], got torch.uint8 \[8, 8, 8, 1\]"):
        next(train(make(size=16), pictures()))


def test_a_folder_with_a_run_is_not_begun_anew_and_goes_on_with_its_own_model_only(tmp_path):
    list(train(make(), pictures(), tmp_path))
    with pytest.raises(ValueError, match="already holds a run"):
        train(make(), pictures(), tmp_path)
    with pytest.raises(ValueError, match="does not fit"):
        train(make(width=16), pictures(), tmp_path, resume=True)


def test_a_finished_run_resumes_to_nothing_and_can_be_made_longer(tmp_path):
    list(train(make(), pictures(), tmp_path))
    assert list(train(make(), pictures(), tmp_path, resume=True)) == []
    assert list(train(make(), pictures(), tmp_path, resume=True, steps=14))[-1].step == 14


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("learning_rate", 0.0), ("learning_rate", math.inf), ("minutes", -1.0), ("detail", math.nan),
     ("seed", -1), ("keep", 0), ("patience", -1)],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        TokenizerSettings(**{name: value})

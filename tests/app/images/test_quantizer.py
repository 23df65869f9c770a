import random
from pathlib import Path

import numpy as np
import pytest
import torch

import forks
from dmb.app.images import Quantizer, quantizer


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


both = pytest.mark.parametrize("cosine", [True, False], ids=["directions", "points"])


def direction(z):
    return z / z.square().sum(-1, keepdim=True).sqrt()


def compared(z, cosine):
    return direction(z) if cosine else z


def trained(codes=8, width=3, calls=3, **options):
    torch.manual_seed(0)
    made = Quantizer(codes, width, **options)
    for seed in range(calls):
        made(normal(4, 16, width, seed=seed))
    return made


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def cosine_between(a, b):
    lengths = [sum(x * x for x in vector) ** 0.5 for vector in (a, b)]
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths[0] / lengths[1]


@both
def test_nearest_codes_are_those_of_a_loop_over_all(monkeypatch, cosine):
    made = Quantizer(13, 5, cosine=cosine).double()
    z = (normal(3, 7, 5) * torch.logspace(-6, 6, 7)[:, None]).double()
    further = (lambda a, b: -cosine_between(a, b)) if cosine else distance
    expected = [
        [min(range(13), key=lambda k: further(vector, made.codebook[k].tolist())) for vector in row] for row in z.tolist()
    ]  # fmt: skip
    assert made.nearest(z).tolist() == expected
    monkeypatch.setattr(quantizer, "_CHUNK", 13 * 4)  # 4 vectors at a time, 21 in all
    assert made.nearest(z).tolist() == expected


@both
def test_the_nearest_code_of_a_vector_of_any_length_is_that_of_its_direction(cosine):
    made, z = trained(cosine=cosine), normal(1, 500, 3, seed=9)
    nearest = made.nearest(z)
    assert torch.equal(nearest, made.nearest(1e-6 * z)) == cosine
    assert torch.equal(nearest, made(z)[1])


@both
def test_directions_stay_of_length_one_whatever_happens_to_them(cosine):
    made = Quantizer(8, 3, cosine=cosine, decay=0.7, revive=0.5)
    for seed in range(6):
        lengths = made.codebook.norm(dim=1)
        assert torch.allclose(lengths, torch.ones(8), atol=1e-6) == cosine
        made(9 * normal(4, 16, 3, seed=seed))


@both
def test_codes_are_their_own_nearest(cosine):
    made = trained(cosine=cosine)
    tokens = torch.arange(8)[None]
    assert torch.equal(made.nearest(made.codebook[tokens]), tokens)


@both
@pytest.mark.parametrize("training", [True, False])
def test_vectors_become_codes_and_the_distance_is_the_commitment(training, cosine):
    made = trained(cosine=cosine).train(training)
    before = made.codebook.clone()
    z = normal(2, 6, 3, seed=9)
    vectors, tokens, commitment = made(z)
    assert torch.allclose(vectors, before[tokens], atol=1e-6)
    assert torch.equal(tokens, trained(cosine=cosine).nearest(z))
    assert commitment.item() == pytest.approx((compared(z, cosine) - before[tokens]).square().mean().item(), rel=1e-5)
    assert torch.equal(made.codebook, before) == (not training)


def test_the_gradient_passes_straight_through():
    z = normal(2, 6, 3, seed=9).requires_grad_()
    weights = normal(2, 6, 3, seed=10)
    (trained(cosine=False)(z)[0] * weights).sum().backward()
    assert torch.equal(z.grad, weights)


def test_the_gradient_of_a_code_turns_the_direction_of_its_vector():
    z = normal(2, 6, 3, seed=9).requires_grad_()
    weights = normal(2, 6, 3, seed=10)
    (trained()(z)[0] * weights).sum().backward()
    unit, length = direction(z.detach()), z.detach().norm(dim=-1, keepdim=True)
    along = (weights * unit).sum(-1, keepdim=True)
    assert torch.allclose(z.grad, (weights - along * unit) / length, atol=1e-6)  # the part across the vector


def test_commitment_draws_vectors_to_their_codes():
    made = trained(cosine=False)
    codes = made.codebook.clone()
    z = normal(2, 6, 3, seed=9).requires_grad_()
    _, tokens, commitment = made(z)
    commitment.backward()
    assert torch.allclose(z.grad, 2 * (z - codes[tokens]).detach() / z.numel(), atol=1e-7)


@both
def test_codes_follow_the_mean_of_their_vectors_by_moving_averages(cosine):
    made = trained(decay=0.99, revive=1e-6, cosine=cosine)
    counts, sums = made.counts.numpy().astype(float), made.sums.numpy().astype(float)
    z = normal(4, 16, 3, seed=9)
    tokens, rows = made(z)[1].numpy().ravel(), compared(z, cosine).numpy().astype(float).reshape(-1, 3)
    for k in range(8):
        mine = rows[tokens == k]
        counts[k] = 0.99 * counts[k] + 0.01 * len(mine)
        sums[k] = 0.99 * sums[k] + 0.01 * mine.sum(0)
    np.testing.assert_allclose(made.counts, counts, rtol=1e-6)
    np.testing.assert_allclose(made.sums, sums, rtol=1e-5, atol=1e-6)
    lengths = np.sqrt((sums**2).sum(1)) if cosine else counts
    np.testing.assert_allclose(made.codebook, sums / lengths[:, None], rtol=1e-5, atol=1e-6)


@both
def test_the_start_is_the_k_means_of_the_first_batch(cosine):
    made = Quantizer(4, 2, revive=1e-9, cosine=cosine)
    z = normal(1, 60, 2)
    chosen = torch.randperm(60, generator=torch.Generator().manual_seed(7))[:4]
    vectors = compared(z[0].double(), cosine).numpy()
    centres = vectors[chosen.numpy()]
    for _ in range(10):
        nearest = ((vectors[:, None] - centres) ** 2).sum(-1).argmin(1)
        centres = np.stack([vectors[nearest == k].mean(0) for k in range(4)])
        centres = direction(torch.from_numpy(centres)).numpy() if cosine else centres
    _, tokens, _ = made(z, torch.Generator().manual_seed(7))
    np.testing.assert_array_equal(tokens[0], ((vectors[:, None] - centres) ** 2).sum(-1).argmin(1))
    start = Quantizer(4, 2, cosine=cosine)
    start._start(compared(z[0], cosine), torch.Generator().manual_seed(7))
    np.testing.assert_allclose(start.codebook, centres, atol=1e-5)


def test_the_first_call_finds_clusters():
    torch.manual_seed(0)
    made = Quantizer(4, 2, cosine=False)
    centres = torch.tensor([[0.0, 0], [0, 9], [9, 0], [9, 9]])
    z = centres.repeat(64, 1)[None] + 0.01 * normal(1, 256, 2)
    for _ in range(4):  # k-means may leave a code without vectors, which is revived
        made(z)
    assert torch.cdist(centres, made.codebook).min(1).values.max() < 0.1


def test_directions_that_nobody_has_are_given_to_vectors_that_are_there():
    made = trained(decay=0.9, revive=0.2)
    z = normal(4, 16, 3, seed=1).abs()  # in one octant
    with torch.no_grad():
        made.codebook[2:5] = made.sums[2:5] = direction(torch.tensor([[-1.0, -1, -1], [-1, -1, -2], [-2, -1, -1]]))
    assert not torch.isin(torch.tensor([2, 3, 4]), made(z)[1]).any()
    for _ in range(40):
        _, tokens, _ = made(z)
    assert (made.codebook >= 0).all()
    assert len(tokens.unique()) == 8


def test_dead_codes_are_revived_where_the_data_is():
    made = trained(decay=0.9, revive=0.2, cosine=False)
    with torch.no_grad():
        for buffer in (made.codebook, made.sums):
            buffer[2:5] = 1000.0
        made.sums.mul_(made.counts[:, None])
    z = normal(4, 16, 3, seed=1)
    assert not torch.isin(torch.tensor([2, 3, 4]), made(z)[1]).any()
    for _ in range(40):
        _, tokens, _ = made(z)
    assert made.codebook.abs().max() < 10
    assert len(tokens.unique()) == 8


@both
def test_living_codes_are_left_alone(cosine):
    made = trained(decay=0.99, revive=0.01, cosine=cosine)
    before = made.codebook.clone()
    for seed in range(5):
        made(normal(4, 16, 3, seed=seed))
    assert (made.codebook - before).norm(dim=1).max() < 0.2  # a revived one would jump to a vector about 1 away


@pytest.mark.parametrize("calls", [1, 3])
def test_a_restored_state_goes_on_to_the_same_codes(calls):
    def call(made, step):
        torch.manual_seed(step)
        made(normal(4, 16, 3, seed=step))

    straight, first, second = (Quantizer(8, 3, decay=0.7, revive=0.5) for _ in range(3))
    first.load_state_dict(straight.state_dict())
    for step in range(2 * calls):
        call(straight, step)
    for step in range(calls):
        call(first, step)
    second.load_state_dict(first.state_dict())
    for step in range(calls, 2 * calls):
        call(second, step)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert set(straight.state_dict()) == {"codebook", "counts", "sums", "started"}


def test_learning_draws_from_torchs_generator_only():
    def codes(torch_seed, other_seed):
        random.seed(other_seed)
        np.random.seed(other_seed)  # noqa: NPY002
        made = Quantizer(8, 3, decay=0.7, revive=0.5)
        for step in range(6):
            torch.manual_seed(torch_seed + step)
            made(normal(2, 8, 3, seed=step))
        return made.codebook

    assert torch.equal(codes(0, 0), codes(0, 1))
    assert not torch.equal(codes(0, 0), codes(100, 0))


def test_a_first_batch_smaller_than_the_codebook_will_do_and_nothing_is_printed(capfd):
    made = Quantizer(32, 3)
    made(normal(1, 4, 3))
    assert made.codebook.isfinite().all()
    assert capfd.readouterr() == ("", "")


def test_a_generator_decides_what_is_drawn():
    def codes(seed):
        made = Quantizer(16, 3, decay=0.7, revive=0.5)
        for step in range(4):
            made(normal(2, 8, 3, seed=step), torch.Generator().manual_seed(seed + step))
        return made.codebook

    assert torch.equal(codes(0), codes(0))
    assert not torch.equal(codes(0), codes(100))


SCRIPT = """
import sys, torch
from torch import distributed
sys.path.insert(0, {tests!r})
from test_quantizer import calls
rank = {rank}
distributed.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=2)
made = calls(lambda z: z.chunk(2)[rank])
torch.save({{name: tensor for name, tensor in made.state_dict().items()}}, f"{store}.{{rank}}")
distributed.destroy_process_group()
"""


def calls(share):
    """A quantiser whose codes start, move, die and come back."""
    torch.manual_seed(0)
    made = Quantizer(24, 3, decay=0.7, revive=0.5)
    revived = 0
    for step in range(6):
        before = made.counts.clone()
        made(share(normal(4, 8, 3, seed=step)), torch.Generator().manual_seed(step))
        revived += int((made.counts > before).sum())
    assert revived > 0
    return made


@pytest.mark.long
def test_two_processes_have_the_codes_of_one(tmp_path):
    folder, store = str(Path(__file__).parent), tmp_path / "store"
    scripts = [SCRIPT.format(tests=folder, store=store, rank=rank) for rank in range(2)]
    both = [forks.start(forks.script, code, output=tmp_path / "words") for code in scripts]
    assert forks.codes(*both) == [0, 0], (tmp_path / "words").read_text()
    first, second = (torch.load(f"{tmp_path / 'store'}.{rank}", weights_only=True) for rank in range(2))
    alone = calls(lambda z: z).state_dict()
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.equal(first[name], tensor), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codes": 1, "code_width": 3}, "codes must be at least 2 and code_width at least 1, got 1 and 3"),
        ({"codes": 8, "code_width": 0}, "codes must be at least 2 and code_width at least 1, got 8 and 0"),
        ({"codes": 8, "code_width": 3, "decay": 1.0}, r"decay and revive must lie in \(0, 1\), got 1.0 and 0.1"),
        ({"codes": 8, "code_width": 3, "revive": 1.0}, r"decay and revive must lie in \(0, 1\), got 0.9 and 1.0"),
    ],
)
def test_a_mistake_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Quantizer(**options)

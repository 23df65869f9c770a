import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from dmb.app.images import VQVAE, TokenizerSettings, losses, perplexity, psnr

SHAPES = {
    "32 -> 8 in colour": {"size": 32, "channels": 3, "grid": 8},
    "32 -> 16 in colour": {"size": 32, "channels": 3, "grid": 16},
    "8 -> 4 in grey": {"size": 8, "channels": 1, "grid": 4},
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def small(seed=0, **options):
    torch.manual_seed(seed)
    return VQVAE(
        **({"size": 8, "channels": 1, "grid": 4, "codes": 16, "width": 16, "blocks": 1, "code_width": 4} | options)
    )


def noise(count, vqvae, seed=0):
    shape = (count, vqvae.size, vqvae.size, vqvae.channels)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def stripes(count, size=8, seed=0):
    """Grey images of stripes: a direction, a phase, two shades."""
    generator = torch.Generator().manual_seed(seed)
    angle, phase, low, high = torch.rand(4, count, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    wave = torch.sin(x * torch.cos(3.14 * angle) + y * torch.sin(3.14 * angle) + 6.28 * phase)
    return (255 * torch.where(wave > 0, low, high)).to(torch.uint8)[..., None]


def step(vqvae, optimiser, images, number):
    torch.manual_seed(number)
    batch = images[torch.randint(len(images), (16,))]
    loss = vqvae.loss(batch)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss


def adam(vqvae):
    return torch.optim.Adam(vqvae.parameters(), lr=3e-3)


@every_shape
def test_images_become_a_token_a_place_and_images_again(shape):
    vqvae = small(**shape)
    images = noise(3, vqvae)
    tokens = vqvae.encode(images)
    assert tokens.shape == (3, shape["grid"] ** 2)
    assert tokens.dtype == torch.long
    assert 0 <= tokens.min() <= tokens.max() < 16
    decoded = vqvae.decode(tokens)
    assert decoded.shape == images.shape
    assert decoded.dtype == torch.uint8
    assert torch.equal(vqvae.reconstruct(images), decoded)
    assert torch.isclose(vqvae.eval().loss(images), vqvae.loss(images, detail=0.1, commitment=0.25))
    assert torch.equal(vqvae.encode(images[:0]), tokens[:0])
    assert torch.equal(vqvae.decode(tokens[:0]), images[:0])


def test_defaults_are_those_of_cifar10():
    vqvae = VQVAE()
    assert vqvae.config() == VQVAE(size=32, channels=3, **TokenizerSettings().sizes()).config()
    assert vqvae.encode(noise(1, vqvae)).shape == (1, 64)


def test_decoding_tokens_is_the_decoder_applied_to_their_vectors():
    vqvae = small(seed=1)
    tokens = torch.randint(16, (2, 16), generator=torch.Generator().manual_seed(0))
    vectors = torch.empty(2, 4, 4, 4)
    for row in range(2):
        for place in range(16):
            vectors[row, :, place // 4, place % 4] = vqvae.quantizer.codebook[tokens[row, place]]
    with torch.no_grad():
        expected = (vqvae.decoder(vectors) + 1) / 2 * 255
    decoded = vqvae.decode(tokens).permute(0, 3, 1, 2).double()
    assert (decoded - expected.clamp(0, 255)).abs().max() <= 0.5 + 1e-3


def test_pixels_out_of_range_are_clamped_not_wrapped():
    vqvae = small()
    tokens = torch.zeros(1, 16, dtype=torch.long)
    for bias, value in ((9.0, 255), (-9.0, 0)):
        torch.nn.init.constant_(vqvae.decoder[-1].bias, bias)
        assert (vqvae.decode(tokens) == value).all()


def test_encoding_is_the_nearest_code_of_every_place():
    vqvae = small()
    images = noise(2, vqvae)
    with torch.no_grad():
        z = vqvae.encoder((images.float() / 255 * 2 - 1).permute(0, 3, 1, 2))
    distance = (z.flatten(2).mT[:, :, None] - vqvae.quantizer.codebook).norm(dim=-1)
    assert torch.equal(vqvae.encode(images), distance.argmin(-1))


def test_many_images_are_encoded_as_each_alone():
    vqvae = small()
    images = noise(300, vqvae)  # more than a batch
    alone = torch.cat([vqvae.encode(image[None]) for image in images[250:260]])
    assert (vqvae.encode(images)[250:260] == alone).float().mean() > 0.99  # but for rounding


@pytest.mark.parametrize("cosine", [True, False])
def test_losses_are_the_formulas(cosine):
    vqvae = small(cosine=cosine).eval()
    images = noise(4, vqvae)
    pixels, with_edges, near = (
        vqvae.loss(images, detail=detail, commitment=commitment).item()
        for detail, commitment in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    )
    original = images.double().permute(0, 3, 1, 2) / 255
    vectors = vqvae.quantizer.codebook[vqvae.encode(images)].view(4, 4, 4, 4).permute(0, 3, 1, 2)
    restored = (vqvae.decoder(vectors).double() + 1) / 2
    assert pixels == pytest.approx(16 * (restored - original).square().mean().item(), rel=1e-4)
    scales = []
    for side in (1, 2, 4):
        a, b = (image.unfold(2, side, side).unfold(3, side, side).mean((-1, -2)) for image in (original, restored))
        across = ((a[..., 1:] - a[..., :-1]) - (b[..., 1:] - b[..., :-1])).abs().mean()
        down = ((a[..., 1:, :] - a[..., :-1, :]) - (b[..., 1:, :] - b[..., :-1, :])).abs().mean()
        scales.append(4 * (across + down) / 2)
    assert with_edges - pixels == pytest.approx(sum(scales).item() / 3, rel=1e-4)
    z = vqvae.encoder(original.float() * 2 - 1)
    distance = ((z / z.norm(dim=1, keepdim=True) if cosine else z) - vectors).square().mean().item()
    assert near - pixels == pytest.approx(distance, rel=1e-4)
    total = vqvae.loss(images, detail=0.7, commitment=0.3).item()
    assert total == pytest.approx(pixels + 0.7 * (with_edges - pixels) + 0.3 * (near - pixels), rel=1e-5)


def test_detail_prefers_an_edge_a_little_off_to_a_blurred_one():
    edge = torch.zeros(1, 1, 8, 8)
    edge[..., 4:] = 1.0
    off, blurred = edge + 0.25, F.avg_pool2d(edge, (1, 5), stride=1, padding=(0, 2), count_include_pad=False)
    assert losses.reconstruction(off - edge) > losses.reconstruction(blurred - edge)
    assert losses.detail(off - edge) < 1e-6 < 0.1 < losses.detail(blurred - edge)


def test_every_weight_is_trained():
    vqvae = small()
    vqvae.loss(noise(8, vqvae)).backward()
    for name, parameter in vqvae.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_training_lowers_the_loss_and_uses_many_codes():
    vqvae, images = small(), stripes(64)
    optimiser = adam(vqvae)
    before, psnr_before = vqvae.eval().loss(images), psnr(vqvae.reconstruct(images), images)
    vqvae.train()
    for number in range(80):
        step(vqvae, optimiser, images, number)
    assert vqvae.eval().loss(images) < 0.5 * before
    assert psnr(vqvae.reconstruct(images), images) > psnr_before + 3
    assert perplexity(vqvae.encode(images), 16) > 3


def test_evaluation_changes_nothing():
    vqvae = small().eval()
    before = {name: tensor.clone() for name, tensor in vqvae.state_dict().items()}
    vqvae.loss(noise(4, vqvae))
    vqvae.train().reconstruct(noise(4, vqvae))
    assert all(torch.equal(before[name], tensor) for name, tensor in vqvae.state_dict().items())


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    images = stripes(64)

    def run(vqvae, optimiser, numbers):
        for number in numbers:
            step(vqvae, optimiser, images, number)
        return vqvae, optimiser

    options = {"codes": 64, "decay": 0.7, "revive": 0.5}  # so that codes die
    straight, _ = run(one := small(**options), adam(one), range(6))
    first, optimiser = run(two := small(**options), adam(two), range(3))
    save_file(first.state_dict(), tmp_path / "state.safetensors")
    torch.save(optimiser.state_dict(), tmp_path / "optimiser.pt")
    second = small(seed=7, **options)
    second.load_state_dict(load_file(tmp_path / "state.safetensors"))
    resumed = adam(second)
    resumed.load_state_dict(torch.load(tmp_path / "optimiser.pt", weights_only=True))
    run(second, resumed, range(3, 6))
    assert not torch.equal(first.quantizer.codebook, straight.quantizer.codebook)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


@pytest.fixture(scope="module")
def trained():
    vqvae, images = small(), stripes(64)
    optimiser = adam(vqvae)
    for number in range(3):
        step(vqvae, optimiser, images, number)
    return vqvae


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_is_the_same_to_the_last_bit(trained, dtype, tmp_path):
    vqvae = small()
    vqvae.load_state_dict(trained.state_dict())
    vqvae.to(dtype).write(tmp_path / "new" / "folder")
    loaded = VQVAE.from_pretrained(tmp_path / "new" / "folder")
    assert not loaded.training
    assert loaded.config() == vqvae.config()
    for name, tensor in vqvae.state_dict().items():
        if name not in ("quantizer.counts", "quantizer.sums"):
            assert torch.equal(tensor, loaded.state_dict()[name]), name
            assert tensor.dtype == loaded.state_dict()[name].dtype
    images = stripes(20, seed=1)
    assert torch.equal(loaded.encode(images), vqvae.encode(images))
    assert torch.equal(loaded.reconstruct(images), vqvae.reconstruct(images))
    assert torch.equal(loaded.loss(images), vqvae.eval().loss(images))
    assert loaded.digest() == vqvae.digest()


def test_the_file_holds_the_codebook_as_one_plain_tensor(trained, tmp_path):
    trained.write(tmp_path)
    trained.write(tmp_path)  # over the old one
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["codebook"], trained.quantizer.codebook)
    assert {name.split(".")[0] for name in tensors} == {"encoder", "decoder", "codebook"}
    assert json.loads((tmp_path / "config.json").read_text())["type"] == "VQVAE"


def test_the_hubs_own_way_of_saving_gives_the_same_model(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").exists()
    assert VQVAE.from_pretrained(str(tmp_path)).digest() == trained.digest()


def test_a_model_that_was_saved_before_codes_were_directions_gives_what_it_gave(tmp_path):
    vqvae = small(cosine=False)
    optimiser = adam(vqvae)
    for number in range(3):
        step(vqvae, optimiser, stripes(64), number)
    vqvae.write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["cosine"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    old, images = VQVAE.from_pretrained(tmp_path), stripes(20, seed=1)
    assert not old.cosine
    assert old.digest() == vqvae.digest()
    assert torch.equal(old.encode(images), vqvae.encode(images))
    assert torch.equal(old.reconstruct(images), vqvae.reconstruct(images))
    assert torch.equal(old.loss(images), vqvae.eval().loss(images))


def test_a_loaded_model_can_be_trained_further_from_its_codes(trained, tmp_path):
    trained.write(tmp_path)
    loaded = VQVAE.from_pretrained(tmp_path).train()
    loaded.loss(stripes(16))
    moved = (loaded.quantizer.codebook - trained.quantizer.codebook).norm(dim=1)
    assert 0 < moved.median() < 0.1 * trained.quantizer.codebook.norm(dim=1).median()


def test_the_digest_changes_with_the_encoder_and_the_codebook_only(trained):
    def changed(name):
        vqvae = small()
        vqvae.load_state_dict(trained.state_dict())
        vqvae.state_dict()[name].view(-1)[-1] += 1e-3
        return vqvae.digest() != trained.digest()

    expected = {name: name.startswith("encoder.") or name == "quantizer.codebook" for name in trained.state_dict()}
    del expected["quantizer.started"]  # not a number to add to
    assert {name: changed(name) for name in expected} == expected
    assert len(bytes.fromhex(trained.digest())) == 32


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small(size=24, grid=8), "size / grid must be a power of 2, at least 2, got 24 / 8"),
        (lambda: small(size=8, grid=8), "size / grid must be a power of 2, at least 2, got 8 / 8"),
        (lambda: small(size=9, grid=4), "size / grid must be a power of 2, at least 2, got 9 / 4"),
        (lambda: small(grid=0), "size / grid must be a power of 2, at least 2, got 8 / 0"),
        (lambda: small(width=0), "channels and width must be at least 1, got 1 and 0"),
        (lambda: small(codes=1), "codes must be at least 2"),
        (lambda: small().encode(torch.zeros(2, 9, 8, 1, dtype=torch.uint8)), r"images must be uint8 \[batch, 8, 8, 1\], got torch.uint8 \[2, 9, 8, 1\]"),
        (lambda: small().loss(torch.zeros(2, 8, 8, 3, dtype=torch.uint8)), r"images must be uint8 \[batch, 8, 8, 1\], got torch.uint8 \[2, 8, 8, 3\]"),
        (lambda: small().encode(torch.zeros(8, 8, 1, dtype=torch.uint8)), r"images must be uint8 \[batch, 8, 8, 1\], got torch.uint8 \[8, 8, 1\]"),
        (lambda: small().encode(torch.zeros(2, 8, 8, 1)), r"images must be uint8 \[batch, 8, 8, 1\], got torch.float32 \[2, 8, 8, 1\]"),
        (lambda: small().loss(torch.zeros(0, 8, 8, 1, dtype=torch.uint8)), "images must not be empty"),
        (lambda: small().decode(torch.full((2, 16), 16)), r"tokens must lie in \[0, 16\), got 16 at row 0, position 0"),
        (lambda: small().decode(torch.zeros(2, 15).long()), r"tokens must have shape \[batch, 16\], got \[2, 15\]"),
        (lambda: small().decode(torch.zeros(2, 16)), "tokens must be an integer tensor, got torch.float32"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def rewritten(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def retensored(folder, **changes):
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is not a saved VQ-VAE: it has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is not a saved VQ-VAE: it has no model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json does not describe a VQ-VAE"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "config.json does not describe a VQ-VAE"),
        (lambda folder: rewritten(folder, type="MLP"), "does not describe a VQ-VAE: it is of class MLP, not VQVAE"),
        (lambda folder: rewritten(folder, format=9), "does not describe a VQ-VAE: it has format 9, but this version of dmb reads 2"),
        (lambda folder: rewritten(folder, depth=9), "does not describe a VQ-VAE: .*depth"),
        (lambda folder: rewritten(folder, grid="4"), "does not describe a VQ-VAE"),
        (lambda folder: rewritten(folder, grid=3), "does not describe a VQ-VAE: size / grid must be a power of 2"),
        (lambda folder: rewritten(folder, codes=17), r"does not fit (.|\n)*quantizer.codebook"),
        (lambda folder: rewritten(folder, blocks=2), r"does not fit (.|\n)*Missing"),
        (lambda folder: retensored(folder, codebook=None), r"does not fit (.|\n)*Missing .*quantizer.codebook"),
        (lambda folder: retensored(folder, other=torch.zeros(1)), r"does not fit (.|\n)*Unexpected .*other"),
        (lambda folder: retensored(folder, codebook=torch.zeros(16, 4).int()), "quantizer.codebook is torch.int32"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "model.safetensors cannot be read"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(trained, damage, message, tmp_path):
    trained.write(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        VQVAE.from_pretrained(tmp_path)

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dmb._core.configuration import Configurable
from dmb.app import recipes
from dmb.app.compare.plan import _plain
from dmb.app.compare.rows import ROWS
from dmb.app.images import VQVAE, Codes
from dmb.app.images.codes import images_of, write_codes, write_sheet
from dmb.app.loading import load
from dmb.app.report.symbols import Symbols
from dmb.app.runs import Run
from dmb.data import DataSet, Grid, ImageCodec, Picture, Rows
from dmb.orders import Streams
from dmb.processes import BridgeProcess, grouping
from dmb.training import engine

IMAGES = np.random.default_rng(0).integers(256, size=(30, 8, 8, 3), dtype=np.uint8)


def autoencoder(channels=3, seed=0):
    """One that nobody has trained, but whose codes are all in use: they are vectors of its own encoder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vqvae = VQVAE(size=8, channels=channels, grid=4, codes=16, width=8).eval()
    pixels = torch.from_numpy(IMAGES[..., :channels])
    with torch.no_grad():
        vectors = F.normalize(vqvae._vectors(vqvae._pixels(pixels)).flatten(0, 1), dim=1)
        vqvae.load_tensors(vqvae.tensors() | {"codebook": vectors[:: len(vectors) // 16][:16]})
        for weights in vqvae.decoder.parameters():
            weights *= 3  # or all images would be grey
    return vqvae


def trained(folder, vqvae, source):
    """What `dmb tokenize` leaves, as far as it matters here."""
    vqvae.write(folder)
    images = load(source)
    (folder / "tokenizer-settings.json").write_text("{}")
    write_sheet(folder / "sheet.png", vqvae, images)
    write_codes(folder, vqvae, images)
    return folder


def photographs(folder, channels=3):
    for index, image in enumerate(IMAGES):
        path = folder / ("odd" if index % 2 else "even") / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image if channels == 3 else image[..., 0]).save(path)
    return folder


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def channels(request):
    return request.param


@pytest.fixture
def vqvae(channels):
    return autoencoder(channels)


@pytest.fixture
def run(tmp_path, vqvae, channels):
    return trained(tmp_path / "vq", vqvae, photographs(tmp_path / "photos", channels))


@pytest.fixture
def in_colour(tmp_path):
    return trained(tmp_path / "vq", autoencoder(), photographs(tmp_path / "photos"))


# -- the data set -----------------------------------------------------------------------------------------------------


def test_a_folder_of_codes_is_its_images_in_the_same_splits_with_their_labels(run, vqvae, tmp_path, channels):
    data, originals = load(run), load(tmp_path / "photos")
    assert isinstance(data, DataSet)
    assert (data.name, data.source, data.num_classes) == ("vq", str(run), 2)
    assert len(data.class_names) == 2
    assert data.class_names == originals.class_names
    assert (data.num_positions, data.num_states) == (16, 16)
    for part, split in originals.splits().items():
        images = split[:].to(torch.uint8).view(-1, 8, 8, channels)
        assert torch.equal(data.splits()[part][:], vqvae.encode(images))
        assert torch.equal(data.splits()[part].labels(slice(None)), split.labels(slice(None)))
    assert len(data.train[:].unique()) > 8  # or these tests would say little


def test_the_data_set_can_be_loaded_again_from_its_codec_alone(run):
    data = load(run)
    codec = Configurable.from_config(json.loads(json.dumps(data.codec.to_config())))
    again = load(data.source, length=data.num_positions, codec=codec)
    assert again.codec.to_config() == data.codec.to_config()
    for part, split in data.splits().items():
        assert torch.equal(split[:], again.splits()[part][:])


@pytest.mark.parametrize(("codes", "dtype"), [(16, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_codes_are_kept_in_the_smallest_type_and_memory_mapped(tmp_path, codes, dtype):
    with torch.random.fork_rng(devices=[]):
        vqvae = VQVAE(size=8, grid=4, codes=codes, width=8)
    images, seen = load(photographs(tmp_path / "photos")), []
    vqvae.write(tmp_path / "vq")
    about = write_codes(tmp_path / "vq", vqvae, images, lambda *counts: seen.append(counts))
    assert seen == [(24, 30), (27, 30), (30, 30)]
    assert about["images"] == {"train": 24, "validation": 3, "test": 3}
    assert np.load(tmp_path / "vq" / "train.npy").dtype == dtype
    data = load(tmp_path / "vq")
    assert isinstance(data.train._tokens, np.memmap)
    assert torch.equal(data.test[:], vqvae.encode(torch.from_numpy(images.codec.images(images.test[:]))))


def test_the_summary_says_how_well_test_images_come_back(in_colour, tmp_path):
    about = json.loads((in_colour / "tokenizer.json").read_text())
    vqvae, photos = autoencoder(), load(tmp_path / "photos")
    test = photos.codec.images(photos.test[:])
    back = vqvae.reconstruct(torch.from_numpy(test)).numpy()
    used = np.bincount(vqvae.encode(torch.from_numpy(test)).flatten(), minlength=16) / (3 * 16)
    assert about["psnr"] == pytest.approx(10 * np.log10(255**2 / ((test.astype(float) - back) ** 2).mean()))
    assert about["perplexity"] == pytest.approx(np.exp(-(used[used > 0] * np.log(used[used > 0])).sum()))
    assert (about["codes"], about["shape"], about["classes"]) == (16, [8, 8, 3], 2)
    assert about["digest"] == vqvae.digest()


@pytest.mark.parametrize("damage", ["cut", "no array", "other shape", "other type", "no code"])
def test_a_damaged_file_is_named(in_colour, damage):
    file = in_colour / "test.npy"
    before = np.load(file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif damage == "no array":
        file.write_bytes(b"")
    else:
        np.save(file, {"other shape": before[:2], "other type": before.astype(float), "no code": before + 99}[damage])
    with pytest.raises(ValueError, match=r"test\.npy") as caught:
        load(in_colour)
    assert "\n" not in str(caught.value)


def test_images_that_have_changed_since_are_refused_where_they_are_needed(in_colour, tmp_path):
    shutil.copy(tmp_path / "photos" / "even" / "00.png", tmp_path / "photos" / "even" / "new.png")
    load(in_colour)  # which they are not here
    with pytest.raises(ValueError, match=r"photos has changed since .*vq was made from it: make it again"):
        images_of(in_colour)


def test_a_model_keeps_its_own_vqvae_wherever_its_codes_lie(in_colour, tmp_path):
    data = load(in_colour)
    shutil.copytree(in_colour, tmp_path / "moved")
    again = load(tmp_path / "moved", codec=data.codec)
    assert again.codec is data.codec
    assert torch.equal(again.train[:], data.train[:])
    with pytest.raises(ValueError, match=r"vq must be readable by Grid\(.*\), got data for Codes\("):
        load(in_colour, codec=Grid([4, 4], 16))
    trained(tmp_path / "other", autoencoder(seed=1), tmp_path / "photos")
    with pytest.raises(ValueError, match=r"other must be readable by Codes\("):
        load(tmp_path / "other", codec=data.codec)


@pytest.mark.parametrize(("count", "pairs"), [(10, 1), (30, 3), (400, 32)])
def test_the_sheet_shows_each_image_beside_what_comes_back_of_it(count, pairs, tmp_path):
    tokens = np.random.default_rng(0).integers(256, size=(count, 8, 8, 1), dtype=np.uint8)
    train, validation, test = (Rows(part, 256) for part in np.split(tokens, [count * 8 // 10, count * 9 // 10]))
    images = DataSet(name="noise", source="", codec=Picture([8, 8, 1]), train=train, validation=validation, test=test)
    vqvae = autoencoder(channels=1)
    write_sheet(tmp_path / "sheet.png", vqvae, images)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    across = math.ceil(math.sqrt(pairs))
    assert sheet.shape[1] == across * 2 * 96 + (across - 1) * 2
    truth = images.codec.images(validation[:])
    for pair in range(pairs):
        top, left = pair // across * (96 + 2), pair % across * (2 * 96 + 2)
        small = sheet[top : top + 96 : 12, left : left + 2 * 96 : 12, None]
        before, after = small[:, :8], small[:, 8:]
        assert any((before == image).all() for image in truth)
        np.testing.assert_array_equal(after, vqvae.reconstruct(torch.tensor(before)[None])[0])


def test_the_images_behind_codes_can_be_had(in_colour, tmp_path):
    data = load(in_colour)
    originals = images_of(in_colour)
    assert originals.source == str(tmp_path / "photos")
    assert originals.codec.to_config() == Picture([8, 8, 3]).to_config()
    assert len(originals.train) == len(data.train)


def test_mistakes_are_named(in_colour, tmp_path):
    def fails(message, source=in_colour, **options):
        with pytest.raises(ValueError, match=message) as caught:
            load(source, **options)
        assert "\n" not in str(caught.value)

    fails("levels applies to images only, got 8", levels=8)
    fails("encoding applies to text files only", encoding="bytes")
    fails("most_states applies to array files only, got 8", most_states=8)
    fails("kinds and bins apply to tables only", bins=8)
    fails("length must be 16 for vq, got 4", length=4)
    described = (in_colour / "tokenizer.json").read_text()
    (in_colour / "tokenizer.json").write_text("{}")
    fails("tokenizer.json must have format 1, which this version of dmb reads, got None")
    (in_colour / "tokenizer.json").write_text('{"format": 1}')
    fails("tokenizer.json does not describe codes: 'digest'")
    (in_colour / "tokenizer.json").write_text("no JSON")
    fails("tokenizer.json cannot be read")
    (in_colour / "tokenizer.json").write_text(described.replace("photos", "nowhere"))
    with pytest.raises(ValueError, match=r"the images of .*vq cannot be read: no data set or file called '.*nowhere'"):
        images_of(in_colour)
    np.save(tmp_path / "x.npy", IMAGES)
    (in_colour / "tokenizer.json").write_text(described.replace("photos", "x.npy"))
    with pytest.raises(ValueError, match=r"x.npy has changed since .*vq was made from it"):
        images_of(in_colour)
    (in_colour / "tokenizer.json").unlink()
    fails("vq has no tokenizer.json, so it is not finished: continue with dmb tokenize --resume")
    bridge = tmp_path / "bridge"
    (bridge / "samples").mkdir(parents=True)
    Image.fromarray(IMAGES[0]).save(bridge / "samples" / "step_000000001.png")
    (bridge / "run.json").write_text("{}")
    fails("bridge must hold images, or codes of images, to be read as data, got the folder of a run", bridge)


def test_a_folder_of_images_may_have_a_config_of_its_own(tmp_path):
    folder = photographs(tmp_path / "photos")
    for content in ("[]", '{"type": "camera"}', "no JSON"):
        (folder / "config.json").write_text(content)
        assert isinstance(load(folder).codec, Picture)


# -- the codec --------------------------------------------------------------------------------------------------------


def fresh(run):
    """The codec as a run of a bridge has it: it has read nothing yet."""
    codec = Configurable.from_config(load(run).codec.to_config())
    assert isinstance(codec, Codes)
    assert isinstance(codec, ImageCodec)
    return codec


TOKENS = torch.arange(80).view(5, 16) * 7 % 16


def test_samples_come_out_as_decoded_images(run, vqvae, tmp_path, channels):
    codec, wanted = fresh(run), vqvae.decode(TOKENS).numpy()
    np.testing.assert_array_equal(codec.images(TOKENS), wanted)
    codec.write(tmp_path / "x.npy", TOKENS)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)
    codec.write(tmp_path / "x.png", TOKENS)
    same = Picture([8, 8, channels])
    values = torch.from_numpy(wanted.reshape(5, -1).astype(np.int64))
    same.write(tmp_path / "same.png", values)
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "same.png").read_bytes()
    assert codec.decode(TOKENS) == same.decode(values)
    assert codec.decode(TOKENS[:0]) == []


def test_codes_carry_the_tree_of_their_vectors(in_colour):
    vectors = fresh(in_colour).vectors()
    assert torch.equal(vectors, autoencoder().quantizer.codebook)
    tree = grouping.by_vectors(vectors, [4])
    assert 16 + 1 < tree.parent.shape[1] <= 16 + 4 + 1  # a cluster of one code is none


def test_tokens_that_are_no_codes_are_named(in_colour):
    codec = fresh(in_colour)
    with pytest.raises(ValueError, match=r"tokens must lie in \[0, 16\), got 16 at row 1, position 2"):
        codec.images(torch.where(torch.arange(80).view(5, 16) == 18, 16, TOKENS))
    with pytest.raises(ValueError, match="tokens must have 16 positions, got 15"):
        codec.decode(TOKENS[:, 1:])


def test_a_vqvae_that_is_gone_or_another_is_an_error_when_it_is_needed(in_colour):
    changed, gone = fresh(in_colour), fresh(in_colour)
    autoencoder(seed=1).write(in_colour)
    with pytest.raises(ValueError, match="vq holds another VQ-VAE than the one that made this model's codes"):
        changed.images(TOKENS)
    shutil.rmtree(in_colour)
    assert gone.template("1, _", 16).tolist() == [1, *[-1] * 15]  # for which it is not
    with pytest.raises(ValueError, match="vq must hold the VQ-VAE of these codes, got no such folder"):
        gone.images(TOKENS)


def test_the_run_of_a_bridge_makes_images_without_that_of_the_vqvae(in_colour, tmp_path):
    data = load(in_colour)
    recipe = recipes.recipe("codes").changed(source=str(in_colour), width=16, blocks=1)
    Run.create(tmp_path / "run", recipe, data)
    wanted, sheet = data.codec.images(TOKENS), (in_colour / "sheet.png").read_bytes()
    about = json.loads((in_colour / "tokenizer.json").read_text())
    shutil.rmtree(in_colour)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    run = Run.open(tmp_path / "elsewhere")
    np.testing.assert_array_equal(run.codec.images(TOKENS), wanted)
    kept = tmp_path / "elsewhere" / "vqvae"
    assert (kept / "sheet.png").read_bytes() == sheet
    assert json.loads((kept / "summary.json").read_text()) == about
    with pytest.raises(ValueError, match="no data set or file called"):
        run.data()


# -- bridges ----------------------------------------------------------------------------------------------------------


def test_the_recipe_of_codes_writes_streams_over_tiles_of_the_grid(in_colour):
    data = load(in_colour)
    recipe = recipes.recipe("codes").changed(source=str(in_colour), width=16, blocks=1, heads=2)
    bridge = recipe.build(data)
    assert isinstance(bridge.order, Streams)
    assert (bridge.order.shape, bridge.order.budgets) == ((4, 4), (4, 8, 16))
    assert bridge.order.weights is not None
    assert sorted(bridge.network.offsets.tolist()) == [-4, -1, 1, 4]  # along both axes
    assert bridge.network.places.shape == (16, 16)
    with torch.no_grad():
        bridge.order.weights.copy_(torch.tensor([-300.0, -100.0]))  # so steep that orders leave nothing to chance
    call = bridge.order.for_calls(4).divide(bridge.order.for_calls(4).turns(1), 4)[0].view(4, 4)
    for number in range(4):  # each call writes the same place of all four tiles, never two neighbours
        rows, columns = (call == number).nonzero().T
        assert len(rows) == 4
        assert {*(rows % 2).tolist()} == {rows[0].item() % 2}
        assert {*(columns % 2).tolist()} == {columns[0].item() % 2}
    recipe.check(bridge, data, engine(accelerator="cpu"))
    assert bridge.loss(data.train[:8]).isfinite().all()
    assert bridge.bound(data.test[:2], calls=4).bits_per_token > 0
    assert bridge.sample(2, calls=4).shape == (2, 16)


def test_other_ways_to_learn_codes_are_compared_with_it(in_colour):
    data = load(in_colour)
    rows = {row.name: row for row in ROWS if row.fits(data)}
    plain = _plain(recipes.recipe("codes").changed(source=str(in_colour), width=8, blocks=1, heads=2), ())
    for name in ("paths", "paths-learned", "streams", "streams-learned", "mdlm", "mean-tree", "dmb-published"):
        recipe = rows[name].apply(plain, data, 10)
        bridge = recipe.build(data)
        recipe.check(bridge, data, engine(accelerator="cpu"))
        assert bridge.loss(data.train[:4]).isfinite().all(), name
    assert rows["mean-tree"].title == "bridge, tree of clusters of codebook vectors, fixed, mean head"
    tree = rows["mean-tree"].apply(plain, data, 10).build(data).process.hierarchy
    own = grouping.by_vectors(data.codec.vectors(), [12, 5])
    assert torch.equal(tree.parent, own.parent)


# -- templates --------------------------------------------------------------------------------------------------------


def test_a_template_is_of_codes(in_colour, tmp_path):
    codec = fresh(in_colour)
    assert codec.template("3, _, 15", 16).tolist() == [3, -1, 15, *[-1] * 13]
    with pytest.raises(ValueError, match=r"the template must hold numbers in \[0, 16\), got 16 at position 0"):
        codec.template("16", 16)
    grid = np.arange(16).reshape(4, 4) - 1
    np.save(tmp_path / "x.npy", grid)
    assert codec.template(str(tmp_path / "x.npy"), 16).tolist() == grid.ravel().tolist()


def test_codes_of_an_image_are_known_where_all_its_pixels_are_opaque(run, vqvae, tmp_path, channels):
    alpha = np.full((8, 8, 1), 255, dtype=np.uint8)
    alpha[0:2, 0:2] = 0  # all of the first code
    alpha[7, 7] = 254  # a corner of the last
    image = IMAGES[1, ..., :channels]
    coloured = np.repeat(image, 3, axis=2) if channels == 1 else image
    Image.fromarray(np.concatenate([coloured, alpha], axis=2)).save(tmp_path / "x.png")
    seen = torch.from_numpy(np.where(alpha < 255, 128, image).astype(np.uint8))
    wanted = vqvae.encode(seen[None])[0]
    wanted[[0, 15]] = -1
    assert torch.equal(fresh(run).template(f" {tmp_path / 'x.png'}", 16), wanted)
    Image.fromarray(coloured).save(tmp_path / "x.png")
    assert torch.equal(fresh(run).template(str(tmp_path / "x.png"), 16), vqvae.encode(torch.from_numpy(image[None]))[0])


# -- reports ----------------------------------------------------------------------------------------------------------


def test_masked_codes_are_painted_as_orange_squares(run, vqvae, channels):
    codec = fresh(run)
    tokens = TOKENS.clone()
    tokens[1, [0, 6]] = 16  # the mask, one more than there are codes
    process = BridgeProcess.from_marginals(torch.full((16, 16), 1 / 16), mask=True, floor=0.0)
    painted = Symbols(codec, process).painted(tokens)
    squares = np.zeros((8, 8), dtype=bool)
    squares[0:2, 0:2] = squares[2:4, 4:6] = True
    assert (painted[1, squares] == [0xD9, 0x66, 0x2B]).all()
    assert (painted[1, ~squares] != [0xD9, 0x66, 0x2B]).any(-1).all()
    others = [0, 2, 3, 4]
    decoded = np.broadcast_to(vqvae.decode(tokens[others]).numpy(), (4, 8, 8, 3))
    np.testing.assert_array_equal(painted[others], decoded)


def test_a_view_of_codes_says_how_they_lie_in_an_image(in_colour):
    assert fresh(in_colour).view(TOKENS).grid == (4, 4)

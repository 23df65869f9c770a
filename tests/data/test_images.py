import errno
import os

import numpy as np
import pytest
import torch
from PIL import Image

from dmb.data import Picture, images, load
from dmb.data.sources import images as module

COLOUR = np.random.default_rng(0).integers(256, size=(20, 4, 5, 3), dtype=np.uint8)
GREY = COLOUR[..., 0]


def save(folder, arrays, name="{:02}.png", **options):
    folder.mkdir(parents=True, exist_ok=True)
    for index, array in enumerate(arrays):
        Image.fromarray(array).save(folder / name.format(index), **options)
    return folder


def rows_of(data):
    return sorted(torch.cat([split[:] for split in data.splits().values()]).tolist())


@pytest.mark.parametrize(
    ("extension", "options"), [("png", {}), ("bmp", {}), ("webp", {"lossless": True}), ("PNG", {})]
)
def test_a_folder_of_images_is_read_pixel_by_pixel(tmp_path, extension, options):
    save(tmp_path / "photos", COLOUR, f"{{:02}}.{extension}", **options)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    (tmp_path / "photos" / "._00.png").write_text("what a Mac leaves behind")
    data = load(tmp_path / "photos")
    assert (data.name, data.source, data.num_classes) == ("photos", str(tmp_path / "photos"), 0)
    assert (data.codec.shape, data.num_states, data.num_positions) == ([4, 5, 3], 256, 60)
    assert [len(split) for split in data.splits().values()] == [16, 2, 2]
    assert rows_of(data) == sorted(COLOUR.reshape(20, 60).tolist())
    assert isinstance(data.train._tokens, np.memmap)


def test_images_are_split_like_an_array_of_them(tmp_path):
    np.save(tmp_path / "x.npy", COLOUR)
    one, other = load(tmp_path / "x.npy"), load(save(tmp_path / "photos", COLOUR))
    for part in ("train", "validation", "test"):
        assert torch.equal(one.splits()[part][:], other.splits()[part][:])


def test_jpegs_come_as_pillow_decodes_them(tmp_path):
    save(tmp_path / "photos", COLOUR[:10], "{:02}.jpg")
    save(tmp_path / "photos", COLOUR[10:], "1{}.jpeg")
    wanted = [np.asarray(Image.open(path)).ravel().tolist() for path in (tmp_path / "photos").iterdir()]
    assert rows_of(images(tmp_path / "photos")) == sorted(wanted)


def test_grey_images_have_one_channel_and_three_among_colour(tmp_path):
    save(tmp_path / "grey", GREY)
    data = images(tmp_path / "grey")
    assert data.codec.shape == [4, 5, 1]
    assert rows_of(data) == sorted(GREY.reshape(20, 20).tolist())
    save(tmp_path / "grey", COLOUR[:1], "colour{}.png")
    mixed = images(tmp_path / "grey")
    assert mixed.codec.shape == [4, 5, 3]
    wanted = np.concatenate([np.repeat(GREY[..., None], 3, axis=3), COLOUR[:1]])
    assert rows_of(mixed) == sorted(wanted.reshape(21, 60).tolist())


def test_grey_images_are_colour_to_a_model_of_colour(tmp_path):
    codec = Picture([4, 5, 3], 16)
    data = load(save(tmp_path / "grey", GREY), codec=codec)
    assert data.codec.to_config() == codec.to_config()
    assert load(tmp_path / "grey").codec.shape == [4, 5, 1]  # the caches are apart
    with pytest.raises(ValueError, match=r"colour must be readable by Picture\(shape=\[4, 5, 1\]"):
        load(save(tmp_path / "colour", COLOUR), codec=Picture([4, 5, 1], 256))


def test_black_and_white_palettes_and_transparency_become_bytes(tmp_path):
    folder = save(tmp_path / "odd", [GREY[0] > 127] * 3, "a{}.png")
    Image.fromarray(GREY[1]).convert("LA").save(folder / "b.png")
    data = images(folder)
    assert data.codec.shape == [4, 5, 1]
    assert rows_of(data) == sorted([*[np.where(GREY[0] > 127, 255, 0).ravel().tolist()] * 3, GREY[1].ravel().tolist()])
    Image.fromarray(COLOUR[0]).quantize(2).save(folder / "c.png")
    Image.fromarray(COLOUR[0]).convert("RGBA").save(folder / "d.png")
    data = images(folder)
    assert data.codec.shape == [4, 5, 3]
    assert COLOUR[0].ravel().tolist() in rows_of(data)


def test_sub_folders_are_classes_in_the_order_of_their_names(tmp_path):
    for label, name in enumerate(["ant", "Bee", "cat"]):
        save(tmp_path / "zoo" / name, COLOUR[label::3])
    save(tmp_path / "zoo" / "cat" / "kittens", COLOUR[:1] // 2)
    data = images(tmp_path / "zoo", levels=4)
    names = sorted(["ant", "Bee", "cat"])
    assert (data.num_classes, data.class_names) == (3, tuple(names))
    for split in data.splits().values():
        for row, label in zip(split[:].tolist(), split.labels(slice(None)).tolist(), strict=True):
            path = tmp_path / "zoo" / names[label]
            inside = [np.asarray(Image.open(file)) for file in path.rglob("*.png")]
            assert row in [(image.astype(int) * 4 // 256).ravel().tolist() for image in inside]


@pytest.mark.parametrize("folders", [["only"], [".", "other"]])
def test_one_folder_or_images_beside_folders_are_no_classes(tmp_path, folders):
    for index, name in enumerate(folders):
        save(tmp_path / "zoo" / name, COLOUR[10 * index : 10 * index + 10])
    data = images(tmp_path / "zoo")
    assert data.num_classes == 0
    assert data.train.labels(slice(None)) is None


def test_images_are_decoded_once_and_again_when_they_change(tmp_path, monkeypatch):
    folder, opened = save(tmp_path / "photos", COLOUR), []
    monkeypatch.setattr(module, "pillow", lambda: opened.append(1) or Image)
    for _ in range(2):
        images(folder)
    images(folder, levels=2)
    assert len(opened) == 2 * 20  # for its header, and to decode it
    Image.fromarray(COLOUR[0] // 2).save(folder / "07.png")
    assert (COLOUR[0] // 2).ravel().tolist() in rows_of(images(folder))
    assert len(opened) == 4 * 20


def test_a_class_folder_that_is_a_link_is_followed(tmp_path):
    """It vanished, with all its images."""
    for name in ("ant", "bee"):
        save(tmp_path / "zoo" / name, COLOUR[:5])
    save(tmp_path / "elsewhere", COLOUR[5:10])
    (tmp_path / "zoo" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "zoo" / "dog").symlink_to(tmp_path / "zoo" / "ant")  # the same images, another class
    data = images(tmp_path / "zoo")
    assert (data.num_classes, sum(map(len, data.splits().values()))) == (4, 20)
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert "classes by sub-folder: 'ant', 'bee', 'cat', 'dog'" in data.notes
    (tmp_path / "zoo" / "cat" / "loop").symlink_to(tmp_path / "zoo")
    with pytest.raises(ValueError, match=r"cat/loop must not link to a folder that contains it, .*zoo: remove"):
        images(tmp_path / "zoo")


def test_a_folder_that_cannot_be_read_and_a_link_to_nothing_are_named(tmp_path, monkeypatch):
    folder = save(tmp_path / "zoo" / "ant", COLOUR).parent
    (folder / "bee").mkdir()
    original = os.scandir

    def locked(path):
        if str(path).endswith("bee"):  # root may read anything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", locked)
        with pytest.raises(ValueError, match=r"the folder .*zoo/bee cannot be read: Permission denied"):
            images(folder)
    (folder / "bee" / "x.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(ValueError, match=r"no file called .*bee/x.png"):
        images(folder)
    (folder / "bee" / "x.png").unlink()
    (folder / "bee" / "x.png").symlink_to("x.png")
    with pytest.raises(ValueError, match=r"no file called .*bee/x.png"):
        images(folder)
    (folder / "bee" / "x.png").unlink()
    os.mkfifo(folder / "bee" / "x.png")
    with pytest.raises(ValueError, match=r"bee/x.png must be a file, got a device"):
        images(folder)


def test_names_that_are_not_utf8_do_no_harm(tmp_path):
    for name in (b"caf\xe9", b"th\xe9"):
        save(tmp_path / "zoo" / os.fsdecode(name), COLOUR[:5], os.fsdecode(b"{}\xe9.png"))
    data = images(tmp_path / "zoo")
    assert data.num_classes == 2
    "\n".join(data.describe()).encode()


def test_what_is_dropped_or_changed_is_said_every_time(tmp_path):
    folder = save(tmp_path / "mixed", COLOUR)
    save(folder, GREY[:3], "grey{}.png")
    Image.fromarray(COLOUR[0]).convert("RGBA").save(folder / "clear.png")
    (folder / "notes.txt").write_text("not an image")
    for _ in range(2):  # the second time from the cache
        data = images(folder)
        assert data.notes == (
            "files in grey, read as colour: 3",
            "files whose transparency was dropped: 1",
            "files not read, with other extensions than .png, .jpg, .jpeg, .bmp, .webp: 1",
        )
        assert data.describe()[:2] == [
            "24 images of 60 tokens: 20 train, 2 validation, 2 test",
            "5 × 4 pixels in colour, 256 levels per channel",
        ]


def photographs(folder):
    """Of different sizes: high, wide, square, and smaller than the squares that are made of them."""
    sizes = [(9, 16), (16, 9), (12, 12), (3, 5), (31, 8)] * 4
    arrays = [
        COLOUR[0].repeat(9, 0).repeat(7, 1)[:high, :wide] // (index + 1) for index, (high, wide) in enumerate(sizes)
    ]
    return save(folder, arrays), arrays


def test_photographs_of_any_size_become_squares_of_their_middle(tmp_path):
    folder, arrays = photographs(tmp_path / "photos")
    wanted = []
    for array in arrays:
        high, wide = array.shape[:2]
        side = min(high, wide)
        box = ((wide - side) / 2, (high - side) / 2, (wide + side) / 2, (high + side) / 2)
        wanted.append(np.asarray(Image.fromarray(array).resize((4, 4), Image.Resampling.LANCZOS, box)).ravel().tolist())
    data = load(folder, size=4)
    assert data.codec.shape == [4, 4, 3]
    assert rows_of(data) == sorted(wanted)
    assert "files cropped to squares and resized to 4 × 4 pixels: 20" in data.notes
    assert "files enlarged, with fewer than 4 pixels across or down: 4" in data.notes
    assert load(folder, size=2).codec.shape == [2, 2, 3]  # the caches are apart
    again = load(data.source, codec=data.codec)
    assert again.digest() == data.digest()
    assert load(folder, size=4, codec=Picture([4, 4, 3])).digest() == data.digest()  # to a model they are as any others


def test_squares_of_the_size_asked_for_are_left_alone(tmp_path):
    squares = COLOUR[:, :, :4]
    data = load(save(tmp_path / "photos", squares), size=4)
    assert rows_of(data) == sorted(squares.reshape(20, 48).tolist())
    assert data.notes == ()
    halves = load(save(tmp_path / "larger", squares.repeat(2, 1).repeat(2, 2)), size=8)
    assert rows_of(halves) == sorted(squares.repeat(2, 1).repeat(2, 2).reshape(20, 192).tolist())


def test_photographs_are_turned_upright(tmp_path):
    folder, exif = tmp_path / "photos", Image.Exif()
    exif[274] = 6  # the camera was turned: the first row is the right side
    wide = COLOUR[:, :, [0, 1, 2, 3]]
    save(folder, wide, exif=exif)
    assert rows_of(load(folder, size=4)) == sorted(np.rot90(wide, -1, axes=(1, 2)).reshape(20, 48).tolist())
    assert rows_of(load(folder)) == sorted(wide.reshape(20, 48).tolist())  # nothing is changed unless asked for


def test_photographs_of_different_sizes_need_a_size_and_are_told_one(tmp_path):
    folder, _ = photographs(tmp_path / "photos")
    with pytest.raises(ValueError, match=r"01.png must have 16 × 9 pixels like 00.png, got 9 × 16: add --size 2 \(in "):
        load(folder)
    save(tmp_path / "large", [COLOUR[0].repeat(20, 0).repeat(20, 1), COLOUR[0].repeat(30, 0).repeat(30, 1)])
    cure = r"got 150 × 120: add --size 64 \(in Python: size=64\) to crop each image to a square and resize it$"
    with pytest.raises(ValueError, match=cure):
        load(tmp_path / "large")
    for size in (0, 5000):
        with pytest.raises(ValueError, match=rf"size must lie in \[1, 4096\], got {size}"):
            load(folder, size=size)
    for source in ("digits", "cifar10"):
        with pytest.raises(ValueError, match=f"size applies to folders of images only, got 8 for {source}"):
            load(source, size=8)


def cut_short(folder):
    whole = (folder / "05.png").read_bytes()
    (folder / "05.png").write_bytes(whole[: len(whole) // 2])


def another_size(folder):
    Image.fromarray(COLOUR[0, :3]).save(folder / "05.png")
    Image.fromarray(COLOUR[0, :2]).save(folder / "06.png")


def sixteen_bits(folder):
    Image.fromarray(COLOUR[0, ..., 0].astype(np.uint16) * 256).save(folder / "05.png")


def two_images(folder):
    for path in sorted(folder.iterdir())[2:]:
        path.unlink()


def splits(folder):
    for name in ("train", "test"):
        save(folder / name, COLOUR[:5])
    for path in folder.glob("*.png"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (another_size, r"05.png must have 5 × 4 pixels like 00.png, got 5 × 3"),
        (cut_short, "05.png cannot be read as an image: .+"),
        (lambda folder: (folder / "05.png").write_text("hello"), "05.png cannot be read as an image: .+"),
        (lambda folder: (folder / "05.png").write_bytes(b""), "05.png is empty$"),
        (sixteen_bits, "05.png must have 8 bits per channel, got an image of mode I;16"),
        (two_images, "photos: data must have at least 3 rows, one per split, got 2"),
        (splits, "photos must have one sub-folder per class, got test, train: give one of these instead"),
    ],
)
def test_images_that_do_not_fit_are_named_and_nothing_is_cached(tmp_path, home, spoil, message):
    folder = save(tmp_path / "photos", COLOUR)
    spoil(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert spoil is two_images or not list(home.rglob("images-*"))


def test_a_folder_without_images_says_what_would_be_one(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"must hold images \(.png, .jpg, .jpeg, .bmp, .webp\), got none"):
        load(tmp_path)


@pytest.mark.parametrize("levels", [0, 1, 257])
def test_levels_that_cannot_be_are_named_before_the_work(tmp_path, home, levels):
    with pytest.raises(ValueError, match=rf"levels must lie in \[2, 256\], got {levels}"):
        load(save(tmp_path / "photos", COLOUR), levels=levels)
    assert not list(home.rglob("*.npy"))

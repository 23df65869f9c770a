import builtins
import csv
import json
from contextlib import nullcontext
from io import BytesIO

import matplotlib.image
import numpy as np
import pytest
import torch
from PIL import Image

from dmb._core.configuration import Configurable
from dmb.data import Bytes, Characters, Codec, Columns, Grid, Picture, Tokenizer, load
from dmb.data.codecs import Cells, Images, Lines, images


def words(*vocabulary):
    """A tokenizer that splits at spaces and knows a few words."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=vocabulary[0])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return tokenizer.to_str()


AWKWARD = ["plain", "", "a, b", 'say "hi"', "two\nlines", "=", " spaced ", "é€😀", "return\rhere"]

CODECS = {
    "characters": lambda: Characters("abcé€😀\n "),
    "bytes": Bytes,
    "tokenizer": lambda: Tokenizer(words("?", "one", "two")),
    "image": lambda: Grid([2, 3], 6),
    "photograph": lambda: Picture([1, 2, 3], 7),
    "sequence": lambda: Grid([6], 300),
    "columns": lambda: Columns(["a", "b=c", "d,e"], [AWKWARD, [None, 1, 2], [0.5, 1e-30]]),
    "flags": lambda: Columns(["flag"], [[False, True]]),
}

every_codec = pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)


def tokens_of(codec, rows=7):
    if isinstance(codec, Columns):
        columns = [torch.arange(rows) % count for count in codec.state_counts]
        return torch.stack(columns, dim=1)
    return torch.arange(rows * 6).view(rows, 6) * 37 % codec.num_states


@every_codec
def test_a_codec_goes_through_json(make):
    codec = make()
    again = Configurable.from_config(json.loads(json.dumps(codec.to_config(), allow_nan=False)))
    assert type(again) is type(codec)
    assert again.to_config() == codec.to_config()
    assert again.num_states == codec.num_states
    assert again.decode(tokens_of(codec)) == codec.decode(tokens_of(codec))


@every_codec
def test_each_sequence_decodes_to_one_string(make):
    codec = make()
    decoded = codec.decode(tokens_of(codec))
    assert len(decoded) == 7
    assert all(isinstance(text, str) for text in decoded)
    assert codec.decode(tokens_of(codec)[:0]) == []


@every_codec
@pytest.mark.parametrize("illegal", [-1, 1000])
def test_tokens_that_are_no_states_are_named(make, illegal):
    codec = make()
    tokens = tokens_of(codec)
    tokens[3, 0] = illegal
    with pytest.raises(ValueError, match=f"got {illegal} at row 3, position 0"):
        codec.decode(tokens)


@every_codec
def test_what_is_written_replaces_the_file_and_leaves_nothing_beside_it(make, tmp_path):
    codec = make()
    path = tmp_path / f"samples{codec.extension}"
    path.write_text("old")
    codec.write(path, tokens_of(codec))
    assert path.read_bytes() != b"old"
    assert list(tmp_path.iterdir()) == [path]


@every_codec
def test_a_folder_that_is_not_there_is_a_clear_error(make, tmp_path):
    codec = make()
    with pytest.raises(ValueError, match="cannot be written"):
        codec.write(tmp_path / "missing" / f"samples{codec.extension}", tokens_of(codec))


def test_a_codec_owes_all_its_methods():
    with pytest.raises(TypeError, match="abstract"):
        Codec()


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["cab", "", "é€😀 \n", "a" * 100])
def test_characters_are_numbered_in_the_order_of_the_alphabet(text):
    alphabet = "abcé€😀\n "
    codec = Characters(alphabet)
    assert codec.encode(text).tolist() == [alphabet.index(symbol) for symbol in text]
    assert codec.decode(torch.tensor(codec.encode(text))[None].long()) == [text]


def test_an_unknown_symbol_is_named_with_its_offset():
    with pytest.raises(ValueError, match="symbol 'é' at offset 17 is not in the alphabet 'abc'"):
        Characters("abc").encode("abcabcabcabcabcabé")
    with pytest.raises(ValueError, match="at offset 1,000,002"):
        Characters("abc").encode("abé", offset=1_000_000)


def test_a_long_alphabet_is_shortened_in_messages():
    with pytest.raises(ValueError, match=r"is not in the alphabet 'Ā'.* and 970 more$"):
        Characters("".join(map(chr, range(256, 1256)))).encode("a")


def test_half_a_surrogate_pair_is_an_unknown_symbol():
    with pytest.raises(ValueError, match=r"symbol '\\ud800' at offset 1"):
        Characters("abc").encode("a\ud800")


@pytest.mark.parametrize(("alphabet", "message"), [("", "at least one symbol"), ("abca", "got 'a' twice")])
def test_an_alphabet_that_cannot_be_one_is_an_error(alphabet, message):
    with pytest.raises(ValueError, match=message):
        Characters(alphabet)


def test_bytes_are_the_bytes_of_utf8_and_broken_ones_are_shown_as_such():
    codec = Bytes()
    assert codec.encode("né").tolist() == list("né".encode())
    assert codec.decode(torch.tensor([[110, 195, 169]])) == ["né"]
    assert codec.decode(torch.tensor([[110, 195, 110]])) == ["n\ufffdn"]


def test_bytes_are_written_as_they_are(tmp_path):
    Bytes().write(tmp_path / "x.txt", torch.tensor([[255, 0, 195]]))
    assert (tmp_path / "x.txt").read_bytes() == b"\xff\x00\xc3\n"


def test_texts_are_written_one_a_line(tmp_path):
    codec = Characters("abé")
    codec.write(tmp_path / "x.txt", torch.tensor([[0, 1], [2, 2]]))
    assert (tmp_path / "x.txt").read_bytes() == "ab\néé\n".encode()
    codec.write(tmp_path / "x.txt", torch.zeros(0, 2, dtype=torch.long))
    assert (tmp_path / "x.txt").read_bytes() == b""


def test_texts_with_line_breaks_are_written_with_an_empty_line_between(tmp_path):
    Characters("ab\n").write(tmp_path / "x.txt", torch.tensor([[0, 2, 1], [1, 1, 1]]))
    assert (tmp_path / "x.txt").read_bytes() == b"a\nb\n\nbbb\n"


@pytest.mark.parametrize(
    ("codec", "text", "wanted"),
    [
        (lambda: Characters("abc"), "a_c", [0, -1, 2, -1, -1]),
        (lambda: Characters("abc"), "", [-1] * 5),
        (lambda: Characters("abc"), "_____", [-1] * 5),
        (lambda: Characters("abc"), "__b", [-1, -1, 1, -1, -1]),
        (lambda: Characters("abc_"), "_a", [-1, 0, -1, -1, -1]),  # the blank is a blank even if it is a symbol
        (Bytes, "é_a", [195, 169, -1, 97, -1]),
        (lambda: Tokenizer(words("?", "one", "two")), "two one _ two", [2, 1, -1, 2, -1]),
    ],
)
def test_a_template_of_text_fixes_what_is_written_and_leaves_the_rest(codec, text, wanted):
    assert codec().template(text, 5).tolist() == wanted


def test_the_blank_of_a_template_can_be_chosen():
    assert Characters("ab_").template("a_*", 4, blank="*").tolist() == [0, 2, -1, -1]
    with pytest.raises(ValueError, match="blank must be one symbol, got '__'"):
        Characters("ab").template("a", 4, blank="__")


def test_a_template_that_is_too_long_or_holds_unknown_symbols_is_an_error():
    with pytest.raises(ValueError, match="the template must have at most 3 positions, got 4"):
        Characters("ab").template("ab__", 3)
    with pytest.raises(ValueError, match="symbol 'x' at offset 3"):
        Characters("ab").template("a_bx", 9)


# -- tokenizers -------------------------------------------------------------------------------------------------------


def test_a_tokenizer_numbers_words_as_its_definition_says():
    codec = Tokenizer(words("?", "one", "two"))
    assert codec.num_states == 3
    assert codec.encode("two one three").tolist() == [2, 1, 0]
    assert codec.decode(torch.tensor([[2, 1, 0]])) == ["two one ?"]


def test_ids_with_gaps_count_up_to_the_largest():
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"?": 0, "far": 9}, unk_token="?")
    assert Tokenizer(tokenizers.Tokenizer(model).to_str()).num_states == 10


def test_padding_and_truncation_of_the_definition_are_not_applied():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(words("?", "one", "two"))
    tokenizer.enable_truncation(2)
    assert Tokenizer(tokenizer.to_str()).encode("one two one").tolist() == [1, 2, 1]
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=8)
    assert Tokenizer(tokenizer.to_str()).encode("one two one").tolist() == [1, 2, 1]


def test_what_is_not_a_tokenizer_is_an_error():
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match="definition must be the JSON of a tokenizer"):
        Tokenizer("{}")


def hide(monkeypatch, package):
    original = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)


def test_a_tokenizer_without_the_library_names_the_extra(monkeypatch):
    hide(monkeypatch, "tokenizers")
    with pytest.raises(ValueError, match="needs the extra `hf`"):
        Tokenizer("{}")


# -- arrays -----------------------------------------------------------------------------------------------------------


def test_an_image_is_shown_in_shades_from_dark_to_bright():
    codec = Grid([2, 2], 256)
    assert codec.decode(torch.tensor([[0, 255, 128, 60]])) == ["  ██\n▒▒░░"]


@pytest.mark.parametrize("shape", [[6], [2, 3], [1, 2, 3]])
def test_arrays_are_written_in_their_own_shape(tmp_path, shape):
    tokens = torch.arange(12).view(2, 6)
    Grid(shape, 300).write(tmp_path / "x.npy", tokens)
    loaded = np.load(tmp_path / "x.npy")
    assert loaded.dtype == np.uint16
    np.testing.assert_array_equal(loaded, np.arange(12).reshape(2, *shape))


def test_a_sheet_shows_every_image_once(tmp_path):
    images = torch.randint(0, 17, (5, 6), generator=torch.Generator().manual_seed(0))
    Grid([2, 3], 17).write(tmp_path / "x.png", images)
    sheet = matplotlib.image.imread(tmp_path / "x.png")[..., 0]
    scale = (sheet.shape[0] - 2) // 4
    assert sheet.shape == (2 * 2 * scale + 2, 3 * 3 * scale + 4)  # two rows of three images, two lines between them
    assert min(sheet.shape) > 150  # large enough to be seen
    for index, image in enumerate(images):
        top, left = index // 3 * (2 * scale + 2), index % 3 * (3 * scale + 2)
        pixels = sheet[top : top + 2 * scale : scale, left : left + 3 * scale : scale]
        np.testing.assert_allclose(pixels, image.view(2, 3) / 16, atol=1 / 255)


@pytest.mark.parametrize(
    ("codec", "name", "rows", "message"),
    [
        (Grid([6], 9), "x.png", 1, r"only two-dimensional data can be written as .png, got shape \[6\]"),
        (Grid([2, 3], 9), "x.jpg", 1, "path must end in .npy or .png"),
        (Grid([2, 3], 9), "x.png", 0, "at least one row to be written as .png"),
        (Grid([2, 2], 9), "x.npy", 1, "tokens must have 4 positions, got 6"),
    ],
)
def test_arrays_that_cannot_be_written_are_named(tmp_path, codec, name, rows, message):
    with pytest.raises(ValueError, match=message):
        codec.write(tmp_path / name, torch.zeros(rows, 6, dtype=torch.long))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("shape", "states"), [([], 2), ([3, 0], 2), ([3], 0)])
def test_a_grid_that_cannot_be_is_an_error(shape, states):
    with pytest.raises(ValueError, match="must"):
        Grid(shape, states)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,_, 3", [1, -1, 3, -1]),
        (" 1 _  3 ", [1, -1, 3, -1]),
        ("1 , _ ,\t3", [1, -1, 3, -1]),
        ("1 2\n3 0\n", [1, 2, 3, 0]),
        ("", [-1] * 4),
        (" 0 ,1,2,3", [0, 1, 2, 3]),
        ("_", [-1] * 4),
    ],
)
def test_a_template_of_numbers(text, wanted):
    assert Grid([2, 2], 4).template(text, 4).tolist() == wanted


@pytest.mark.parametrize("values", [[[1, -1], [-1, 3]], [1, -1, -1, 3], [[[1, -1], [-1, 3]]], [1, -1]])
def test_a_template_from_a_file(tmp_path, values):
    np.save(tmp_path / "template.npy", np.array(values, dtype=np.int8))
    wanted = np.array(values).ravel().tolist()
    assert Grid([2, 2], 4).template(str(tmp_path / "template.npy"), 4).tolist() == wanted + [-1] * (4 - len(wanted))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,x", "must hold numbers or '_', separated by commas, got 'x'"),
        ("1,,2", "got ''"),
        ("1,-1", "got '-1'"),
        ("1,4", r"must hold numbers in \[0, 4\), got 4 at position 1"),
        ("1,2,3,1,1", "at most 4 positions, got 5"),
        ("missing.npy", "missing.npy cannot be read"),
    ],
)
def test_mistakes_in_a_template_of_numbers_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        Grid([2, 2], 4).template(text, 4)


def test_a_template_file_of_several_arrays_is_named(tmp_path):
    """It was a traceback."""
    with (tmp_path / "template.npy").open("wb") as file:
        np.savez(file, np.zeros(4, dtype=int), np.zeros(4, dtype=int))
    with pytest.raises(ValueError, match=r"template.npy cannot be read: it must hold one array, got 2"):
        Grid([2, 2], 4).template(str(tmp_path / "template.npy"), 4)
    np.save(tmp_path / "template.npy", np.zeros(0, dtype=int))
    assert Grid([2, 2], 4).template(str(tmp_path / "template.npy"), 4).tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0.5]]), "must hold integers, got float64"),
        (np.zeros((4, 1), dtype=int), r"must have shape \[2, 2\], got \[4, 1\]"),
        (np.array([0, -2]), "got -2 at position 1"),
        (np.array([{}]), "cannot be read"),
    ],
)
def test_mistakes_in_a_template_file_are_named(tmp_path, values, message):
    np.save(tmp_path / "template.npy", values, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        Grid([2, 2], 4).template(str(tmp_path / "template.npy"), 4)


# -- photographs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 3, 7, 8, 100, 255, 256])
def test_a_level_stands_for_the_middle_of_its_values_and_comes_back_from_there(levels):
    groups = [[v for v in range(256) if v * levels // 256 == level] for level in range(levels)]
    images = Picture([1, levels, 1], levels).images(torch.arange(levels)[None])
    assert images.dtype == np.uint8
    assert images.ravel().tolist() == [(group[0] + group[-1]) // 2 for group in groups]
    assert (images.astype(int) * levels // 256).ravel().tolist() == list(range(levels))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("levels", [5, 256])
def test_images_go_to_an_array_and_back(tmp_path, channels, levels):
    tokens = torch.randint(levels, (4, 6 * channels), generator=torch.Generator().manual_seed(0))
    Picture([2, 3, channels], levels).write(tmp_path / "x.npy", tokens)
    written = np.load(tmp_path / "x.npy")
    assert (written.dtype, written.shape) == (np.uint8, (4, 2, 3, channels))
    np.testing.assert_array_equal(written.reshape(4, -1).astype(int) * levels // 256, tokens)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_sheet_shows_every_image_enlarged(tmp_path, channels, mode):
    images = np.random.default_rng(0).integers(256, size=(5, 20, 40, channels), dtype=np.uint8)
    tokens = torch.from_numpy(images.reshape(5, -1).astype(np.int64))
    Picture([20, 40, channels]).write(tmp_path / "x.png", tokens)
    with Image.open(tmp_path / "x.png") as file:
        assert file.mode == mode
        sheet = np.asarray(file).reshape(file.height, file.width, channels)
    assert sheet.shape == (2 * 82 - 2, 3 * 162 - 2, channels)  # each pixel 4 times, two rows of three, 2 pixels between
    for index, image in enumerate(images):
        top, left = index // 3 * 82, index % 3 * 162
        for corner in (0, 3):
            np.testing.assert_array_equal(sheet[top + corner : top + 80 : 4, left + corner : left + 160 : 4], image)
    assert (sheet[80:82] == 128).all()


@pytest.mark.parametrize(
    ("side", "count", "wanted"), [(32, 1, 96), (200, 1, 200), (32, 1600, 40 * 98 - 2), (32, 2500, 50 * 66 - 2)]
)
def test_a_sheet_is_large_enough_for_small_images_and_small_enough_for_many(tmp_path, side, count, wanted):
    tokens = torch.zeros(1, side * side, dtype=torch.long).expand(count, -1)
    Picture([side, side, 1]).write(tmp_path / "x.png", tokens)
    with Image.open(tmp_path / "x.png") as file:
        assert file.size == (wanted, wanted)


def test_a_photograph_is_shown_in_a_few_shades():
    codec = Picture([32, 64, 3])
    image = torch.zeros(32, 64, 3, dtype=torch.long)
    image[:, 32:] = 255
    image[16:, :32, 1] = 255  # green is bright
    dark, green, white = (shade * 16 for shade in " ▒█")
    shown = codec.decode(torch.stack([image.flatten()]))[0].splitlines()
    assert shown == [dark + white] * 4 + [green + white] * 4
    assert Picture([1, 2, 1]).decode(torch.tensor([[0, 255]])) == ["  ██"]


def test_a_template_of_values_is_read_in_levels(tmp_path):
    codec = Picture([1, 2, 3], 4)
    assert codec.template("0, 63,64,_,255", 6).tolist() == [0, 0, 1, -1, 3, -1]
    np.save(tmp_path / "x.npy", np.array([[[0, 200, -1], [-1, 100, 255]]]))
    assert codec.template(str(tmp_path / "x.npy"), 6).tolist() == [0, 3, -1, -1, 1, 3]
    with pytest.raises(ValueError, match=r"the template must hold numbers in \[0, 256\), got 256 at position 1"):
        codec.template("0,256", 6)


@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_of_a_template_are_blank(tmp_path, channels):
    pixels = np.array([[[10, 10, 10, 255], [99, 99, 99, 0]], [[7, 7, 7, 0], [250, 250, 250, 128]]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    template = Picture([2, 2, channels]).template(str(tmp_path / "x.png"), 4 * channels)
    assert template.view(4, channels).tolist() == [[value] * channels for value in (10, -1, -1, 250)]
    with pytest.raises(ValueError, match=r"x.png must have 3 × 2 pixels, got 2 × 2"):
        Picture([2, 3, 1]).template(str(tmp_path / "x.png"), 6)
    with pytest.raises(ValueError, match=r"missing.png cannot be read"):
        Picture([2, 3, 1]).template("missing.png", 6)


@pytest.mark.parametrize(
    ("shape", "levels", "message"),
    [
        ([2, 3], 4, r"shape must be height, width and 1 or 3 channels, got \[2, 3\]"),
        ([2, 3, 4], 4, "1 or 3 channels"),
        ([0, 3, 1], 4, "shape must be"),
        ([2, 3, 1], 1, r"levels must lie in \[2, 256\], got 1"),
        ([2, 3, 1], 257, "levels must lie"),
    ],
)
def test_a_picture_that_cannot_be_is_an_error(shape, levels, message):
    with pytest.raises(ValueError, match=message):
        Picture(shape, levels)


@pytest.mark.parametrize(
    ("shape", "name", "rows", "message"),
    [
        ([2, 3, 1], "x.jpg", 1, "path must end in .png or .npy"),
        ([2, 3, 1], "x.png", 0, "at least one row to be written as .png"),
        ([2, 2, 1], "x.npy", 1, "tokens must have 4 positions, got 6"),
    ],
)
def test_pictures_that_cannot_be_written_are_named(tmp_path, shape, name, rows, message):
    with pytest.raises(ValueError, match=message):
        Picture(shape).write(tmp_path / name, torch.zeros(rows, 6, dtype=torch.long))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path.mkdir() or path], ids=["new", "there already"])
@pytest.mark.parametrize("shape", [[2, 3], [2, 3, 1], [1, 2, 3]], ids=str)
def test_images_go_to_a_folder_one_file_each_and_back(tmp_path, shape, make):
    tokens = torch.randint(0, 256, (12, 6), generator=torch.Generator().manual_seed(0))
    codec = Grid(shape, 256) if len(shape) == 2 else Picture(shape)
    folder = make(tmp_path / "samples")
    codec.write(folder, tokens)
    assert sorted(path.name for path in folder.iterdir()) == [f"{number:04}.png" for number in range(1, 13)]
    for number, row in enumerate(tokens.tolist(), 1):
        pixels = np.asarray(Image.open(folder / f"{number:04}.png"))
        if len(shape) == 2:
            np.testing.assert_allclose(pixels.ravel(), row, atol=1)
        else:
            assert pixels.ravel().tolist() == row
    assert load(folder).num_positions == 6
    codec.write(folder, tokens[:2].flip(0))  # files of the same names are replaced
    assert len(list(folder.iterdir())) == 12


def test_ten_thousand_images_are_numbered_in_order(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(images, "written_whole", lambda path: names.append(path.name) or nullcontext(BytesIO()))
    Picture([1, 1, 1]).write(tmp_path / "many", torch.zeros(10_000, 1, dtype=torch.long))
    assert names == sorted(names)
    assert (names[0], names[-1], len(names)) == ("00001.png", "10000.png", 10_000)


@pytest.mark.parametrize(
    ("codec", "name", "rows", "message"),
    [
        (
            Picture([2, 3, 1]),
            "x.jpg",
            1,
            "path must end in .png or .npy, or be a folder for one .png each, got .*x.jpg",
        ),
        (Grid([2, 3], 9), "x.jpg", 1, "path must end in .npy or .png, or be a folder for one .png each, got .*x.jpg"),
        (Grid([6], 9), "x", 1, "path must end in .npy or .png, got .*x"),
        (Columns(["a"], [[1, 2]]), "x", 1, "path must end in .csv or .parquet, got .*x"),
        (Picture([2, 3, 1]), "samples", 0, "at least one row to be written as .png"),
        (Picture([2, 3, 1]), "missing/samples", 1, "there is no folder .*missing"),
    ],
)
def test_folders_that_cannot_be_filled_are_named(tmp_path, codec, name, rows, message):
    with pytest.raises(ValueError, match=message):
        codec.write(tmp_path / name, torch.zeros(rows, 6, dtype=torch.long))
    assert not list(tmp_path.iterdir())


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_csv_file_has_the_header_and_the_values(tmp_path):
    codec = Columns(["a", "b=c", "d,e"], [AWKWARD, ["x", "y"], ["1", "2"]])
    tokens = tokens_of(codec, rows=20)
    codec.write(tmp_path / "x.csv", tokens)
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == codec.names
    assert rows == [[codec.columns[column].known[token] for column, token in enumerate(row)] for row in tokens.tolist()]


def test_a_parquet_file_keeps_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    codec = Columns(["size", "ratio", "name", "flag"], [[None, 3, 7], [0.5, 1.5], ["a", None], [False, True]])
    codec.write(tmp_path / "x.parquet", torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0], [2, 1, 0, 1]]))
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict() == {
        "size": [3, None, 7],
        "ratio": [0.5, 1.5, 1.5],
        "name": ["a", None, "a"],
        "flag": [True, False, True],
    }


def test_parquet_without_the_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs the extra `table`"):
        Columns(["a"], [["x", "y"]]).write(tmp_path / "x.parquet", torch.tensor([[0]]))


def test_a_decoded_row_is_a_template_of_itself():
    codec = CODECS["columns"]()
    tokens = tokens_of(codec, rows=20)
    for text, row in zip(codec.decode(tokens), tokens, strict=True):
        assert torch.equal(codec.template(text, 3), row)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", [-1, -1]), ("size=2", [1, -1]), ("b=c=x,size=1", [0, 0]), ("size=_, b=c=y", [-1, 1])],
)
def test_a_template_of_a_table_names_some_columns(text, wanted):
    assert Columns(["size", "b=c"], [[1, 2], ["x", "y"]]).template(text, 2).tolist() == wanted


@pytest.mark.parametrize(
    "text",
    [
        "size = 2, kind = red",
        " size=2 ,kind=red ",
        "size =2 , kind= red\n",
        '"size = 2"  , kind =red',
        "kind=red,size=2",
    ],
)
def test_spaces_in_a_template_of_a_table_do_not_count(text):
    assert Columns(["size", "kind"], [[1, 2], ["red", "blue"]]).template(text, 2).tolist() == [1, 0]


def test_spaces_of_names_and_values_themselves_do_count():
    codec = Columns([" size", "size"], [["red", "red ", " red"], ["red", "blue"]])
    assert codec.template('" size=red ",size=red', 2).tolist() == [1, 0]
    assert codec.template('" size= red"', 2).tolist() == [2, -1]
    assert codec.template('size = _, " size= red"', 2).tolist() == [2, -1]


def test_the_longest_column_name_that_fits_is_meant():
    assert Columns(["b", "b=c"], [["x", "y"], ["x", "y"]]).template("b=c=y", 2).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size=1, kind=2, size=2", "the template must name a column once, got 'size' twice"),
        ("size=1, size = _", "the template must name a column once, got 'size' twice"),
        ("size=1\nkind=2", "the template must be one line, got 2: put commas between columns"),
        ("size=1\r\n\r\nkind=2\r\n", "the template must be one line, got 3"),
        ("sise=1", "must name columns 'size', 'kind' as column=value, got 'sise=1'"),
        ("size", "as column=value, got 'size'"),
        ("size=" + "1" * 200_000, "the template cannot be read: field larger than field limit"),
        ("size=3", "column 'size' must be one of '1', '2', got '3'"),
        ("kind=x", "column 'kind' must be one of '0', .* and 42 more, got 'x'"),
    ],
)
def test_mistakes_in_a_template_of_a_table_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        Columns(["size", "kind"], [[1, 2], list(range(50))]).template(text, 2)


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        ([], [], "equally long and not empty, got 0 and 0"),
        (["a"], [["x"], ["y"]], "equally long and not empty, got 1 and 2"),
        (["a", "a"], [["x"], ["y"]], "got 'a' twice"),
        (["a"], [[]], "values of column 'a' must be distinct and not empty"),
        (["a"], [["x", "x"]], "values of column 'a' must be distinct"),
    ],
)
def test_columns_that_cannot_be_are_an_error(names, values, message):
    with pytest.raises(ValueError, match=message):
        Columns(names, values)


def test_a_state_that_its_column_lacks_is_named():
    codec = Columns(["size", "kind"], [[1, 2], ["x", "y", "z"]])
    with pytest.raises(ValueError, match=r"column 'size' must lie in \[0, 2\), got 2 at row 1"):
        codec.decode(torch.tensor([[0, 2], [2, 0]]))
    with pytest.raises(ValueError, match="tokens must have 2 positions, one per column, got 3"):
        codec.decode(torch.tensor([[0, 1, 1]]))
    with pytest.raises(ValueError, match=r"path must end in .csv or .parquet"):
        codec.write(__import__("pathlib").Path("x.txt"), torch.tensor([[0, 1]]))


# -- views ------------------------------------------------------------------------------------------------------------


@every_codec
def test_a_view_has_something_for_every_token_and_leaves_blank_what_the_codec_does_not_know(make):
    codec = make()
    tokens = tokens_of(codec)[:, : len(codec.names)] if isinstance(codec, Columns) else tokens_of(codec)
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    tokens[hidden] = torch.tensor([-1, codec.num_states, codec.num_states + 3]).repeat(99)[: int(hidden.sum())]
    view = codec.view(tokens)
    if isinstance(view, Images):
        assert len(view.pixels) == len(tokens)
        assert tokens.shape[1] % (view.grid[0] * view.grid[1]) == 0
        blank = codec.view(torch.where(hidden, 0, tokens))
        np.testing.assert_array_equal(view.pixels, blank.pixels)
    else:
        assert [[symbol is None for symbol in row] for row in view.symbols] == hidden.tolist()


def test_the_symbols_of_a_text_are_those_it_decodes_to():
    codec = Characters("ab \n")
    view = codec.view(torch.tensor([[0, 3, 1, 2, 4]]))
    assert view == Lines([["a", "\n", "b", " ", None]], gap="")
    assert codec.decode(torch.tensor([[0, 3, 1, 2]])) == ["".join(view.symbols[0][:4])]
    assert Bytes().view(torch.tensor([[0xC3, 0xA9, 65]])).symbols == [["�", "�", "A"]]
    assert Grid([3], 20).view(torch.tensor([[10, 9, 20]])) == Lines([["10", "9", None]], gap=" ")


def test_the_view_of_a_table_is_its_rows():
    codec = Columns(["size", "<b>"], [[1, None], ["red", "blue", "<i>"]])
    view = codec.view(torch.tensor([[0, 2], [1, 0], [2, 3]]))
    assert view == Cells([["1", "<i>"], ["missing", "red"], [None, None]], columns=["size", "<b>"])


def test_the_view_of_a_grid_runs_from_black_to_white_and_that_of_a_photograph_has_its_colours():
    view = Grid([1, 3], 3).view(torch.tensor([[0, 1, 2]]))
    assert view.pixels.tolist() == [[[[0], [127], [255]]]]
    assert view.grid == (1, 3)
    picture = Picture([1, 2, 3], levels=4).view(torch.tensor([[0, 1, 2, 3, 3, 3]]))
    assert picture.pixels.tolist() == [[[[31, 95, 159], [223, 223, 223]]]]
    assert picture.grid == (1, 2)

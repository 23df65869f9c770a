import os

import numpy as np
import pytest
import torch

from dmb.data import Bytes, Characters, Grid, load, reading, text
from dmb.data.codecs import text as tokenizing

PROSE = "Zwölf Boxkämpfer jagen Viktor – quer über den Sylter Deich. 😀\n" * 40
WHOLE = {"length": 1, "held_out": "end"}  # every symbol is in one of the splits, in order


@pytest.fixture
def prose(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE.encode())
    return path


def bpe(tmp_path, corpus=PROSE):
    """A byte-level tokenizer that gives back every text."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    initial = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=initial, show_progress=False)
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def all_of(data):
    """Everything in a data set of length 1, joined."""
    tokens = torch.cat([split[:] for split in (data.train, data.validation, data.test)])
    return data.codec.decode(tokens.view(1, -1))[0]


@pytest.mark.parametrize("chunk", [1 << 22, 7])
@pytest.mark.parametrize("encoding", ["characters", "bytes", "tokenizer"])
def test_a_text_comes_back_symbol_by_symbol(prose, tmp_path, encoding, chunk, monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", chunk)  # 7 bytes cut through symbols
    monkeypatch.setattr(tokenizing, "_PIECE", chunk)
    data = text(prose, **WHOLE, encoding=bpe(tmp_path) if encoding == "tokenizer" else encoding)
    assert all_of(data) == PROSE


def test_a_long_text_is_tokenized_in_pieces_that_cut_no_word(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 50)
    words = " ".join(["alpha", "beta", "gamma"] * 200)
    (tmp_path / "words.txt").write_text(words)
    data = text(tmp_path / "words.txt", **WHOLE, encoding=bpe(tmp_path, words))
    whole = data.codec.encode(words)
    tokens = torch.cat([split[:] for split in (data.train, data.validation, data.test)]).flatten()
    assert tokens.tolist() == whole.tolist()


def test_the_alphabet_is_what_occurs_sorted(prose):
    data = text(prose, length=10)
    assert data.codec.alphabet == "".join(sorted(set(PROSE)))
    assert data.num_states == len(set(PROSE))


def test_line_endings_are_kept(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\r\nb\rc\n" * 40)
    assert all_of(text(tmp_path / "x.txt", **WHOLE)) == "a\r\nb\rc\n" * 40


def test_splits_are_consecutive_parts_if_the_end_is_held_out(prose):
    data = text(prose, length=10, held_out="end")
    part = len(PROSE) // 20
    assert data.codec.decode(data.train[:1]) == [PROSE[:10]]
    assert data.codec.decode(data.validation[:1]) == [PROSE[-2 * part :][:10]]
    assert data.codec.decode(data.test[:1]) == [PROSE[-part:][:10]]


def test_the_data_set_says_what_it_is(prose, monkeypatch):
    monkeypatch.chdir(prose.parent)
    data = text("prose.txt", length=10)
    assert (data.name, data.source) == ("prose.txt", str(prose))  # found again from another folder
    assert (data.num_positions, data.num_classes, data.state_counts) == (10, 0, None)


@pytest.mark.parametrize(("count", "dtype"), [(200, "uint8"), (300, "uint16"), (70_000, "uint32")])
def test_tokens_are_cached_in_the_smallest_type_and_mapped(tmp_path, home, count, dtype):
    symbols = "".join(chr(0x20000 + i) if i > 9 else str(i) for i in range(count))
    (tmp_path / "x.txt").write_text(symbols * 2, encoding="utf-8")
    data = text(tmp_path / "x.txt", length=2)
    assert data.num_states == count
    (cached,) = (home / "cache").iterdir()
    assert np.load(cached).dtype == dtype
    assert isinstance(data.train._tokens, np.memmap)


def test_the_cache_is_reused(prose, home, monkeypatch):
    before = all_of(text(prose, **WHOLE))
    (cached,) = (home / "cache").iterdir()
    monkeypatch.setattr(Characters, "read", lambda *_: pytest.fail("read again"))
    assert all_of(text(prose, **WHOLE)) == before
    assert len(text(prose, length=7, held_out="end").train) == len(np.load(cached)) * 9 // 10 // 7


def test_the_cache_tells_contents_and_codecs_apart(prose, tmp_path, home):
    other = tmp_path / "other.txt"
    other.write_text(PROSE.replace("Z", "Y"), encoding="utf-8")
    wider = Characters("".join(sorted({*PROSE, *"YZ"})))
    texts = [
        all_of(text(prose, **WHOLE)),
        all_of(text(prose, **WHOLE, encoding="bytes")),
        all_of(text(prose, **WHOLE, codec=wider)),
        all_of(text(other, **WHOLE)),
        all_of(text(other, **WHOLE, codec=wider)),
    ]
    assert texts == [PROSE] * 3 + [PROSE.replace("Z", "Y")] * 2
    assert len(list((home / "cache").iterdir())) == 5
    prose.write_text(PROSE.replace("Z", "X"), encoding="utf-8")  # the same path, another content
    assert all_of(text(prose, **WHOLE)) == PROSE.replace("Z", "X")


def test_a_codec_that_is_given_reads_another_file_in_its_own_tokens(prose, tmp_path):
    (tmp_path / "other.txt").write_text("Viktor " * 40)
    data = text(prose, length=7)
    other = text(tmp_path / "other.txt", length=7, codec=data.codec)
    assert other.codec is data.codec
    assert data.codec.decode(other.train[:1]) == ["Viktor "]


def test_a_symbol_that_the_codec_does_not_know_is_an_error_and_nothing_is_cached(prose, home):
    with pytest.raises(ValueError, match=r"prose.txt: symbol 'Z' at offset 0 is not in the alphabet 'abc'"):
        text(prose, length=7, codec=Characters("abc"))
    assert not list((home / "cache").iterdir())


def test_the_offset_of_an_unknown_symbol_counts_from_the_beginning_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", 7)
    (tmp_path / "x.txt").write_text("ä" * 100 + "b", encoding="utf-8")
    with pytest.raises(ValueError, match="symbol 'b' at offset 100"):
        text(tmp_path / "x.txt", **WHOLE, codec=Characters("äc"))


@pytest.mark.parametrize("chunk", [1 << 22, 8])
@pytest.mark.parametrize(("content", "byte"), [(b"a" * 10 + b"\xff" + b"a" * 9, 10), ("ä".encode() * 10 + b"\xc3", 20)])
def test_a_file_that_is_not_utf8_is_an_error_that_suggests_bytes(tmp_path, content, byte, chunk, monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"x.bin: not UTF-8 at byte {byte}: save it as UTF-8, or give encoding='bytes'"
    ):
        text(tmp_path / "x.bin", **WHOLE)
    assert text(tmp_path / "x.bin", **WHOLE, encoding="bytes").num_states == 256


def test_a_file_is_never_in_memory_whole(tmp_path, monkeypatch):
    largest = 0

    def encode(self, chunk, offset=0):
        nonlocal largest
        largest = max(largest, len(chunk))
        return original(self, chunk, offset)

    original = Characters.encode
    monkeypatch.setattr(Characters, "encode", encode)
    (tmp_path / "x.txt").write_text("ab" * 5_000_000)
    text(tmp_path / "x.txt")
    assert 0 < largest <= 1 << 22


@pytest.mark.parametrize("chunk", [1 << 22, 7])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding_and_is_no_symbol(tmp_path, encoding, chunk, monkeypatch):
    """The mark was a symbol, and UTF-16 full of zeros."""
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    (tmp_path / "x.txt").write_bytes(PROSE.encode(encoding))
    data = text(tmp_path / "x.txt", **WHOLE)
    assert all_of(data) == PROSE
    assert data.codec.alphabet == "".join(sorted(set(PROSE)))
    said = "a byte order mark at the beginning was removed" if "sig" in encoding else f"decoded from {encoding.upper()}"
    assert data.notes[0] == said
    assert all("mark" not in note for note in text(tmp_path / "x.txt", **WHOLE, encoding="bytes").notes)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_refused_with_the_cure(tmp_path, encoding):
    (tmp_path / "x.txt").write_bytes(PROSE.encode(encoding))
    with pytest.raises(
        ValueError, match=r"x.txt: every other byte is zero, as in UTF-16 .*: save it as UTF-8, or give"
    ):
        text(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(PROSE.encode("utf-16")[:-1])
    with pytest.raises(
        ValueError, match=r"x.txt: not UTF-16 at byte [\d,]+: save it as UTF-8, or give encoding='bytes'"
    ):
        text(tmp_path / "x.txt")


def test_what_was_understood_is_said(prose):
    assert text(prose, length=32).describe() == [
        "75 sequences of 32 tokens: 69 train, 3 validation, 3 test",
        f"{len(set(PROSE))} symbols: {''.join(sorted(set(PROSE)))!r}",
        "tokens at the end of a split that do not fill a sequence are not evaluated: 24 train, 28 validation, 28 test",
        "validation and test text are the last tenth of the file",
    ]


def dropping(kind, **options):
    """A tokenizer that knows `ab` and `c` and has no unknown token."""
    tokenizers = pytest.importorskip("tokenizers")
    if kind == "words":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"ab": 0, "c": 1}, unk_token="[UNK]"))
    else:
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3}, [("a", "b")], **options)
        )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return tokenizer


@pytest.mark.parametrize("piece", [1 << 18, 11])
def test_a_tokenizer_that_would_drop_text_is_an_error(tmp_path, home, monkeypatch, piece):
    """What it did not know was not there any more, without a word."""
    monkeypatch.setattr(tokenizing, "_PIECE", piece)
    (tmp_path / "x.txt").write_text("ab c " * 10 + "é ab c " + "ab c " * 10, encoding="utf-8")
    tokenizer = dropping("pieces")
    tokenizer.save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=r"x.txt: symbol 'é' at offset 50 is unknown to the tokenizer: give it"):
        text(tmp_path / "x.txt", **WHOLE, encoding=str(tmp_path / "t.json"))
    assert not list((home / "cache").iterdir())
    dropping("words").save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=r"x.txt: the tokenizer cannot read the text \(.+\): give it an unknown token"):
        text(tmp_path / "x.txt", **WHOLE, encoding=str(tmp_path / "t.json"))


def test_spaces_and_what_a_normalizer_removes_may_be_dropped(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = dropping("pieces")
    tokenizer.normalizer = tokenizers.normalizers.Replace("é", "")
    tokenizer.save(str(tmp_path / "t.json"))
    (tmp_path / "x.txt").write_text("ab c\n\t" * 10 + "é", encoding="utf-8")
    data = text(tmp_path / "x.txt", **WHOLE, encoding=str(tmp_path / "t.json"))
    assert sum(map(len, data.splits().values())) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"length": 400},
            "prose.txt: a sequence of 400 tokens is longer than the validation split, 124 tokens: give more text, or a length of at most 124",
        ),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"encoding": "utf-7"}, "encoding must be characters, bytes or the path .* got 'utf-7'"),
        ({"codec": Grid([2], 2)}, "codec must be a text codec, got Grid"),
    ],
)
def test_mistakes_are_named(prose, options, message):
    with pytest.raises(ValueError, match=message):
        text(prose, **options)


def test_a_tokenizer_file_that_is_none_is_an_error(prose, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="definition must be the JSON of a tokenizer"):
        text(prose, encoding=str(tmp_path / "config.json"))


def test_missing_empty_and_one_letter_files_are_errors(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "same.txt").write_text("a" * 1000)
    with pytest.raises(ValueError, match=r"no file called .*none.txt"):
        text(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"empty.txt is empty"):
        text(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match=r"got a folder"):
        text(tmp_path)
    with pytest.raises(ValueError, match=r"same.txt must have at least 2 states, got 1"):
        text(tmp_path / "same.txt", length=2)


def test_a_text_that_a_tokenizer_makes_nothing_of_is_an_error(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "t.json"))
    (tmp_path / "x.txt").write_text("   \n")
    with pytest.raises(ValueError, match=r"x.txt: the data have no tokens"):
        text(tmp_path / "x.txt", encoding=str(tmp_path / "t.json"))


def test_a_writer_that_is_killed_leaves_no_cache_behind(prose, home, monkeypatch):
    def dies(self, path, progress=None):
        yield np.array([1, 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Bytes, "read", dies)
    with pytest.raises(KeyboardInterrupt):
        text(prose, encoding="bytes")
    assert os.listdir(home / "cache") == []


JOKES = "the quick brown fox jumps over the lazy dog. " * 2000 + "HA HA HA! " * 1000


def share_of_jokes(split):
    """The share of the symbols that occur in the last tenth of `JOKES` only."""
    return torch.isin(split[:], torch.tensor([1, 3, 4])).double().mean().item()  # after blank, ! . A H


def test_the_end_of_a_text_is_in_all_splits_and_the_first_lines_say_how_it_was_split(tmp_path):
    (tmp_path / "jokes.txt").write_text(JOKES)
    data = text(tmp_path / "jokes.txt", length=32)
    shares = [share_of_jokes(split) for split in (data.train, data.validation, data.test)]
    assert max(shares) - min(shares) < 0.02
    assert any("validation and test text come from 39 places" in line for line in data.describe())
    at_end = text(tmp_path / "jokes.txt", length=32, held_out="end")
    assert share_of_jokes(at_end.validation) > share_of_jokes(at_end.train) + 0.2
    assert any("validation and test text are the last tenth" in line for line in at_end.describe())
    again = load(data.source, length=32, codec=data.codec)
    assert again.digest() == data.digest() != at_end.digest()
    assert load(tmp_path / "jokes.txt", length=32, held_out="end").digest() == at_end.digest()


def test_how_text_is_held_out_is_a_choice_for_text_files_alone(tmp_path, no_type_checks):
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    for source in (tmp_path / "x.csv", "pydocs"):
        with pytest.raises(ValueError, match="held_out applies to text files only, got 'end'"):
            load(source, held_out="end")
    (tmp_path / "x.txt").write_text(PROSE)
    with pytest.raises(ValueError, match="held_out must be one of spread, end, got 'middle'"):
        load(tmp_path / "x.txt", held_out="middle")

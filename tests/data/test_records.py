import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sequences
from dmb import data
from dmb._core.configuration import Configurable
from dmb.data.codecs import Fasta, JsonLines, Records, Smiles


def texts(loaded):
    """All records, in the order of the splits."""
    return [text for split in loaded.splits().values() for text in loaded.codec.decode(split[:])]


def test_fasta_with_lengths_from_20_to_200_round_trips(tmp_path):
    made = sequences.proteins(150)
    loaded = data.load(sequences.fasta(tmp_path / "proteins.fasta", made))
    assert sorted(texts(loaded)) == sorted(made)
    assert (loaded.num_positions, loaded.num_states) == (200, len(sequences.LETTERS) + 1)
    everything = torch.cat([split[:] for split in loaded.splits().values()])
    for name in ("out.fasta", "out.fa"):
        loaded.codec.write(tmp_path / name, everything)
        again = data.load(tmp_path / name, codec=loaded.codec)
        assert sorted(texts(again)) == sorted(made)
    written = (tmp_path / "out.fa").read_text().splitlines()
    assert written[0] == ">sample_1"
    assert max(map(len, written)) == 60
    with pytest.raises(ValueError, match=r"path must end in .fasta or .fa or .faa or .fna"):
        loaded.codec.write(tmp_path / "out.csv", everything)


FORMATS = {
    "a.smi": ("CCO ethanol 46\nc1ccccc1\tbenzene\n\nCC\n", ["CCO", "c1ccccc1", "CC"], Smiles, "CCO\n"),
    "a.jsonl": ('"one"\n"zwölf"\n"a\\nb"\n', ["one", "zwölf", "a\nb"], JsonLines, '"one"\n'),
    "b.jsonl": ('{"id": 1, "word": "ab"}\n{"id": 2, "word": "c"}\n{"word": "d"}\n', ["ab", "c", "d"], JsonLines,
                '{"word": "ab"}\n'),
    "a.txt": ("one line\n two\nthrëe\n", ["one line", " two", "thrëe"], Records, "one line\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_and_written_as_it_came(name, tmp_path):
    content, expected, codec, first = FORMATS[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    loaded = data.load(tmp_path / name, kind="records")
    assert sorted(texts(loaded)) == sorted(expected)
    assert type(loaded.codec) is codec
    assert loaded.codec.decode(torch.from_numpy(loaded.codec.encode(expected)).long()) == expected
    loaded.codec.write(tmp_path / f"out{Path(name).suffix}", torch.from_numpy(loaded.codec.encode(expected)).long())
    assert (tmp_path / f"out{Path(name).suffix}").read_text(encoding="utf-8").startswith(first)
    again = Configurable.from_config(json.loads(json.dumps(loaded.codec.to_config())))
    assert again.to_config() == loaded.codec.to_config()


def test_kinds_are_told_by_extension_and_text_stays_text(tmp_path):
    for name, kind in {
        "a.fasta": "records",
        "a.FAA": "records",
        "a.smi": "records",
        "a.jsonl": "records",
        "a.txt": "text",
    }.items():
        (tmp_path / name).write_text("x")
        assert data.kind_of(tmp_path / name) == kind


BAD = {
    "empty": ("a.fasta", b"", "is empty"),
    "nothing but empty lines": ("a.fasta", b"\n\n", "at least 3 records are needed, got none"),
    "no header": ("a.fasta", b"MKV\nMKL\n", r"line 1 must be a header that begins with '>', got 'MKV'"),
    "not ascii": ("a.fasta", ">a\nMÄK\n".encode(), "line 2 must hold letters, '\\*', '-' or '.' only, got 'Ä'"),
    "not utf-8": ("a.fasta", b">a\nM\xffK\n", "not UTF-8 near line 1: save it as UTF-8"),
    "numbers": ("a.fasta", b">a\nMK 61\n", "line 2 must hold letters, '\\*', '-' or '.' only, got '6'"),
    "huge line": ("a.fasta", b">a\n" + b"M" * 1_100_000 + b"\n", "line 2 has more than 1,048,576 symbols"),
    "duplicate names": ("a.fasta", b">a x\nMK\n>b\nM\n>a y\nMK\n", "lines 1 and 5 have the same name, 'a': rename or remove one"),
    "record of length 0": ("a.fasta", b">a\nMK\n>b\n>c\nM\n", "line 3: 'b' has no residues"),
    "last of length 0": ("a.fasta", b">a\nMK\n>b\n", "line 3: 'b' has no residues"),
    "two records": ("a.fasta", b">a\nMK\n>b\nM\n", "at least 3 records are needed, got 2"),
    "all too long": ("a.txt", b"\n".join([b"A" * 600] * 4), "got 0 of at most 512 symbols; the longest of 4 has 600"),
    "smiles not ascii": ("a.smi", "CC\nC→O\n".encode(), "line 2 must begin with SMILES, which is ASCII, got '→'"),
    "not json": ("a.jsonl", b'"a"\nb\n', "line 2 is not JSON"),
    "json too deep": ("a.jsonl", b'"a"\n' + b"[" * 100_000 + b"\n", "line 2 is not JSON: maximum recursion depth"),
    "json number": ("a.jsonl", b'"a"\n3\n', "line 2 must be a string that is not empty, got 3"),
    "json empty": ("a.jsonl", b'"a"\n""\n', 'line 2 must be a string that is not empty, got ""'),
    "json two strings": ("a.jsonl", b'{"a": "x", "b": "yz"}\n', "line 1 must be a string, or an object with one string, got 2, 'a', 'b': "
                         "keep one of them in a new file, as by jq '.\"b\"' OLD.jsonl > NEW.jsonl"),
    "json no string": ("a.jsonl", b'{"a": 1}\n', "line 1 must be a string, or an object with one string, got 0 of them"),
    "json other field": ("a.jsonl", b'{"a": "x"}\n{"b": "y"}\n', "line 2 must have its string in the same place"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_explained_in_one_line(case, tmp_path):
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as found:
        data.load(tmp_path / name, kind="records")
    assert name in str(found.value)
    assert "\n" not in str(found.value)


def test_what_was_changed_or_dropped_is_said(tmp_path):
    path = tmp_path / "mixed.fa"
    lines = [f">s{i}\n{'mkV' if i == 0 else 'ACDK' if i % 2 else 'KK'}" for i in range(400)]
    path.write_text("\n".join([*lines, ">long\n" + "A" * 90, ">longer\n" + "A" * 99]))
    loaded = data.load(path)
    assert loaded.codec.alphabet == "ACDKMV"
    assert loaded.num_positions == 4
    assert loaded.notes == (
        "2 residues in lower case are read as upper case",
        "lengths from 2 to 4, half of them up to 3",
        "2 of 402 records have more than 4 symbols, and are dropped",
        "397 records occur before in the file; copies may be in training and test data alike",
    )
    assert loaded.describe()[0] == "400 sequences of up to 4 residues: 320 train, 40 validation, 40 test"
    assert data.load(path, length=99).num_positions == 99
    assert data.load(path, length=2).num_positions == 2


def test_another_file_is_read_with_a_models_alphabet_and_length(tmp_path):
    own = data.load(sequences.fasta(tmp_path / "own.fasta", ["ACDE", "AAC", "DE", "A"] * 5))
    other = data.load(sequences.fasta(tmp_path / "other.fasta", ["CC", "AC", "D", "ACDEA"]), codec=own.codec)
    assert (other.num_positions, len(texts(other))) == (4, 3)
    with pytest.raises(ValueError, match="symbol 'K' of record 2 is not in the alphabet"):
        data.load(sequences.fasta(tmp_path / "other.fasta", ["CC", "AK", "D"]), codec=own.codec)


def test_marginals_and_baseline_count_what_is_there(tmp_path):
    made = ["AB", "A", "BBA", "A", "BA", "A", "AAB", "B", "A", "AB"] * 4
    (tmp_path / "words.txt").write_text("\n".join(made))
    loaded = data.load(tmp_path / "words.txt", kind="records")
    train = "".join(loaded.codec.decode(loaded.train[:]))
    expected = np.array([train.count("A"), train.count("B"), 0]) + 1 / 3
    np.testing.assert_allclose(loaded.marginals()[2], expected / (len(train) + 1), rtol=1e-6)
    lengths = np.array([len(text) for text in loaded.codec.decode(loaded.train[:])])
    assert loaded.lengths.counts == np.bincount(lengths)[1:].tolist()
    total = 0.0
    for text in loaded.codec.decode(loaded.test[:]):
        total -= np.log2(loaded.lengths.p[len(text) - 1].item())
        total -= sum(np.log2(expected["AB".index(symbol)] / (len(train) + 1)) for symbol in text)
    bits = total / len("".join(loaded.codec.decode(loaded.test[:])))
    assert loaded.unigram_bits(loaded.test) == pytest.approx(bits)


def test_decoding_stops_at_the_padding_and_templates_leave_the_end_open():
    codec = Fasta("AB", longest=4)
    assert codec.decode(torch.tensor([[0, 1, 2, 1], [2, 0, 0, 0], [1, 1, 1, 1]])) == ["AB", "", "BBBB"]
    assert codec.template("B_A", num_positions=4).tolist() == [1, -2, 0, -1]
    assert codec.template("", num_positions=4).tolist() == [-1] * 4
    for text, message in [("AAAAA", "at most 4 positions, got 5"), ("AX", "symbol 'X' at offset 1")]:
        with pytest.raises(ValueError, match=message):
            codec.template(text, num_positions=4)

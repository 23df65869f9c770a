"""Records of different lengths from the command line, from a FASTA file to samples."""

import json

import numpy as np
import pytest
import torch

import dmb
import sequences
from commands import dmb_, flags
from dmb.app.runs import Run

import oracles

SHORT = flags(score_steps=80, evaluate_every=80, batch_size=16, width=32, blocks=1, heads=2, dropout=0.0,
              evaluate_sequences=40, chain_calls=4, learning_rate=1e-2, warmup=10, ema=0.9)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    path = sequences.fasta(folder / "proteins.fasta", sequences.proteins(400, 20, 60))
    assert dmb_("train", path, "--out", folder / "run", "--accelerator", "cpu", *SHORT) == 0
    return folder / "run"


@pytest.mark.usefixtures("no_type_checks")
def test_bits_per_residue_are_below_the_unigrams_and_above_the_truth(run, capsys):
    assert dmb_("evaluate", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert dmb_("evaluate", run) == 0
    assert f"{found['bits']:.4f} ± {found['stderr']:.4f} bits per residue on test" in capsys.readouterr().out
    data = dmb.data.load(run.parent / "proteins.fasta")
    lengths = data.lengths.of(data.test[:])
    assert found["tokens"] == lengths.sum()
    of_lengths = data.lengths.nats(lengths).sum() / np.log(2)
    truth = (sequences.bits(lengths.tolist()) + of_lengths.item()) / lengths.sum().item()
    assert truth - 3 * found["stderr"] < found["bits"] < found["unigram_bits"] - 0.5
    assert found["unigram_bits"] == pytest.approx(data.unigram_bits(data.test))


@pytest.mark.usefixtures("no_type_checks")
def test_lengths_of_samples_are_those_of_the_data_and_nothing_stands_after_the_end(run):
    bridge, data = Run.open(run).bridge(), dmb.data.load(run.parent / "proteins.fasta")
    x = bridge.sample(1500, calls=2, generator=torch.Generator().manual_seed(0))
    found = data.lengths.of(x)  # raises if a residue stands after padding
    assert oracles.chi_square_p_value(torch.bincount(found, minlength=61)[1:], data.lengths.p) > 1e-5
    histogram = np.array(data.lengths.counts) / len(data.train)
    assert np.abs(np.bincount(found, minlength=61)[1:] / 1500 - histogram).sum() / 2 < 0.08


@pytest.mark.usefixtures("no_type_checks")
def test_samples_come_out_as_fasta_and_templates_are_kept(run, tmp_path, capsys):
    assert dmb_("sample", run, "-n", 5, "--calls", 4, "--template", "AC__F", "--out", tmp_path / "new.fasta") == 0
    again = (tmp_path / "new.fasta").read_text().split(">")[1:]
    residues = ["".join(record.splitlines()[1:]) for record in again]
    assert [record.splitlines()[0] for record in again] == [f"sample_{k}" for k in range(1, 6)]
    assert all(text[:2] == "AC" and text[4] == "F" and set(text) <= set(sequences.LETTERS) for text in residues)
    capsys.readouterr()
    assert dmb_("sample", run, "-n", 3, "--calls", 4, "--length", 33) == 0
    assert [len(text) for text in capsys.readouterr().out.split()] == [33, 33, 33]
    assert dmb_("sample", run, "--length", 90) == 2
    assert "--length must be at most 60, the longest record, got 90" in capsys.readouterr().err


@pytest.mark.usefixtures("no_type_checks")
def test_the_report_speaks_of_residues_lengths_and_how_many_samples_are_new(run, capsys, monkeypatch):
    monkeypatch.setattr("dmb.app.report.contents.effort", lambda bridge: (32, 8))
    assert dmb_("evaluate", run, "--sequences", 20, "--quality") == 0
    bound, samples, real = capsys.readouterr().out.splitlines()
    assert "bits per residue" in bound
    assert samples == "20 samples: 100.0% different, 100.0% of these new"
    assert real.startswith("20 test records: 100.0% different")
    assert dmb_("report", run) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Samples beside real records" in page
    assert "bits per residue" in page
    assert "bits per token" not in page
    assert "Lengths of data and samples" in page


def test_lines_of_a_text_are_records_if_asked_for_and_bad_files_exit_with_2(tmp_path, capsys):
    words = tmp_path / "words.txt"
    words.write_text("one\nthree\nfour\nseven\n" * 5)
    assert dmb_("train", words, "--recipe", "records", "--out", tmp_path / "run", "--accelerator", "cpu", *SHORT,
                *flags(score_steps=2, evaluate_every=2, matrix_steps=1)) == 0  # fmt: skip
    output = capsys.readouterr()
    assert "20 records of up to 5 symbols" in output.err
    assert "bits per symbol" in output.err
    for content in ("", "MKV\n", ">a\n>b\nMK\n", ">a\nM\n>a\nM\n"):
        (tmp_path / "bad.fasta").write_text(content)
        assert dmb_("train", tmp_path / "bad.fasta") == 2
        message = capsys.readouterr().err.strip()
        assert "bad.fasta" in message
        assert len(message.splitlines()) == 1

import sys
from types import SimpleNamespace

import pytest
import torch

import dmb
from dmb.app.evaluation.samples import checker, record_quality, shares
from dmb.app.records import read_records
from dmb.data.codecs import Fasta, Smiles


def test_shares_are_those_of_counting():
    texts = ["AB", "AB", "BA", "C", "C", "C", "ABC", "BB"]  # AB, BA, C, ABC, BB: five of eight; C and BB are known
    assert shares(texts, {"C", "BB", "AAA"}) == (5 / 8, 3 / 5, None)
    assert shares(texts, set(), lambda text: "A" in text)[2] == 4 / 8


def test_smiles_are_checked_by_rdkit_and_by_nothing_else(monkeypatch):
    silenced = []
    chemistry = SimpleNamespace(MolFromSmiles=lambda text: None if text.count("(") != text.count(")") else object())
    logs = SimpleNamespace(DisableLog=silenced.append)
    monkeypatch.setitem(sys.modules, "rdkit", SimpleNamespace(Chem=chemistry, RDLogger=logs))
    check = checker(Smiles("C()", 5))
    assert [check(text) for text in ("C(C)", "C(C")] == [True, False]
    assert silenced == ["rdApp.*"]
    assert checker(Fasta("ACGT", 5)) is None
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert checker(Smiles("C()", 5)) is None


@pytest.mark.usefixtures("no_type_checks")
def test_copies_of_training_records_are_not_new(tmp_path, monkeypatch):
    (tmp_path / "words.smi").write_text("".join(f"{'C' * (1 + i % 7)}{'O' * (1 + i // 7)}\n" for i in range(40)))
    data = dmb.data.records(tmp_path / "words.smi")
    drawn = data.train[:3]  # what the model gives: the first training record twice, and two others
    monkeypatch.setattr("dmb.app.evaluation.samples.draw", lambda *_, **__: iter([torch.cat([drawn[:1], drawn])]))
    found = record_quality(None, data, count=4)
    samples, real = found
    assert (samples.what, samples.different, samples.new) == ("samples", 3 / 4, 0.0)
    assert (real.what, real.different, real.new) == ("test records", 1.0, 1.0)
    assert str(samples) == "4 samples: 75.0% different, 0.0% of these new"
    assert read_records(tmp_path) == []

import hashlib
import itertools
import math
import re
import sys
import sysconfig
import types

import numpy as np
import pytest
import scipy.stats
import sklearn.datasets
import torch

import dmb
from dmb.data import digits, pydocs
from dmb.data.sources import built_in

ALPHABET = " abcdefghijklmnopqrstuvwxyz"


def test_digits_are_all_the_images_with_their_labels():
    data = digits()
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    wanted = sorted((*image, label) for image, label in zip(images.astype(int).tolist(), labels.tolist(), strict=True))
    tokens = torch.cat([torch.cat([s[:], s.labels(slice(None))[:, None]], dim=1) for s in data.splits().values()])
    assert sorted(map(tuple, tokens.tolist())) == wanted
    assert [len(split) for split in data.splits().values()] == [1437, 180, 180]
    assert (data.name, data.source, data.num_positions, data.num_states) == ("digits", "digits", 64, 17)
    assert set(data.train.batch(256, step=0, seed=0).label.tolist()) == set(range(10))


def test_the_split_of_the_digits_never_moves():
    tokens = digits().test[:].numpy().astype(np.uint8)
    assert hashlib.sha256(tokens.tobytes()).hexdigest()[:16] == "c1f52292cd42d85b"


def test_digits_without_the_library_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match="pip install scikit-learn"):
        digits()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small Python: two modules, a package, things to leave out, and a few topics."""
    folder = tmp_path / "lib"
    files = {
        "one.py": '"""Module ONE: it\'s 1st."""\ndef f():\n    """Shared."""\nraise SystemExit("imported")\n',
        "pack/two.py": 'class A:\n    """About A."""\n    async def g(self):\n        """Shared."""\n\nx = """not a docstring"""\n'
        'try:\n    x()\nexcept OSError:\n    x()\nelse:\n    def h():\n        """Elsewhere."""\n',
        "pack/none.py": "x = 1\n",
        "pack/broken.py": "def (:\n",
        "test/left.py": '"""left out"""\n',
        "pack/tests/left.py": '"""left out"""\n',
        "site-packages/left.py": '"""left out"""\n',
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder) if name == "stdlib" else None)
    topics = types.ModuleType("pydoc_data.topics")
    topics.topics = {"loops": "The *for* statement\n" * 20, "if": "The *if* statement"}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", topics)
    return folder


def everything(data):
    return "".join(data.codec.decode(torch.cat([split[:] for split in data.splits().values()])))


def test_documents_are_topics_and_docstrings_found_without_importing(library):
    text = everything(pydocs(length=1))
    for document in ("module one it s st shared", "about a elsewhere", "the for statement the for", "the if statement"):
        assert document in text
    assert "left out" not in text
    assert "not a docstring" not in text
    assert text.count("shared") == 1  # the same docstring is never in two splits
    assert "  " not in text
    words = re.findall(
        "[a-z]+",
        " ".join(["module one it s st shared", "about a elsewhere", "the for statement " * 20, "the if statement"]),
    )
    assert sorted(text.split()) == sorted(words)


def test_documents_are_parsed_once(library, home, monkeypatch):
    before = everything(pydocs(length=1))
    monkeypatch.setattr(built_in, "_documents", lambda: pytest.fail("parsed again"))
    assert everything(pydocs(length=1)) == before
    (cached,) = (home / "cache").iterdir()
    assert np.load(cached).dtype == np.uint8


def test_a_python_without_topics_or_sources_is_a_clear_error(library, monkeypatch, home):
    for path in library.rglob("*.py"):
        path.unlink()
    with pytest.raises(ValueError, match="needs the sources of the standard library, which are not in"):
        pydocs()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"needs pydoc_data.topics, which this Python lacks: use another Python"):
        pydocs()
    assert not list((home / "cache").iterdir())


@pytest.mark.long
def test_the_documentation_of_this_python_is_a_million_letters_with_even_splits():
    data = pydocs(length=64)
    assert (data.name, data.source, data.num_states, data.num_positions) == ("pydocs", "pydocs", 27, 64)
    assert data.codec.alphabet == ALPHABET
    assert data.train.counts().sum() > 1_000_000
    bits = [data.unigram_bits(split) for split in data.splits().values()]
    assert 4.0 < min(bits) < max(bits) < 4.2  # English letters and spaces: about 4.1
    assert max(bits) - min(bits) < 0.05
    train, test = (data.codec.decode(split[:]) for split in (data.train, data.test))
    assert len(set(test) & set(train)) < 0.02 * len(test)


def test_the_entropy_is_that_of_all_sentences_enumerated():
    start, transition = built_in._chain()
    nats = 0.0
    for sentence in itertools.product(range(27), repeat=3):
        p = start[sentence[0]] * math.prod(transition[a, b] for a, b in itertools.pairwise(sentence))
        nats -= p * math.log(p)
    assert dmb.data.markov_bits(3) == pytest.approx(nats / 3 / math.log(2), rel=1e-12)


def test_the_chain_is_one_and_its_start_is_stationary():
    start, transition = built_in._chain()
    np.testing.assert_allclose(transition.sum(1), 1)
    np.testing.assert_allclose(start @ np.linalg.matrix_power(transition, 50), start, rtol=1e-12)


def test_sentences_follow_the_chain():
    tokens = dmb.data.markov(length=4).train[:].numpy()
    start, transition = built_in._chain()
    for position in (0, 2):  # stationary: every pair of neighbours is distributed alike
        pairs = np.zeros((27, 27))
        np.add.at(pairs, (tokens[:, position], tokens[:, position + 1]), 1)
        expected = len(tokens) * start[:, None] * transition
        enough = expected > 5
        seen = np.append(pairs[enough], pairs[~enough].sum())
        wanted = np.append(expected[enough], expected[~enough].sum())
        assert scipy.stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-3


def test_splits_hold_different_sentences():
    data = dmb.data.markov(length=32)
    rows = [{tuple(row) for row in split[:1000].tolist()} for split in data.splits().values()]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(rows, 2))

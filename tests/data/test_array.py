import zipfile

import numpy as np
import pytest
import torch

from dmb.data import array, load
from dmb.data.sources import array as module

VALUES = np.random.default_rng(0).integers(5, size=(40, 2, 3))


@pytest.mark.parametrize("dtype", ["uint8", "int8", ">u2", "int64", "uint64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_of_integers_comes_back_row_by_row(tmp_path, dtype, order):
    np.save(tmp_path / "x.npy", VALUES.astype(dtype, order=order))
    data = array(tmp_path / "x.npy")
    assert (data.num_positions, data.num_states, data.codec.shape) == (6, VALUES.max() + 1, [2, 3])
    assert (data.name, data.source) == ("x.npy", str(tmp_path / "x.npy"))
    rows = torch.cat([split[:] for split in data.splits().values()]).tolist()
    assert sorted(rows) == sorted(VALUES.reshape(40, 6).tolist())
    assert [len(split) for split in data.splits().values()] == [32, 4, 4]
    assert isinstance(data.train._tokens, np.memmap)


def test_samples_are_written_as_the_data_came(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    data = array(tmp_path / "x.npy")
    data.codec.write(tmp_path / "y.npy", data.test[:])
    written = np.load(tmp_path / "y.npy")
    assert written.shape == (4, 2, 3)
    assert all(any((example == row).all() for row in VALUES) for example in written)


def test_an_archive_of_three_arrays_keeps_its_splits(tmp_path):
    parts = {"train": VALUES[:20], "validation": VALUES[20:25], "test": VALUES[25:]}
    np.savez(tmp_path / "x.npz", **parts)
    data = array(tmp_path / "x.npz")
    for part, split in data.splits().items():
        np.testing.assert_array_equal(split[:], parts[part].reshape(len(split), 6))


def test_an_archive_of_one_array_is_split_like_a_file(tmp_path):
    np.savez(tmp_path / "x.npz", anything=VALUES)
    np.testing.assert_array_equal(array(tmp_path / "x.npz").test[:], array(VALUES).test[:])


def test_the_number_of_states_can_be_given_and_is_else_the_largest_anywhere(tmp_path):
    rare = VALUES.copy()
    rare[17, 1, 2] = 99
    assert array(rare).num_states == 100
    assert array(VALUES, num_states=256).num_states == 256
    np.savez(tmp_path / "x.npz", train=VALUES, validation=VALUES, test=rare)
    assert array(tmp_path / "x.npz").num_states == 100


def test_booleans_are_two_states(tmp_path):
    np.save(tmp_path / "x.npy", VALUES > 2)
    data = array(tmp_path / "x.npy")
    assert data.num_states == 2
    assert data.train.counts().sum() == 32 * 6


def test_arrays_in_memory_have_no_source():
    assert array(VALUES).source == ""


def test_the_largest_value_is_found_block_by_block(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert array(VALUES + 3).num_states == VALUES.max() + 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (VALUES * 0.5, "array must hold integers, got float64: round it"),
        (VALUES.astype(str), "must hold integers, got <U"),
        (np.arange(10), r"must have shape \[examples, positions, …\] and not be empty, got \[10\]"),
        (np.zeros((5, 0), dtype=int), r"got \[5, 0\]"),
        (np.zeros((0, 5), dtype=int), r"got \[0, 5\]"),
        (VALUES - 1, "must hold integers ≥ 0, got -1"),
        (VALUES[:2], "at least 3 rows, one per split, got 2"),
        (np.zeros((5, 2), dtype=int), "at least 2 states, got 1"),
    ],
)
def test_arrays_that_cannot_be_tokens_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        array(values)


def test_values_beyond_the_states_that_were_given_are_named():
    wanted = VALUES.copy()
    wanted[8, 1, 0] = 7
    with pytest.raises(ValueError, match=r"array: tokens must lie in \[0, 5\), got 7 at row 8, position 3"):
        array(wanted, num_states=5)
    with pytest.raises(ValueError, match=r"tokens must lie in \[0, 5\), got -1 at row"):
        array(VALUES - 1, num_states=5)


@pytest.mark.parametrize("block", [1 << 24, 7])
def test_a_stray_value_is_refused_with_its_place_unless_the_limit_is_raised(tmp_path, monkeypatch, block):
    """It made two million states, and then a traceback for want of memory."""
    monkeypatch.setattr(module, "_BLOCK", block)
    stray = VALUES.copy()
    stray[17, 1, 2] = 2_000_000
    np.save(tmp_path / "x.npy", stray)
    message = (
        r"x.npy must hold integers below 65,536, got 2,000,000 at row 17, position 5: correct it, or raise most_states"
    )
    for read in (array, load):
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x.npy")
        assert read(tmp_path / "x.npy", most_states=2_000_001).num_states == 2_000_001
    assert array(stray, num_states=2_000_001).num_states == 2_000_001
    assert array(np.minimum(stray, 65_535)).num_states == 65_536
    with pytest.raises(ValueError, match="got -1 at row 17, position 5"):
        array(np.where(stray == 2_000_000, -1, stray))


def test_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    np.save(tmp_path / "x.npy", np.array([[Bomb()]]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", np.array([[Bomb()]]))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ValueError, match=f"{name} cannot be read as an array"):
            array(tmp_path / name)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_files_that_are_cut_short_or_something_else_are_named(tmp_path, name):
    (np.save if name == "x.npy" else np.savez)(tmp_path / name, VALUES)
    whole = (tmp_path / name).read_bytes()
    for content in (whole[:-100], b"hello", whole[:3]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} cannot be read as an array"):
            array(tmp_path / name)


def test_archives_with_something_else_than_arrays_are_named(tmp_path):
    """It was a traceback."""
    for members in (["a.txt"], ["train", "validation", "test"], ["empty.npy"]):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            for member in members:
                archive.writestr(member, b"" if member == "empty.npy" else b"hello")
        with pytest.raises(ValueError, match=r"x.npz cannot be read as an array: it must hold arrays only, got"):
            load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train": VALUES, "test": VALUES}, "must hold one array, or train, validation, test, got train, test"),
        ({}, "got none"),
        (
            {"train": VALUES, "validation": VALUES, "test": VALUES[:, :1]},
            r"must agree in shape, got \[\[1, 3\], \[2, 3\]\]",
        ),
        ({"train": VALUES, "validation": VALUES, "test": VALUES[:0]}, "x.npz: test must have shape"),
        ({"train": VALUES, "validation": VALUES * 0.5, "test": VALUES}, "x.npz: validation must hold integers"),
    ],
)
def test_archives_that_do_not_fit_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        array(tmp_path / "x.npz")


def test_a_list_is_an_array():
    np.testing.assert_array_equal(array(VALUES.tolist()).test[:], array(VALUES).test[:])
    with pytest.raises(ValueError, match="must hold integers, got float64"):
        array([[0.5, 1.0]] * 20)

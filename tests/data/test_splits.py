import tracemalloc
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch

from dmb.data import Rows, Stream, splits as module
from dmb.data.splits import permutation, random_bits, split_rows


def numbered(count, positions=3):
    """Rows that can be told apart: row i holds i in every position."""
    return Rows(np.arange(count)[:, None].repeat(positions, axis=1), num_states=count)


def memmap(path, values):
    np.save(path, values)
    return np.load(path, mmap_mode="r")


def rows_split():
    tokens = np.random.default_rng(0).integers(5, size=(23, 4), dtype=np.uint8)
    return Rows(tokens, 5, labels=np.arange(23))


def stream_split():
    return Stream(np.random.default_rng(0).integers(5, size=101, dtype=np.uint8), 5, length=7)


@pytest.mark.parametrize("make", [rows_split, stream_split])
def test_a_batch_is_a_pure_function_of_seed_and_step(make):
    wanted = make().batch(6, step=11, seed=3)
    split = make()
    for step in (0, 4, 40, 11, 12):  # whatever was drawn before
        split.batch(6, step=step, seed=3)
        split.batch(6, step=step, seed=4)
    again = split.batch(6, step=11, seed=3)
    assert torch.equal(again.x_0, wanted.x_0)
    assert again.x_0.dtype == torch.int64
    assert again.label is wanted.label is None or torch.equal(again.label, wanted.label)
    assert not torch.equal(split.batch(6, step=11, seed=4).x_0, wanted.x_0)
    assert not torch.equal(split.batch(6, step=10, seed=3).x_0, wanted.x_0)


@pytest.mark.parametrize("size", [1, 4, 10, 7, 25])
def test_every_epoch_visits_every_row_once_in_a_new_order(size):
    split, epochs = numbered(10), 5
    steps = -(-epochs * 10 // size)
    seen = torch.cat([split.batch(size, step=step, seed=1).x_0[:, 0] for step in range(steps)]).tolist()
    orders = [seen[first : first + 10] for first in range(0, epochs * 10, 10)]  # batches of 4, 7, 25 straddle epochs
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == epochs


def test_the_epoch_order_does_not_depend_on_the_size_of_a_batch():
    by_ones = [int(numbered(10).batch(1, step=step, seed=1).x_0[0, 0]) for step in range(30)]
    at_once = numbered(10).batch(30, step=0, seed=1).x_0[:, 0].tolist()
    assert by_ones == at_once


def test_labels_go_with_their_rows():
    split = Rows(np.arange(10)[:, None], 10, labels=np.arange(10) * 7 % 10, rows=np.array([2, 3, 5, 8, 9]))
    batch = split.batch(8, step=1, seed=0)
    assert torch.equal(batch.label, batch.x_0[:, 0] * 7 % 10)
    assert torch.equal(split.labels(slice(1, 3)), torch.tensor([1, 5]))
    assert numbered(3).labels(slice(None)) is None


def test_rows_of_a_split_are_those_of_the_array_in_order():
    tokens = np.arange(24).reshape(6, 2, 2)
    split = Rows(tokens, 24, rows=np.array([1, 4, 5]))
    assert (len(split), split.num_positions) == (3, 4)
    np.testing.assert_array_equal(split[:], tokens[[1, 4, 5]].reshape(3, 4))
    np.testing.assert_array_equal(split[torch.tensor([2, 0, 2])], tokens[[5, 1, 5]].reshape(3, 4))
    np.testing.assert_array_equal(split[-1:], tokens[[5]].reshape(1, 4))


def test_arrays_in_fortran_order_are_read_row_by_row():
    tokens = np.asfortranarray(np.arange(24).reshape(6, 2, 2))
    np.testing.assert_array_equal(Rows(tokens, 24)[2:4], np.arange(8, 16).reshape(2, 4))


def test_chunks_never_overlap_and_drop_only_the_remainder():
    tokens = np.arange(23)
    split = Stream(tokens, 23, length=5)
    assert len(split) == 4
    assert split[:].flatten().tolist() == list(range(20))
    assert split[torch.tensor([3, 1])].tolist() == [[15, 16, 17, 18, 19], [5, 6, 7, 8, 9]]
    assert split.labels(slice(None)) is None


def test_crops_begin_at_every_offset_equally_often():
    tokens, length = np.arange(23), 5
    crops = torch.cat([Stream(tokens, 23, length).batch(100, step=step, seed=0).x_0 for step in range(100)])
    assert (crops.diff(dim=1) == 1).all()  # consecutive tokens
    starts = Counter(crops[:, 0].tolist())
    assert sorted(starts) == list(range(23 - 5 + 1))
    assert scipy.stats.chisquare(list(starts.values())).pvalue > 1e-3


def test_a_stream_exactly_as_long_as_a_sequence_has_one_crop():
    split = Stream(np.arange(5), 5, length=5)
    assert split.batch(3, step=0, seed=0).x_0.tolist() == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("dtype", ["uint8", "int16", ">i4", "uint32", "int64"])
def test_counts_of_a_stream_are_those_of_a_counter(tmp_path, dtype):
    values = np.random.default_rng(1).zipf(1.5, size=5003) % 40
    split = Stream(memmap(tmp_path / "tokens.npy", values.astype(dtype)), 41, length=10)
    counter = Counter(values.tolist())
    assert split.counts().tolist() == [[counter[state] for state in range(41)]]


@pytest.mark.parametrize("rows", [None, np.arange(1, 307, 3)])
def test_counts_of_rows_are_those_of_a_counter_at_each_position(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 64)  # many blocks, the last one not full
    values = np.random.default_rng(1).integers(7, size=(307, 2, 3), dtype=np.int16)
    split = Rows(memmap(tmp_path / "tokens.npy", values), 9, rows=rows)
    flat = values.reshape(307, 6)[slice(None) if rows is None else rows]
    wanted = [[Counter(column.tolist())[state] for state in range(9)] for column in flat.T]
    assert split.counts().tolist() == wanted


def test_counts_are_not_changed_by_who_asked_before():
    split = stream_split()
    wanted = split.counts().tolist()
    split.counts().zero_()
    assert split.counts().tolist() == wanted


@pytest.mark.parametrize("length", [None, 16])
def test_all_the_data_are_never_in_memory_as_int64(tmp_path, length):
    values = np.zeros((1 << 19, 16), dtype=np.uint8)
    mapped = memmap(tmp_path / "tokens.npy", values if length is None else values.ravel())
    tracemalloc.start()
    try:
        split = Rows(mapped, 3) if length is None else Stream(mapped, 3, length)
        split.counts()
        split.batch(32, step=0, seed=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.size * 8 / 2


def test_what_is_handed_out_can_be_changed_without_changing_the_data():
    tokens = np.arange(6).reshape(3, 2)
    for split in (Rows(tokens, 6), Stream(tokens.ravel(), 6, length=2)):
        split[:].zero_()
        split.batch(3, step=0, seed=0).x_0.zero_()
        assert split[:].flatten().tolist() == list(range(6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rows(np.zeros((0, 3), dtype=int), 2), "tokens must have at least one row, got none"),
        (lambda: Rows(np.zeros((4, 3), dtype=int), 2, rows=np.array([], dtype=int)), "at least one row"),
        (lambda: Rows(np.zeros(3, dtype=int), 2), r"shape \[rows, positions\], got \[3\]"),
        (lambda: Rows(np.zeros((3, 0), dtype=int), 2), r"got \[3, 0\]"),
        (lambda: Rows(np.zeros((3, 2)), 2), "tokens must be integers, got float64"),
        (lambda: Rows(np.array([[0, 1], [1, -1]]), 2), r"tokens must lie in \[0, 2\), got -1 at row 1, position 1"),
        (lambda: Rows(np.array([[0, 1], [2, 0]], dtype=np.uint8), 2), "got 2 at row 1, position 0"),
        (lambda: Rows(np.array([[0], [1], [5]]), 2, rows=np.array([1, 2])), "got 5 at row 2, position 0"),
        (lambda: Rows(np.zeros((3, 2), dtype=int), 2, labels=np.zeros(2)), r"labels must have shape \[3\], got \[2\]"),
        (lambda: Stream(np.zeros((3, 2), dtype=int), 2, 1), r"shape \[length\], got \[3, 2\]"),
        (lambda: Stream(np.zeros(3), 2, 1), "tokens must be integers, got float64"),
        (lambda: Stream(np.zeros(3, dtype=int), 2, 0), "length must be at least 1, got 0"),
        (lambda: Stream(np.zeros(3, dtype=int), 2, 4), "length must be at most the number of tokens, 3, got 4"),
        (lambda: Stream(np.array([0, 1, 7]), 2, 1), r"tokens must lie in \[0, 2\), got 7 at offset 2"),
        (lambda: numbered(4)[torch.tensor([1, 4])], r"rows must lie in \[0, 4\), got 4"),
        (lambda: numbered(4)[torch.tensor([-1])], r"rows must lie in \[0, 4\), got -1"),
        (lambda: numbered(4)[torch.tensor([0.5])], "rows must be a slice or integers"),
        (lambda: numbered(4)[torch.tensor([True] * 4)], "rows must be a slice or integers"),
        (lambda: numbered(4).batch(0, step=0, seed=0), "size must be at least 1, got 0"),
        (lambda: numbered(4).batch(1, step=-1, seed=0), "step and seed must be at least 0, got -1 and 0"),
        (lambda: stream_split().batch(1, step=0, seed=-2), "step and seed must be at least 0, got 0 and -2"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_place_of_an_illegal_token_is_right_in_a_later_block(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    tokens = np.zeros((50, 4), dtype=int)
    tokens[37, 2] = 9
    with pytest.raises(ValueError, match="got 9 at row 37, position 2"):
        Rows(tokens, 3)
    with pytest.raises(ValueError, match="got 9 at offset 150"):
        Stream(tokens.ravel(), 3, length=5)


def test_random_bits_never_change():
    # written down once: if these move, so do the splits of every run that was ever trained
    assert random_bits(3, 0).tolist() == [4468497579187937048, 17123674097326485258, 7136101936143548673]
    assert permutation(6, 1, 2).tolist() == [0, 5, 1, 4, 3, 2]


def test_orders_of_all_rows_are_equally_likely():
    orders = Counter(tuple(permutation(3, seed, 0)) for seed in range(3000))
    assert len(orders) == 6
    assert scipy.stats.chisquare(list(orders.values())).pvalue > 1e-3


def test_data_made_with_the_usual_generator_are_not_split_by_their_values():
    values = np.random.default_rng(0).random(1000)  # the same bits as PCG64(0)
    _, _, test = split_rows((values[:, None] * 10).astype(np.uint8), num_states=10)
    assert len(np.unique(test[:].numpy())) == 10

import math
from collections import Counter

import numpy as np
import pytest
import torch

import dmb
from dmb.data import Bytes, Characters, Columns, DataSet, Grid, Rows, Stream, array
from dmb.data.splits import most_places, split_rows, split_stream


def text_data(tokens, num_states, length=4):
    splits = split_stream(np.array(tokens), num_states, length)
    return DataSet(
        name="toy", source="", codec=Grid([length], num_states), **dict(zip(("train", "validation", "test"), splits, strict=True))
    )  # fmt: skip


def table_data(state_counts, rows=60):
    generator = np.random.default_rng(0)
    tokens = np.stack([generator.integers(count, size=rows) for count in state_counts], axis=1)
    train, validation, test = split_rows(tokens, max(state_counts))
    codec = Columns([str(c) for c in range(len(state_counts))], [list(range(count)) for count in state_counts])
    return DataSet(
        name="toy", source="", codec=codec, train=train, validation=validation, test=test, state_counts=torch.tensor(state_counts)
    )  # fmt: skip


def test_marginals_are_the_smoothed_histogram_of_each_position():
    data = table_data([2, 5, 3])
    tokens = data.train[:].numpy()
    for position, states in enumerate([2, 5, 3]):
        counter = Counter(tokens[:, position].tolist())
        wanted = [(counter[state] + 0.5 / states) / (len(tokens) + 0.5) for state in range(states)]
        np.testing.assert_allclose(data.marginals(0.5)[position, :states], wanted, rtol=1e-6)
        assert (data.marginals(0.5)[position, states:] == 0).all()
    assert data.marginals().dtype == torch.float32
    torch.testing.assert_close(data.marginals().sum(-1), torch.ones(3))


def test_marginals_come_from_the_training_split_alone():
    train, other = np.zeros((8, 2), dtype=int), np.ones((8, 2), dtype=int)
    data = DataSet(
        name="toy", source="", codec=Grid([2], 2), train=Rows(train, 2), validation=Rows(other, 2), test=Rows(other, 2)
    )
    torch.testing.assert_close(data.marginals(2.0), torch.tensor([[0.9, 0.1]] * 2))
    assert data.marginals(0.0).tolist() == [[1.0, 0.0]] * 2


def test_a_state_that_training_never_saw_has_a_chance():
    data = text_data([0, 1] * 100, num_states=3)
    assert data.marginals()[0, 2] == pytest.approx(1 / 3 / 181)


def test_all_positions_of_a_text_share_one_row_of_memory():
    marginals = text_data([0, 1, 1] * 100, num_states=2, length=5).marginals()
    assert marginals.shape == (5, 2)
    assert marginals.stride(0) == 0


@pytest.mark.parametrize("num_states", [2, 50_000])
def test_marginals_are_a_distribution_the_process_accepts(num_states):
    data = text_data(np.random.default_rng(0).integers(num_states, size=400), num_states)
    assert dmb.BridgeProcess.from_marginals(data.marginals()).num_states == num_states


def test_a_process_of_columns_stays_within_the_states_of_each():
    data = table_data([2, 5, 3])
    process = dmb.BridgeProcess.from_marginals(data.marginals(), state_counts=data.state_counts, init="uniform")
    x_0 = data.test[:].repeat(500, 1)
    x_t = process.sample(x_0, 0.5, generator=torch.Generator().manual_seed(0))
    assert [x_t[:, column].unique().tolist() for column in range(3)] == [[0, 1], [0, 1, 2, 3, 4], [0, 1, 2]]
    with pytest.raises(ValueError, match=r"x_0 .*got 2 at row 0, position 0"):
        process.sample(torch.tensor([[2, 0, 0]]), 0.5)


def test_unigram_bits_are_the_cross_entropy_by_hand():
    data = text_data([0] * 60 + [1] * 30 + [0] * 2 + [1] * 3 + [0] * 5, num_states=2, length=5)
    # 60 and 30 of 90 in training, with half a pseudo count each; 2 and 3 of 5 in validation
    p_0, p_1 = 60.5 / 91, 30.5 / 91
    assert data.unigram_bits(data.validation) == pytest.approx(
        -(2 * math.log2(p_0) + 3 * math.log2(p_1)) / 5, rel=1e-12
    )
    assert data.unigram_bits(data.test) == pytest.approx(-math.log2(p_0), rel=1e-12)


def test_unigram_bits_of_a_table_average_over_columns():
    data = table_data([2, 5, 3])
    mu, tokens = data.marginals().double().numpy(), data.test[:].numpy()
    wanted = -np.mean([math.log2(mu[position, token]) for row in tokens for position, token in enumerate(row)])
    assert data.unigram_bits(data.test) == pytest.approx(wanted, rel=1e-6)


def test_unigram_bits_read_a_split_of_another_length():
    data = text_data([0, 1, 1] * 100, num_states=2, length=5)
    other = Stream(np.array([1] * 9), 2, length=3)
    assert data.unigram_bits(other) == pytest.approx(-math.log2(float(data.marginals()[0, 1])), rel=1e-6)


def test_unigram_bits_refuse_a_split_of_other_data():
    data = table_data([2, 5, 3])
    with pytest.raises(ValueError, match="split must have 5 states, got 2"):
        data.unigram_bits(Stream(np.array([0, 1]), 2, 1))
    with pytest.raises(ValueError, match="split must have 3 positions, got 2"):
        data.unigram_bits(Rows(np.array([[0, 1]]), 5))


@pytest.mark.parametrize("pseudo_count", [-1.0, math.inf, math.nan])
def test_a_pseudo_count_that_is_none_is_an_error(pseudo_count):
    with pytest.raises(ValueError, match="pseudo_count must be finite and at least 0"):
        table_data([2, 2]).marginals(pseudo_count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codec": Bytes()}, "the train split must have the codec's 256 states, got 3"),
        ({"test": Rows(np.zeros((2, 2), dtype=int), 4)}, "the test split must have the codec's 3 states, got 4"),
        ({"validation": Rows(np.zeros((2, 5), dtype=int), 3)}, "validation split must have 2 positions .* got 5"),
        ({"codec": Characters("a")}, "at least 2 states, got 1: all tokens are equal"),
        ({"num_classes": 3}, "num_classes must be 0 if and only if there are no labels, got 3"),
        ({"state_counts": torch.tensor([3])}, r"state_counts must have shape \[2\], got \[1\]"),
        ({"state_counts": torch.tensor([3, 4])}, r"state_counts must lie in \[1, 3\], got \[3, 4\]"),
        ({"state_counts": torch.tensor([3, 0])}, r"state_counts must lie in \[1, 3\], got \[3, 0\]"),
        ({"state_counts": torch.tensor([3, 2])}, r"train tokens must lie in \[0, 2\) at position 1, got 2"),
    ],
)
def test_parts_that_do_not_fit_are_named(change, message):
    split = Rows(np.array([[0, 1], [1, 2], [2, 0]]), 3)
    parts = {"codec": Grid([2], 3), "train": split, "validation": split, "test": split}
    with pytest.raises(ValueError, match=message):
        DataSet(name="toy", source="", **{**parts, **change})


def test_labels_must_be_classes():
    split = Rows(np.array([[0, 1], [1, 0]]), 2, labels=np.array([0, 3]))
    parts = {"codec": Grid([2], 2), "train": split, "validation": split, "test": split}
    assert DataSet(name="toy", source="", num_classes=4, **parts).num_classes == 4
    with pytest.raises(ValueError, match=r"train labels must lie in \[0, 3\), got 0 to 3"):
        DataSet(name="toy", source="", num_classes=3, **parts)
    with pytest.raises(ValueError, match="num_classes must be 0 if and only if"):
        DataSet(name="toy", source="", **parts)


@pytest.mark.parametrize("count", [3, 4, 10, 14, 15, 1797])
def test_rows_are_split_without_loss_or_overlap_and_always_alike(count):
    tokens = np.arange(count)[:, None]
    parts = [split[:].flatten().tolist() for split in split_rows(tokens, count)]
    assert sorted(row for part in parts for row in part) == list(range(count))
    assert all(part == sorted(part) for part in parts)  # in the order of the file, which is fast to read
    assert len(parts[1]) == len(parts[2]) == max(1, round(count / 10))
    assert parts == [split[:].flatten().tolist() for split in split_rows(tokens, count)]


def test_the_splits_of_rows_are_mixed():
    train, validation, test = (split[:].double().mean() for split in split_rows(np.arange(5000)[:, None], 5000))
    for mean in (train, validation, test):  # uniform over the file: standard error 5000 / √12 / √500
        assert abs(mean - 2500) < 4 * 65


@pytest.mark.parametrize(("count", "parts"), [(1000, [900, 50, 50]), (1019, [919, 50, 50]), (20, [18, 1, 1])])
def test_a_text_is_cut_in_order(count, parts):
    splits = split_stream(np.arange(count), count, length=1)
    assert [len(split) for split in splits] == parts
    assert torch.cat([split[:] for split in splits]).flatten().tolist() == list(range(count))


@pytest.mark.parametrize(("count", "length"), [(1600, 10), (20_011, 10), (100_000, 64), (100_000, 256)])
def test_held_out_text_comes_from_blocks_all_over_a_text_and_is_apart_from_training_text(count, length):
    splits = split_stream(np.arange(count), count, length, most_places(count, length))
    owner = np.zeros(count, dtype=int)  # 1: training, 2: validation, 4: test
    for number, split in enumerate(splits):
        windows = split[:].numpy()
        assert (np.diff(windows, axis=1) == 1).all()  # none reaches over the edge of a block
        owner[windows.ravel()] |= 1 << number
    crops = np.concatenate([splits.train.batch(1000, step=step, seed=0).x_0.numpy() for step in range(20)])
    assert (np.diff(crops, axis=1) == 1).all()
    owner[crops.ravel()] |= 1
    assert set(np.unique(owner)) <= {0, 1, 2, 4}
    trained, held_out = np.flatnonzero(owner == 1), np.flatnonzero(owner > 1)
    after = np.searchsorted(trained, held_out)
    distance = np.abs(trained[np.clip([after - 1, after], 0, len(trained) - 1)] - held_out).min()
    assert distance > length  # a whole window lies between
    for number in (1, 2):
        share = len(splits[number]) * length / count
        assert 0.03 < share < 0.07
        places = splits[number][:].double().mean().item() / count
        assert abs(places - 0.5) < 0.1
    assert len(splits.train) * length > 0.85 * count
    assert splits.validation.left_over == splits.test.left_over == 0


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_a_stream_of_pieces_is_read_piece_by_piece(dtype):
    split = Stream(np.arange(40, dtype=dtype), 40, 3, pieces=np.array([[2, 9], [11, 13], [20, 26]]))
    assert split[:].tolist() == [[2, 3, 4], [5, 6, 7], [20, 21, 22], [23, 24, 25]]
    assert split[torch.tensor([3, 0])].tolist() == [[23, 24, 25], [2, 3, 4]]
    assert split.left_over == 1 + 2
    starts = {row[0] for step in range(50) for row in split.batch(8, step=step, seed=0).x_0.tolist()}
    assert starts == {2, 3, 4, 5, 6, 20, 21, 22, 23}
    assert split.counts()[0].nonzero().flatten().tolist() == [*range(2, 9), 11, 12, *range(20, 26)]
    with pytest.raises(ValueError, match="length must be at most the number of tokens of a piece, 2, got 3"):
        Stream(np.arange(40), 40, 3, pieces=np.array([[0, 2], [4, 6]]))


def test_a_sequence_longer_than_a_split_is_a_clear_error():
    with pytest.raises(ValueError, match="a sequence of 512 tokens is longer than the validation split, 100 tokens"):
        split_stream(np.zeros(2000, dtype=int), 2, length=512)
    with pytest.raises(ValueError, match="a sequence of 2,000 tokens is longer than the training split, 1,800 tokens"):
        split_stream(np.zeros(2000, dtype=int), 2, length=2000)


def test_fewer_than_three_rows_cannot_be_split():
    with pytest.raises(ValueError, match="at least 3 rows, one per split, got 2"):
        array(np.array([[0, 1], [1, 0]]))


# -- the digest -------------------------------------------------------------------------------------------------------


def test_the_digest_does_not_depend_on_how_tokens_are_stored(tmp_path):
    values = np.random.default_rng(0).integers(5, size=(40, 2, 3))
    digests = {array(values.astype(dtype)).digest() for dtype in ("uint8", ">u2", "int64")}
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    assert digests == {array(tmp_path / "x.npy").digest()} == {array(tmp_path / "x.npy").digest()}


def test_tokens_that_trade_places_within_a_split_change_the_digest():
    """Marginals are the same then, and so was what runs were compared by."""
    tokens = np.random.default_rng(0).integers(5, size=400)
    data, shuffled = text_data(tokens, 5), text_data([*tokens[:360][::-1], *tokens[360:]], 5)
    assert data.baselines() == shuffled.baselines()
    assert data.digest() != shuffled.digest()
    values = tokens.reshape(100, 4)
    swapped = values.copy()
    rows = [row for row in range(100) if (values[row] == array(values).train[:2].numpy()[:, None]).all(-1).any()][:2]
    swapped[rows] = values[rows[::-1]]
    assert array(values).baselines() == array(swapped).baselines()
    assert array(values).digest() != array(swapped).digest()


@pytest.mark.parametrize("place", [0, 1, 359, 360, 379, 380, 399])
def test_every_token_counts_even_one_that_fills_no_sequence(place):
    tokens = np.random.default_rng(0).integers(5, size=400)
    changed = tokens.copy()
    changed[place] = (changed[place] + 1) % 5
    assert text_data(tokens, 5, length=7).digest() != text_data(changed, 5, length=7).digest()


def test_labels_and_the_number_of_states_count_too():
    tokens, labels = np.arange(60).reshape(20, 3) % 4, np.arange(20) % 2

    def digest(labels, states=4):
        train, validation, test = split_rows(tokens, states, labels)
        codec = Grid([3], states)
        return DataSet(
            name="toy", source="", codec=codec, train=train, validation=validation, test=test, num_classes=2
        ).digest()

    assert len({digest(labels), digest(1 - labels), digest(labels, 5)}) == 3
    assert digest(labels) == digest(labels.astype(np.uint8))


class Read(np.ndarray):
    """Tokens that count how many of them are read."""

    tokens = 0

    def __getitem__(self, rows):
        found = super().__getitem__(rows).view(np.ndarray)
        Read.tokens += found.size
        return found


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("kind", ["rows", "ragged", "table", "stream"])
def test_all_facts_of_a_data_set_take_at_most_two_walks_through_its_tokens(kind, dtype):
    values = np.random.default_rng(0).integers(3, size=(60, 8)).astype(dtype)
    if kind == "ragged":
        values[np.arange(8) >= np.random.default_rng(1).integers(1, 9, size=(60, 1))] = 3
    Read.tokens, parts = 0, np.split(values.ravel() if kind == "stream" else values, 3)
    make = (lambda part: Stream(part, 4, 8)) if kind == "stream" else (lambda part: Rows(part, 4))
    splits = dict(zip(("train", "validation", "test"), (make(part.view(Read)) for part in parts), strict=True))
    data = DataSet(
        name="x", source="", codec=Grid([8], 4), **splits, padding=3 if kind == "ragged" else None,
        state_counts=torch.full((8,), 4) if kind == "table" else None,
    )  # fmt: skip
    data.marginals(), data.baselines(), data.digest(), data.lengths, data.describe(), data.digest(), data.marginals()
    assert values.size <= Read.tokens <= 2 * values.size

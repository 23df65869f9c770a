import csv
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from dmb.data import Columns, table

ROWS = [["blue", "1", ""], ["green", "2", "a, b"], ['say "hi"', "10", "two\nlines"], ["blue", "2", "é"]] * 10


def write_csv(path, names, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def all_rows(data):
    """The values of every row, whatever split it is in."""
    tokens = torch.cat([split[:] for split in data.splits().values()]).tolist()
    return Counter(tuple(data.codec.values[c][token] for c, token in enumerate(row)) for row in tokens)


@pytest.fixture
def sample(tmp_path):
    return write_csv(tmp_path / "x.csv", ["colour", "size", "note"], ROWS)


def test_a_csv_file_comes_back_value_by_value(sample):
    data = table(sample)
    assert all_rows(data) == Counter(map(tuple, ROWS))
    assert data.codec.names == ["colour", "size", "note"]
    assert data.codec.values[1] == ["1", "10", "2"]  # strings, sorted as such
    assert data.codec.values[2] == sorted({row[2] for row in ROWS})  # the empty string is a value
    assert data.state_counts.tolist() == [3, 3, 4]
    assert (data.num_states, data.num_positions, data.name, data.source) == (4, 3, "x.csv", str(sample))
    assert [len(split) for split in data.splits().values()] == [32, 4, 4]


def test_marginals_are_zero_beyond_a_columns_states(sample):
    marginals = table(sample).marginals()
    assert (marginals[:2, 3] == 0).all()
    assert (marginals[2] > 0).all()


def test_csv_goes_there_and_back(sample, tmp_path):
    data = table(sample)
    data.codec.write(tmp_path / "y.csv", torch.cat([split[:] for split in data.splits().values()]))
    again = table(tmp_path / "y.csv")
    assert all_rows(again) == all_rows(data)
    assert again.codec.to_config() == data.codec.to_config()


def test_one_column_with_an_empty_value_goes_there_and_back(tmp_path):
    data = table(write_csv(tmp_path / "x.csv", ["a"], [["x"], [""], ["y"], [""]]))
    data.codec.write(tmp_path / "y.csv", torch.cat([split[:] for split in data.splits().values()]))
    assert all_rows(table(tmp_path / "y.csv")) == {("x",): 1, ("",): 2, ("y",): 1}


def test_a_byte_order_mark_and_empty_lines_are_no_data(tmp_path):
    (tmp_path / "x.csv").write_bytes("\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n5,6\r\n\r\n".encode())
    data = table(tmp_path / "x.csv")
    assert data.codec.names == ["a", "b"]
    assert all_rows(data) == {("1", "2"): 1, ("3", "4"): 1, ("5", "6"): 1}


@pytest.mark.parametrize("extra", [255, 256, 257, 9_999])
def test_columns_of_many_values_are_told_apart(tmp_path, extra):
    rows = [[str(value), "x"] for value in range(extra + 1)]
    assert all_rows(table(write_csv(tmp_path / "x.csv", ["a", "b"], rows))) == Counter(map(tuple, rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3\n5,6\n", r"x.csv: line 3 must have 2 values like the header, got 1"),
        ('a,b\n1,"x\ny"\n3,4,5\n', r"line 4 must have 2 values like the header, got 3"),
        ("a,b,a\n1,2,3\n", "column names must be distinct, got 'a' twice"),
        (",b\n1,2\n", "every column must have a name, got none for column 1"),
        ("\n1,2\n", "a header .* is needed, got none"),
        ("a,b\n", "at least 3 rows are needed, got none"),
        ("a,b\n1,2\n3,4\n", "at least 3 rows, one per split, got 2"),
        ("a,b\n1,1\n1,1\n1,1\n", "at least 2 states to learn from, got 1"),
        ('a,b\n1,"2\n', "line 2: unexpected end of data"),
        (
            "a\n" + "\n".join(map(str, range(10_001))),
            "column 'a' has more than 10,000 distinct values: is that a category?",
        ),
    ],
)
def test_csv_files_that_are_no_table_are_named(tmp_path, content, message):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        table(tmp_path / "x.csv")


def test_a_csv_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(ValueError, match=r"x.csv: not UTF-8 near line"):
        table(tmp_path / "x.csv")


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no file called"):
        table(tmp_path / "x.csv")
    (tmp_path / "x.csv").touch()
    with pytest.raises(ValueError, match="is empty"):
        table(tmp_path / "x.csv")


def test_a_codec_that_is_given_reads_another_file_in_its_own_tokens(sample, tmp_path):
    codec = table(sample).codec
    other = table(write_csv(tmp_path / "y.csv", codec.names, ROWS[1:2] * 5), codec=codec)
    assert other.codec is codec
    assert other.train[:1].tolist() == [[codec.values[c].index(value) for c, value in enumerate(ROWS[1])]]
    assert other.state_counts.tolist() == [3, 3, 4]


def test_columns_and_values_that_the_codec_lacks_are_named(sample, tmp_path):
    codec = Columns(["colour", "size"], [["blue", "green"], ["1", "2"]])
    with pytest.raises(ValueError, match="columns must be 'colour', 'size', got 'colour', 'size', 'note'"):
        table(sample, codec=codec)
    path = write_csv(
        tmp_path / "y.csv", ["colour", "size"], [["blue", "1"], ["green", "2"], ["red", "1"], ["blue", "1"]]
    )
    with pytest.raises(ValueError, match=r"y.csv: column 'colour' must be one of 'blue', 'green', got 'red' in row 3"):
        table(path, codec=codec)


# -- Parquet ----------------------------------------------------------------------------------------------------------


def write_parquet(path, columns, **options):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_a_parquet_file_keeps_its_types(tmp_path):
    columns = {
        "size": [10, 9, None, 10] * 5,
        "name": ["b", None, "a", ""] * 5,
        "flag": [True, False, True, True] * 5,
        "ratio": [0.5, 1.0, 0.5, -2.0] * 5,
        "nothing": [None] * 20,
    }
    data = table(write_parquet(tmp_path / "x.parquet", columns))
    assert data.codec.values == [[None, 9, 10], [None, "", "a", "b"], [False, True], [-2.0, 0.5, 1.0], [None]]
    assert [[type(value) for value in column] for column in data.codec.values[2:4]] == [[bool] * 2, [float] * 3]
    assert all_rows(data) == Counter(zip(*columns.values(), strict=True))
    assert data.state_counts.tolist() == [3, 4, 2, 3, 1]


def test_parquet_goes_there_and_back(tmp_path):
    columns = {"size": [3, 1, 4, 1, 5], "name": ["x", "y", None, "x", "z"]}
    data = table(write_parquet(tmp_path / "x.parquet", columns))
    data.codec.write(tmp_path / "y.parquet", torch.cat([split[:] for split in data.splits().values()]))
    assert all_rows(table(tmp_path / "y.parquet", codec=data.codec)) == Counter(zip(*columns.values(), strict=True))


def test_dictionaries_and_many_row_groups_are_read_like_plain_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    names = ["x", "y", "x", "z", None] * 7
    path = write_parquet(tmp_path / "x.parquet", {"name": pyarrow.array(names).dictionary_encode()}, row_group_size=4)
    assert all_rows(table(path)) == Counter((name,) for name in names)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [0.5, float("nan"), 1.0]}, "column 'a' must hold finite numbers, got nan or inf"),
        ({"a": [[1], [2], [3]]}, "column 'a' must hold numbers, booleans or strings, got list"),
        ({"a": np.arange(3).astype("datetime64[s]")}, "column 'a' must hold .* got timestamp"),
        ({"a": list(range(10_001))}, "column 'a' has more than 10,000 distinct values"),
        ({"a": [1, 2]}, "at least 3 rows, one per split, got 2"),
        ({"a": []}, "at least 3 rows are needed, got none"),
        ({}, "a header .* is needed, got none"),
    ],
)
def test_parquet_files_that_are_no_table_are_named(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        table(write_parquet(tmp_path / "x.parquet", columns))


def test_what_is_not_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x.parquet: cannot be read as Parquet"):
        table(tmp_path / "x.parquet")


def test_parquet_without_the_library_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_text("anything")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs the extra `table`"):
        table(tmp_path / "x.parquet")

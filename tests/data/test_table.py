import csv
import sys
from collections import Counter

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
    tokens = torch.cat([split[:] for split in data.splits().values()])
    return Counter(zip(*data.codec.cells(tokens), strict=True))


@pytest.fixture
def sample(tmp_path):
    return write_csv(tmp_path / "x.csv", ["colour", "size", "note"], ROWS)


def test_a_csv_file_comes_back_value_by_value(sample):
    data = table(sample)
    assert all_rows(data) == Counter(map(tuple, ROWS))
    assert data.codec.names == ["colour", "size", "note"]
    assert data.codec.columns[1].known == ["1", "2", "10"]  # strings, sorted as numbers
    assert data.codec.columns[2].known == sorted({row[2] for row in ROWS})  # the empty string is a value
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
    data = table(write_csv(tmp_path / "x.csv", ["a", "b"], rows), kinds={"a": "category"})
    assert all_rows(data) == Counter(map(tuple, rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2\n1,2\n3\n5,6\n", r"x.csv: line 3 must have 2 values like the first, got 1"),
        ("a;b\n1;2\n3\n5;6\n", r"x.csv: line 3 must have 2 values like the header, got 1"),
        ("a,b\n1,2\n3\n5,6\n", r"x.csv: line 3 must have 2 values like the header, got 1"),
        ('a,b\n1,"x\ny"\n3,4,5\n', r"line 4 must have 2 values like the header, got 3"),
        ("a,b,a\n1,2,3\n", "column names must be distinct, got 'a' twice"),
        ("\n1,2\n", "must have a header .* got none"),
        ("a,b\n", "at least 3 rows are needed, got none"),
        ("a,b\n1,2\n3,4\n", "at least 3 rows, one per split, got 2"),
        ("a,b\n1,1\n1,1\n1,1\n", "at least 2 states, got 1"),
        ('a,b\n1,"2\n', "line 2: unexpected end of data"),
        (
            "a\n" + "\n".join(map(str, range(30))),
            "no column is left: 'a' numbers the rows: left out",
        ),
    ],
)
def test_csv_files_that_are_no_table_are_named(tmp_path, content, message):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        table(tmp_path / "x.csv")


def test_columns_without_a_name_are_called_by_their_place(tmp_path):
    (tmp_path / "x.csv").write_text(",b,\n" + "".join(f"{k},{k % 2},{'xyz'[k % 3]}\n" for k in range(40)))
    data = table(tmp_path / "x.csv")
    assert data.codec.names == ["b", "column_3"]
    assert data.notes == (
        "columns without a name are called by their place: 'column_1', 'column_3'",
        "'column_1' numbers the rows: left out",
    )
    assert table(tmp_path / "x.csv", codec=data.codec).test[:2].equal(data.test[:2])


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
    assert other.train[:1].tolist() == [[codec.columns[c].known.index(value) for c, value in enumerate(ROWS[1])]]
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


# -- files that were silently misread ---------------------------------------------------------------------------------

CELLS = [[f"{4 + i % 9 / 10:.1f}", "xyz"[i % 3], f"{i % 30}"] for i in range(60)]


def noted(data, words):
    return any(words in note for note in data.notes) and any(words in line for line in data.describe())


@pytest.mark.parametrize(
    ("delimiter", "words"),
    [(";", "separated by semicolons"), ("\t", "separated by tabs"), ("|", "separated by bars"), (",", None)],
)
@pytest.mark.parametrize("header", [True, False])
def test_the_delimiter_and_the_header_are_found_and_said(tmp_path, delimiter, words, header):
    """Another delimiter glued the columns together, and a file without a header lost its first row."""
    names = ["length", "kind", "count"]
    rows = [names, *CELLS] if header else CELLS
    (tmp_path / "x.csv").write_text("".join(delimiter.join(row) + "\n" for row in rows))
    data = table(tmp_path / "x.csv")
    assert data.codec.names == (names if header else ["column_1", "column_2", "column_3"])
    assert all_rows(data) == Counter((*row[:2], int(row[2])) for row in CELLS)
    assert noted(data, "looks like data, not like a header") is not header
    assert words is None or noted(data, words)


def test_tabs_are_what_a_tsv_file_has(tmp_path):
    (tmp_path / "x.tsv").write_text("a\tb\n" + "1\tp, q\n2\tr, s\n" * 5)
    data = table(tmp_path / "x.tsv")
    assert [column.known for column in data.codec.columns] == [["1", "2"], ["p, q", "r, s"]]
    assert data.notes == ()


def test_commas_before_decimals_do_not_separate(tmp_path):
    (tmp_path / "x.csv").write_text("".join(f"{i},{i % 7};{i % 5},5\n" for i in range(30)))
    data = table(tmp_path / "x.csv")
    assert all_rows(data) == Counter((float(f"{i}.{i % 7}"), f"{i % 5},5") for i in range(30))


def test_spaces_after_commas_are_no_part_of_values(tmp_path):
    rows = [["39", "State-gov", "<=50K"], ["50", "Private", ">50K"], ["38", "Private", "<=50K"]]
    (tmp_path / "x.csv").write_text("".join(", ".join(row) + "\n" for row in rows))
    data = table(tmp_path / "x.csv")
    assert all_rows(data) == Counter(map(tuple, rows))
    assert noted(data, "spaces after commas were removed")


@pytest.mark.parametrize(
    ("first", "others", "header"),
    [
        ("size,kind", ["1,x", "2,y"], True),  # a word above numbers
        ("7,kind", ["1,x", "2,y"], False),  # a number above numbers
        ("x,y", ["x,y", "y,x", "x,x"], False),  # values that occur again
        ("p,q", ["x,y", "y,x", "x,x"], True),
        ("x,q", ["x,y", "y,x", "x,x"], True),  # no more than half of them
        ("a,b", [",", "1,"], True),
        ("2001,2002,country", ["1,2,AT", "3,4,DE"], False),  # years: it is said
        ("NA,2.5", ["1.5,3.5", "?,4.5"], False),  # what stands for a missing value is no word above numbers
        ("3,z", ["NA,x", "40,y"], False),  # nor does one below spoil a column of numbers
    ],
)
def test_a_header_is_told_from_data_by_rules(tmp_path, first, others, header):
    (tmp_path / "x.csv").write_text("\n".join([first, *others * 3]))
    data = table(tmp_path / "x.csv")
    assert (data.codec.names == first.split(",")) is header
    assert sum(map(len, data.splits().values())) == 3 * len(others) + (not header)
    assert noted(data, "looks like data") is not header


def test_samples_of_a_table_without_a_header_are_read_back_under_their_names(tmp_path):
    (tmp_path / "x.csv").write_text("x,y\ny,x\nx,x\n" * 5)
    data = table(tmp_path / "x.csv")
    data.codec.write(tmp_path / "y.csv", data.train[:])
    again = table(tmp_path / "y.csv", codec=data.codec)
    assert sum(map(len, again.splits().values())) == len(data.train)
    odd = Columns(["x", "y"], [["x", "y"], ["x", "y"]])  # names that look like values
    odd.write(tmp_path / "z.csv", torch.zeros(9, 2, dtype=torch.long))
    assert sum(map(len, table(tmp_path / "z.csv", codec=odd).splits().values())) == 9


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_the_encoding_is_told_by_the_byte_order_mark(tmp_path, encoding):
    (tmp_path / "x.csv").write_text("ä,b\n" + "1,é\n2,y\n" * 5, encoding=encoding)
    data = table(tmp_path / "x.csv")
    assert (data.codec.names, [column.known for column in data.codec.columns]) == (["ä", "b"], [["1", "2"], ["y", "é"]])
    assert noted(data, "byte order mark" if encoding == "utf-8-sig" else f"decoded from {encoding.upper()}")


def test_skipped_lines_missing_values_and_numbers_are_counted(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{i / 7:.3f},{'x' if i % 4 else ''}\n\n" for i in range(40)))
    data = table(tmp_path / "x.csv")
    assert noted(data, "40 empty lines skipped")
    assert noted(data, "missing values are a value of their own: 10 in 'b'")
    assert data.describe()[1] == "column 'a': 40 numbers from 0 to 5.571"
    assert data.describe()[0] == "40 rows of 2 columns: 32 train, 4 validation, 4 test"
    assert data.describe()[2] == "column 'b': 2 values: '', 'x'"


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
    assert [column.known for column in data.codec.columns] == [
        [None, 9, 10],
        [None, "", "a", "b"],
        [False, True],
        [-2.0, 0.5, 1.0],
        [None],
    ]
    assert [[type(value) for value in column] for column in (c.known for c in data.codec.columns[2:4])] == [
        [bool] * 2,
        [float] * 3,
    ]
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
        ({"a": [[1], [2], [3]]}, "column 'a' must hold numbers, booleans, dates or strings, got list"),
        ({"a": [f"{i % 10_001:05}" for i in range(30_000)]}, "column 'a' has 10,001 values, too many for categories"),
        ({"a": [1, 2]}, "at least 3 rows, one per split, got 2"),
        ({"a": []}, "at least 3 rows are needed, got none"),
        ({}, "must have a header .* got none"),
    ],
)
def test_parquet_files_that_are_no_table_are_named(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        table(write_parquet(tmp_path / "x.parquet", columns))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp[us]", [-(2**63), 0, 1]),
        ("timestamp[ms]", [2**63 - 1, 0, 1]),
        ("timestamp[us, tz=Nowhere/Land]", [0, 1, 2]),
        ("timestamp[us, tz=+25:99]", [0, 1, 2]),
        ("timestamp[us, tz=America/New_York]", [-62135596800000000, 0, 1]),  # in the year 0 there
        ("date32[day]", [2**31 - 1, 0, 1]),
        ("date64[ms]", [2**62, 0, 1]),
    ],
)
def test_dates_that_no_calendar_has_are_named_with_their_column(tmp_path, kind, values):
    pyarrow = pytest.importorskip("pyarrow")
    name, _, zone = kind.partition(", tz=")
    types = {"date32[day]": pyarrow.date32(), "date64[ms]": pyarrow.date64()}
    to = types.get(kind) or pyarrow.timestamp(name.removesuffix("]")[-2:], zone.removesuffix("]") or None)
    integers = pyarrow.array(values, pyarrow.int32() if kind == "date32[day]" else pyarrow.int64())
    with pytest.raises(ValueError, match=r"x.parquet: column 'day' cannot be read: .") as caught:
        table(write_parquet(tmp_path / "x.parquet", {"day": integers.cast(to, safe=False)}))
    assert "\n" not in str(caught.value)


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


def test_a_number_or_date_of_a_template_is_shown_as_it_was_given(tmp_path):
    rows = [[f"{k / 7:.4f}", str(k), f"2024-01-01T00:{k % 60:02}:{k % 59:02}", "xy"[k % 2]] for k in range(900)]
    codec = table(
        write_csv(tmp_path / "x.csv", ["real", "whole", "when", "word"], rows), kinds={"whole": "number"}
    ).codec
    text = "real=12.3456, whole= 77, when=2024-01-01T00:30:30"
    tokens = codec.template(text, 4)[None].clamp(min=0).repeat(5, 1)
    shown = codec.with_given_values(text)
    assert shown.decode(tokens) == ["real=12.3456, whole=77, when=2024-01-01T00:30:30, word=x"] * 5
    assert shown.cells(tokens)[:2] == [[12.3456] * 5, [77] * 5]
    assert codec.decode(tokens) != shown.decode(tokens)  # the codec itself has not changed
    assert codec.with_given_values("real=_").decode(tokens) == codec.decode(tokens)


def test_a_missing_value_of_a_template_is_shown_as_missing(tmp_path):
    rows = [["" if k % 5 == 0 else f"{k / 7:.4f}", "xy"[k % 2]] for k in range(300)]
    codec = table(write_csv(tmp_path / "x.csv", ["real", "word"], rows)).codec
    tokens = codec.template("real=, word=y", 2)[None]
    assert codec.with_given_values("real=, word=y").cells(tokens) == [[None], ["y"]]

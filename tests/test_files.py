import os

import pytest

from dmb.files import written_whole


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with written_whole(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as part:  # noqa: PT012
        part.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_at_once_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as one, written_whole(path) as other:
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert path.read_bytes() == b"one"  # the last to finish


@pytest.mark.parametrize("path", ["missing/file", "folder"])
def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="cannot be written"), written_whole(tmp_path / path):
        pass
    assert os.listdir(tmp_path) == ["folder"]

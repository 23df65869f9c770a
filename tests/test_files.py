import os
import threading

import pytest
import torch
from safetensors.torch import save_file

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


def test_a_link_is_followed_and_permissions_stay(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    with written_whole(link) as part:
        part.write_text("new")
        part.chmod(0o600)  # as a writer does that makes the file anew
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_that_the_umask_gives(tmp_path):
    before = os.umask(0o022)
    try:
        with written_whole(tmp_path / "model.safetensors") as part:
            save_file({"x": torch.zeros(2)}, part)
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with written_whole(pipe) as part:
        part.write_text("through")
    reader.join(timeout=10)
    assert read == ["through"]
    assert pipe.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]

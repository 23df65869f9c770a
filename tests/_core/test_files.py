import os
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dmb._core.configuration import from_json
from dmb._core.files import (
    append_line,
    read_sizes,
    read_tensors,
    remove_orphans,
    write_tensors,
    written_whole,
)
from dmb.data import Picture
from faults import flip, full_disk, kill_a_writer, orphans
from stopping import same


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


WRITERS = {
    "text": lambda path: _text(path),
    "tensors": lambda path: write_tensors(path, {"x": torch.zeros(1000)}),
    "lines": lambda path: append_line(path, "x" * 1000),
    "pictures": lambda path: Picture([40, 40, 3]).write(path, torch.randint(256, (1, 4800))),
}


def _text(path):
    with written_whole(path) as part:
        part.write_text("x" * 1000)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_one(tmp_path, kind):
    path = tmp_path / ("file.png" if kind == "pictures" else "file")
    path.write_bytes(b"old")
    with full_disk(500), pytest.raises(ValueError, match=rf"^{path} cannot be written: .*(too large|error)"):
        WRITERS[kind](path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_an_error_of_reading_is_not_blamed_on_the_file_that_is_written(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), written_whole(tmp_path / "file"):
        (tmp_path / "elsewhere").read_text()


def test_lines_are_added_one_by_one(tmp_path):
    for line in ("one", "zwei ä"):
        append_line(tmp_path / "file", line)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "one\nzwei ä\n"


def test_what_killed_writers_left_is_removed_but_not_what_is_being_written(tmp_path):
    kill_a_writer(tmp_path / "killed.safetensors")
    (tmp_path / ".tmpA1b2C3").touch()  # as the safetensors library calls them
    for name in (".hidden", ".tmp", "file.1-abcdef01"):
        (tmp_path / name).touch()
    assert len(orphans(tmp_path)) == 2
    with written_whole(tmp_path / "alive") as part:
        remove_orphans(tmp_path, tmp_path / "missing")
        assert orphans(tmp_path) == [part.name]
    assert sorted(os.listdir(tmp_path)) == [".hidden", ".tmp", "alive", "file.1-abcdef01"]


# -- tensors -------------------------------------------------------------------------------------------------------------

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "half": torch.ones(3).bfloat16(), "empty": torch.zeros(0, 2)}


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS, format="pt")
    return tmp_path / "x.safetensors"


def test_tensors_come_back_with_their_metadata(path):
    tensors, metadata = read_tensors(path)
    assert same(tensors, TENSORS)
    assert metadata["format"] == "pt"
    assert read_sizes(path) == {"weight": 6, "half": 3, "empty": 0}


def test_a_flipped_bit_anywhere_is_refused_or_changes_no_tensor(path):
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        flip(path, place, 1 << int(np.random.default_rng(place).integers(8)))
        try:
            assert same(read_tensors(path).tensors, TENSORS)
        except ValueError:
            refused += 1
        path.write_bytes(whole)
    assert refused > 0.9 * len(whole)


def test_equal_tensors_give_equal_files(tmp_path):
    for index in range(8):
        write_tensors(tmp_path / str(index), TENSORS)
    assert len({(tmp_path / str(index)).read_bytes() for index in range(8)}) == 1


def test_a_file_of_another_program_has_no_digest_and_is_read(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    assert torch.equal(read_tensors(tmp_path / "x.safetensors").tensors["x"], torch.ones(2))


def test_json_of_any_depth_is_read_or_refused():
    assert from_json('{"a": [1, 2]}') == {"a": [1, 2]}
    for deep in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"maximum recursion depth|Expecting"):
            from_json(deep)

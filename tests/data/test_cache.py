import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

import forks
from dmb.data import text
from dmb.data.cache import cached

ROWS = np.random.default_rng(0).integers(256, size=(40, 3, 5), dtype=np.uint8)


def made(calls, rows=ROWS):
    def chunks():
        calls.append(1)
        yield from np.array_split(rows, 7)

    return chunks


@pytest.mark.parametrize("dtype", ["uint8", "<u2", "<u4", "<i8", "bool"])
@pytest.mark.parametrize("shape", [(40, 3, 5), (600,), (600, 1)])
def test_an_array_is_made_once_and_mapped_from_then_on(dtype, shape):
    calls, rows = [], ROWS.reshape(shape).astype(dtype)
    for _ in range(2):
        array = cached("x", [1], made(calls, rows))
        assert isinstance(array, np.memmap)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, rows)
        np.testing.assert_array_equal(np.load(array.filename), rows)  # any reader of the format can open it
    assert len(calls) == 1


def test_what_it_is_made_from_tells_arrays_apart(home):
    for number, made_from in enumerate([[1], [2], [1, {"a": 2}], [1, {"a": 3}]]):
        np.testing.assert_array_equal(cached("x", made_from, made([], ROWS + number)), ROWS + number)
    assert len(list((home / "cache").iterdir())) == 4
    np.testing.assert_array_equal(cached("x", [1, {"a": 2}], made([])), ROWS + 2)


def test_an_array_is_made_again_on_demand():
    cached("x", [1], made([]))
    np.testing.assert_array_equal(cached("x", [1], made([], ROWS + 1), again=True), ROWS + 1)
    np.testing.assert_array_equal(cached("x", [1], made([])), ROWS + 1)


@pytest.mark.parametrize("seed", range(30))
def test_a_file_with_any_byte_changed_or_cut_off_is_made_again(seed):
    generator, calls = np.random.default_rng(seed), []
    path = Path(cached("x", [1], made(calls)).filename)
    whole = bytearray(path.read_bytes())
    place = int(generator.integers(len(whole)))
    if seed % 3:
        whole[place] ^= 1 << int(generator.integers(8))
    else:
        del whole[place:]
    path.write_bytes(whole)
    np.testing.assert_array_equal(cached("x", [1], made(calls)), ROWS)
    assert len(calls) == 2


def test_a_damaged_text_is_read_again_from_the_file(tmp_path, home):
    """It was trained on as it is, or the user's own file was blamed."""
    (tmp_path / "x.txt").write_text("hello world " * 50)
    before = text(tmp_path / "x.txt", length=4).train[:]
    (path,) = (home / "cache").iterdir()
    for place, value in ((200, 3), (200, 200), (9, 255)):
        damaged = bytearray(path.read_bytes())
        damaged[place] = value
        path.write_bytes(damaged)
        assert text(tmp_path / "x.txt", length=4).train[:].equal(before)


def test_a_failure_leaves_nothing_behind(home):
    def fails():
        yield ROWS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("x", [1], fails)
    with pytest.raises(ValueError, match="the data have no tokens"):
        cached("x", [1], list)
    assert not list((home / "cache").iterdir())


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing_behind(home):
    """It was a SIGBUS for images, and half a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # fails in the same way as a full disk
    try:
        with pytest.raises(ValueError, match=r"x-\w+.npy cannot be written: File too large"):
            cached("x", [1], lambda: [np.zeros(3 << 19, dtype=np.uint8)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((home / "cache").iterdir())


KILLED = """
import os, signal, time
import numpy as np
from dmb.data.cache import cached

def dies():
    yield np.zeros(10, dtype=np.uint8)
    os.kill(os.getpid(), signal.SIGKILL)

def waits():
    yield np.zeros(10, dtype=np.uint8)
    print("writing", flush=True)
    while not os.path.exists(os.environ["DMB_DATA"] + "/go on"):
        time.sleep(0.01)

child = os.fork()
if child == 0:
    cached("dead", [1], dies)
os.waitpid(child, 0)
print(*os.listdir(os.environ["DMB_DATA"] + "/cache"), flush=True)
cached("live", [1], waits)
"""


def test_what_a_killed_writer_left_is_removed_but_not_what_others_are_writing(home, tmp_path):
    alive, words = forks.start(forks.script, KILLED, output=tmp_path / "words"), tmp_path / "words"
    while alive.is_alive() and not (words.exists() and words.read_text().endswith("writing\n")):
        time.sleep(0.01)
    try:
        assert words.read_text().startswith(".dead-")
        (part,) = os.listdir(home / "cache")  # the orphan went when the next writer began
        assert part.startswith(".live-")
        cached("x", [1], made([]))
        assert part in os.listdir(home / "cache")
    finally:
        (home / "go on").touch()
    assert forks.codes(alive) == [0]
    assert sorted(name.partition("-")[0] for name in os.listdir(home / "cache")) == ["live", "x"]

"""Faults to test with: a full disk, a killed writer, a flipped bit."""

import os
import resource
import signal
from contextlib import contextmanager

from dmb._core.files import is_part, written_whole


@contextmanager
def full_disk(most_bytes):
    """While the block runs, no file can grow beyond this size: writing fails as it does on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kill_a_writer(path):
    """Leave what a process leaves that is killed while it writes `path`."""
    child = os.fork()
    if child == 0:
        try:
            with written_whole(path) as part:
                part.write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def orphans(folder):
    """Files that writers have not finished."""
    return sorted(path.name for path in folder.rglob(".*") if is_part(path))


def flip(path, place, bit=0x10):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)

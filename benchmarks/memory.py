"""Peak memory of this process, for the benchmarks that compare it (Linux)."""

import re
from pathlib import Path


def peak_memory(reset: bool = False) -> float:
    """Peak memory in MiB since it was last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024

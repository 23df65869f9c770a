"""Kill -9 a training run at random moments, resume it each time, and compare with a run that nobody touched.

python benchmarks/kill_and_resume.py [kills]
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from dmb.app.recipes import as_flags
from dmb.training.checkpoint import Checkpoints

SETTINGS = as_flags(
    {"cycles": 4, "score_steps": 250, "matrix_steps": 20, "evaluate_every": 10, "batch_size": 32, "width": 32,
     "blocks": 1, "infill": 0.2, "tied": True}
)  # fmt: skip


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dmb", "train", "digits", "--out", str(folder), "--resume", *SETTINGS]
    with (folder.parent / f"{folder.name}.txt").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def wait_for_a_report(folder: Path, process: subprocess.Popen[bytes]) -> None:
    metrics = folder / "metrics.jsonl"
    began = time.time()
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_mtime > began):
        time.sleep(0.02)


def final(folder: Path) -> dict[str, torch.Tensor]:
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    return newest.tensors


def main(kills: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
        began = time.perf_counter()
        assert start(straight).wait() == 0
        whole = time.perf_counter() - began
        print(f"uninterrupted: {whole:.1f} s, checkpoint at {Checkpoints(straight / 'checkpoints').steps()[-1]}")
        chance, done = random.Random(0), 0
        while done < kills:
            process = start(broken)
            if done % 5:  # every fifth kill may hit imports and set-up, the others hit training
                wait_for_a_report(broken, process)
            try:
                process.wait(timeout=chance.uniform(0, 0.8))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                done += 1
                steps = Checkpoints(broken / "checkpoints").steps()
                print(f"kill {done:2d}: newest checkpoint at step {steps[-1] if steps else 'none'}", flush=True)
            else:
                if process.returncode:
                    raise SystemExit("a resumed run failed: " + (Path(scratch) / "broken.txt").read_text()[-500:])
                print(f"it finished after {done} kills")
                break
        if start(broken).wait() != 0:
            raise SystemExit("a resumed run failed: " + (Path(scratch) / "broken.txt").read_text()[-500:])
        one, other = final(straight), final(broken)
        equal = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        lines = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in (straight, broken)]
        print(f"{done} kills: {len(one)} tensors {'equal bit for bit' if equal else 'DIFFER'}; metrics lines {lines}")
        if not equal:
            raise SystemExit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)

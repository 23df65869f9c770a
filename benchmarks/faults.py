"""Kill -9 training runs at random moments and around renames, flushes and deletions; resume each; compare the weights.

A run that is over is compared with one that nobody touched, and the next one starts. Runs are forks of one process that
has imported everything, so that kills hit training and not imports.

python benchmarks/faults.py [kills]
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from dmb._core.files import is_part
from dmb._core.tensors import read_tensors
from dmb.app.cli import main as dmb
from dmb.app.recipes import as_flags
from dmb.training.checkpoint import Checkpoints

SETTINGS = as_flags(
    {"cycles": 2, "score_steps": 12, "matrix_steps": 3, "evaluate_every": 3, "log_every": 2, "batch_size": 8,
     "width": 8, "blocks": 1, "chains": 8, "chain_calls": 2, "evaluate_sequences": 8, "infill": 0.2, "tied": True,
     "patience": 0}
)  # fmt: skip
CALLS = ("replace", "fsync", "unlink")
Hook = Callable[[], None]


def start(folder: Path, hook: Hook) -> int:
    """The process id of a run in `folder`, new or resumed."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        log = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        hook()
        source = str(folder.parent / "tokens.npy")
        dmb(["train", source, "--out", str(folder), "--resume", "--accelerator", "cpu", *SETTINGS])
    except SystemExit as stop:
        os._exit(int(stop.code or 0))
    finally:
        os._exit(99)


def kill_at(name: str, count: int, after: bool) -> Hook:
    """Have the process killed before or after the `count`-th call of `os.<name>`."""

    def install() -> None:
        real, left = getattr(os, name), [count]

        def wrapped(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, wrapped)

    return install


def ended(child: int, seconds: float | None = None) -> int:
    """The exit code of a process, which is killed after some seconds; -9 if it was killed."""
    until = None if seconds is None else time.monotonic() + seconds
    while until is not None and time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    if until is not None:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def final(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint and of the model."""
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    return newest.tensors | {
        f"model.{name}": value for name, value in read_tensors(folder / "model.safetensors")[0].items()
    }


def main(kills: int) -> None:
    torch.set_num_threads(1)
    for module in ("dmb.app.cli.train", "torch.utils.tensorboard", "torch._dynamo"):
        import_module(module)
    chance, done, over = random.Random(0), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
        np.save(Path(scratch) / "tokens.npy", np.random.default_rng(0).integers(5, size=(40, 6)))
        began = time.monotonic()
        assert ended(start(straight, lambda: None)) == 0
        whole = time.monotonic() - began
        wanted, lines = final(straight), (straight / "metrics.jsonl").read_text().count("\n")
        print(f"uninterrupted: {whole:.1f} s, {len(wanted)} tensors, {lines} lines of metrics", flush=True)
        while True:
            finishing = sum(done.values()) >= kills
            name, seconds, hook = "moment", chance.uniform(0, whole), None
            if sum(done.values()) % 2:  # every other kill is at a call
                name, after = chance.choice(CALLS), chance.random() < 0.5
                hook, seconds = kill_at(name, chance.randint(1, 12), after), 600.0
                name = f"{'after' if after else 'before'} {name}"
            code = ended(
                start(broken, (hook or (lambda: None)) if not finishing else (lambda: None)),
                None if finishing else seconds,
            )
            if code == -signal.SIGKILL:
                done[name] += 1
                if sum(done.values()) % 20 == 0:
                    print(f"{sum(done.values())} kills, {over['runs']} runs finished", flush=True)
                continue
            over["runs"] += 1
            if code:
                over["lost"] += 1
                print(f"a run was lost with exit code {code}: {Path(f'{broken}.txt').read_text()[-500:]}", flush=True)
            else:
                other = final(broken)
                equal = wanted.keys() == other.keys() and all(torch.equal(wanted[key], other[key]) for key in wanted)
                over["changed"] += not equal or (broken / "metrics.jsonl").read_text().count("\n") != lines
            over["orphans"] += sum(is_part(path) for path in broken.rglob(".*"))
            shutil.rmtree(broken)
            if finishing:
                break
    listed = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
    print(f"{sum(done.values())} kills ({listed}) in {time.monotonic() - began:.0f} s; {over['runs']} runs finished: "
          f"{over['lost']} lost, {over['changed']} with changed bits, {over['orphans']} orphans left")  # fmt: skip
    if over["lost"] or over["changed"] or over["orphans"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)

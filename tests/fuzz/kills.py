"""The campaign of kills: training runs die at random moments and around renames, flushes and deletions, and go on.

A run that is over is compared with one that nobody touched, and the next one starts. Runs are forks of one process that
has imported everything, so that kills hit training and not imports.

python tests/fuzz/kills.py [KILLS]
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import tyro

from dmb._core.files import is_part, read_tensors
from dmb.app.cli import main as dmb
from dmb.app.recipes import as_flags
from dmb.training.checkpoint import Checkpoints

SETTINGS = as_flags(
    {"cycles": 2, "score_steps": 12, "matrix_steps": 3, "evaluate_every": 3, "log_every": 2, "batch_size": 8,
     "width": 8, "blocks": 1, "chains": 8, "chain_calls": 2, "evaluate_sequences": 8, "infill": 0.2, "tied": True,
     "patience": 0}
)  # fmt: skip
CALLS = ("replace", "fsync", "unlink")
KILLED = (-signal.SIGKILL, -signal.SIGALRM)
Hook = Callable[[], object]


def ended(folder: Path, hook: Hook) -> int:
    """The exit code of a run in `folder`, new or resumed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
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


def drawn(chance: random.Random, number: int, seconds: float) -> tuple[str, Hook]:
    """How to kill the next run: every other time at a call, otherwise at a moment within so many seconds."""
    if number % 2 == 0:
        moment = chance.uniform(0, seconds)
        return "at a moment", lambda: signal.setitimer(signal.ITIMER_REAL, moment)  # no handler: it ends at once
    name, after = chance.choice(CALLS), chance.random() < 0.5
    return f"{'after' if after else 'before'} {name}", kill_at(name, chance.randint(1, 12), after)


def final(folder: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of the newest checkpoint and of the model, and the number of lines of metrics."""
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    model = {f"model.{name}": value for name, value in read_tensors(folder / "model.safetensors").tensors.items()}
    return newest.tensors | model, (folder / "metrics.jsonl").read_text().count("\n")


def main(kills: tyro.conf.Positional[int] = 200) -> None:
    torch.set_num_threads(1)
    for module in ("dmb.app.cli.train", "dmb.app.session", "torch.utils.tensorboard", "torch._dynamo"):
        import_module(module)
    chance, killed, runs = random.Random(0), Counter[str](), Counter[str](lost=0, changed=0, orphans=0)
    with tempfile.TemporaryDirectory() as scratch:
        straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
        np.save(Path(scratch) / "tokens.npy", np.random.default_rng(0).integers(5, size=(40, 6)))
        began = time.monotonic()
        assert ended(straight, lambda: None) == 0
        whole = time.monotonic() - began
        wanted, lines = final(straight)
        print(f"uninterrupted: {whole:.1f} s, {len(wanted)} tensors, {lines} lines of metrics", flush=True)
        finishing = False
        while not finishing:
            finishing = killed.total() >= kills
            name, hook = ("never", lambda: None) if finishing else drawn(chance, killed.total(), whole)
            code = ended(broken, hook)
            if code in KILLED:
                killed[name] += 1
                if killed.total() % 20 == 0:
                    print(f"{killed.total()} kills, {runs['finished']} runs finished", flush=True)
                continue
            runs["finished"] += 1
            runs["orphans"] += sum(is_part(path) for path in broken.rglob(".*"))
            if code:
                runs["lost"] += 1
                print(f"a run was lost with exit code {code}: {Path(f'{broken}.txt').read_text()[-500:]}", flush=True)
            else:
                tensors, others = final(broken)
                equal = wanted.keys() == tensors.keys() and all(wanted[key].equal(tensors[key]) for key in wanted)
                runs["changed"] += not equal or others != lines
            shutil.rmtree(broken)
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(killed.items()))
    print(f"{killed.total()} kills ({kinds}) in {time.monotonic() - began:.0f} s; {runs['finished']} runs finished: "
          f"{runs['lost']} lost, {runs['changed']} with changed bits, {runs['orphans']} orphans left")  # fmt: skip
    if runs["lost"] or runs["changed"] or runs["orphans"]:
        raise SystemExit(1)


if __name__ == "__main__":
    tyro.cli(main)

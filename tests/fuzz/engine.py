"""The fuzz campaign: commands on spoilt files, settings and command lines.

Every case must end with success, or with one line and exit code 1 or 2, within a minute, and leave no half-written file.

python tests/fuzz/engine.py [cases] [first case]
"""

import collections
import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mutations
import numpy as np
import torch
from PIL import Image

from dmb._core.files import is_part, read_tensors
from dmb.app import recipes
from dmb.app.cli import COMMANDS, main
from dmb.app.recipes import as_flags

LIMIT = 60
"""Seconds that a case may take."""
MEMORY = 3 << 30
"""Bytes that a case may allocate."""

TINY = ["--accelerator", "cpu", *as_flags(
    {"cycles": 1, "score_steps": 2, "matrix_steps": 1, "evaluate_every": 1, "log_every": 1, "width": 8, "blocks": 1,
     "batch_size": 4, "chains": 4, "chain_calls": 2, "evaluate_sequences": 4}
)]  # fmt: skip
CODES = ["--accelerator", "cpu", *as_flags(
    {"grid": 2, "codes": 4, "width": 8, "steps": 2, "batch_size": 4, "evaluate_every": 1, "log_every": 1}
)]  # fmt: skip
ON_RUN = {
    "evaluate": ["evaluate", "RUN", "--sequences", "2"],
    "sample": ["sample", "RUN", "-n", "1", "--calls", "2"],
    "resume": ["resume", "RUN", "--accelerator", "cpu", "--score-steps", "3"],
    "again": ["train", "--recipe", "RUN", "--show"],
    "report": ["report", "RUN"],
    "card": ["card", "RUN"],
    "compare": ["compare", "tokens.npy", "--out", "comparison", "--rows", "mdlm", "--seeds", "1", "--steps", "2", *TINY[2:]],
}  # fmt: skip
RUN_FILES = ["run.json", "local.json", "config.json", "model.safetensors", "metrics.jsonl", "data.safetensors", "evaluation.json",
             "checkpoints/step_000000001.safetensors", "checkpoints/step_000000002.safetensors"]  # fmt: skip
DATA = {"tokens.npy": [], "novel.txt": ["--length", "4"], "survey.csv": [], "photos/3.png": ["--levels", "2"],
        "hf.json": ["--encoding", "hf.json", "--length", "4"], "codes/train.npy": [], "codes/tokenizer.json": [],
        "codes/config.json": [], "codes/model.safetensors": []}  # fmt: skip
LEARNED = ["--heads", "1", "--orders", "2", "--singles", "0"]
"""What lets recipes of texts and records learn an order from batches of four."""
KINDS = {"files": 39, "data": 13, "settings": 10, "words": 20, "full disk": 5, "odd files": 13}
"""Kinds of cases, and their share in percent."""
_LEFT_OUT = {
    "files": shutil.ignore_patterns("codes", "photos", "tensorboard", "odd"),
    "data": shutil.ignore_patterns("odd"),
    "settings": shutil.ignore_patterns("codes", "photos", "run", "table", "records", "comparison", "odd"),
    "full disk": shutil.ignore_patterns("odd"),
    "words": shutil.ignore_patterns("codes", "tensorboard", "odd"),
    "odd files": shutil.ignore_patterns("codes", "photos", "tensorboard", "comparison", "odd"),
}
"""What the cases of a kind do not need."""


@dataclass
class Case:
    """One command, and what was done before it."""

    number: int
    kind: str
    arguments: list[str]
    spoilt: str = ""
    most_bytes: int | None = None
    refused: bool = False
    outcome: str = ""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""

    def __str__(self):
        said = "\n".join(f"    {line}" for line in self.output.splitlines()[-12:])
        return f"case {self.number} ({self.kind}; {self.spoilt}): dmb {' '.join(map(repr, self.arguments))}: {self.faults}\n{said}"


class Campaign:
    """Runs cases, each in a process of its own and in a fresh copy of a folder with data, runs and codes."""

    def __init__(self, folder):
        self.base, self.work = folder / "base", folder / "work"
        self.base.mkdir()
        os.environ["DMB_DATA"] = str(self.work / "home")
        _preload()
        self._make()

    def case(self, number):
        """The case of this number, run."""
        chance = random.Random(f"case {number}")
        kind = chance.choices(list(KINDS), KINDS.values())[0]
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.base, self.work, ignore=_LEFT_OUT.get(kind))
        case = getattr(self, "_" + kind.replace(" ", "_"))(number, chance)
        case.kind = kind
        began = time.time_ns()
        self._run(case)
        if case.outcome == "hang" or case.outcome.startswith("signal") or "Traceback" in case.output:
            case.faults.append(case.outcome if "Traceback" not in case.output else "traceback")
        elif case.outcome not in ("exit 0", "exit 1", "exit 2"):
            case.faults.append(case.outcome)
        elif case.refused and case.outcome == "exit 0":
            case.faults.append("misread")
        elif case.outcome != "exit 0" and not self._one_line(case):
            case.faults.append("not one line")
        case.faults += [f"left {path.name}" for path in self.work.rglob(".*") if is_part(path)]
        case.faults += [f"half-written {name}" for name in self._unreadable(began)]
        return case

    # -- kinds --------------------------------------------------------------------------------------------------------

    def _files(self, number, chance):
        run = self.work / chance.choice(["run", "run", "table", "records", "comparison/mdlm/seed-0"])
        file = chance.choice([path for path in (run / name for name in RUN_FILES) if path.is_file()])
        command = chance.choices(list(ON_RUN), [60, 60, 35, 15, 3, 10, 6])[0]
        if command == "compare" and chance.random() < 0.7:
            file = self.work / "comparison" / "results.json"
        how = mutations.spoil(file, chance)
        arguments = [str(run) if word == "RUN" else word for word in ON_RUN[command]]
        return Case(number, "", arguments, f"{file.relative_to(self.work)}: {how}")

    def _data(self, number, chance):
        name = chance.choice(list(DATA))
        how = mutations.spoil(self.work / name, chance)
        if name.startswith("codes") and chance.random() < 0.3:
            how = mutations.spoil(self.work / "codes" / "tokenizer-settings.json", chance)
            return Case(
                number,
                "",
                ["tokenize", "photos", "--out", "codes", "--resume", *CODES[:2], "--steps", "3"],
                f"codes: {how}",
            )
        source = "novel.txt" if name == "hf.json" else name.split("/")[0]
        return Case(number, "", ["train", source, "--out", "new", *TINY, *DATA[name]], f"{name}: {how}")

    def _settings(self, number, chance):
        source = chance.choice(["tokens.npy", "tokens.npy", "survey.csv", "novel.txt"])
        extra = ["--length", "4"] if source == "novel.txt" else []
        return Case(number, "", ["train", source, "--out", "new", *TINY, *extra, *mutations.settings(chance)])

    def _words(self, number, chance):
        command = chance.choice(list(COMMANDS))
        known = {
            "quickstart": ["quickstart", "--seed", "x"],
            "train": ["train", "tokens.npy", "--out", "new", *TINY],
            "resume": [*ON_RUN["resume"]],
            "evaluate": ["evaluate", "RUN", "--split", "test", "--data", "tokens.npy", "--sequences", "2", "--json"],
            "sample": [
                "sample",
                "RUN",
                "-n",
                "2",
                "--calls",
                "2",
                "--template",
                "1,_",
                "--label",
                "0",
                "--out",
                "x.npy",
            ],
            "report": ["report", "RUN", "--seed", "x"],
            "card": ["card", "RUN", "--license", "mit", "--out", "card.md"],
            "serve": ["serve", "RUN", "--port", "7", "--host", "localhost", "--auth", "me:secret"],
            "compare": [*ON_RUN["compare"], "--list"],
            "tokenize": ["tokenize", "photos", "--out", "new", *CODES],
            "fid": ["fid", "RUN", "--images", "2", "--weights", "tokens.npy"],
            "impute": ["impute", "table", "survey.csv", "--out", "x.csv"],
            "prepare": ["prepare", "cifar10", "--from", "photos"],
        }[command]
        arguments = ["run" if word == "RUN" else word for word in known]
        for _ in range(chance.choice([1, 1, 2])):
            arguments = mutations.words(arguments, chance)
        if arguments[:1] in (["quickstart"], ["report"]) or not arguments:  # which take long when they succeed
            arguments += ["--seed", "x"]
        return Case(number, "", arguments)

    def _full_disk(self, number, chance):
        command = chance.choice([
            ON_RUN["evaluate"], ON_RUN["resume"], [*ON_RUN["sample"], "--out", "x.npy"], ["train", "tokens.npy", "--out", "new", *TINY],
            ["train", "photos", "--levels", "2", "--out", "new", *TINY], ["tokenize", "photos", "--out", "new", *CODES],
        ])  # fmt: skip
        arguments = ["run" if word == "RUN" else word for word in command]
        most = chance.choice([1, 100, 500, 1000, 2000, 4000, 10_000, 20_000])
        return Case(number, "", arguments, f"files of at most {most} bytes", most_bytes=most)

    def _odd_files(self, number, chance):
        suffix = chance.choice(sorted({Path(name).suffix for name in self.odd}))
        name = chance.choice([name for name in self.odd if name.endswith(suffix)])
        path, refused = self.work / name, False
        shutil.copy(self.base / "odd" / name, path)
        how = "as it is"
        if chance.random() < 0.1:
            path.unlink()
            os.mkfifo(path)
            how, refused = "a pipe", True
        elif chance.random() < 0.3:
            path.write_bytes(mutations.damage(path.read_bytes(), chance))
            how = "bytes"
        command = chance.choice(["train", "train", "train", "evaluate", "impute", "folder"])
        if command == "evaluate":
            run = "table" if ".csv" in name or ".parquet" in name else "records" if ".jsonl" in name else "run"
            return Case(
                number, "", ["evaluate", run, "--data", name, "--sequences", "2"], f"{name}: {how}", refused=refused
            )
        if command == "impute":  # no file has a column of the model
            return Case(number, "", ["impute", "table", name, "--out", "x.csv"], f"{name}: {how}", refused=True)
        if command == "folder":
            (self.work / "folder").mkdir()
            path.rename(self.work / "folder" / "x.png")
            return Case(number, "", ["train", "folder", "--out", "new", *TINY], f"{name}: {how}", refused=True)
        extra = ["--length", "4", *LEARNED] if ".txt" in name else LEARNED if ".jsonl" in name else []
        return Case(number, "", ["train", name, "--out", "new", *TINY, *extra], f"{name}: {how}", refused=refused)

    # -- running ------------------------------------------------------------------------------------------------------

    def _run(self, case):
        reader, writer = os.pipe()  # not a file, which a limit on files would cut
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(reader, False)
        began, child = time.monotonic(), os.fork()
        if child == 0:
            _child(case, self.work, writer)
        os.close(writer)
        case.outcome = _waited(child, began + LIMIT)
        case.seconds = time.monotonic() - began
        with os.fdopen(reader, "rb") as said:
            case.output = (said.read() or b"").decode(errors="replace")

    def _one_line(self, case):
        lines = [line for line in case.output.splitlines() if line.startswith("dmb: ")]
        table = case.arguments[0] == "compare" and case.outcome == "exit 1"  # a table, and below it what failed
        return table or (len(lines) == 1 and case.output.rstrip().endswith(lines[0]))

    def _unreadable(self, since):
        """JSON and tensors, written after this time, that cannot be read."""
        for path in self.work.rglob("*.*"):
            reader = {".json": lambda path: json.loads(path.read_text()), ".safetensors": read_tensors}.get(path.suffix)
            if reader is not None and path.is_file() and path.stat().st_mtime_ns >= since:
                try:
                    reader(path)
                except (ValueError, OSError):
                    yield path.name

    def _make(self):
        """The folder that cases start from; in a child, so that this process never uses what does not survive a fork."""
        values = np.random.default_rng(0).integers(5, size=(40, 6)).astype(np.uint8)
        np.save(self.base / "tokens.npy", values)
        (self.base / "novel.txt").write_text("the cat sat on the mat. " * 20)
        (self.base / "survey.csv").write_text("colour,size\n" + "red,big\nblue,small\nred,small\n" * 12)
        vocabulary = {word: index for index, word in enumerate(["?", "the", "cat", "sat", "on", "mat", "."])}
        (self.base / "hf.json").write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
        }))  # fmt: skip
        (self.base / "photos").mkdir()
        for index in range(20):
            Image.fromarray(values[index % 8].repeat(11)[:64].reshape(8, 8) * 50).save(
                self.base / "photos" / f"{index}.png"
            )
        (self.base / "names.jsonl").write_text('"one"\n"two"\n"three"\n' * 9)
        child = os.fork()
        if child == 0:
            try:
                mutations.odd_files(self.base / "odd")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        self.odd = sorted(path.name for path in (self.base / "odd").iterdir())
        for arguments in (
            ["train", "names.jsonl", "--out", "records", *TINY, *LEARNED],
            ["train", "tokens.npy", "--out", "run", *TINY],
            ["train", "survey.csv", "--out", "table", *TINY],
            ["tokenize", "photos", "--out", "codes", *CODES],
            ["evaluate", "run", "--sequences", "2"],
        ):
            shutil.rmtree(self.work, ignore_errors=True)
            self.base.rename(self.work)  # the same place as in every case: runs know where their data are
            case = Case(-1, "", arguments)
            self._run(case)
            assert case.outcome == "exit 0", case
            self.work.rename(self.base)
        comparison = self.base / "comparison" / "mdlm"
        comparison.mkdir(parents=True)
        shutil.copytree(self.base / "run", comparison / "seed-0")
        shared = recipes.recipe("array").changed(source=str(self.work / "tokens.npy")).to_json()
        about = {"recipe": shared, "rows": ["mdlm"], "commands": ["dmb compare"], "seeds": 1, "steps": 2, "sequences": 2,
                 "samples": 1}  # fmt: skip
        (self.base / "comparison" / "results.json").write_text(json.dumps({"comparison": about}))


def _refuse():
    raise ValueError("a page would never end")


def _preload():
    """Import what commands import, once."""
    for name in COMMANDS:
        importlib.import_module(f"dmb.app.cli.{name}")
    for name in (
        "torch.utils.tensorboard",
        "dmb.app.compare.curves",
        "dmb.app.report",
        "tokenizers",
        "torch._dynamo",
        "pyarrow.parquet",
    ):
        importlib.import_module(name)
    import subprocess

    import dmb.app.cli.serve as serve
    import dmb.app.compare.running as running

    running.Popen = lambda command, **options: subprocess.Popen(["false"], **options)  # no training by comparisons
    serve.listening = lambda host, port: _refuse()
    torch.set_num_threads(1)
    inspect.getsource = functools.cache(inspect.getsource)  # which the parser of command lines calls again and again
    with contextlib.redirect_stdout(io.StringIO()):
        for name in COMMANDS:
            with contextlib.suppress(SystemExit):
                main([name, "--help"])
    gc.collect()
    gc.freeze()


def _child(case, folder, output):
    """Run the command, and end without the clean-up that belongs to the parent."""
    code = 99
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.setsid()
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        if case.most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.most_bytes, resource.RLIM_INFINITY))
        try:
            main(case.arguments)
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback

            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _waited(child, until):
    """How the child ended."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}" if code >= 0 else f"signal {-code}"
        time.sleep(0.003)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def campaign(count, first=0):
    """Run cases, print progress and tables, and return those that failed."""
    failed, table, slowest = [], collections.Counter(), 0.0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        made, began = Campaign(Path(folder)), time.monotonic()
        for number in range(first, first + count):
            case = made.case(number)
            table[case.kind, case.outcome] += 1
            slowest = max(slowest, case.seconds)
            if case.faults:
                failed.append(case)
                print(case, flush=True)
            if (number - first) % 250 == 249:
                print(f"{number - first + 1} cases, {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    outcomes = sorted({outcome for _, outcome in table})
    print(f"{'kind':10} {'cases':>7} " + " ".join(f"{outcome:>8}" for outcome in outcomes))
    for kind in KINDS:
        counts = [table[kind, outcome] for outcome in outcomes]
        print(f"{kind:10} {sum(counts):7} " + " ".join(f"{number:8}" for number in counts))
    faults = collections.Counter(fault.split()[0] for case in failed for fault in case.faults)
    print(f"{count} cases: {len(failed)} failed {dict(faults) or ''}; the slowest took {slowest:.1f} s")
    return failed


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(1 if campaign(*(numbers or [10_000])) else 0)

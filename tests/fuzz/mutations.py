"""Ways to spoil files, settings and command lines, drawn from a `random.Random`."""

import bz2
import copy
import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import torch

from dmb._core.files import read_tensors, write_tensors
from dmb.training.checkpoint import Checkpoint, read, write

ODD = [
    None,
    True,
    -1,
    0,
    7,
    10**20,
    1e308,
    -0.5,
    float("nan"),
    "",
    "x",
    "\u2028",
    [],
    {},
    [1, [2]],
    {"a": None},
    "9" * 50,
]
"""JSON values that are hardly ever right."""
DEEP = "[" * 50_000 + "]" * 50_000
"""JSON of brackets within brackets, deeper than Python reads."""
WORDS = ["", "-1", "0", "ten", "nan", "inf", "1e300", "1e308", "1" + "0" * 20, "--", "-n", "=", "é", "\udcff", "None",
         "../..", "/dev/null", "/dev/zero/x", "~nobody/x", "a" * 300, "%s", "{}", "[1]", "\x00"[:0] + "\t"]  # fmt: skip
"""Words that no command expects."""
LARGE = ["-1", "0", "1", "3", "1000000000000", "1000000000000000000", "1" + "0" * 20, "1.5", "x"]
REAL = ["-1", "0", "1e-320", "1e-30", "0.5", "1", "7", "1e30", "1e38", "1e300", "1e308", "nan", "inf", "x"]
SETTINGS = {
    "--width": LARGE, "--blocks": ["-1", "0", "2", "x"], "--heads": LARGE, "--conditioning": LARGE, "--batch-size": LARGE,
    "--chains": LARGE, "--chain-calls": ["-1", "0", "1", "3"], "--evaluate-sequences": LARGE, "--log-every": LARGE,
    "--evaluate-every": LARGE, "--keep": LARGE, "--orders": LARGE, "--accumulate": LARGE, "--warmup": LARGE,
    "--patience": LARGE, "--weight-decay-until": LARGE, "--seed": LARGE, "--stages": LARGE, "--length": LARGE,
    "--levels": LARGE, "--held-out": ["spread", "end", "x"], "--most-states": LARGE, "--matrix-steps": ["-1", "0", "1", "3"], "--cycles": ["-1", "0", "1", "2"],
    "--score-steps": ["-1", "0", "1", "3"], "--learning-rate": REAL, "--matrix-learning-rate": REAL, "--floor": REAL,
    "--dropout": REAL, "--tilt": REAL, "--ratio": REAL, "--weight-decay": REAL, "--clip": REAL, "--ema": REAL,
    "--infill": REAL, "--minutes": [value for value in REAL if value != "7"], "--tolerance": REAL,
    "--score-tolerance": REAL, "--matrix-tolerance": REAL, "--clusters": ["", "3,2", "2,3", "x", "0", "-1", "9" * 20],
    "--process": ["bridge", "varying", "tree", "tokenwise", "uniform", "x"], "--write-order": ["random", "learned", "fixed", "x"], "--tied": None,
    "--mask": None, "--placed": None, "--classes": None, "--order": ["ascending", "descending", "natural"],
    "--init": ["gather", "nested", "uniform", "match"], "--schedule": ["loglinear", "geometric", "linear", "canonical"],
    "--grouping": ["cooccurrence", "value", "frequency", "vectors"], "--head": ["mean", "score", "unscaled_score"],
    "--network": ["mlp", "transformer", "ordered", "causal"], "--matrix-objective": ["prior", "bound", "joint"],
    "--start": ["histogram", "random"], "--decay": ["constant", "cosine"], "--encoding": ["bytes", "hf.json", "x", "novel.txt"],
}  # fmt: skip
"""Values of settings, most of them absurd; numbers of steps stay small, because a long training is no fault."""


def settings(random):
    """A few settings as words of a command line."""
    words = []
    for flag in random.sample(sorted(SETTINGS), random.choice([1, 1, 1, 2, 3])):
        values = SETTINGS[flag]
        words += [flag] if values is None else [flag, random.choice(values)]
    return words


def words(arguments, random):
    """A command line with a word changed, left out, repeated or added."""
    arguments, place = list(arguments), random.randrange(1, len(arguments) + 1)
    match random.randrange(4):
        case 0:
            arguments[place:place] = [random.choice(WORDS)]
        case 1:
            arguments[place - 1 : place] = [random.choice(WORDS)]
        case 2:
            del arguments[place - 1]
        case 3:
            arguments[place:place] = arguments[place - 1 : place]
    return arguments


def damage(content, random):
    """Bytes cut short, with flipped bits, or with a stretch overwritten or moved."""
    content = bytearray(content or b"\0")
    first, last = sorted(random.randrange(len(content) + 1) for _ in range(2))
    match random.randrange(5):
        case 0:
            del content[first:]
        case 1 | 2:
            for _ in range(random.choice([1, 1, 4])):
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        case 3:
            content[first : first + 40] = random.randbytes(min(40, len(content) - first))
        case 4:
            content[first:last], content[:0] = b"", content[first:last]
    return bytes(content)


def odd_json(value, random):
    """A JSON value with one part replaced, left out or added."""
    value = copy.deepcopy(value)
    inner = [(value, key) for key in _keys(value)]
    for parent, key in inner:
        inner += [(parent[key], below) for below in _keys(parent[key])]
    if not inner or random.random() < 0.03:
        return random.choice(ODD)
    parent, key = random.choice(inner)
    match random.randrange(5):
        case 0 if isinstance(parent, dict):
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[random.choice(["x", "type", "format", "name"])] = random.choice(ODD)
        case _:
            parent[key] = random.choice(ODD)
    return value


def odd_files(folder):
    """Files that nobody would train on, but that somebody may name: written once, because a fork must not use pyarrow."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    text, rows = b"the cat sat on the mat. " * 30, b"a,b\n" + b"1,x\n2,y\n3,x\n" * 12
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstandard}
    for suffix, packed in packers.items():
        (folder / f"text.txt{suffix}").write_bytes(packed(text))
        (folder / f"rows.csv{suffix}").write_bytes(packed(rows))
        (folder / f"cut.csv{suffix}").write_bytes(packed(rows)[:-9])
        (folder / f"wrong.csv{suffix}").write_bytes(rows)
    for number in (0, 1, 2):
        (folder / f"members-{number}.zip").write_bytes(_zipped({f"{k}.csv": rows for k in range(number)}))
    array, objects = (_npy(np.arange(60).reshape(20, 3).astype(kind)) for kind in ("u1", "O"))
    members = {"array": {"x.npy": array}, "text": {"x.txt": b"hi"}, "both": {"x.npy": array, "y": b"hi"}, "none": {},
               "cut": {"x.npy": array[:90]}, "objects": {"x.npy": objects}, "folder": {"x.npy": array, "y/": b""},
               "three": {"train.npy": array, "validation.npy": array, "test.npy": b"hi"}}  # fmt: skip
    for name, content in members.items():
        (folder / f"{name}.npz").write_bytes(_zipped(content))
    lines = {"deep": [DEEP], "two": ['{"a": "x", "b": "y"}'], "none": ["{}"], "number": ["7", "1e999"], "huge": ["9" * 5000],
             "good": ['"one"', '"two"', '"three"'], "mixed": ['"one"', '{"a": "x"}'], "deeper": ['{"a": ' + DEEP + "}"]}  # fmt: skip
    for name, content in lines.items():
        (folder / f"{name}.jsonl").write_text("\n".join(content * 12) + "\n")
    extremes = [-(2**63), -(2**63) + 1, -1, 0, 1, 10**15, 2**62, 2**63 - 1]
    kinds = {f"{unit}-{number}": pyarrow.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")
             for number, zone in enumerate([None, "UTC", "Europe/Berlin", "Nowhere/Land", "+25:99", ""])}  # fmt: skip
    kinds |= {"day": pyarrow.date32(), "milliseconds": pyarrow.date64(), "duration": pyarrow.duration("ns"),
              "time": pyarrow.time64("ns"), "binary": pyarrow.binary(), "number": pyarrow.uint64()}  # fmt: skip
    for name, kind in kinds.items():
        for which, value in enumerate(extremes):
            raw, path = np.array([0, value] * 15, dtype="i8"), folder / f"{name}-{which}.parquet"
            raw = raw.astype("i4") if name == "day" else raw.astype("S") if name == "binary" else raw
            try:
                column = pyarrow.array(raw.tolist() if name == "binary" else raw)
                column = column if name == "binary" else column.cast(kind, safe=False)
                parquet.write_table(pyarrow.table({"x": column, "y": ["a", "b", "c"] * 10}), path)
            except pyarrow.ArrowInvalid:  # Parquet has no such value
                path.unlink(missing_ok=True)
    (folder / "prose.txt").write_text("Once upon a time\nthere was a file.\n" * 20)
    (folder / "one.txt").write_text("a" * 400)


def _zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _npy(values):
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def _zstandard(content):
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return sink.getvalue().to_pybytes()


def _keys(value):
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


def spoil(path, random):
    """Change one file, or what is in its place; say how."""
    chance = random.random()
    if chance < 0.08:
        path.unlink()
        if random.random() < 0.5:
            path.mkdir()
            return "folder"
        return "missing"
    if chance < 0.11 and path.suffix in (".json", ".jsonl"):
        whole = path.read_text().rstrip()
        path.write_text(random.choice([DEEP, f'{whole[:-1]}, "x": {DEEP}{whole[-1:]}']) + "\n")
        return "deep"
    if chance < 0.5 and path.suffix == ".json":
        path.write_text(json.dumps(odd_json(json.loads(path.read_text()), random)))
        return "json"
    if chance < 0.5 and path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        odd = odd_json(lines, random)
        path.write_text("".join(json.dumps(line) + "\n" for line in (odd if isinstance(odd, list) else [odd])))
        return "json"
    if chance < 0.4 and path.parent.name == "checkpoints":
        tensors, state = read(path)
        odd = odd_json(state, random)
        write(path, Checkpoint(odd_tensors(tensors, random) if random.random() < 0.4 else tensors, odd))
        return "state"
    if chance < 0.3 and path.suffix == ".safetensors":
        tensors, metadata = read_tensors(path)
        metadata.pop("digest", None)
        write_tensors(path, odd_tensors(tensors, random), **metadata)
        return "tensors"
    path.write_bytes(damage(path.read_bytes(), random))
    return "bytes"


def odd_tensors(tensors, random):
    """Tensors of which one is missing, added, or of another shape, type or value."""
    tensors, name = dict(tensors), random.choice(sorted(tensors))
    own = tensors[name]
    choices = [own.flatten()[:-1], own.double(), own.long(), torch.zeros(0), torch.full_like(own, 1), own[None], own.half(), own.bfloat16(),
               own * float("nan") if own.is_floating_point() else -own.long()]  # fmt: skip
    match random.randrange(6):
        case 0:
            del tensors[name]
        case 1:
            tensors["x"] = torch.zeros(3)
        case _:
            tensors[name] = random.choice(choices).contiguous().clone()
    return tensors

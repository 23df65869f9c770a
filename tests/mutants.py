"""Break the core on purpose, one expression at a time, and see whether the tests that mirror its file notice.

`python tests/mutants.py [COUNT] [--seed SEED] [--only PART]`; the same seed makes the same mutants of the same sources.
"""

import ast
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tyro

HOME = Path(__file__).resolve().parent.parent
MIRRORS = {
    "processes": ("processes", "contracts/test_process.py", "objectives/test_score_entropy.py"),
    "orders": ("orders", "contracts/test_order.py", "objectives/test_ordered.py", "sampling/test_in_order.py"),
    "objectives": ("objectives", "training/test_learned_rates.py"),
    "sampling": ("sampling", "contracts/test_sampler.py", "objectives/test_calls.py"),
    "tables": ("tables",),
}
OTHER = {"Lt": "LtE", "Gt": "GtE", "Eq": "NotEq", "Is": "IsNot", "Add": "Sub", "Mult": "Div", "And": "Or"}
OTHER |= {"min": "max", "minimum": "maximum", "amin": "amax"}
OTHER |= {other: one for one, other in OTHER.items()}


def mutants(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of an expression."""
    match node:
        case ast.Compare(left, [op], right) if type(op).__name__ in OTHER:
            yield ast.Compare(left, [getattr(ast, OTHER[type(op).__name__])()], right)
        case ast.BinOp(left, op, right) if type(op).__name__ in OTHER:
            yield from (ast.BinOp(left, getattr(ast, OTHER[type(op).__name__])(), right), left, right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(getattr(ast, OTHER[type(op).__name__])(), values)
        case ast.UnaryOp(operand=other) | ast.Call(ast.Attribute(other, "double" | "clamp" | "detach" | "nan_to_num")):
            yield other
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 0.5)
        case ast.Name(name) if name in OTHER:
            yield ast.Name(OTHER[name])
        case ast.Attribute(value, name) if name in OTHER:
            yield ast.Attribute(value, OTHER[name])
        case ast.Call(ast.Attribute(attr="where"), [_, one, other]):
            yield from (one, other)


def of_file(path: Path) -> Iterator[tuple[int, str, str]]:
    """The number of a line, how it reads before and after, and the whole file with it."""
    lines = path.read_text().splitlines(keepends=True)
    waiting: list[ast.AST] = [ast.parse("".join(lines))]
    while waiting:
        node = waiting.pop()
        parts = [part for field, part in ast.iter_fields(node) if field not in ("annotation", "returns")]
        every = [each for part in parts for each in (part if isinstance(part, list) else [part])]
        words = (ast.Raise, ast.Assert, ast.JoinedStr, ast.alias)  # of errors, and names: those stay
        waiting += [each for each in every if isinstance(each, ast.AST) and not isinstance(each, words)]
        for other in mutants(node) if getattr(node, "lineno", 0) == getattr(node, "end_lineno", 1) else ():
            line = lines[node.lineno - 1].encode()
            broken = line[: node.col_offset] + f"({ast.unparse(other)})".encode() + line[node.end_col_offset :]
            whole = "".join([*lines[: node.lineno - 1], broken.decode(), *lines[node.lineno :]])
            yield node.lineno, f"{line.decode().strip()}  ->  {broken.decode().strip()}", whole


def fail(tree: Path, file: Path, *options: str) -> bool:
    """Whether its tests fail: the examples in the file itself, then its own tests, and long ones at the end."""
    shutil.rmtree((tree / file).parent / "__pycache__", ignore_errors=True)  # may be as old, and of the same size
    tests = [tree / file, *tree.glob(f"tests/{file.parts[2]}/test_{file.stem}.py")]
    tests += [tree / "tests" / test for test in MIRRORS[file.parts[2]]]
    pytest = [sys.executable, "-m", "pytest", "-xqp", "no:cacheprovider", *options, *dict.fromkeys(map(str, tests))]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    codes = (subprocess.run([*pytest, "-m", which], cwd=tree, env=environment, capture_output=True).returncode
             for which in ("not long", "long"))  # fmt: skip
    return any(code not in (0, 5) for code in codes)  # 5: there are none


def main(count: tyro.conf.Positional[int] = 30, seed: int = 0, only: str = "") -> None:
    """Try COUNT mutants of the files whose path has ONLY in it."""
    files = sorted(file.relative_to(HOME) for name in MIRRORS for file in (HOME / "src/dmb" / name).rglob("*.py"))
    every = [(file, *mutant) for file in files if only in str(file) for mutant in of_file(HOME / file)]
    chosen, survived = random.Random(seed).sample(every, min(count, len(every))), 0
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))  # of each process: tests that do not end have noticed, too
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(HOME, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs", "_build"))
        for file in {file.parts[2]: file for file, *_ in chosen}.values():
            assert not fail(tree, file, "--collect-only"), "tests must be found before anything is broken"
        for file, line, change, broken in chosen:
            whole = (tree / file).read_text()
            (tree / file).write_text(broken)
            caught = fail(tree, file)
            (tree / file).write_text(whole)
            survived += not caught
            print(f"{'caught  ' if caught else 'SURVIVED'} {file}:{line}  {change}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants were caught, of {len(every):,} that there are")


if __name__ == "__main__":
    tyro.cli(main)

"""Parse command lines into calls, with tyro; parser errors are one line, like all others."""

import contextlib
import functools
import inspect
import io
import re
from collections.abc import Callable
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from tyro.conf import Positional, arg

from dmb.app.display import notes
from dmb.training.settings import Accelerator

RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="the run folder.")]
OwnRecipe = Annotated[
    str | None,
    arg(
        metavar="RECIPE", help_behavior_hint="",
        help="needed if the run was trained with your own recipe: FILE.py:FUNCTION.",
    ),
]  # fmt: skip
OnDevice = Annotated[Accelerator, arg(help="where to compute; auto: on a GPU if there is one.")]
OutFile = Annotated[Path | None, arg(metavar="FILE", aliases=["-o"])]
AsJson = Annotated[bool, arg(name="json")]
Split = Literal["train", "validation", "test"]
SamplerName = Literal["ancestral", "first_hitting", "speculative", "tweedie", "euler"]
GridName = Literal["canonical", "uniform", "cosine", "best"]
"""Options that several commands have."""

_PLAIN = {
    r"invalid literal for int\(\) with base 10: (.*)": "a whole number",
    r"could not convert string to float: (.*)": "a number",
}
"""What Python says of a value that is no number, and what a user understands."""

_OTHER_NAMES = {
    "--data": "DATA without a flag",
    "--file": "DATA without a flag",
    "--input": "DATA without a flag",
    **dict.fromkeys(("--epochs", "--epoch"), "--minutes or --score-steps"),
    **dict.fromkeys(("--steps", "--max-steps", "--num-steps", "--iterations"), "--score-steps"),
    **dict.fromkeys(("--time", "--hours"), "--minutes"),
    "--lr": "--learning-rate",
    "--chain-steps": "--chain-calls",
    **dict.fromkeys(("--device", "--gpu", "--cuda", "--cpu"), "--accelerator cpu or --accelerator cuda"),
    **dict.fromkeys(("--gpus", "--num-gpus"), "--devices"),
    **dict.fromkeys(("--layers", "--num-layers", "--depth"), "--blocks"),
    **dict.fromkeys(("--dim", "--hidden", "--hidden-size"), "--width"),
    **dict.fromkeys(("--sequence-length", "--seq-len", "--max-length", "--context"), "--length"),
    **dict.fromkeys(("--num-samples", "--samples", "--num", "--number", "--count"), "-n"),
    **dict.fromkeys(("--prompt", "--prefix", "--given"), "--template"),
    **dict.fromkeys(("--output", "--output-dir", "--save"), "--out"),
    **dict.fromkeys(("--class", "--y"), "--label"),
}
"""What other programs call a flag, and ours; a suggestion where the command has it."""

_MAY_BE_EMPTY = ("--template", "--blank")
_CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.primitive_rule
def _whole_number(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Whole numbers that tensors can hold."""
    if info.type is not int:
        return None

    def read(words: list[str]) -> int:
        value = int(words[0])
        if abs(value) >= 1 << 63:
            raise ValueError(f"invalid literal for int() with base 10: {words[0]}, which is too large")
        return value

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=read, is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def command(function: Callable[..., int]) -> Callable[[list[str]], int]:
    """The `main` of a command whose options are the arguments of `function`; its docstring becomes the help."""

    @functools.wraps(function)
    def bound(*values: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(function, *values, **options)

    parameters = inspect.signature(function).parameters
    optional = [name for name, found in parameters.items() if found.default is None]
    hints = get_type_hints(function, include_extras=True)  # "(default: None)" would contradict the text
    function.__annotations__ |= {name: Annotated[hints[name], arg(help_behavior_hint="")] for name in optional}

    def main(arguments: list[str]) -> int:
        if "calls" in parameters:
            given, arguments = arguments, [re.sub(r"^--steps(?=$|=)", "--calls", word) for word in arguments]
            if arguments != given:
                notes.print("--steps is another name for --calls, the number of network calls")
        return parsed(bound, arguments, prog=f"dmb {function.__name__}")()

    return main


def parsed(kind: Callable[..., Any], arguments: list[str], *, prog: str, default: Any = tyro.MISSING_NONPROP) -> Any:
    """The arguments as a value of `kind`; a ValueError of one line if they are wrong.

    Args:
        kind: a dataclass or a function; see `tyro.cli`.
        arguments: the command line.
        prog: the command's name in messages.
        default: a value of `kind`, whose fields are the defaults of flags. Default: those of `kind`.
    """
    _check_words(arguments)
    arguments = ["--help" if word == "--help-all" else word for word in arguments]
    helping = "--help" in arguments or "-h" in arguments
    config = _CONFIG if helping else (*_CONFIG, tyro.conf.HelptextFromCommentsOff)  # to look for it takes as long again
    said, page = io.StringIO(), io.StringIO()
    call = functools.partial(tyro.cli, kind, prog=prog, registry=_REGISTRY, default=default)
    try:
        with contextlib.redirect_stderr(said):
            return call(args=arguments, config=config)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        if any(word.partition("=")[0] in _OTHER_NAMES for word in arguments):
            with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
                call(args=["--help"], config=config)
        raise ValueError(f"{one_line(said.getvalue(), page.getvalue())}; see {prog} --help") from None


def _check_words(arguments: list[str]) -> None:
    """Raise a ValueError if a word is empty where that means nothing, or not UTF-8, which run folders cannot keep."""
    for before, word in pairwise(["", *arguments]):
        flag, _, value = word.partition("=")
        if (word == "" and before not in _MAY_BE_EMPTY) or (flag.startswith("--") and not value and flag != word):
            name = flag or (before if before.startswith("--") else "an argument")
            raise ValueError(f"{name} must not be empty")
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode(errors="surrogateescape").decode(errors="replace")
            raise ValueError(f"names must be UTF-8, got {shown}: rename it") from None


def one_line(box: str, options: str = "") -> str:
    r"""The message of tyro's box in one line, with the flag that was probably meant.

    Args:
        box: what tyro printed.
        options: the help of the command, to suggest only what it has.

    >>> one_line("╭──╮\n│ Unrecognized options: --witdh, 7 │\n│ ── │\n│ Perhaps you meant: │\n│  --width INT │\n╰──╯")
    'unrecognized options: --witdh, 7; did you mean --width?'
    >>> one_line("╭──╮\n│ Unrecognized options: --lr, 0.1 │\n│ ── │\n╰──╯", "--learning-rate FLOAT")
    'unrecognized options: --lr, 0.1; did you mean --learning-rate?'
    >>> one_line("╭──╮\n│ Error parsing --width: invalid literal for int() with base 10: 'ten' │\n│ ── │\n╰──╯")
    "--width must be a whole number, got 'ten'"
    >>> one_line("╭──╮\n│ Missing from dmb sample: │\n│  RUN │\n│  the run folder. (required) │\n│ ── │\n╰──╯")
    'missing: RUN (the run folder)'
    """
    lines = [line.strip("│ ") for line in box.splitlines()]
    lines = lines[1:] if box.startswith("╭") else lines[2:]  # drop the title (and its underline in simple terminals)
    message = " ".join(takewhile(lambda line: not line or set(line) - set("─-"), lines)).rstrip(".")  # up to a rule
    message = re.sub(r"^Error parsing [a-z]+: ", "", message)  # of a whole section: the message names the setting
    for said, meant in _PLAIN.items():
        message = re.sub(rf"^Error parsing (--[\w-]+): (?:.*: )?{said}", rf"\1 must be {meant}, got \2", message)
    missing = re.findall(r"((?:--[\w-]+ )?[A-Z]+) ((?:(?!\(required\)).)*?)\.? \(required\)", message)
    if message.startswith("Missing from") and missing:
        return "missing: " + ", ".join(f"{name} ({what[:1].lower()}{what[1:]})" for name, what in missing)
    message = re.sub(r"^Unrecognized options: (?!-)([^,]*).*", r"unexpected argument: \1", message)
    message = message[:1].lower() + message[1:]
    wrong = re.match(r"unrecognized options: ([\w-]+)", message)
    known = _OTHER_NAMES.get(wrong[1], "") if wrong else ""
    if known and re.search(rf"(?<![\w-]){known.split()[0]}(?![\w-])", options):
        return f"{message}; did you mean {known}?"
    if wrong and "Perhaps you meant:" in lines:
        meant = " ".join(lines[lines.index("Perhaps you meant:") :])
        flag = re.search(r"--[\w-]+", meant)
        message += f"; did you mean {flag[0]}?" if flag else ""
    return message

"""The command line. Every command explains itself with `--help`."""

import os
import sys

import tyro

from dmb.app.cli.compare import compare
from dmb.app.cli.evaluate import evaluate
from dmb.app.cli.prepare import prepare
from dmb.app.cli.quickstart import quickstart
from dmb.app.cli.report import report
from dmb.app.cli.sample import sample
from dmb.app.cli.train import train
from dmb.version import __version__


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    arguments = _sets_joined(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments == ["--version"]:
        print(f"dmb {__version__}")
        return
    commands = (quickstart, prepare, train, evaluate, sample, report, compare)
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            {command.__name__: command for command in commands},
            prog="dmb",
            description="Generative modelling of discrete data with a learned forward process.",
            args=arguments,
        )
    except (ValueError, OSError) as error:
        _fail(error, 2)
    except FloatingPointError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    else:
        sys.exit(code)


def _sets_joined(arguments: list[str]) -> list[str]:
    """Several `--set` as one, which is all that the parser takes.

    >>> _sets_joined(["train", "digits", "--set", "a=1", "--show", "--set", "b=2", "c=3"])
    ['train', 'digits', '--show', '--set', 'a=1', 'b=2', 'c=3']
    """
    others: list[str] = []
    assignments: list[str] = []
    taking = False
    for argument in arguments:
        taking = argument == "--set" or (taking and not argument.startswith("--"))
        if argument != "--set":
            (assignments if taking else others).append(argument)
    return [*others, "--set", *assignments] if assignments or "--set" in arguments else others


def _fail(error: object, code: int) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes one is enough to say it
        print(f"dmb: {' '.join(str(error).split())}", file=sys.stderr)
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        from dmb.training.engine import exit_now  # as one of several processes leaves when all is well

        exit_now(code)
    sys.exit(code)

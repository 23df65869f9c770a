"""The command line. Every command explains itself with `--help`, and is imported only when it is called."""

import difflib
import os
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

from dmb.app.signals import ending_at_once, interruptible
from dmb.version import __version__

COMMANDS = {
    "quickstart": "train, evaluate, sample and report on built-in data, in about two minutes",
    "train": "train on a file, a folder of images, or built-in data",
    "resume": "continue a run after Ctrl-C or a crash, or for longer",
    "evaluate": "compute an upper bound on the bits per token of unseen data",
    "sample": "draw samples, or fill in the blanks of a template",
    "impute": "fill in the missing values of a table",
    "report": "write one self-contained page about a run",
    "card": "write a model card about a run, for the Hugging Face Hub",
    "serve": "open a page in the browser to play with a run's model",
    "compare": "train several kinds of noise with several seeds, and print one table",
    "tokenize": "turn images into codes with a VQ-VAE; then train on the codes",
    "fid": "compare a model's images with real ones: Fréchet Inception Distance",
    "prepare": "download and check text8 or cifar10",
}
"""The commands and their purpose. The module of the same name has `main(arguments) -> exit code`."""

EXAMPLES = """\
  dmb quickstart                                   a complete tour, on 8 × 8 images of digits
  dmb train novel.txt --out runs/novel             also tables (.csv), arrays (.npy), folders of images
  dmb sample runs/novel --template "the ____ of"   fill in the blanks
"""


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user error prints one line, with exit code 2; a failure of the computation has exit code 1."""
    try:
        with interruptible(), warnings.catch_warnings():
            warnings.showwarning = _note
            code = _called(sys.argv[1:] if arguments is None else arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output closed it, like `head` does
        _drop_output()
        sys.exit(141)
    except (ValueError, OSError) as error:
        _fail(_described(error), 2)
    except FloatingPointError as error:
        _fail(error, 1)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _fail("not enough memory: try smaller sizes, such as width, length or batch_size", 1)
    except KeyboardInterrupt as stop:
        _fail("interrupted", 128 + (stop.args[0] if stop.args else signal.SIGINT))
    else:
        sys.exit(code)


def _called(arguments: list[str]) -> int:
    """The exit code of a command."""
    if arguments[:1] == ["help"]:  # `dmb help train` is `dmb train --help`
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("--help", "-h"):
        print(overview())
        return 0
    if arguments in (["--version"], ["-V"], ["version"]):
        print(f"dmb {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"try {', '.join(COMMANDS)}"
        raise ValueError(f"no command called {name!r}: {hint}")
    with ending_at_once():
        command = import_module(f"dmb.app.cli.{name}")
        if not {"--help", "-h"} & {*rest}:
            import_module("dmb.app.session")  # all that computes, for which help does not wait
    try:
        return command.main(rest)
    except SystemExit as stop:  # after --help
        return int(stop.code or 0)


def overview() -> str:
    """What `dmb --help` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "Generative modelling of discrete data with a learned forward process.\n\n"
        f"usage: dmb COMMAND [OPTIONS]\n\ncommands:\n{commands}\n\nexamples:\n{EXAMPLES}\n"
        "`dmb COMMAND --help` explains a command; `dmb --version` prints the version."
    )


def _described(error: Exception) -> str:
    """An error in words; one of the system without a file's name is about the output."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    subject = "the output cannot be written" if error.filename is None else f"{error.filename} cannot be used"
    return f"{subject}: {error.strerror}"


def _out_of_memory(error: Exception) -> bool:
    """Whether it says that memory is used up, or that a size is beyond what any machine has."""
    words = ("allocate memory", "out of memory", "not enough memory", "size calculation overflow", "numel: integer")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


_show = warnings.showwarning


def _note(message: Warning | str, category: type[Warning], *place: Any, **others: Any) -> None:
    """Print a warning of ours as one line, without the place in the code; one of other packages as usual."""
    if category.__module__.startswith("dmb."):
        print(f"note: {' '.join(str(message).split())}", file=sys.stderr)
    else:
        _show(message, category, *place, **others)


def _fail(error: object, code: int) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only one of several processes prints the error
        with suppress(OSError):
            print(f"dmb: {' '.join(str(error).split())}", file=sys.stderr)
    _drop_output()
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        from dmb.training.devices import exit_now  # end as after a successful run

        exit_now(code)
    sys.exit(code)


def _drop_output() -> None:
    """Write what is left of the output; if that fails, drop it, or Python would complain at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The command line. Every command explains itself with `--help`, and is imported only when it is called."""

import difflib
import os
import sys
from importlib import import_module

from dmb.version import __version__

COMMANDS = {
    "quickstart": "train, evaluate, sample and report on built-in data, in about two minutes",
    "train": "train on a file, a folder of images, or built-in data",
    "resume": "continue a run after Ctrl-C or a crash, or for longer",
    "evaluate": "compute an upper bound on the bits per token of unseen data",
    "sample": "draw samples, or fill in the blanks of a template",
    "impute": "fill in the missing values of a table",
    "report": "write one self-contained page about a run",
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
    """Run a command. A user error prints one line, with exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("--help", "-h"):
        print(overview())
        return
    if arguments == ["--version"]:
        print(f"dmb {__version__}")
        return
    name, *rest = arguments
    try:
        if name not in COMMANDS:
            raise ValueError(_no_such_command(name))
        code = import_module(f"dmb.app.cli.{name}").main(rest)
    except BrokenPipeError:  # the reader of the output closed it, like `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError) as error:
        _fail(error, 2)
    except FloatingPointError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    else:
        sys.exit(code)


def overview() -> str:
    """What `dmb --help` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "Generative modelling of discrete data with a learned forward process.\n\n"
        f"usage: dmb COMMAND [OPTIONS]\n\ncommands:\n{commands}\n\nexamples:\n{EXAMPLES}\n"
        "`dmb COMMAND --help` explains a command; `dmb --version` prints the version."
    )


def _no_such_command(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"no command called {name!r}: " + (f"did you mean {close[0]}?" if close else f"try {', '.join(COMMANDS)}")


def _fail(error: object, code: int) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only one of several processes prints the error
        print(f"dmb: {' '.join(str(error).split())}", file=sys.stderr)
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        from dmb.training.engine import exit_now  # end as after a successful run

        exit_now(code)
    sys.exit(code)

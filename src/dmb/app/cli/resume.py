"""`dmb resume`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb.app.cli.console import notes
from dmb.app.cli.settings import named_recipe, with_settings
from dmb.app.cli.train import Devices
from dmb.app.recipes import Recipe, recipe
from dmb.app.runs import Run
from dmb.app.session import session

DESCRIPTION = """\
Continue a run from its newest checkpoint, with its own settings.

On a CPU, with the same number of threads, the result is bit for bit that of an uninterrupted run. You may change
training settings: `dmb resume RUN --cycles 8` trains for longer, `dmb resume RUN --minutes 5` for five more minutes.
Data, process, network and head cannot change.
"""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """The run to continue."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The run folder."""
    recipe: Annotated[str | None, arg(metavar="RECIPE", help_behavior_hint="")] = None
    """Needed if the run was trained with your own recipe: FILE.py:FUNCTION."""
    devices: Devices = field(default_factory=Devices)


def main(arguments: list[str]) -> int:
    """Resume."""
    default = recipe(named_recipe(arguments) or "text")
    first, _ = _parsed(default, arguments)
    flags, wanted = _parsed(Run.open(first.run, first.recipe).recipe, arguments)
    return session(wanted, flags.run, resume=True, console=notes, own=flags.recipe, **vars(flags.devices))


def _parsed(default: Recipe, arguments: list[str]) -> tuple[Resume, Recipe]:
    return with_settings(Resume, default, arguments, prog="dmb resume", description=DESCRIPTION)

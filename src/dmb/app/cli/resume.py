"""`dmb resume`."""

from dataclasses import dataclass, field

from dmb.app.cli.parsing import OwnRecipe, RunFolder
from dmb.app.cli.settings import named_recipe, with_settings
from dmb.app.cli.train import Devices
from dmb.app.display import notes
from dmb.app.recipes import recipe
from dmb.app.runs import Run
from dmb.app.session import session


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its newest checkpoint, with its own settings.

    On a CPU, with the same number of threads, the result is bit for bit that of an uninterrupted run. You may change
    training settings: `dmb resume RUN --cycles 8` trains for longer, `dmb resume RUN --minutes 5` for five more
    minutes. Data, process, network and head cannot change.
    """

    run: RunFolder
    recipe: OwnRecipe = None
    devices: Devices = field(default_factory=Devices)


def main(arguments: list[str]) -> int:
    """Resume."""
    first, _ = with_settings(Resume, recipe(named_recipe(arguments) or "text"), arguments)
    flags, wanted = with_settings(Resume, Run.open(first.run, first.recipe).recipe, arguments)
    return session(wanted, flags.run, resume=True, console=notes, own=flags.recipe, launch=flags.devices.launch)

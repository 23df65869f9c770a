"""`dmb card`."""

from typing import Annotated

from tyro.conf import arg

from dmb.app.cli.parsing import OutFile, OwnRecipe, RunFolder, command
from dmb.app.display import notes, say
from dmb.app.report.card import write_card
from dmb.app.runs import Run


def card(
    run: RunFolder,
    license_: Annotated[str | None, arg(name="license")] = None,
    out: OutFile = None,
    recipe: OwnRecipe = None,
) -> int:
    """Write RUN/README.md: a model card, as the Hugging Face Hub wants it, from what the run knows.

    It has data, process, network, bound with its error, how to load the model, limits and provenance. It evaluates
    nothing: call `dmb evaluate RUN` first. `Bridge.push_to_hub` takes the card along.

    Args:
        license_: licence of the model, as the Hub calls it: mit, apache-2.0, cc-by-4.0, other; default: none is stated.
        out: write this file instead.
    """
    path = write_card(Run.open(run, recipe), out, licence=license_)
    if license_ is None:
        say(notes, "The card states no licence, so others may not use the model: --license mit, for example.")
    print(path)
    return 0


main = command(card)

"""`dmb quickstart`: all main commands on built-in data."""

from pathlib import Path

from dmb.app.cli.console import notes
from dmb.app.cli.evaluate import evaluate
from dmb.app.cli.parsing import command
from dmb.app.cli.report import report
from dmb.app.cli.sample import sample
from dmb.app.cli.train import new_folder
from dmb.app.recipes import recipe
from dmb.app.session import session


def quickstart(out: Path | None = None, seed: int = 0) -> int:
    """Train, evaluate, sample and report on built-in data: scikit-learn's digits, about two minutes on two cores.

    Args:
        out: the new run folder; default: runs/digits-<time>.
        seed: seed of all random numbers.
    """
    wanted = recipe("digits").changed(seed=seed)
    path = out or new_folder(wanted)
    code = session(wanted, path, resume=False, console=notes)
    if code:
        return code
    evaluate(path, samples=16)
    sample(path)
    return report(path)


main = command(quickstart)

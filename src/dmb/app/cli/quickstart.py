"""`dmb quickstart`: the main job on built-in data."""

from pathlib import Path

from dmb.app import recipes
from dmb.app.cli.console import notes
from dmb.app.cli.evaluate import evaluate
from dmb.app.cli.recipe import new_folder
from dmb.app.cli.report import report
from dmb.app.cli.sample import sample
from dmb.app.session import session


def quickstart(out: Path | None = None, seed: int = 0) -> int:
    """Train, evaluate, sample and report on built-in data: scikit-learn's digits, about two minutes on two cores.

    Args:
        out: the run folder to make; default: runs/digits-<time>.
        seed: of everything random.
    """
    recipe = recipes.override(recipes.digits(), [f"seed={seed}"])
    path = out or new_folder(recipe)
    code = session(recipe, path, resume=False, console=notes)
    if code:
        return code
    evaluate(path)
    sample(path, n=2)
    return report(path)

"""`dmb quickstart`: all main commands on built-in data."""

from pathlib import Path

from dmb.app.cli.evaluate import evaluate
from dmb.app.cli.parsing import command
from dmb.app.cli.sample import sample
from dmb.app.cli.train import new_folder
from dmb.app.display import counting, notes, say
from dmb.app.recipes import recipe
from dmb.app.records import read_bounds
from dmb.app.report import write_report
from dmb.app.runs import Run
from dmb.app.session import session

RUNS = {"algorithm-1": "digits", "whole-paths": "digits_paths"}
"""The recipe of each run: the paper's, then the best we have."""


def quickstart(out: Path | None = None, seed: int = 0) -> int:
    """Train two models of scikit-learn's digits, evaluate, sample and report: about three minutes on two cores.

    The first learns by the paper's Algorithm 1: Matrix-learning of the rates, Score-learning of the network, and an
    estimate of the data's marginals, in turns. The second learns by whole paths, with an order that is learned too.

    Args:
        out: a new folder for both runs and the report; default: runs/digits-<time>.
        seed: seed of all random numbers.
    """
    wanted = {name: recipe(choice).changed(seed=seed) for name, choice in RUNS.items()}
    out = out or new_folder(wanted["algorithm-1"])
    for name in wanted:
        Run.check_free(out / name)  # before a minute of training
    for name, choice in wanted.items():
        code = session(choice, out / name, resume=False, console=notes)
        if code:
            return code
        evaluate(out / name, samples=16)
    runs = [Run.open(out / name) for name in wanted]
    with counting(notes, "drawing the report") as progress:
        page = write_report(*runs, progress=progress)
    say(notes, f"eight samples of {runs[-1].path}:")
    sample(runs[-1].path)
    _compare(runs)
    say(notes, f"the report, for a browser; to play with the model: dmb serve {runs[-1].path}")
    print(page)
    return 0


def _compare(runs: list[Run]) -> None:
    """Both models in one table, and what Algorithm 1 has done to the rates and to the estimate of the marginals."""
    print(f"{'':14}{'bits per pixel on test':26}{'training':>12}")
    for run in runs:
        test, seconds = read_bounds(run.path)["test"], run.metrics()[-1].seconds
        print(f"{run.path.name:14}{test.bits:10.4f} ± {test.stderr:<13.4f}{seconds:10.0f} s")
    print(f"{'marginals':14}{runs[0].about['unigram_bits']['test']:10.4f}\n")
    for record in (records := [r for r in runs[0].metrics() if r.phase == "matrix"]):
        if record is records[0] or record is records[-1] or record.matrix_step == 0:
            rates = f"rates {min(record.alpha):8.1e} to {max(record.alpha):.2f}"
            where = f"cycle {record.cycle + 1}, Matrix-learning step {record.matrix_step:5,}"
            print(f"{where}: J_Q {record.prior_bits:.1e}, {rates}, KL(μ || p_0) {record.marginal_bits:.4f} bits")


main = command(quickstart)

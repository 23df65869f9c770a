"""What Matrix-learning does to the rates and to the bound, from the runs of a comparison.

dmb compare text8 --rows dmb-published dmb-still mean-live mean-still … --out FOLDER
python benchmarks/matrix_learning.py FOLDER [FIGURE]

Prints J_Q, KL(μ || p_0) and rates before and after Matrix-learning of every cycle of `dmb-published`, seed 0, and draws
them beside the bounds of all rows while they learn. Saves docs/results/matrix-learning.png, or another FIGURE.
"""

from pathlib import Path

import matplotlib
import tyro

from dmb.app.records import Record, read_metrics, validations

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FIRST, ROWS = "dmb-published", ("dmb-published", "dmb-still", "dmb-paced", "mean-live", "mean-loglinear", "mean-still")


def cycles(folder: Path) -> list[list[Record]]:
    """The records of Matrix-learning, cycle by cycle: before the first step, at powers of ten, after the last."""
    records = [record for record in read_metrics(folder) if record.phase == "matrix"]
    return [[r for r in records if r.cycle == cycle] for cycle in sorted({record.cycle for record in records})]


def main(
    folder: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path] = Path("docs/results/matrix-learning.png")
) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    print("cycle   step       J_Q  KL(μ||p_0)  lowest and highest rate  lower rates / top rate")
    for number, records in enumerate(cycles(folder / FIRST / "seed-0"), 1):
        for record in records:
            *lower, top = record.alpha
            rates = f"{min(lower):10.1e} {max(record.alpha):12.2f}  {sum(lower) / top:22.2f}"
            print(
                f"{number:5d} {record.matrix_step:6,} {record.prior_bits:9.2e}  {record.marginal_bits:10.4f}  {rates}"
            )
        shown = [("before", records[0]), (f"after cycle {number}", records[-1])][number > 1 :]
        for name, record in shown:
            rank = range(1, len(record.alpha) + 1)
            left.semilogy(rank, [max(rate, 1e-4) for rate in record.alpha], marker="o", markersize=3, label=name)
        steps, bits = zip(*[(max(r.matrix_step, 1), r.prior_bits) for r in records], strict=True)
        middle.loglog(steps, bits, marker="o", markersize=3, label=f"cycle {number}")
    for row in ROWS:
        if (run := folder / row / "seed-0").is_dir():
            steps, bits = zip(*[(r.step, r.bits) for r in validations(read_metrics(run))], strict=True)
            right.plot(steps, bits, marker="o", markersize=3, label=row)
    left.set(title="rates", xlabel="rank of the state (1: second most frequent)")
    middle.set(title="J_Q, bits per token", xlabel="steps of Matrix-learning (first mark: before)")
    right.set(title="bound, bits per token, validation", xlabel="steps of Score-learning")
    for axes in (left, middle, right):
        axes.grid(alpha=0.2)
        axes.legend(fontsize=7)
    figure.savefig(out, dpi=110)
    print(f"figure: {out}")


if __name__ == "__main__":
    tyro.cli(main)

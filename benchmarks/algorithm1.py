"""Algorithm 1, cycle by cycle: the estimate of the data's marginals and the bound, learned and with exact phases.

python benchmarks/algorithm1.py [FIGURE]

Six short cycles on digits from a random p_0 by `dmb.train`, then ten cycles of `theory.exact_bridge` on eight states
from five random ones, which Theorem 4.7 is about. Saves runs/algorithm1.png, or another FIGURE.
"""

import math
from itertools import pairwise
from pathlib import Path

import matplotlib
import torch
import tyro
from matplotlib.ticker import MaxNLocator

import dmb
from dmb import theory
from dmb.app import recipes
from dmb.training import TrainingReport

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STATES, STARTS, CHAINS = 8, 5, 1024


def learned() -> list[list[TrainingReport]]:
    """The reports of each cycle on digits: before and after Matrix-learning, and the bound on validation data."""
    recipe = recipes.recipe("digits").changed(
        cycles=6, score_steps=150, matrix_steps=225, chains=CHAINS, decay="constant", patience=0, evaluate_every=150
    )
    data = recipe.data.load()
    reports = list(dmb.train(recipe.build(data), data, recipe.training))
    generator = torch.Generator().manual_seed(0)
    drawn = data.train[torch.randint(len(data.train), (CHAINS,), generator=generator)]
    counted = torch.nn.functional.one_hot(drawn, data.num_states).double().mean(0)
    smooth, mu = (CHAINS * counted + 1 / data.num_states) / (CHAINS + 1), data.marginals().double()
    kl = torch.xlogy(mu, mu / smooth).sum(-1).mean().item() / math.log(2)
    print(f"digits, in bits per pixel; frequencies of {CHAINS} real digits would have KL(μ || p_0) = {kl:.4f}")
    return [[r for r in reports if r.cycle == cycle and r.phase != "score"] for cycle in range(recipe.training.cycles)]


def exact() -> list[list[theory.ExactCycle]]:
    """The cycles from each random start, with rates that start at 1e-10 but for the top one."""
    generator = torch.Generator().manual_seed(0)

    def distribution() -> torch.Tensor:
        weights = torch.rand(STATES, generator=generator, dtype=torch.float64) ** 3
        return weights / weights.sum()

    mu, traces = distribution(), []
    for _ in range(STARTS):
        process = dmb.BridgeProcess.from_marginals(mu[None], floor=0.0, learn="linear", schedule=dmb.Linear(0.2, 0.2))
        cycles = theory.exact_bridge(mu, process, distribution(), cycles=10, matrix_steps=3, learning_rate=0.05)
        traces.append(list(cycles))
    return traces


def main(out: tyro.conf.Positional[Path] = Path("runs/algorithm1.png")) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    cycles = [(reports[0], reports[-2], reports[-1]) for reports in learned()]
    print("cycle  KL(μ||p_0)  J_Q before    after  rates before        after                bound")
    bounds = [end.validation for *_, end in cycles if end.validation is not None]
    for number, ((before, after, _), end) in enumerate(zip(cycles, bounds, strict=True), 1):
        rates = "  ".join(f"{min(r.alpha or []):.1e} to {max(r.alpha or []):.2f}" for r in (before, after))
        bound = f"{end.bits_per_token:.4f} ± {end.stderr:.4f}"
        j_q = f"{before.prior_bits:10.1e}  {after.prior_bits:7.1e}"
        print(f"{number:5d}  {before.marginal_bits:10.4f}  {j_q}  {rates}  {bound}")
    left.semilogy(
        range(1, len(cycles) + 1), [before.marginal_bits for before, _, _ in cycles], marker="o", markersize=4
    )
    bits, errors = [bound.bits_per_token for bound in bounds], [bound.stderr for bound in bounds]
    middle.errorbar(range(1, len(cycles) + 1), bits, errors, marker="o", markersize=4, capsize=3)
    for number, trace in enumerate(exact(), 1):
        rises = sum(late.kl > early.kl for early, late in pairwise(trace))
        fall = f"{trace[0].kl:.4f} -> {trace[-1].kl:.1e} nats in {len(trace) - 1} cycles; rises: {rises}"
        print(f"exact phases, start {number}: KL(μ || p_0) {fall}")
        right.semilogy([c.cycle for c in trace], [c.kl for c in trace], marker="o", markersize=3)
    left.set(title="digits: the estimate of Eq. 10", ylabel="KL(μ || p_0), bits per pixel", xlabel="cycle")
    middle.set(title="digits: the bound after the cycle", ylabel="bits per pixel, validation", xlabel="cycle")
    right.set(title="exact phases, 8 states, 5 starts", ylabel="KL(μ || p_0), nats", xlabel="cycles done")
    for axes in (left, middle, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.2)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    print(f"figure: {out}")


if __name__ == "__main__":
    tyro.cli(main)

"""How much the variance of the network's gradient falls when times are drawn where the loss varies most.

python benchmarks/times.py [STEPS]

Trains a small network on Python's documentation for STEPS steps, then draws the gradient of many batches, with times
even and adapted, at the same weights.
"""

import sys

import torch

from dmb import MarkovBridge, data, train
from dmb._core import seeding
from dmb.app import recipes
from dmb.data import DataSet
from dmb.objectives.variance import TimeDensity

BATCHES, LEARN = 100, 20


def main(steps: int) -> None:
    recipe = recipes.recipe("text_gather").changed(
        cycles=1, score_steps=steps, width=64, batch_size=32, dropout=0.0, evaluate_every=steps, evaluate_sequences=64
    )
    text = data.load(recipe.data.source, length=recipe.data.length)
    bridge = recipe.build(text)
    assert isinstance(bridge, MarkovBridge)
    for report in train(bridge, text, recipe.training):
        if report.validation is not None:
            print(f"after {report.step} steps: {report.validation}")
    densities = {"even": None, "adapted": TimeDensity(central=True)}
    variance = {name: _variance(bridge, text, density) for name, density in densities.items()}
    for name, value in variance.items():
        print(f"{name:8s} variance of the gradient of a batch of 32: {value:.4g}")
    print(f"even / adapted = {variance['even'] / variance['adapted']:.2f}")


def _variance(bridge: MarkovBridge, text: DataSet, density: TimeDensity | None) -> float:
    """Trace of the covariance of the gradient over batches; a density learns from batches of its own before."""
    parameters = [p for p in bridge.network.parameters() if p.requires_grad]
    total, squares = torch.zeros(()), 0.0
    for step in range(-LEARN, BATCHES):
        x_0 = text.train.batch(32, step=step + LEARN, seed=1).x_0
        loss = bridge.loss(x_0, times=density, generator=seeding.seeded("times", step + LEARN))
        if step < 0:
            if density is not None:
                density.learn()
            continue
        mean = loss.mean() / bridge.num_positions
        gradient = torch.autograd.grad(mean, parameters, allow_unused=True)
        flat = torch.cat([g.flatten() for g in gradient if g is not None]).double()
        total, squares = total + flat, squares + flat.square().sum().item()
    return (squares - (total.square().sum().item()) / BATCHES) / (BATCHES - 1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)

"""What our estimators save: network calls for an accurate bound, and batches for an accurate gradient.

python benchmarks/variance.py [STEPS]

Models are small transformers, trained for STEPS steps each on English that ships with Python. The last of them writes
in any order, and its bound is that of whole paths. The gradient is that of many batches at the same weights, with times
even, and drawn where the loss varies most.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import tyro

from dmb import Bound, MarkovBridge, train
from dmb._core.seeding import seeded
from dmb.app import recipes
from dmb.data import DataSet
from dmb.objectives import score_entropy
from dmb.objectives.variance import TimeDensity

TARGET, BATCHES, LEARN = 0.005, 100, 20
SWITCHES = {
    "stratify": "+ stratified over the batch",
    "split": "+ split on whether anything moved",
    "control": "+ control variates: who moved",
    "importance": "+ importance sampling of times",
}
DRAWN_TIMES: dict[str, dict[str, Any]] = {
    "bridge, gather": {"tied": True, "learn": "log"},
    "masked diffusion": {"tied": True, "learn": "log", "mask": True, "floor": 0.0},
}
WHOLE_PATHS = {"masks written in any order": {"learn": "log", "mask": True, "floor": 0.0, "network": "ordered"}}


def trained(name: str, steps: int) -> tuple[Any, DataSet]:
    recipe = recipes.recipe("text_gather").changed(
        cycles=1, score_steps=steps, matrix_steps=0, width=64, batch_size=32, dropout=0.0, head="mean",
        start="histogram", evaluate_every=steps, evaluate_sequences=64, **(DRAWN_TIMES | WHOLE_PATHS)[name],
    )  # fmt: skip
    text = recipe.data.load()
    bridge = recipe.build(text)
    for _ in train(bridge, text, recipe.training):
        pass
    print(f"\n{name}: {len(text.test):,} held-out sequences of {bridge.num_positions} letters")
    return bridge.eval(), text


def estimators(bridge: MarkovBridge) -> dict[str, Callable[..., Bound]]:
    """The bound, with one switch after another turned on."""
    switches: dict[str, Any] = dict.fromkeys(SWITCHES, False)
    plain = partial(score_entropy.bound, bridge, **switches)
    ways: dict[str, Callable[..., Bound]] = {"plain: uniform times, independent": plain}
    for name, words in SWITCHES.items():
        switches[name] = True
        ways[words] = partial(score_entropy.bound, bridge, **switches)
    return ways


@torch.no_grad()
def calls_for_a_bound(ways: dict[str, Callable[..., Bound]], x_0: torch.Tensor) -> None:
    """Print how many network calls the target takes, by every estimator."""
    print(f"  {'':36}{'bits per token':>14}{'deviation':>11}{'calls for ±' + str(TARGET):>18}{'ratio':>8}")
    first = None
    for way, estimate in ways.items():
        bound = estimate(x_0, generator=seeded(1))
        deviation = bound.stderr * len(x_0) ** 0.5  # what one call per sequence leaves
        calls = (deviation / TARGET) ** 2
        first = first or calls
        print(f"  {way:36}{bound.bits_per_token:8.4f} ± {bound.stderr:.4f}{deviation:10.3f}{calls:18,.0f}"
              f"{first / calls:8.1f}", flush=True)  # fmt: skip


def variance_of_gradient(bridge: MarkovBridge, text: DataSet, density: TimeDensity | None) -> float:
    """Trace of the covariance of the gradient over batches; a density learns from batches of its own before."""
    gradients = []
    for step in range(LEARN + BATCHES):
        loss = bridge.loss(text.train.batch(32, step=step, seed=1).x_0, times=density, generator=seeded("times", step))
        if step >= LEARN:
            bridge.zero_grad()
            (loss.mean() / bridge.num_positions).backward()
            parts = [p.grad.flatten() for p in bridge.network.parameters() if p.grad is not None]
            gradients.append(torch.cat(parts).double())
        elif density is not None:
            density.learn()
    return torch.stack(gradients).var(0).sum().item()


def main(steps: tyro.conf.Positional[int] = 600) -> None:
    for name in DRAWN_TIMES:
        bridge, text = trained(name, steps)
        calls_for_a_bound(estimators(bridge), text.test[:])
        even = variance_of_gradient(bridge, text, None)
        adapted = variance_of_gradient(bridge, text, TimeDensity(central=True))
        print(f"  variance of the gradient of a batch of 32: {even:.4g} with times even, {adapted:.4g} adapted; "
              f"ratio {even / adapted:.2f}")  # fmt: skip
    for name in WHOLE_PATHS:
        bridge, text = trained(name, steps)
        calls_for_a_bound({"whole paths": bridge.bound}, text.test[:])


if __name__ == "__main__":
    tyro.cli(main)

"""Network calls needed for a standard error of 0.005 bits per token: uniform independent times against our estimators.

Models are small transformers, trained for a minute each on English that ships with Python, in Text8's 27 letters. The
last of them writes in any order, and is evaluated by whole paths.
"""

import math
import re
import time
from collections.abc import Callable
from pydoc_data import topics
from typing import Any

import torch

import dmb
from dmb.objectives import ordered as paths, score_entropy as losses

LENGTH, STEPS, BATCH, SEQUENCES, TARGET = 64, 600, 32, 4096, 0.005
ALPHABET = " abcdefghijklmnopqrstuvwxyz"


def letters() -> torch.Tensor:
    text = re.sub(r"[^a-z]+", " ", " ".join(topics.topics.values()).lower())
    return torch.tensor([ALPHABET.index(letter) for letter in text])


def crops(text: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    start = torch.randint(len(text) - LENGTH, (count,), generator=generator)
    return text[start[:, None] + torch.arange(LENGTH)]


def train(make: Callable[..., dmb.Bridge], text: torch.Tensor) -> dmb.Bridge:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    bridge = make(blocks=4, width=96, heads=4, conditioning=64, dropout=0.0)
    optimiser = torch.optim.AdamW(bridge.network.parameters(), lr=2e-3)
    start = time.perf_counter()
    for _ in range(STEPS):
        optimiser.zero_grad()
        bridge.loss(crops(text, BATCH, generator), generator=generator).mean().backward()
        optimiser.step()
    print(f"  trained for {STEPS} steps in {time.perf_counter() - start:.0f} s")
    return bridge


@torch.no_grad()
def spread(
    bridge: dmb.Bridge, x_0: torch.Tensor, estimate: Callable[..., dmb.Bound], **options: bool
) -> tuple[float, float]:
    """Mean in bits per token, and the standard deviation that one network call per sequence leaves."""
    bound = estimate(bridge.eval(), x_0, generator=torch.Generator().manual_seed(1), **options)
    return bound.bits_per_token, bound.stderr * math.sqrt(len(x_0))


def main() -> None:
    text = letters()
    held_out = crops(text[int(0.9 * len(text)) :], SEQUENCES, torch.Generator().manual_seed(2))
    text = text[: int(0.9 * len(text))]
    marginals = torch.bincount(text, minlength=27).double()
    marginals = (marginals / marginals.sum()).float().expand(LENGTH, -1)
    switches = {"stratify": False, "split": False, "control": False, "importance": False}
    ways = {"plain: uniform times, independent": (losses.bound, dict(switches))}
    for device, words in (
        ("stratify", "+ stratified over the batch"),
        ("split", "+ split on whether anything moved"),
        ("control", "+ control variates: who moved"),
        ("importance", "+ importance sampling of times"),
    ):
        switches[device] = True
        ways[words] = losses.bound, dict(switches)

    def by_times(mask: bool) -> Callable[..., dmb.Bridge]:
        process = dmb.BridgeProcess.from_marginals(marginals, tied=True, mask=mask, floor=0.0 if mask else 1e-5)
        return lambda **size: dmb.MarkovBridge(process, dmb.Transformer.for_process(process, **size))

    def by_paths(**size: Any) -> dmb.Bridge:
        states = dmb.States.with_mask(LENGTH, len(ALPHABET))
        return dmb.OrderedBridge(dmb.orders.Random(LENGTH), dmb.OrderedTransformer.for_states(states, **size), states)

    whole: dict[str, Any] = {"whole paths": (paths.path_bound, {})}
    for name, make, estimates in (
        ("bridge, gather", by_times(False), ways),
        ("masked diffusion", by_times(True), ways),
        ("masks written in any order", by_paths, whole),
    ):
        print(f"\n{name}: {SEQUENCES} held-out sequences of {LENGTH} letters")
        bridge = train(make, text)
        print(f"  {'':36}{'bits per token':>14}{'deviation':>11}{'calls for ±' + str(TARGET):>18}{'ratio':>8}")
        first = None
        for way, (estimate, devices) in estimates.items():
            mean, deviation = spread(bridge, held_out, estimate, **devices)
            calls = (deviation / TARGET) ** 2
            first = first or calls
            error = deviation / math.sqrt(SEQUENCES)
            print(f"  {way:36}{mean:8.4f} ± {error:.4f}{deviation:10.3f}{calls:18,.0f}{first / calls:8.1f}")


if __name__ == "__main__":
    main()

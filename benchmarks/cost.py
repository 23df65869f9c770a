"""What a bridge costs in time and peak memory (Linux): closed forms beside dense rows, a training step beside plain
cross-entropy, writing with a cache of keys and values beside reading everything again at each call, and letters per
second in few calls beside an autoregressive network.

python benchmarks/cost.py
"""

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.benchmark import Timer

import dmb
from dmb.networks import OrderedNetwork

ROUNDS = 3
DRAWS = {"closed form": 20, "rows, then multinomial": 1}
"""Ways to sample, and calls that are timed."""
BATCH, POSITIONS = 64, 256
STEPS = {27: (32, 128, 4), 50_257: (4, 64, 1)}
"""For n states: batch, positions, steps that are timed."""
LOSSES = ("cross-entropy", "bridge, mean head", "bridge, score head", "masked diffusion, mean head")
WRITES = ("keys and values kept", "everything read again")
SAMPLES, LETTERS = 16, 64
SPEEDS = {"autoregressive": LETTERS, "ordered, 64 calls": 64, "ordered, 16 calls": 16, "ordered, 8 calls": 8}
"""Network calls of ways to write, all with keys and values kept."""
SIZES, ELEMENTS = (27, 128, 512, 2048, 8192, 50_257), 4_000_000


def process_of(num_states: int, num_positions: int) -> dmb.BridgeProcess:
    marginals = torch.ones(1, num_states).softmax(-1).expand(num_positions, -1)
    return dmb.BridgeProcess.from_marginals(marginals, tied=True, init="uniform")


def drawing(way: str) -> Callable[[], object]:
    """Draw `x_t`."""
    process, x_0 = process_of(SIZES[-1], POSITIONS), torch.randint(SIZES[-1], (BATCH, POSITIONS))
    if way == "closed form":
        return lambda: process.sample(x_0, 0.5)
    return lambda: torch.multinomial(process.log_transition(x_0, 0.5).exp().flatten(0, 1), 1)


def training_step(way: str, n: int) -> Callable[[], object]:
    """A step of SGD on one batch."""
    torch.manual_seed(0)
    batch, positions, _ = STEPS[n]
    marginals = (torch.rand(1, n) ** 2).expand(positions, -1)
    masked = way.startswith("masked")
    process = dmb.BridgeProcess.from_marginals(
        marginals / marginals.sum(-1, keepdim=True), tied=True, mask=masked, floor=0.0 if masked else 1e-5
    )
    network = dmb.Transformer(process, blocks=4, width=256, heads=8, dropout=0.0)
    bridge = dmb.MarkovBridge(process, network, head="score" if "score" in way else "mean")
    x_0, optimiser = torch.randint(n, (batch, positions)), torch.optim.SGD(bridge.parameters(), lr=1e-6)

    def loss() -> torch.Tensor:
        if way == "cross-entropy":
            t = torch.rand(len(x_0), dtype=torch.float64)
            return F.cross_entropy(network(x_0, t).flatten(0, 1), x_0.flatten())
        return bridge.loss(x_0).mean()

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


class ReadsAgain(dmb.OrderedTransformer):
    """The same network, which keeps nothing of what it has computed."""

    cache = OrderedNetwork.cache


def writing(way: str, calls: int) -> Callable[[], object]:
    """Sample by a network that has not been trained, which costs the same; both ways draw the very same samples."""
    states, kind = dmb.States.with_mask(LETTERS, 27), dmb.OrderedTransformer if way == WRITES[0] else ReadsAgain
    network = kind(states, blocks=4, width=128, heads=4)
    bridge = dmb.OrderedBridge(dmb.orders.Random(LETTERS), network, states)
    return lambda: bridge.sample(SAMPLES, calls=calls, generator=torch.Generator().manual_seed(0))


def speed(way: str, samples: int) -> Callable[[], object]:
    """Sample in so many calls, each of which writes the same place of every stream."""
    states, left = dmb.States.with_mask(LETTERS, 27), dmb.orders.Fixed.left_to_right(LETTERS)
    causal = way == "autoregressive"
    network = (dmb.CausalTransformer if causal else dmb.OrderedTransformer)(states, blocks=4, width=128, heads=4)
    bridge = dmb.OrderedBridge(left if causal else dmb.orders.Streams((LETTERS,)), network, states)
    return lambda: bridge.sample(samples, calls=SPEEDS[way])


def measure(make: Callable[..., Callable[[], object]], repeats: int, *arguments: object) -> tuple[float, float]:
    """Seconds per call, and peak memory above the idle process in MiB."""
    call = make(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # begin anew with the peak
    idle = peak_memory()
    call()
    seconds = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()).timeit(repeats).mean
    return seconds, peak_memory() - idle


def peak_memory() -> float:
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def compare(make: Callable[..., Callable[[], object]], ways: dict[str, int], *others: object) -> dict[str, float]:
    """Print the best of several rounds, each in a process of its own; `ways` has the calls that are timed.

    Returns the seconds of each way.
    """
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, repeats in ways.items():  # taken in turn, so that a change of the machine's pace meets all alike
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found[way].append(pool.submit(measure, make, repeats, way, *others).result())
    best = {way: np.min(rounds, axis=0) for way, rounds in found.items()}
    first = best[next(iter(ways))]
    print(f"{'':30}{'ms':>12}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}")
    for way, (seconds, peak) in best.items():
        print(f"{way:30}{1e3 * seconds:12.1f}{seconds / first[0]:8.2f}{peak:10.0f}{peak / first[1]:8.2f}", flush=True)
    return {way: float(seconds) for way, (seconds, _) in best.items()}


@torch.no_grad()
def growth() -> None:
    print(f"\nlog_transition, as many rows as make {ELEMENTS:,} entries\n{'n':>7}  {'µs per row':>10}")
    seconds = []
    for size in SIZES:
        process, x_0 = process_of(size, 1), torch.randint(size, (ELEMENTS // size, 1))
        timer = Timer("process.log_transition(x_0, 0.5)", globals={"process": process, "x_0": x_0})
        seconds.append(timer.timeit(10).mean / len(x_0))
        print(f"{size:7d}  {1e6 * seconds[-1]:10.2f}")
    print(f"log-log slope: {np.polyfit(np.log(SIZES), np.log(seconds), 1)[0]:.3f}")


def main() -> None:
    print(f"sample, b = {BATCH}, d = {POSITIONS}, n = {SIZES[-1]:,}: a [b, d, n] float32 tensor is "
          f"{BATCH * POSITIONS * SIZES[-1] * 4 / 2**30:.2f} GiB")  # fmt: skip
    compare(drawing, DRAWS)
    growth()
    for n, (batch, positions, steps) in STEPS.items():
        print(f"\na training step, n = {n:,}: batch {batch} × {positions} positions, 4 blocks of width 256")
        compare(training_step, dict.fromkeys(LOSSES, steps), n)
    for calls in (LETTERS, 16, 4):
        print(f"\n{SAMPLES} samples of {LETTERS} letters in {calls} calls, 4 blocks of width 128")
        compare(writing, dict.fromkeys(WRITES, 1), calls)
    for samples in (1, 64):
        print(f"\n{samples} × {LETTERS} letters, 4 blocks of width 128")
        for way, seconds in compare(speed, dict.fromkeys(SPEEDS, 3), samples).items():
            print(f"{way:30}{samples * LETTERS / seconds:12,.0f} letters per second", flush=True)


if __name__ == "__main__":
    main()

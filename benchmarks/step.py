"""One training step of a bridge beside one of the same network under plain cross-entropy: time and peak memory."""

import subprocess
import sys
import time

import torch
from memory import peak_memory
from torch.nn import functional as F

import dmb

SETTINGS = {  # n: batch, positions, width, steps per round
    27: (32, 128, 256, 4),
    50_257: (4, 64, 256, 1),
}
WAYS = ("cross-entropy", "bridge, mean head", "bridge, score head", "masked diffusion, mean head")
ROUNDS = 5


def build(way: str, n: int) -> tuple[dmb.Bridge, torch.Tensor]:
    batch, positions, width, _ = SETTINGS[n]
    torch.manual_seed(0)
    marginals = (torch.rand(1, n) ** 2).expand(positions, -1)
    marginals = marginals / marginals.sum(-1, keepdim=True)
    masked = way.startswith("masked")
    process = dmb.BridgeProcess.from_marginals(marginals, tied=True, mask=masked, floor=0.0 if masked else 1e-5)
    network = dmb.Transformer.for_process(process, blocks=4, width=width, heads=8, dropout=0.0)
    bridge = dmb.MarkovBridge(process, network, head="score" if "score" in way else "mean")
    return bridge, torch.randint(n, (batch, positions))


def loss_of(way: str, bridge: dmb.Bridge, x_0: torch.Tensor) -> torch.Tensor:
    if way == "cross-entropy":
        t = torch.rand(len(x_0), dtype=torch.float64)
        return F.cross_entropy(bridge.network(x_0, t).flatten(0, 1), x_0.flatten())
    return bridge.loss(x_0).mean()


def step(way: str, bridge: dmb.Bridge, x_0: torch.Tensor, optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad()
    loss_of(way, bridge, x_0).backward()
    optimiser.step()


def peak_of_one_step(way: str, n: int) -> float:
    """Peak memory of a step above the idle process, in MiB, measured in a process of its own (Linux)."""
    output = subprocess.run([sys.executable, __file__, way, str(n)], capture_output=True, text=True, check=True)
    return float(output.stdout)


def measure_peak(way: str, n: int) -> None:
    bridge, x_0 = build(way, n)
    optimiser = torch.optim.SGD(bridge.parameters(), lr=1e-6)
    idle = peak_memory(reset=True)
    step(way, bridge, x_0, optimiser)
    print(peak_memory() - idle)


def main() -> None:
    for n, (batch, positions, width, repeats) in SETTINGS.items():
        print(f"\nn = {n:,}: batch {batch} × {positions} positions, 4 blocks of width {width}")
        built = {way: build(way, n) for way in WAYS}
        optimisers = {way: torch.optim.SGD(bridge.parameters(), lr=1e-6) for way, (bridge, _) in built.items()}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for round_ in range(ROUNDS + 1):
            for way in WAYS:  # taken in turn, so that a change of the machine's pace meets all alike
                start = time.perf_counter()
                for _ in range(repeats):
                    step(way, *built[way], optimisers[way])
                if round_ > 0:
                    seconds[way].append((time.perf_counter() - start) / repeats)
        del built, optimisers
        peaks = {way: peak_of_one_step(way, n) for way in WAYS}
        best = {way: min(times) for way, times in seconds.items()}
        print(f"{'':30}{'ms per step':>12}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}")
        for way in WAYS:
            time_ratio, peak_ratio = best[way] / best[WAYS[0]], peaks[way] / peaks[WAYS[0]]
            print(f"{way:30}{1e3 * best[way]:12.1f}{time_ratio:8.2f}{peaks[way]:10.0f}{peak_ratio:8.2f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure_peak(sys.argv[1], int(sys.argv[2]))
    else:
        main()

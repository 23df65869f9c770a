"""What the closed forms save: `sample` against rows-then-multinomial, and the growth of `log_transition` with n."""

import subprocess
import sys
import time

import torch
from memory import peak_memory

import dmb

BATCH, POSITIONS = 64, 256
ELEMENTS, REPEATS = 4_000_000, 10
SIZES = [27, 128, 512, 2048, 8192, 50_257]


def process_of(num_states: int, num_positions: int) -> dmb.BridgeProcess:
    marginals = torch.ones(1, num_states).softmax(-1).expand(num_positions, -1)
    return dmb.BridgeProcess.from_marginals(marginals, tied=True, init="uniform")


def closed_form(process: dmb.BridgeProcess, x_0: torch.Tensor) -> torch.Tensor:
    return process.sample(x_0, 0.5)


def naive(process: dmb.BridgeProcess, x_0: torch.Tensor) -> torch.Tensor:
    rows = process.log_transition(x_0, 0.5).exp()
    return torch.multinomial(rows.flatten(0, 1), 1).view_as(x_0)


@torch.no_grad()
def measure(name: str, batch: int) -> None:
    """Print seconds per call and peak memory above the idle process, in MiB; run in a process of its own."""
    process = process_of(SIZES[-1], POSITIONS)
    x_0 = torch.randint(SIZES[-1], (batch, POSITIONS))
    idle = peak_memory(reset=True)
    way = {"closed_form": closed_form, "naive": naive}[name]
    way(process, x_0[:1])
    repeats = 20 if name == "closed_form" else 1
    start = time.perf_counter()
    for _ in range(repeats):
        way(process, x_0)
    seconds = (time.perf_counter() - start) / repeats
    print(seconds, peak_memory() - idle)


def in_a_fresh_process(name: str, batch: int) -> tuple[float, float]:
    output = subprocess.run([sys.executable, __file__, name, str(batch)], capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, output.stdout.split())
    return seconds, mebibytes


@torch.no_grad()
def growth() -> None:
    print(f"\nlog_transition, as many rows as make {ELEMENTS:,} entries")
    print(f"{'n':>7}  {'µs per row':>10}")
    times = []
    for size in SIZES:
        rows = ELEMENTS // size
        process, x_0 = process_of(size, 1), torch.randint(size, (rows, 1))
        process.log_transition(x_0, 0.5)
        start = time.perf_counter()
        for _ in range(REPEATS):
            process.log_transition(x_0, 0.5)
        times.append((time.perf_counter() - start) / REPEATS / rows)
        print(f"{size:7d}  {1e6 * times[-1]:10.2f}")
    x, y = torch.tensor(SIZES).log(), torch.tensor(times).log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    print(f"log-log slope: {slope.item():.3f}")


def main() -> None:
    n = SIZES[-1]
    print(f"sample, b = {BATCH}, d = {POSITIONS}, n = {n:,}: a [b, d, n] float32 tensor is "
          f"{BATCH * POSITIONS * n * 4 / 2**30:.2f} GiB")  # fmt: skip
    fast_seconds, fast_memory = in_a_fresh_process("closed_form", BATCH)
    slow_seconds, slow_memory = in_a_fresh_process("naive", BATCH)
    print(f"{'':24}{'seconds':>10}{'peak MiB':>10}")
    print(f"{'closed form':24}{fast_seconds:10.4f}{fast_memory:10.1f}")
    print(f"{'rows, then multinomial':24}{slow_seconds:10.4f}{slow_memory:10.1f}")
    print(f"{'ratio':24}{slow_seconds / fast_seconds:10.0f}{slow_memory / fast_memory:10.0f}")
    growth()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()

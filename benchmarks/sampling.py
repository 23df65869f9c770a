"""Sampling 64 letters one at a time: keys and values of what stands kept, against everything read again each time.

Both draw the very same samples; the network is untrained, which costs the same. Also how long fewer, larger steps take.
"""

import time

import torch

import dmb
from dmb.networks import OrderedNetwork

LENGTH, LETTERS, COUNT, REPEATS = 64, 27, 16, 3


class ReadsAgain(dmb.OrderedTransformer):
    """The same network, which keeps nothing of what it has computed."""

    cache = OrderedNetwork.cache


def made(kind: type[dmb.OrderedTransformer]) -> dmb.Bridge:
    torch.manual_seed(0)
    states = dmb.States.with_mask(LENGTH, LETTERS)
    network = kind(states, blocks=4, width=128, heads=4)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return dmb.OrderedBridge(dmb.orders.Random(LENGTH), network, states)


def seconds(bridge: dmb.Bridge, steps: int | None) -> tuple[float, torch.Tensor]:
    """The least of several times, and the samples."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        x = bridge.sample(COUNT, generator=torch.Generator().manual_seed(0), calls=steps)
        best = min(best, time.process_time() - start)
    return best, x


def main() -> None:
    torch.set_num_threads(1)
    kept, again = made(dmb.OrderedTransformer), made(ReadsAgain)
    print(f"{COUNT} samples of {LENGTH} letters, 4 blocks of width 128, one thread; CPU seconds, best of {REPEATS}")
    for words, steps in (("one at a time", None), ("16 calls", 16), ("4 calls", 4)):
        (with_memory, x), (without, y) = seconds(kept, steps), seconds(again, steps)
        assert x.equal(y)
        print(f"  {words:32}kept {with_memory:7.3f}   read again {without:7.3f}   ratio {without / with_memory:5.1f}")


if __name__ == "__main__":
    main()

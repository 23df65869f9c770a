"""Sampling 64 letters one at a time: keys and values of what stands kept, against everything read again each time.

Both draw the very same samples; the network is untrained, which costs the same. Also how long fewer, larger steps take.
"""

from functools import partial
from statistics import median
from timeit import repeat

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


def main() -> None:
    torch.set_num_threads(1)
    bridges = made(dmb.OrderedTransformer), made(ReadsAgain)
    print(f"{COUNT} samples of {LENGTH} letters, 4 blocks of width 128, one thread; seconds, median of {REPEATS}")
    for words, calls in (("one at a time", None), ("16 calls", 16), ("4 calls", 4)):
        draws = [partial(bridge.sample, COUNT, calls=calls) for bridge in bridges]
        x, y = (draw(generator=torch.Generator().manual_seed(0)) for draw in draws)
        assert x.equal(y)
        kept, again = (median(repeat(draw, number=1, repeat=REPEATS)) for draw in draws)
        print(f"  {words:32}kept {kept:7.3f}   read again {again:7.3f}   ratio {again / kept:5.1f}")


if __name__ == "__main__":
    main()

"""For tests of runs that are stopped and go on."""

import torch


def same(one, other):
    """Whether two dictionaries hold the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class StopAfter:
    """Says stop when it has been asked `count` times: after that many steps of whatever phase."""

    def __init__(self, count):
        self.left = count

    def __call__(self):
        self.left -= 1
        return self.left == 0

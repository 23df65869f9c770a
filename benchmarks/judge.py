"""Samples of few network calls, judged by a 5-gram model of letters: does it agree with the bound of their sampler?

    python benchmarks/judge.py RUN [RUN …] --calls 4 8 16 32 64

For each run of a model of text and each number of calls: the model's own bits per letter (the bound of what is sampled,
from `dmb evaluate RUN --calls`, or computed here), the bits per letter that the judge needs for samples, the entropy of
their letters and of their words, and the share of their words that the training text has. The judge interpolates
n-grams of the training text (Witten and Bell); real text is judged beside. Low bits under a judge are no proof: samples
that repeat themselves have them, too, but little entropy.
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import tyro

import dmb
from dmb.app.evaluation import draw, sampler_bound
from dmb.app.records import read_calls
from dmb.app.runs import Run

LONGEST, TOKENS = 5, 10_000_000
"""The longest n-grams, and how much training text they are counted in at most."""


class Judge:
    """`p_k(c | h) = (N(hc) + T(h) p_{k-1}(c | h')) / (N(h) + T(h))`, `T(h)` the number of letters seen after `h`."""

    def __init__(self, rows: np.ndarray, states: int):
        self.states = states
        self.grams = [np.unique(self.codes(rows, k), return_counts=True) for k in range(1, LONGEST + 1)]
        self.contexts = []
        for codes, counts in self.grams:
            known, first = np.unique(codes // states, return_index=True)
            self.contexts.append((known, np.add.reduceat(counts, first), np.diff([*first, len(codes)])))

    def codes(self, rows: np.ndarray, k: int) -> np.ndarray:
        """All n-grams of length `k` that lie within a row, as numbers."""
        return np.lib.stride_tricks.sliding_window_view(rows, k, axis=1) @ self.states ** np.arange(k)[::-1]

    def bits(self, rows: np.ndarray) -> float:
        """Bits per letter, each given the letters before it in its row."""
        p = np.full(rows.shape, 1 / self.states)
        for k, (grams, contexts) in enumerate(zip(self.grams, self.contexts, strict=True), 1):
            codes = self.codes(rows, k)
            seen, (total, kinds) = found(codes, *grams)[0], found(codes // self.states, *contexts)
            lower = p[:, k - 1 :]
            p[:, k - 1 :] = np.where(total > 0, (seen + kinds * lower) / np.maximum(total + kinds, 1), lower)
        return float(-np.log2(p).mean())


def found(codes: np.ndarray, known: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    """The values of codes, 0 for those that are not known."""
    place = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return [np.where(known[place] == codes, value[place], 0) for value in values]


def words(texts: Iterable[str]) -> Counter[str]:
    """Whole words: the first and the last of a text may be cut."""
    return Counter(word for text in texts for word in text.split()[1:-1])


def entropy(counts: Iterable[int]) -> float:
    """In bits, of the shares themselves: few samples have less of it than many."""
    number = np.array([*counts])
    return float(-(number / number.sum() * np.log2(number / number.sum())).sum())


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    calls: tuple[int, ...] = (4, 8, 16, 32, 64),
    samples: int = 512,
    sequences: int = 1024,
    seed: int = 0,
) -> None:
    """Judge samples of runs that were trained on the same text.

    Args:
        runs: run folders.
        calls: network calls per sample.
        samples: how many are judged.
        sequences: test sequences for bounds that are not known yet.
        seed: of the samples.
    """
    opened = [Run.open(path) for path in runs]
    data, codec = opened[0].data(), opened[0].codec
    if not isinstance(codec, dmb.data.Text):
        raise SystemExit(f"{runs[0]} is no model of text")
    training = data.train[data.train.spread(min(len(data.train), TOKENS // data.num_positions))].numpy()
    judge, vocabulary = Judge(training, codec.num_states), set(words(codec.decode(torch.from_numpy(training))))

    def judged(name: str, number: str, own: float, tokens: torch.Tensor) -> float:
        used, bits = words(codec.decode(tokens)), judge.bits(tokens.numpy())
        letters = entropy(np.unique(tokens.numpy(), return_counts=True)[1])
        real = sum(count for word, count in used.items() if word in vocabulary) / max(1, used.total())
        shown = "" if math.isnan(own) else f"{own:.4f}"
        print(f"{name:32}{number:>6}{shown:>9}{bits:>9.3f}{letters:>9.3f}", end="")
        print(f"{entropy(used.values()):>9.3f}{real:>9.1%}", flush=True)
        return bits

    print(f"{'run':32}{'calls':>6}{'own':>9}{'judge':>9}{'letters':>9}{'words':>9}{'real':>9}")
    judged("test text", "", math.nan, data.test[data.test.spread(samples)])
    pairs = []
    for run in opened:
        bridge, name = run.bridge(), str(run.path)[-31:]
        known = {
            each.calls: each.bits for each in read_calls(run.path, run.best()) if each.how == bridge.step_samplers[0]
        }
        for number in calls:
            if number < bridge.least_calls:
                continue
            if number not in known:
                known[number] = sampler_bound(bridge, data, calls=number, sequences=sequences).bits
            tokens = torch.cat([*draw(bridge, samples, calls=number, seed=seed)])
            pairs.append((known[number], judged(name, f"{number}", known[number], tokens)))
    ranks = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0)
    print(f"rank correlation of the bits of samplers and of the judge: {np.asarray(np.corrcoef(ranks.T))[0, 1]:.3f}")


if __name__ == "__main__":
    tyro.cli(main)

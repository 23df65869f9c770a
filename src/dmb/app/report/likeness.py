"""How much samples are like the data: marginals of tokens, and associations between the columns of a table."""

import math
import re
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Binomial

from dmb.app.report.contents import Block, Contents

# states of all positions, values of a column, columns, and pairs of columns that are shown
MOST_STATES, MOST_VALUES, MOST_COLUMNS, MOST_PAIRS = 40, 12, 60, 8
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.ASCII)


class Bar(NamedTuple):
    """A quantity of the data and of samples."""

    label: str
    data: float
    samples: float


def marginals(contents: Contents) -> list[Block]:
    """How often states occur, in each column or at all positions together."""
    columns, mu, samples, what = contents.columns, contents.marginals, contents.samples, "samples"
    if contents.bridge.lengths is not None:  # all positions together, without padding
        pad, what = contents.bridge.lengths.padding, "tokens of samples"
        mu, samples = mu[:1].index_fill(1, torch.tensor(pad), 0), samples[samples != pad][:, None]
    note = (
        f"Total-variation distance of {len(samples):,} {what} from the data, averaged over positions: "
        f"{total_variation(mu, samples):.4f}; as many independent draws from the data’s marginals would show "
        f"{expected_variation(mu, len(samples)):.4f}."
    )
    if columns is None:
        mean = mu[0] if len(mu) == 1 or mu.stride(0) == 0 else mu.mean(0)
        groups = [("", _bars(contents, 0, mean, samples.flatten(), MOST_STATES))]
    else:
        note += f" The first {MOST_COLUMNS} of {len(mu):,} columns are shown." if len(mu) > MOST_COLUMNS else ""
        rows = zip(columns[:MOST_COLUMNS], mu, samples.T, strict=False)
        groups = [(name, _bars(contents, i, p, tokens, MOST_VALUES)) for i, (name, p, tokens) in enumerate(rows)]
    return [Block(kind="bars", title="Marginals of data and samples", note=note, body=groups), *_lengths(contents)]


def _lengths(contents: Contents) -> list[Block]:
    """How long sequences are, if lengths differ."""
    lengths = contents.bridge.lengths
    if lengths is None:
        return []
    counts = torch.bincount(lengths.of(contents.samples), minlength=lengths.num_positions + 1)[1:]
    drawn, seen = (count / count.sum() for count in (counts, torch.tensor(lengths.counts)))
    ends = torch.linspace(0, len(seen), min(MOST_VALUES, len(seen)) + 1).round().long().tolist()
    bars = [
        Bar(f"{a + 1}–{b}" if b > a + 1 else f"{b}", float(seen[a:b].sum()), float(drawn[a:b].sum()))
        for a, b in pairwise(ends)
    ]
    note = "Lengths are drawn from those of the training data, smoothed."
    return [Block(kind="bars", title="Lengths of data and samples", note=note, body=[("", bars)])]


def associations(contents: Contents) -> list[Block]:
    """Of a table: how closely pairs of columns are associated."""
    columns, data, samples = (contents.columns or [])[:MOST_COLUMNS], contents.examples, contents.samples
    pairs = [
        Bar(f"{columns[i]} × {columns[j]}", *(cramers_v(rows[:, i], rows[:, j]) for rows in (data, samples)))
        for i, j in combinations(range(len(columns)), 2)
    ]
    if not pairs:
        return []
    note = (
        f"Cramér’s V, corrected for bias, of {len(data):,} validation rows and {len(samples):,} samples: 0 for "
        f"independent columns, 1 if one decides the other. Mean difference over {len(pairs):,} pairs: "
        f"{np.mean([abs(pair.data - pair.samples) for pair in pairs]):.3f}."
    )
    strong, apart = (sorted(pairs, key=key) for key in (lambda p: -p.data, lambda p: -abs(p.data - p.samples)))
    groups = [("strongest in the data", strong[:MOST_PAIRS]), ("largest difference", apart[:MOST_PAIRS])]
    return [Block(kind="bars", title="Associations of columns", note=note, body=groups)]


def total_variation(marginals: Float[Tensor, "d n"], tokens: Int[Tensor, "b d"]) -> float:
    """`½ Σ_x |p(x) - q(x)|`, averaged over positions.

    It is `Σ_x max(q(x) - p(x), 0)`, so that only states which occur are looked at.
    """
    total = 0.0
    for p, column in zip(marginals, tokens.T, strict=True):
        states, counts = column.unique(return_counts=True)
        known = torch.where(states < len(p), p[states.clamp(max=len(p) - 1)], 0.0)
        total += float((counts / len(column) - known).clamp(min=0).sum())
    return total / len(marginals)


def expected_variation(marginals: Float[Tensor, "d n"], count: int) -> float:
    """The total variation that `count` independent draws show on average, by de Moivre's mean absolute deviation.

    `E|X - N p| = 2 v C(N, v) p^v (1 - p)^{N - v + 1}` with `v = ⌊N p⌋ + 1`, for `X` binomial.
    """
    rows, total = marginals[:1] if marginals.stride(0) == 0 else marginals, 0.0
    for row in rows:
        p = row[(row > 0) & (row < 1)].double()
        v = (count * p).floor() + 1
        total += float((v * (1 - p) * Binomial(count, p).log_prob(v).exp()).sum())
    return total / count / len(rows)


def cramers_v(a: Int[Tensor, " b"], b: Int[Tensor, " b"]) -> float:
    """How closely two columns are associated, from 0 to 1: Cramér's V with Bergsma's correction for bias (2013).

    `χ² / N = Σ O² / (R C) - 1` over the cells that occur, so that no table of all pairs of values is made.
    """
    _, first, of_a = a.unique(return_inverse=True, return_counts=True)
    _, second, of_b = b.unique(return_inverse=True, return_counts=True)
    count, rows, columns = len(a), len(of_a), len(of_b)
    if min(rows, columns) < 2:
        return 0.0
    cells, both = (first * columns + second).unique(return_counts=True)
    phi = float((both.double() ** 2 / (of_a[cells // columns] * of_b[cells % columns])).sum()) - 1
    phi = max(0.0, phi - (rows - 1) * (columns - 1) / (count - 1))
    least = min(size - (size - 1) ** 2 / (count - 1) for size in (rows, columns)) - 1
    return min(1.0, (phi / least) ** 0.5) if least > 0 else 0.0


def _bars(contents: Contents, position: int, p: Float[Tensor, " n"], tokens: Int[Tensor, " b"], most: int) -> list[Bar]:
    """The most frequent states, and what is left for the others; numbers, ranges and dates first: 10 to 20 after 9."""
    q = torch.bincount(tokens, minlength=len(p))[: len(p)] / len(tokens)
    largest, order = torch.maximum(p, q).sort(descending=True, stable=True)
    states = order[:most][largest[:most] > 0].tolist()
    bars = [Bar(contents.symbols.label(state, position), float(p[state]), float(q[state])) for state in states]
    rest = Bar("others", 1 - sum(bar.data for bar in bars), 1 - sum(bar.samples for bar in bars))
    bars.sort(key=lambda bar: (float(n[0]), bar.label) if (n := NUMBER.match(bar.label)) else (math.inf, ""))
    return [*bars, rest] if len(bars) == most and max(rest.data, rest.samples) > 1e-6 else bars

"""How much samples are like the data: marginals of tokens, and associations between the columns of a table."""

from itertools import combinations, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Binomial

from dmb.app.report import figures
from dmb.app.report.contents import Block, Contents
from dmb.app.report.shares import MOST, Bar, by_chance, by_name, groups_of, most_frequent
from dmb.data.codecs import Columns

# states of all positions in bars, or else as dots; columns, and pairs of columns whose names are shown
MOST_STATES, MOST_DOTS, MOST_COLUMNS, MOST_PAIRS = 40, 1000, 60, 8
CHANCE = " Black: where 19 of 20 shares of a perfect model’s samples would lie."


def marginals(contents: Contents) -> list[Block]:
    """How often states occur, in each column or at all positions together."""
    codec, mu, samples, what = contents.codec, contents.marginals, contents.samples, "samples"
    if contents.bridge.lengths is not None:  # all positions together, without padding
        pad, what = contents.bridge.lengths.padding, "tokens of samples"
        mu, samples = mu[:1].index_fill(1, torch.tensor(pad), 0), samples[samples != pad][:, None]
    note = (
        f"Total-variation distance of {len(samples):,} {what} from the data, averaged over positions: "
        f"{total_variation(mu, samples):.4f}; as many independent draws from the data’s marginals would show "
        f"{expected_variation(mu, len(samples)):.4f}."
    )
    title = "Marginals of data and samples"
    if not isinstance(codec, Columns):
        mean = mu[0] if len(mu) == 1 or mu.stride(0) == 0 else mu.mean(0)
        block = _of_all_positions(contents, mean.double().numpy(), title, note)
        return [block, *_lengths(contents)]
    note += CHANCE
    note += f" The first {MOST_COLUMNS} of {len(mu):,} columns are shown." if len(mu) > MOST_COLUMNS else ""
    rows = zip(codec.names[:MOST_COLUMNS], codec.columns, mu.double().numpy(), samples.T.numpy(), strict=False)
    groups = []
    for name, column, all_p, tokens in rows:
        p, q = all_p[: len(column)], np.bincount(tokens, minlength=len(column))[: len(column)] / len(tokens)
        groups.append((name, groups_of(column, p).bars(p, q, len(tokens), contents.learned)))
    return [Block(kind="bars", title=title, note=note, body=groups)]


def _of_all_positions(contents: Contents, p: Float[np.ndarray, " n"], title: str, note: str) -> Block:
    """The most frequent states of all positions together: in bars, or as dots if there are very many."""
    lengths = contents.bridge.lengths
    chosen = most_frequent(p, MOST_STATES)
    many = p[chosen].sum() < 0.5
    chosen = [state for state in (most_frequent(p, MOST_DOTS) if many else chosen) if p[state] > 0]
    group = np.full(len(p), len(chosen))  # the last one: all others
    group[chosen] = np.arange(len(chosen))
    if lengths is not None:
        group[lengths.padding] = len(chosen) + 1

    def counted(x: Int[Tensor, "b d"]) -> Int[np.ndarray, "b g"]:
        # what is no state of the data belongs to the others
        of = np.where(x.numpy() < len(p), group[x.clamp(max=len(p) - 1).numpy()], len(chosen))
        rows = np.arange(len(of))[:, None] * (len(chosen) + 2) + of
        return np.bincount(rows.ravel(), minlength=len(of) * (len(chosen) + 2)).reshape(len(of), -1)[:, :-1]

    drawn, seen = counted(contents.samples), counted(contents.examples)
    data = np.append(p[chosen], max(0.0, p.sum() - p[chosen].sum()))
    samples, size = drawn.sum(0) / drawn.sum(), seen.sum() / len(seen)
    # tokens of one sequence are alike: the variance between sequences is that of the data
    between = ((seen - data * seen.sum(1, keepdims=True)) ** 2).mean(0) / size**2
    fewer = 1 / len(drawn) + 1 / contents.learned
    variance = np.maximum(between, data * (1 - data) / size) * fewer
    ranges = by_chance(data, variance, int(drawn.sum()))
    if many:
        low, high = np.array(ranges[:-1]).T
        figure = figures.against(data[:-1], samples[:-1], low, high, "share of", logarithmic=True)
        what = f"Each dot is one of the {len(chosen):,} most frequent states of all {len(p):,}. "
        chance = " Grey: where 19 of 20 shares of a perfect model’s samples would lie."
        return figures.as_block(figure, "marginals", title, what + note + chance)
    names = [contents.symbols.label(state) for state in chosen]
    bars = [Bar(names[k], float(data[k]), float(samples[k]), ranges[k]) for k in by_name(names)]
    if max(data[-1], samples[-1]) > 1e-6:
        bars.append(Bar("others", float(data[-1]), float(samples[-1]), ranges[-1]))
    return Block(kind="bars", title=title, note=note + CHANCE, body=[("", bars)])


def _lengths(contents: Contents) -> list[Block]:
    """How long sequences are, if lengths differ."""
    lengths = contents.bridge.lengths
    if lengths is None:
        return []
    counts = torch.bincount(lengths.of(contents.samples), minlength=lengths.num_positions + 1)[1:]
    drawn, seen = ((count / count.sum()).double() for count in (counts, torch.tensor(lengths.counts)))
    ends = torch.linspace(0, len(seen), min(MOST, len(seen)) + 1).round().long().tolist()
    names = [f"{a + 1}–{b}" if b > a + 1 else f"{b}" for a, b in pairwise(ends)]
    data, samples = (np.array([float(each[a:b].sum()) for a, b in pairwise(ends)]) for each in (seen, drawn))
    fewer = 1 / int(counts.sum()) + 1 / contents.learned
    ranges = by_chance(data, data * (1 - data) * fewer, int(counts.sum()))
    bars = [Bar(*each) for each in zip(names, data.tolist(), samples.tolist(), ranges, strict=True)]
    note = "Lengths are drawn from those of the training data, smoothed." + CHANCE
    return [Block(kind="bars", title="Lengths of data and samples", note=note, body=[("", bars)])]


def associations(contents: Contents) -> list[Block]:
    """Of a table: how closely pairs of columns are associated, in the data and in samples."""
    if not isinstance(codec := contents.codec, Columns):
        return []
    coarse = [
        torch.from_numpy(groups_of(column, mu[: len(column)].double().numpy()).share.argmax(-1))
        for column, mu in zip(codec.columns[:MOST_COLUMNS], contents.marginals, strict=False)
    ]
    data, samples = (
        torch.stack([group[x.clamp(max=len(group) - 1)] for group, x in zip(coarse, rows.T, strict=False)])
        for rows in (contents.examples, contents.samples)
    )
    pairs = list(combinations(range(len(coarse)), 2))
    if not pairs:
        return []
    seen, drawn = (np.array([phi_squared(rows[i], rows[j]) for i, j in pairs]) for rows in (data, samples))
    # a perfect model's samples and other data differ from these data by what is known of both
    error = 2 * np.hypot(seen[:, 1], drawn[:, 1])
    low, high, own, found = (
        np.sqrt((phi / seen[:, 2].clip(min=1e-9)).clip(0, 1))
        for phi in (seen[:, 0] - error, seen[:, 0] + error, seen[:, 0], drawn[:, 0])
    )
    strongest = np.argsort(-own, kind="stable")[:MOST_PAIRS].tolist()
    names = [" × ".join(codec.names[i] for i in pairs[k]) for k in strongest]
    values = zip(*(each[strongest].tolist() for each in (own, found, low, high)), strict=True)
    bars = [Bar(name, v, w, (least, most)) for name, (v, w, least, most) in zip(names, values, strict=True)]
    figure = figures.against(own, found, low, high, "Cramér’s V of")
    note = (
        f"Each dot is a pair of columns. Cramér’s V, corrected for bias, of {data.shape[1]:,} validation rows and "
        f"{samples.shape[1]:,} samples, numbers in the bins above: 0 for independent columns, 1 if one decides the "
        "other. Grey: where 19 of 20 pairs of a perfect model would lie. "
        f"Mean difference over {len(pairs):,} pairs: {np.abs(own - found).mean():.3f}."
    )
    return [
        figures.as_block(figure, "associations", "Associations of columns", note),
        Block(kind="bars", title="The strongest in the data", body=[("", bars)]),
    ]


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
    """How closely two columns are associated, from 0 to 1: Cramér's V with Bergsma's correction for bias (2013)."""
    phi, _, most = phi_squared(a, b)
    return min(1.0, (max(0.0, phi) / most) ** 0.5) if most > 0 else 0.0


def phi_squared(a: Int[Tensor, " b"], b: Int[Tensor, " b"]) -> tuple[float, float, float]:
    """`φ² = χ² / N`, corrected for bias; its standard error, by the delta method and by chance alone; and its maximum.

    `χ² / N = Σ O² / (R C) - 1` over the cells that occur, so that no table of all pairs of values is made. Its gradient
    in the probability of a cell is `2 O / (R C) - Σ O² / (R² C) - Σ O² / (R C²)`, the sums over the cell's row and
    column.
    """
    _, first, of_a = a.unique(return_inverse=True, return_counts=True)
    _, second, of_b = b.unique(return_inverse=True, return_counts=True)
    count, rows, columns = len(a), len(of_a), len(of_b)
    if min(rows, columns) < 2:
        return 0.0, 0.0, 0.0
    cells, both = (first * columns + second).unique(return_counts=True)
    row, column = cells // columns, cells % columns
    of_a, of_b, both = of_a.double(), of_b.double(), both.double()
    terms = both**2 / (of_a[row] * of_b[column])
    by_row = torch.zeros(rows, dtype=torch.float64).index_add(0, row, terms) / of_a
    by_column = torch.zeros(columns, dtype=torch.float64).index_add(0, column, terms) / of_b
    gradient = count * (2 * both / (of_a[row] * of_b[column]) - by_row[row] - by_column[column])
    p = both / count
    variance = float((p * gradient**2).sum() - (p * gradient).sum() ** 2) / count
    free = (rows - 1) * (columns - 1)
    most = min(size - (size - 1) ** 2 / (count - 1) for size in (rows, columns)) - 1
    # of independent columns the gradient is 0, and looks like 4 for each degree of freedom; a chi-square varies by 2
    error = (max(0.0, variance - 4 * free / count**2) + 2 * free / count**2) ** 0.5
    return float(terms.sum()) - 1 - free / (count - 1), error, most

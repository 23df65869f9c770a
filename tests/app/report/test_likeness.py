import math

import numpy as np
import pytest
import scipy.stats
import torch

import dmb
from app.report.making import recipe, table, untrained
from dmb.app.report import likeness
from dmb.app.report.contents import Contents
from dmb.app.report.likeness import cramers_v, expected_variation, phi_squared, total_variation
from dmb.app.report.shares import groups_of
from dmb.data.sources.table import read_table, tokens_of

MU = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.8, 0.0], [0.0, 1.0, 0.0, 0.0]])


def drawn(count, seed=0):
    return torch.multinomial(MU, count, replacement=True, generator=torch.Generator().manual_seed(seed)).T


def test_total_variation_is_half_the_sum_of_absolute_differences():
    tokens = drawn(50)
    seen = torch.stack([torch.bincount(column, minlength=4) for column in tokens.T]) / 50
    assert total_variation(MU, tokens) == pytest.approx(0.5 * (seen - MU).abs().sum(-1).mean().item())
    assert total_variation(MU, torch.zeros_like(tokens)) == pytest.approx((0.5 + 0.9 + 1.0) / 3)
    assert total_variation(MU, torch.full_like(tokens, 4)) == pytest.approx(1.0)  # a state that data never have


@pytest.mark.parametrize("count", [1, 7, 256])
def test_the_expected_variation_is_that_of_binomial_counts(count):
    k = np.arange(count + 1)
    each = [
        [(scipy.stats.binom.pmf(k, count, p) * np.abs(k / count - p)).sum() for p in row] for row in MU.double().numpy()
    ]
    assert expected_variation(MU, count) == pytest.approx(0.5 * np.sum(each, axis=1).mean(), rel=1e-6)
    shared = MU[:1].expand(9, -1)
    assert expected_variation(shared, count) == pytest.approx(0.5 * np.sum(each[0]), rel=1e-6)


def test_real_draws_show_what_is_expected():
    found = [total_variation(MU, drawn(100, seed)) for seed in range(200)]
    assert np.mean(found) == pytest.approx(expected_variation(MU, 100), abs=4 * np.std(found) / math.sqrt(200))


def bergsma(a, b):
    """By scipy's chi-square of the whole table."""
    counts = scipy.stats.contingency.crosstab(a, b).count
    n, (r, c) = counts.sum(), counts.shape
    phi = scipy.stats.chi2_contingency(counts, correction=False).statistic / n
    phi = max(0.0, phi - (r - 1) * (c - 1) / (n - 1))
    return math.sqrt(phi / min(r - (r - 1) ** 2 / (n - 1) - 1, c - (c - 1) ** 2 / (n - 1) - 1))


@pytest.mark.parametrize("mixed", [0.0, 0.3, 0.9, 1.0])
def test_cramers_v_is_that_of_the_whole_table(mixed):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 300) * 3  # states need not follow each other
    b = np.where(rng.random(300) < mixed, rng.integers(0, 7, 300), a // 2)
    assert cramers_v(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(bergsma(a, b))
    assert cramers_v(torch.from_numpy(b), torch.from_numpy(a)) == pytest.approx(bergsma(a, b))


def test_a_column_that_decides_another_has_v_1_and_one_that_never_varies_has_0():
    a = torch.arange(60) % 4
    assert cramers_v(a, 9 - a) == pytest.approx(1.0)
    assert cramers_v(a, torch.zeros_like(a)) == 0
    assert cramers_v(a[:1], a[:1]) == 0
    assert cramers_v(torch.arange(5), torch.arange(5)) == 0  # five values in five rows say nothing


@pytest.fixture
def survey(tmp_path):
    rng = np.random.default_rng(0)
    month = rng.integers(1, 13, 400)
    rows = [[m, "warm" if 4 < m < 10 else "cold", rng.choice(["a", "b"]), f"v{rng.integers(30)}"] for m in month]
    return untrained(tmp_path / "run", recipe(), table(tmp_path, ["month", "season", "coin", "many"], rows))


def test_numbers_are_sorted_as_numbers_and_rare_values_are_joined(survey):
    (block,) = likeness.marginals(Contents(survey, 0))
    groups = dict(block.body)
    assert [bar.label for bar in groups["month"]] == [str(month) for month in range(1, 13)]
    assert len(groups["many"]) == 13
    assert groups["many"][-1].label == "18 others"
    for bars in groups.values():
        assert sum(bar.data for bar in bars) == pytest.approx(1, abs=1e-5)
        assert sum(bar.samples for bar in bars) == pytest.approx(1, abs=1e-5)


def test_which_values_are_shown_does_not_depend_on_samples():
    """By the larger share of the two, luck would choose: 64 equal bins would leave 0.81 of the data to others."""
    column, p = dmb.data.columns.Category([f"v{k:02}" for k in range(64)]), np.full(64, 1 / 64)
    shown, found = groups_of(column, p), []
    for seed in range(20):
        q = np.bincount(np.random.default_rng(seed).integers(0, 64, 256), minlength=64) / 256
        *_, rest = shown.bars(p, q, 256)
        found.append(rest.samples)
        assert rest.data == pytest.approx(52 / 64)
    assert np.mean(found) == pytest.approx(52 / 64, abs=4 * math.sqrt(52 * 12 / 64**2 / 256 / 20))


def histogram(labels):
    """The starts of bins, after what lies below."""
    assert labels[0].startswith("below ")
    assert labels[-1].endswith(" or more")
    return [label.split(" to ") for label in labels[1:-1]]


def test_numbers_and_dates_are_histograms_with_round_ends(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        [f"{x:.3f}", f"2{y:03d}-0{1 + y % 9}-17"]
        for x, y in zip(rng.normal(size=400) * 1000, rng.integers(0, 999, 400), strict=True)
    ]
    run = untrained(tmp_path / "run", recipe(), table(tmp_path, ["height", "born"], rows))
    (block,) = likeness.marginals(Contents(run, 0))
    bars = dict(block.body)
    for name in ("height", "born"):
        bins = histogram([bar.label for bar in bars[name]])
        assert 4 <= len(bins) <= 12
        assert [end for _, end in bins[:-1]] == [start for start, _ in bins[1:]]
        assert sum(bar.data for bar in bars[name]) == pytest.approx(1, abs=1e-5)
    starts = [start for start, _ in histogram([bar.label for bar in bars["height"]])]
    assert starts == ["-3000", "-2000", "-1000", "0", "1000"]
    heights = np.array([float(x) for x, _ in rows])
    [middle] = [bar for bar in bars["height"] if bar.label == "0 to 1000"]
    assert middle.data == pytest.approx(((heights >= 0) & (heights < 1000)).mean(), abs=0.05)


def outside(contents):
    """Of all marks in the figures of likeness: how many lie outside of what chance allows, and how many there are."""
    bars = [bar for block in likeness.marginals(contents) for _, group in block.body for bar in group]
    for block in likeness.associations(contents)[1:]:
        bars += [bar for _, group in block.body for bar in group]
    return sum(not bar.range[0] <= bar.samples <= bar.range[1] for bar in bars), len(bars)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["table", "images"])
def test_samples_of_the_data_s_own_law_lie_within_what_chance_allows_19_times_of_20(tmp_path, kind):
    rng = np.random.default_rng(0)

    def rows(count):
        group = rng.choice(3, count, p=[0.5, 0.3, 0.2])
        height = rng.normal(10 * group, 4)
        return [[f"g{g}", f"{h:.1f}", str(rng.integers(40)), f"{'ab'[int(h > 8)]}"] for g, h in zip(group, height)]  # noqa: B905

    if kind == "table":
        run = untrained(tmp_path / "run", recipe(), table(tmp_path, [*"abcd"], rows(1200)))
        draw = [torch.from_numpy(tokens_of(read_table(file, [*"abcd"]), run.codec, gaps=True)) for file in
                (table_file(tmp_path, rows(256), k) for k in range(20))]  # fmt: skip
    else:  # pixels of an image are alike
        data = dmb.data.digits()
        run = untrained(tmp_path / "run", recipe(order="natural"), data)
        everything = torch.cat([part[torch.arange(len(part))] for part in (data.train, data.validation, data.test)])
        draw = [everything[torch.from_numpy(rng.integers(0, len(everything), 256))] for _ in range(20)]
    contents, marks = Contents(run, 0), np.zeros((20, 2))
    for k, samples in enumerate(draw):
        contents.samples = samples.long()
        marks[k] = outside(contents)
    wrong, count = marks.sum(0)
    assert count > 300
    assert wrong <= 0.05 * count
    contents.samples = contents.samples[:, torch.randperm(contents.samples.shape[1])]  # another law is seen
    if kind == "images":
        return
    assert outside(contents)[0] > 0.2 * outside(contents)[1]


def table_file(folder, rows, number):
    file = folder / f"drawn{number}.csv"
    file.write_text("a,b,c,d\n" + "".join(",".join(row) + "\n" for row in rows))
    return file


def test_of_very_many_states_each_is_a_dot(tmp_path):
    rng = np.random.default_rng(0)
    data = dmb.data.array(rng.integers(0, 512, (400, 16)), num_states=512)
    (block,) = likeness.marginals(Contents(untrained(tmp_path / "run", recipe(), data), 0))
    assert block.kind == "figure"
    assert "Each dot is one of the 512 most frequent states of all 512." in block.note


def test_padding_is_no_state_of_records(tmp_path):
    (tmp_path / "p.fasta").write_text("".join(f">{i}\n{'ACDEFGHIKL'[: 2 + i % 8]}\n" for i in range(200)))
    run = untrained(tmp_path / "run", recipe(mask=True, floor=0.0), dmb.data.load(tmp_path / "p.fasta"))
    bars, lengths = likeness.marginals(Contents(run, 0))
    assert {bar.label for bar in bars.body[0][1]} == set("ACDEFGHIK")
    assert [bar.label for bar in lengths.body[0][1]] == [str(length) for length in range(1, 10)]


def test_pairs_are_compared_in_data_and_samples(survey):
    contents = Contents(survey, 0)
    figure, strongest = likeness.associations(contents)
    data, bars = contents.examples.numpy(), strongest.body[0][1]
    assert bars[0].label == "month × season"
    assert bars[0].data == pytest.approx(bergsma(data[:, 0], data[:, 1]))
    assert [bar.data for bar in bars] == sorted((bar.data for bar in bars), reverse=True)
    assert f"of {len(data)} validation rows and {len(contents.samples)} samples" in figure.note
    differences = [abs(bar.data - bar.samples) for bar in bars]  # of all pairs, which are few
    assert f"{np.mean(differences):.3f}" in figure.note


def test_the_error_of_an_association_is_how_much_it_varies_or_a_little_more():
    rng = np.random.default_rng(0)
    for mixed in (0.2, 0.6, 1.0):
        found = []
        for _ in range(300):
            a = rng.integers(0, 4, 400)
            b = np.where(rng.random(400) < mixed, rng.integers(0, 3, 400), a % 3)
            found.append(phi_squared(torch.from_numpy(a), torch.from_numpy(b)))
        phi, error, _ = np.array(found).T
        assert 0.9 < error.mean() / phi.std() < 1.25

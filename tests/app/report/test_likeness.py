import math

import numpy as np
import pytest
import scipy.stats
import torch

import dmb
from app.report.making import recipe, table, untrained
from dmb.app.report import likeness
from dmb.app.report.contents import Contents
from dmb.app.report.likeness import cramers_v, expected_variation, total_variation

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
    assert groups["many"][-1].label == "others"
    for bars in groups.values():
        assert sum(bar.data for bar in bars) == pytest.approx(1, abs=1e-5)
        assert sum(bar.samples for bar in bars) == pytest.approx(1, abs=1e-5)


def test_ranges_and_dates_are_whole_and_in_their_order(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        [f"{x:.3f}", f"2{y:03d}-0{1 + y % 9}-17"]
        for x, y in zip(rng.normal(size=400) * 1000, rng.integers(0, 999, 400), strict=True)
    ]
    run = untrained(tmp_path / "run", recipe(), table(tmp_path, ["height", "born"], rows))
    (block,) = likeness.marginals(Contents(run, 0))
    for name, start in (("height", lambda label: float(label.split(" to ")[0])), ("born", str)):
        labels = [bar.label for bar in dict(block.body)[name]][:-1]
        assert len(labels) == 12
        assert all(" to " in label and "…" not in label for label in labels)
        assert labels == sorted(labels, key=start)


def test_padding_is_no_state_of_records(tmp_path):
    (tmp_path / "p.fasta").write_text("".join(f">{i}\n{'ACDEFGHIKL'[: 2 + i % 8]}\n" for i in range(200)))
    run = untrained(tmp_path / "run", recipe(mask=True, floor=0.0), dmb.data.load(tmp_path / "p.fasta"))
    bars, lengths = likeness.marginals(Contents(run, 0))
    assert {bar.label for bar in bars.body[0][1]} == set("ACDEFGHIK")
    assert [bar.label for bar in lengths.body[0][1]] == [str(length) for length in range(1, 10)]


def test_pairs_are_compared_in_data_and_samples(survey):
    contents = Contents(survey, 0)
    (block,) = likeness.associations(contents)
    (strongest, (_, apart)), data = block.body, contents.examples.numpy()
    assert strongest[1][0].label == "month × season"
    assert strongest[1][0].data == pytest.approx(bergsma(data[:, 0], data[:, 1]))
    differences = [abs(bar.data - bar.samples) for bar in apart]
    assert differences == sorted(differences, reverse=True)
    assert f"of {len(data)} validation rows and {len(contents.samples)} samples" in block.note
    assert f"{np.mean(differences):.3f}" in block.note

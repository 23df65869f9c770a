"""What clocks on a line have gained, and climbing it, against loops: for clocks that are steady or vary, shared or not."""

import math

import pytest
import torch

import dmb
from dmb.processes.span import Span

B, D, N = 3, 4, 5


@pytest.fixture(params=[1, D], ids=["one order", "an order per position"])
def line(request):
    generator = torch.Generator().manual_seed(3)
    return dmb.Line(torch.stack([torch.randperm(N, generator=generator) for _ in range(request.param)]))


@pytest.fixture(
    params=[(1, 1), (1, D), (B, 1), (B, D)], ids=["shared", "per position", "per row", "per row and position"]
)
def span(request, line):
    generator = torch.Generator().manual_seed(0)
    rates = torch.rand(*request.param, N - 1, generator=generator, dtype=torch.float64)
    rates[..., 1] = 0  # one clock is off, and the lowest rank has none
    return Span(line, torch.rand(B, 1, generator=generator, dtype=torch.float64) + 0.5, rates)


def clocks_at(span, row, position):
    """How far the clock of every rank has run."""
    rates = span.rates[row % len(span.rates), position % span.rates.shape[1]]
    return [0.0] + [span.scale[row, position % span.scale.shape[1]].item() * rate for rate in rates.tolist()]


def ranks_at(span, position):
    return span.hierarchy.rank[position % len(span.hierarchy.rank)].tolist()


def some_tokens():
    return torch.randint(N, (B, D), generator=torch.Generator().manual_seed(1))


def lowest_tokens(line):
    return line.token[:, 0].expand(B, D)


def every_token():
    return [(row, position) for row in range(B) for position in range(D)]


def test_what_is_looked_up_at_a_token_equals_a_loop(span):
    x = some_tokens()
    (own, total), (log_c, log_d) = span.at(x), span.log_tables_at(x)
    for row, position in every_token():
        clocks, k = clocks_at(span, row, position), ranks_at(span, position)[x[row, position]]
        above = sum(clocks[k + 1 :])
        assert own[row, position].item() == pytest.approx(clocks[k], rel=1e-14)
        assert total[row, position].item() == pytest.approx(above, rel=1e-14)
        assert log_c[row, position].item() == pytest.approx(-above, rel=1e-14)
        ringing = math.exp(-above) * (1 - math.exp(-clocks[k]))
        assert log_d[row, position].exp().item() == pytest.approx(ringing, rel=1e-13)


def test_tables_hold_what_is_looked_up(span):
    log_c, log_d = (table.expand(B, D, N) for table in span.log_tables())
    for token in range(N):
        one_c, one_d = span.log_tables_at(torch.full((B, D), token))
        torch.testing.assert_close(log_c[..., token], one_c, rtol=1e-14, atol=0)
        torch.testing.assert_close(log_d[..., token], one_d, rtol=1e-14, atol=0)


@pytest.mark.parametrize("start", ["the lowest rank", "any rank"])
def test_a_climb_ends_at_the_first_rank_above_which_no_more_than_the_level_runs(span, start):
    x = lowest_tokens(span.hierarchy) if start == "the lowest rank" else some_tokens()
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        level = 2 * torch.rand(B, D, generator=generator, dtype=torch.float64)
        found = span.climb(x, level)
        for row, position in every_token():
            clocks, rank = clocks_at(span, row, position), ranks_at(span, position)
            fits = [sum(clocks[k + 1 :]) <= level[row, position].item() for k in range(N)]
            assert rank[found[row, position]] == max(fits.index(True), rank[x[row, position]])


def test_at_a_level_of_zero_the_highest_clock_that_runs_is_found(span):
    line = span.hierarchy
    found = span.climb(lowest_tokens(line), torch.zeros(B, D, dtype=torch.float64))
    assert torch.equal(found, line.token[:, -1].expand(B, D))


def test_a_clock_time_per_token_scales_each_alone(line):
    """As first-hitting asks of steady clocks."""
    scale = torch.rand(B, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    span = Span(line, scale, torch.tensor([[[0.5, 1.0, 0.2, 0.1]]], dtype=torch.float64))
    found = span.climb(lowest_tokens(line), torch.full((B, D), 0.4, dtype=torch.float64))
    for row, position in every_token():
        clocks, rank = clocks_at(span, row, position), ranks_at(span, position)
        assert rank[found[row, position]] == [sum(clocks[k + 1 :]) <= 0.4 for k in range(N)].index(True)


def test_a_climb_below_a_token_ends_where_the_clocks_below_it_lead():
    """From rank 0, with rank 3 out of reach: rank 2 if its clock has rung, else 1 if its has, else 0."""
    line, count = dmb.Line(torch.tensor([[2, 0, 3, 1, 4]])), 40_000
    span = Span(line, torch.full((count, 1), 0.7).double(), torch.tensor([[[0.5, 1.0, 5.0, 9.0]]]).double())
    x_t, source = torch.full((count, 1), 2), torch.full((count, 1), 1)
    found = line.rank_of(span.climb_below(span.at(x_t), source, torch.Generator().manual_seed(0)))
    first, second = 1 - math.exp(-0.35), 1 - math.exp(-0.7)
    for rank, chance in enumerate([(1 - first) * (1 - second), first * (1 - second), second, 0, 0]):
        share = (found == rank).double().mean().item()
        assert share == pytest.approx(chance, abs=4 * (chance * (1 - chance) / count) ** 0.5)

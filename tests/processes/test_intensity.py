"""Intensities against loops, for clocks that are steady or vary, shared or not."""

import math

import pytest
import torch

from dmb.processes.intensity import Intensity

B, D, N = 3, 4, 5


@pytest.fixture(params=[(1, 1), (1, D), (B, 1), (B, D)], ids=["shared", "a position", "a row", "a row and position"])
def span(request):
    generator = torch.Generator().manual_seed(0)
    rates = torch.rand(*request.param, N, generator=generator, dtype=torch.float64)
    rates[..., 0] = 0  # the lowest rank has no clock
    rates[..., 2] = 0  # and this one's is off
    return Intensity(torch.rand(B, 1, generator=generator, dtype=torch.float64) + 0.5, rates)


def clocks_at(span, row, position):
    rates = span.rates[row % len(span.rates), position % span.rates.shape[1]]
    return [span.scale[row, position % span.scale.shape[1]].item() * rate for rate in rates.tolist()]


def ranks():
    return torch.randint(N, (B, D), generator=torch.Generator().manual_seed(1))


def every_token():
    return [(row, position) for row in range(B) for position in range(D)]


def test_what_is_looked_up_at_a_rank_equals_a_loop(span):
    rank = ranks()
    at, higher, (log_c, log_d) = span.at(rank), span.higher(rank), span.log_tables_at(rank)
    for row, position in every_token():
        clocks, k = clocks_at(span, row, position), int(rank[row, position])
        above = sum(clocks[k + 1 :])
        assert at[row, position].item() == pytest.approx(clocks[k], rel=1e-14)
        assert higher[row, position].item() == pytest.approx(above, rel=1e-14)
        assert log_c[row, position].item() == pytest.approx(-above, rel=1e-14)
        ringing = math.exp(-above) * (1 - math.exp(-clocks[k]))
        assert log_d[row, position].exp().item() == pytest.approx(ringing, rel=1e-13)


def test_tables_hold_what_is_looked_up(span):
    log_c, log_d = (table.expand(B, D, N) for table in span.log_tables())
    for k in range(N):
        one_c, one_d = span.log_tables_at(torch.full((B, D), k))
        torch.testing.assert_close(log_c[..., k], one_c, rtol=1e-14, atol=0)
        torch.testing.assert_close(log_d[..., k], one_d, rtol=1e-14, atol=0)


def test_lowest_is_the_first_rank_above_which_no_more_than_the_threshold_runs(span):
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        threshold = 2 * torch.rand(B, D, generator=generator, dtype=torch.float64)
        found = span.lowest(threshold)
        for row, position in every_token():
            clocks = clocks_at(span, row, position)
            fits = [sum(clocks[k + 1 :]) <= threshold[row, position].item() for k in range(N)]
            assert found[row, position] == fits.index(True)


def test_at_a_threshold_of_zero_the_highest_clock_that_runs_is_found(span):
    assert (span.lowest(torch.zeros(B, D, dtype=torch.float64)) == N - 1).all()


def test_a_clock_time_a_token_scales_each_alone():
    """As first-hitting asks of steady clocks."""
    scale = torch.rand(B, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    span = Intensity(scale, torch.tensor([[[0.0, 0.5, 1.0, 0.2, 0.1]]], dtype=torch.float64))
    threshold = torch.full((B, D), 0.4, dtype=torch.float64)
    found = span.lowest(threshold)
    for row, position in every_token():
        clocks = clocks_at(span, row, position)
        assert found[row, position] == [sum(clocks[k + 1 :]) <= 0.4 for k in range(N)].index(True)

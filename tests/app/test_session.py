import itertools

import pytest

from dmb.app.recipes import recipe
from dmb.app.session import expected_seconds


def test_one_slow_trial_does_not_double_the_predicted_time(monkeypatch):
    durations = [0.5, 0.01, 0.2, 0.01, 0.01, 0.01]
    moments = itertools.accumulate((part for each in durations for part in (each, 0.0)), initial=0.0)
    monkeypatch.setattr("dmb.app.session.time.perf_counter", lambda: next(moments))
    chosen = recipe("digits").changed(width=8, blocks=1, cycles=1, score_steps=100)
    data = chosen.data.load()
    assert expected_seconds(chosen.build(data), data, chosen.training) == pytest.approx(1.2 * 0.01 * 100)

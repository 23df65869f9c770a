import itertools
import re

import pytest

from commands import dmb_, flags
from dmb.app.recipes import recipe
from dmb.app.session import expected_seconds


def test_one_slow_trial_does_not_double_the_predicted_time(monkeypatch):
    durations = [0.5, 0.01, 0.2, 0.01, 0.01, 0.01]
    moments = itertools.accumulate((part for each in durations for part in (each, 0.0)), initial=0.0)
    monkeypatch.setattr("dmb.app.session.time.perf_counter", lambda: next(moments))
    chosen = recipe("digits").changed(width=8, blocks=1, cycles=1, score_steps=100)
    data = chosen.data.load()
    assert expected_seconds(chosen.build(data), data, chosen.training) == pytest.approx(1.2 * 0.01 * 100)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (12.34, "about 290 of 3,000 steps of Score-learning with fixed rates, about 1 s"),
        (0.6, " 3,000 steps of Score-learning with fixed rates, about 1 s"),
    ],
)
def test_what_is_announced_is_what_the_minutes_allow(tmp_path, monkeypatch, capsys, seconds, said):
    monkeypatch.setattr("dmb.app.session.expected_seconds", lambda *_: seconds)
    brief = flags(minutes=0.02, cycles=1, score_steps=3000, matrix_steps=0, width=8, blocks=1, evaluate_every=3000,
                  evaluate_sequences=8)  # fmt: skip
    assert dmb_("train", "digits", "--out", tmp_path / "run", "--accelerator", "cpu", *brief) == 0
    (line,) = re.findall("recipe digits: .*", capsys.readouterr().err)
    assert said in line
    assert dmb_("resume", tmp_path / "run", "--minutes", 0.02) == 0
    (line,) = re.findall("recipe digits: .*", capsys.readouterr().err)
    assert "up to 3,000 steps of Score-learning with fixed rates, at most 1 s" in line

"""Figures recorded before the core was rebuilt; no rebuilding may move them by more than rounding.

`python tests/golden/test_golden.py` records them anew, for a change that is meant to move them.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from golden import figures

RECORDED = Path(__file__).with_name("recorded.json")
TOLERANCE = {"rel": 1e-6, "abs": 1e-9}


@cache
def recorded():
    return json.loads(RECORDED.read_text())


def assert_equal_to_rounding(found, expected, where):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_equal_to_rounding(found[key], expected[key], f"{where}, {key}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], list):
        assert found == expected, where  # tokens
    else:
        assert found == (None if expected is None else pytest.approx(expected, **TOLERANCE)), where


@pytest.mark.long
@pytest.mark.parametrize("name", figures.PROCESSES)
def test_losses_gradients_bounds_and_samples_are_those_recorded(name):
    assert_equal_to_rounding(figures.of_a_model(name), recorded()["models"][name], name)


@pytest.mark.long
@pytest.mark.parametrize(("name", "data"), figures.TRAININGS)
def test_fifty_steps_of_training_end_in_the_weights_recorded(name, data):
    data_set = figures.data_sets()[data]
    if data_set.unigram_bits(data_set.train) != pytest.approx(recorded()["data"][data], rel=1e-12):
        pytest.skip(f"{data} here are not the data recorded: Python's documentation differs by version")
    found = figures.of_a_training(name, data_set)
    assert_equal_to_rounding(found, recorded()["trainings"][data][name], f"{name} on {data}")


def record():
    sets = figures.data_sets()
    everything = {
        "models": {name: figures.of_a_model(name) for name in figures.PROCESSES},
        "data": {name: data.unigram_bits(data.train) for name, data in sets.items()},
        "trainings": {
            name: {process: figures.of_a_training(process, data) for process, on in figures.TRAININGS if on == name}
            for name, data in sets.items()
        },
    }
    RECORDED.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    record()

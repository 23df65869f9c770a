"""Benchmarks of `make bench` whose models are recipes: they still build, train and answer, at the smallest size."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["bridge, gather", "masked diffusion", "masks written in any order"])
def test_every_model_of_variance_can_be_trained(name, capsys):
    bridge, text = benchmark("variance").trained(name, steps=1)
    assert bridge.bound(text.test[:4]).bits_per_token > 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize("name", ["array", "sequences", "table"])
def test_conditionals_are_counted_for_both_models(name, monkeypatch, capsys):
    module = benchmark("conditionals")
    monkeypatch.setattr(module, "ROWS", 400)
    monkeypatch.setattr(module, "DRAWS", 2)
    module.main((name,), steps=1)
    assert f"{name:10s} " in capsys.readouterr().out.splitlines()[-1]

"""The public names: one list, each of them there, and no other."""

import subprocess
import sys

import pytest

import dmb

NAMES = [
    "data",
    "networks",
    "orders",
    "processes",
    "sampling",
    "theory",
    "Bridge",
    "MarkovBridge",
    "OrderedBridge",
    "Bound",
    "BridgeProcess",
    "DenseProcess",
    "ForwardProcess",
    "TokenwiseMasking",
    "UniformProcess",
    "Line",
    "Tree",
    "Steady",
    "Varying",
    "Canonical",
    "Linear",
    "LogLinear",
    "Lengths",
    "States",
    "CausalTransformer",
    "MLP",
    "Network",
    "OrderedMLP",
    "OrderedNetwork",
    "OrderedTransformer",
    "Tabular",
    "Transformer",
    "TableModel",
    "TrainingSettings",
    "train",
]


def test_the_public_names_are_these():
    assert sorted(dmb.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_found_by_attribute_and_by_completion(name):
    assert getattr(dmb, name) is not None
    assert name in dir(dmb)


def test_importing_the_package_does_not_import_torch():
    source = "import sys, dmb; print('torch' in sys.modules, dmb.MLP.__name__)"
    assert subprocess.check_output([sys.executable, "-c", source], text=True).split() == ["False", "MLP"]

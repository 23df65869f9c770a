"""The public names: one list, each of them there, and no other; and what their signatures say."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dmb

ROOT = Path(__file__).parents[1]
NAME = r"(?<![\w/.-])dmb(?!\.app|\._core)(?:\.[A-Za-z_]\w*)+"  # the application is imported by its users
NAMES = [
    "bridges",
    "data",
    "networks",
    "objectives",
    "orders",
    "processes",
    "sampling",
    "tables",
    "theory",
    "training",
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


def public_functions():
    """Public functions, and constructors and public methods of public classes that are ours; `build` takes what a file describes."""
    for name in NAMES:
        found = getattr(dmb, name)
        if inspect.isclass(found):
            own = {part for kind in found.mro() if kind.__module__.startswith("dmb") for part in vars(kind)}
            wanted = {part for part in own if not part.startswith("_") and part != "build"} | (own & {"__init__"})
            methods = {part: getattr(found, part) for part in wanted}
            yield from ((f"{name}.{part}", method) for part, method in methods.items() if callable(method))
        elif callable(found):
            yield name, found


def test_no_public_signature_hides_its_options():
    hidden = [
        name
        for name, function in public_functions()
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.VAR_KEYWORD and each.annotation is Any
    ]
    assert hidden == []


def test_the_public_names_are_these():
    assert sorted(dmb.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_found_by_attribute_and_by_completion(name):
    assert getattr(dmb, name) is not None
    assert name in dir(dmb)


def test_importing_the_package_does_not_import_torch():
    source = "import sys, dmb; print('torch' in sys.modules, dmb.MLP.__name__)"
    assert subprocess.check_output([sys.executable, "-c", source], text=True).split() == ["False", "MLP"]


def test_what_the_documentation_names_is_there_after_import_dmb():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("api/*.rst"), *(ROOT / "docs").glob("gallery/*.py")]
    named = {name for page in [*pages, ROOT / "README.md"] for name in re.findall(NAME, page.read_text())}
    code = f"""
import dmb, dmb.tables.quality  # which loads scikit-learn's forests, so that nothing else imports it
for name in {sorted(named)}:
    found = dmb
    for part in name.split(".")[1:]:
        found = getattr(found, part)
"""
    assert len(named) > 100
    subprocess.run([sys.executable, "-c", code], check=True)

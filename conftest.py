"""Settings that all tests share."""

import importlib
import sys
from collections import Counter

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)

collect_ignore_glob = ["docs/_build/*", "docs/conf.py", "docs/gallery/*", "docs/_ext/mathml.py"]
"""The site, and what only Sphinx can import or runs when it is imported."""


class FirstCalls(type(jaxtyping.config)):
    """Shapes and types are checked in the first calls that a test makes of each function.

    Checks take longer than the calls that they check, and a training makes the same calls over and over.
    """

    at_most = 0

    def begin(self, at_most):
        self.at_most, self.made = at_most, Counter()

    @property
    def jaxtyping_disable(self):
        if not self.at_most:
            return True
        function = sys._getframe(1).f_locals["fn"].__code__  # of the caller, which asks whether to check it
        self.made[function] += 1
        return self.made[function] > self.at_most


def pytest_configure():
    """Limit the checks: `config` has no other place to ask whether they are on."""
    del jaxtyping.config.jaxtyping_disable
    jaxtyping.config.__class__ = FirstCalls
    for name in ("gradio", "huggingface_hub", "matplotlib.pyplot", "pandas", "rich.progress", "sklearn.ensemble", "tyro"):
        importlib.import_module(name)


def pytest_collection_modifyitems(items):
    """Long tests first, so that no worker ends with one while the others are idle."""
    items.sort(key=_is_long, reverse=True)


@pytest.fixture(autouse=True)
def _type_checks(request):
    """In the test itself, not in what tests share; and not in long tests, because short ones check the same calls."""
    jaxtyping.config.begin(0 if _is_long(request.node) else 5)
    yield
    jaxtyping.config.begin(0)


@pytest.fixture
def no_type_checks(_type_checks):
    """For messages that the shape checks of the test suite, which a user does not have, would forestall."""
    jaxtyping.config.begin(0)


def _is_long(item):
    return item.get_closest_marker("long") is not None or item.path.suffix == ".md"

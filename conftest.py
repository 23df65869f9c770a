"""Settings that all tests share."""

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)

collect_ignore_glob = ["docs/_build/*", "docs/conf.py", "docs/gallery/*", "docs/_ext/mathml.py"]
"""The site, and what only Sphinx can import or runs when it is imported."""


def pytest_configure():
    """Fixtures that many tests share are made without type checks."""
    jaxtyping.config.update("jaxtyping_disable", True)


def pytest_collection_modifyitems(items):
    """Long tests first, so that no worker ends with one while the others are idle."""
    items.sort(key=_is_long, reverse=True)


@pytest.fixture(autouse=True)
def _type_checks(request, monkeypatch):
    """They take half the time of a training of small networks, and short tests check the same calls."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", _is_long(request.node))


@pytest.fixture
def no_type_checks(_type_checks, monkeypatch):
    """For messages that the shape checks of the test suite, which a user does not have, would forestall."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def _is_long(item):
    return item.get_closest_marker("long") is not None or item.path.suffix == ".md"

"""Settings that all tests share."""

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)


class FirstCalls(type(jaxtyping.config)):
    """Shapes and types are checked in the first calls of a test only.

    Checks take longer than the calls that they check, and a training makes the same calls over and over.
    """

    left = 0

    @property
    def jaxtyping_disable(self):
        if self.left == 0:
            return True
        self.left -= 1
        return False


def pytest_configure():
    """Limit the checks: `config` has no other place to ask whether they are on."""
    del jaxtyping.config.jaxtyping_disable
    jaxtyping.config.__class__ = FirstCalls


def pytest_collection_modifyitems(items):
    """Long tests first, so that no worker ends with one while the others are idle."""
    items.sort(key=_is_long, reverse=True)


@pytest.fixture(autouse=True)
def _type_checks(request, monkeypatch):
    """In the test itself, not in what tests share; and not in long tests, because short ones check the same calls."""
    monkeypatch.setattr(jaxtyping.config, "left", 0 if _is_long(request.node) else 500, raising=False)


@pytest.fixture
def no_type_checks(_type_checks, monkeypatch):
    """For messages that the shape checks of the test suite, which a user does not have, would forestall."""
    monkeypatch.setattr(jaxtyping.config, "left", 0)


def _is_long(item):
    return item.get_closest_marker("long") is not None or item.path.suffix == ".md"

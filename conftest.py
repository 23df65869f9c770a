"""Settings that all tests share."""

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def no_type_checks():
    """For messages that the shape checks of the test suite would forestall, and for long runs.

    A user does not have these checks. They take half the time of a training of small networks, and what the shapes are
    in the first of many steps they are in the last: shorter tests check the same calls.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
